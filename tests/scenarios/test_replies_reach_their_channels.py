"""What a listener hears of a reply while it is written: the right text in the right channel, citations resolved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import Bundle, Harness
from loopline import timeline as tl
from loopline.events import Delta, Event, NotesMode
from loopline.events.events import NO_TOOLS, AnswerText
from loopline.models import Capabilities, Prompt, ProtocolName, Reply, TextDelta, ToolCall
from loopline.models.prompt import estimate
from loopline.prompt import protocol
from loopline.react import Limits
from loopline.react.replies import ChannelTexts, ReplyFormat, ReplyStream
from loopline.testing import Call, Fail, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.playground import bundle
from tests.support.scripted_conversation import talking
from tests.support.workbench import (
    at_work,
    bodies,
    bodies_of,
    heard,
    run_turn,
    said,
    shown,
    workbench,
)

PLAN = Call("react.plan", mode="new", steps=["look", "answer"])
FIND = Call("play.find", url="https://x.example")


async def deltas(
    script: Sequence[Entry], protocol: ProtocolName = "native"
) -> tuple[list[Delta], list[tl.Block]]:
    """The deltas of the last reply's channels, and all blocks of the turn."""
    async with talking(script) as talk:
        events = [event async for event in talk.stream("go", protocol=protocol)]
    blocks = [event for event in events if isinstance(event, tl.Block)]
    last = max(
        n for n, event in enumerate(events) if getattr(event, "type", "") == "react.round.start"
    )
    return [event for event in events[last:] if isinstance(event, Delta)], blocks


def told(deltas: Sequence[Delta]) -> list[tuple[str, str, str]]:
    return [(delta.type, delta.channel, delta.text) for delta in deltas]


def the(kind: type[tl.Completion | tl.Notes | tl.Thinking], blocks: Sequence[tl.Block]) -> str:
    return [block.body.text for block in blocks if isinstance(block.body, kind)][-1]


TALLIES = "✓ 12 tests pass\n✗ 3 tests fail\nSee the log."


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_lines_of_an_answer_that_acknowledge_no_step_stay_in_it(name: ProtocolName) -> None:
    heard, blocks = await deltas([PLAN, TALLIES], name)
    assert the(tl.Completion, blocks) == TALLIES
    assert "".join(delta.text for delta in heard if delta.channel == "answer") == TALLIES
    assert not [block for block in blocks if isinstance(block.body, tl.PlanAck | tl.Notes)]


async def test_an_answer_of_nothing_but_tallies_is_an_answer() -> None:
    _, blocks = await deltas([PLAN, "✓ 2 tests pass\n✗ [3] fails"])
    assert the(tl.Completion, blocks) == "✓ 2 tests pass\n✗ [3] fails"


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_marks_that_lead_an_answer_are_heard_as_notes_and_never_as_answer(
    name: ProtocolName,
) -> None:
    heard, blocks = await deltas([PLAN, "✓ [1] run\n✓ 2. told\n✗ [3] is none\nThe answer."], name)
    answer = "✗ [3] is none\nThe answer."
    assert told(heard) == [("delta", "notes", "✓ [1] run\n✓ 2. told"), ("delta", "answer", answer)]
    assert the(tl.Notes, blocks) == "✓ [1] run\n✓ 2. told"
    assert the(tl.Completion, blocks) == answer


async def test_the_text_beside_native_calls_is_heard_as_notes_once_the_calls_are_there() -> None:
    async with talking([Say("I look.", FIND), "So."]) as talk:
        events = [event async for event in talk.stream("go")]
    assert told([event for event in events if isinstance(event, Delta)]) == [
        ("delta", "answer", "I look."),
        ("reset", "answer", ""),
        ("delta", "notes", "I look."),
        ("delta", "answer", "So."),
    ]


async def test_an_untagged_answer_is_heard_as_the_answer() -> None:
    heard, _ = await deltas([Raw("It is so.")], "tagged")
    assert told(heard)[-1] == ("delta", "answer", "It is so.")


async def test_channels_of_a_tagged_text_become_blocks() -> None:
    text = (
        "I look.\n<channel:thinking>hm</channel:thinking>\n"
        "<channel:canvas># Tea\nGreen [[S:1]].</channel:canvas>"
        "<channel:answer>See above [[S:1]].</channel:answer>"
    )
    heard, blocks = await deltas([FIND, Raw(text)], "tagged")
    assert the(tl.Thinking, blocks) == "hm"
    assert the(tl.Completion, blocks) == "# Tea\nGreen [[S:1]].\n\nSee above [[S:1]]."
    assert told(heard) == [
        ("delta", "notes", "I look."),
        ("delta", "thinking", "hm"),
        ("delta", "answer", "# Tea\nGreen [1].\n\nSee above [1]."),
    ]


class Letters:
    """A model that writes one reply letter by letter."""

    name = "letters"
    capabilities = Capabilities()

    def __init__(self, text: str) -> None:
        self._text = text
        self.written = 0

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        text = protocol(prompt.options.protocol).render_answer(self._text).text
        for letter in text:
            self.written += 1
            yield TextDelta(text=letter)
            await asyncio.sleep(0)  # a listener takes it before the next one comes
        yield Reply(text=text)


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_an_answer_is_heard_while_it_is_written(name: ProtocolName) -> None:
    text = 'Tea "grün" 🍵\\n.\n\n<\\channel:x> C:\\temp\tso'
    model, deltas, written = Letters(text), list[Delta](), list[int]()
    async with talking(model, bundle=bundle) as talk:
        async for event in talk.stream("go", protocol=name):
            if isinstance(event, Delta):
                deltas.append(event)
                written.append(model.written)
    assert [delta.type for delta in deltas].count("reset") == 0
    assert "".join(delta.text for delta in deltas) == text
    assert len(set(written)) > 10


async def test_of_a_reply_that_breaks_off_nothing_stays_on_the_screen() -> None:
    async with at_work([Fail("down", after="Half an ans")]) as talk:
        events = await heard(talk, "go")
    assert said(events) == "There is no answer: the model gave no answer (down)."
    kinds = [event.type for event in events if isinstance(event, Delta)]
    assert kinds == ["delta", "reset", "delta"]


async def test_an_answer_of_thought_and_action_that_was_made_up_is_never_heard() -> None:
    invented = (
        "Thought: I look.\nAction: play.look\nInput: {}\nObservation: none\nFinal Answer: None."
    )
    async with talking([Raw(invented), "Tea."]) as talk:
        events = [event async for event in talk.stream("go", protocol="thought_action")]
    assert told([event for event in events if isinstance(event, Delta)]) == [
        ("delta", "notes", "I look."),
        ("delta", "answer", "Tea."),
    ]
    assert [
        e.body.text for e in events if isinstance(e, tl.Block) and isinstance(e.body, tl.ToolResult)
    ]


async def test_a_draft_is_heard_as_a_draft_and_the_answer_is_that_of_the_synthesis() -> None:
    async with talking(["In short.", "At length."]) as talk:
        events = [event async for event in talk.stream("go", answer_mode="synthesize")]
    assert told([event for event in events if isinstance(event, Delta)]) == [
        ("delta", "draft", "In short."),
        ("delta", "answer", "At length."),
    ]
    assert [e.body.text for e in events if isinstance(e, tl.Block) and isinstance(e.body, tl.Draft)]


async def test_an_answer_that_is_held_is_never_left_in_the_answer_channel() -> None:
    async with at_work(["One.", "Two."]) as talk:
        events = await heard(talk, "go", min_rounds=2)
    assert said(events) == "Two."


async def test_an_answer_that_stands_in_for_the_models_is_heard_too() -> None:
    async with talking([FIND], name="c") as talk:
        events = [e async for e in talk.stream("go", max_iterations=1, on_exhausted="summary")]
    answer = the(tl.Completion, [event for event in events if isinstance(event, tl.Block)])
    assert told([event for event in events if isinstance(event, Delta)]) == [
        ("delta", "answer", answer)
    ]


CHATCLI_CALLS = [
    '{"tool_call": "play.look", "args": {"text": "tea"}}',
    '```json\n{"name": "play.look", "arguments": {"text": "tea"}}\n```',
    '[tool_call: play.look {"text": "tea"}]',
    "<agent_call agent='coder' task='mend it'/>",
    "<tool>play.look</tool>",
]


@pytest.mark.parametrize("text", CHATCLI_CALLS)
async def test_what_looks_like_a_call_is_asked_for_again_in_its_form_and_never_shown_as_an_answer(
    text: str,
) -> None:
    async with talking([Raw(text), Call("play.look", text="tea"), "Tea."]) as talk:
        events = [event async for event in talk.stream("go", protocol="tagged")]
    deltas = [event for event in events if isinstance(event, Delta) and event.channel == "answer"]
    notices = [str(e.body) for e in events if isinstance(e, tl.Block) and e.type == "react.notice"]
    assert told(deltas) == [("delta", "answer", "Tea.")]
    assert len(notices) == 1
    assert '<tool_call name="…">{…}</tool_call>' in notices[0]


async def test_a_call_in_the_short_tag_is_made() -> None:
    text = 'I look.\n<tool name="@play.look" args="{&quot;text&quot;: &quot;tea&quot;}" />'
    async with talking([Raw(text), "Tea."]) as talk:
        events = [event async for event in talk.stream("go", protocol="tagged")]
    results = [
        e.body.text for e in events if isinstance(e, tl.Block) and isinstance(e.body, tl.ToolResult)
    ]
    assert results == ["seen tea"]


SCRIPT: list[Entry] = [
    Say("I look it up.", Call("react.read", refs=["so:sources_pool"])),
    Say("Three minutes."),
]


def piece(text: str) -> Delta:
    return Delta(type="delta", channel="answer", text=text)


@pytest.mark.parametrize(
    ("notes", "shown"),
    [("hold", "Three minutes."), ("show", "I look it up.\n\nThree minutes.")],
)
async def test_a_note_is_held_back_or_shown(notes: NotesMode, shown: str) -> None:
    async with talking(ScriptedModel(SCRIPT), bundle=Bundle(id="tea")) as conversation:
        pieces = [text async for text in conversation.stream_text("How long?", notes=notes)]
    assert "".join(pieces) == shown


async def test_an_answer_from_the_trace_is_yielded_as_it_is_written() -> None:
    model = ScriptedModel([Say("Draft."), Say("Three minutes.")])
    async with talking(model, bundle=Bundle(id="tea")) as conversation:
        pieces = [
            text async for text in conversation.stream_text("How long?", answer_mode="synthesize")
        ]
    assert "".join(pieces) == "Three minutes."


async def test_an_answer_of_a_type_is_its_json() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')])
    async with talking(model, bundle=Bundle(id="tea", output_type=dict[str, int])) as conversation:
        pieces = [text async for text in conversation.stream_text("How long?")]
    assert "".join(pieces) == '{"minutes":3}'


def test_a_text_that_is_written_again_after_a_lost_connection_is_not_yielded_twice() -> None:
    answer = AnswerText("show")
    assert [answer.feed(piece("Three ")), answer.feed(piece("minutes."))] == ["Three ", "minutes."]
    assert answer.feed(Delta(type="reset", channel="answer")) == "\n\n"
    held = AnswerText()
    assert held.feed(piece("Three ")) == ""
    assert held.feed(Delta(type="reset", channel="answer")) == ""


def test_the_digest_of_no_tools_is_that_of_an_empty_text() -> None:
    assert len(NO_TOOLS) == 64


PROTOCOLS: list[ProtocolName] = ["native", "json", "tagged", "thought_action"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_it_is_asked_for_and_heard_as_prose_in_every_protocol(
    protocol: ProtocolName,
) -> None:
    tea, milk, cake = (Call("play.look", text=text) for text in ("tea", "milk", "cake"))
    script: list[Entry] = [Say("I look.", tea, milk), cake, "A draft.", "The answer."]
    model = ScriptedModel(script, json_mode=True)
    texts = list[str]()
    async with talking(model) as talk:
        async for event in talk.stream("go", protocol=protocol, answer_mode="synthesize"):
            match event:
                case Delta(type="delta", channel="answer", text=text):
                    texts.append(text)
                case _:
                    pass
        (answer,) = await talk.read(["ar:turn_1.assistant.completion"])
    options = model.requests[-1].options
    assert [request.purpose for request in model.requests] == [*["decision"] * 3, "answer"]
    trace = shown(model.requests[-1])
    for number, text in enumerate(("tea", "milk", "cake"), 1):
        line = f"[RESULT tc:turn_1.c{number}.result] play.look(text={text}): ok\nseen {text}"
        assert line in trace
    assert (options.protocol, options.json_object) == ("native", False)
    assert model.requests[0].options.protocol == protocol
    assert ("".join(texts), answer.text) == ("The answer.", "The answer.")


@pytest.mark.parametrize(("size", "cut"), [(2_000, False), (2_001, True)])
async def test_of_each_result_2000_characters_are_in_the_trace(size: int, cut: bool) -> None:
    model = ScriptedModel([Call("w.big", size=size), "Brief.", "Long."])
    await run_turn(model, answer_mode="synthesize")
    trace = shown(model.requests[-1])
    assert ("x" * 2_000 in trace, "x" * 2_001 in trace) == (True, False)
    assert ("1 more characters" in trace) is cut
    assert f"w.big(size={size}): ok\n" in trace


@pytest.mark.parametrize("entry", [Refuse(), Fail("down", after="Lo")])
async def test_when_the_model_does_not_write_it_the_draft_is_the_answer(entry: Entry) -> None:
    model = ScriptedModel([Call("w.look"), "A draft.", entry], strict=False)
    async with at_work(model, workbench(answer_mode="synthesize")) as talk:
        events = await heard(talk, "go")
        (answer,) = await bodies(talk, tl.Completion)
        (end,) = await bodies(talk, tl.Exit)
        last = (await bodies(talk, tl.Decision))[-1]
    assert (answer.text, answer.flag, end.reason) == ("A draft.", "draft", "complete")
    assert "Lo" not in said(events)
    if isinstance(entry, Refuse):
        assert (last.stop_reason, last.purpose) == ("refusal", "answer")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_iterations=1, answer_mode="synthesize"),
        Limits(max_iterations=1, on_exhausted="force"),
    ],
)
async def test_without_a_draft_the_turn_is_refused_and_no_round_is_counted_for_it(
    limits: Limits,
) -> None:
    model = ScriptedModel([Call("w.look"), Refuse()])
    result, _ = await run_turn(model, workbench(**limits))
    assert (result.exit_reason, result.rounds) == ("refused", 1)


async def test_its_round_records_what_the_request_was_estimated_at() -> None:
    model = ScriptedModel([Call("w.look"), "A draft.", "The answer."])
    _, blocks = await run_turn(model, workbench(answer_mode="synthesize"))
    start = bodies_of(blocks, tl.RoundStart)[-1]
    request = model.requests[-1]
    texts = [request.system, request.tail, *(str(message) for message in request.messages)]
    assert start.shows == "trace"
    assert start.tokens == pytest.approx(sum(map(estimate, texts)), rel=0.2)


class InPieces:
    """A model that finds two pages, then answers in these pieces."""

    name = "in pieces"
    capabilities = Capabilities()

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if len(prompt.messages) == 1:
            urls = ("https://one.example", "https://two.example")
            yield Reply(calls=tuple(ToolCall(name="play.find", arguments={"url": u}) for u in urls))
            return
        for piece in self._pieces:
            yield TextDelta(text=piece)
        yield Reply(text="".join(self._pieces))


async def events_of_reply(pieces: Sequence[str]) -> list[Event]:
    """The events after the results of the turn that is answered so."""
    async with Harness.open(bundle, store="memory:", model=InPieces(pieces)) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
    begun = [
        n for n, event in enumerate(events) if isinstance(event, tl.Block) and event.round == 2
    ]
    return events[begun[0] :]


def pieces_of(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Delta) and event.type == "delta"]


PIECES = ["Two says so [", "[S", ":2]", "], and one: [[S:1,2", "]] [[S:1-9", "99]] [[S:7]]. [["]


async def test_a_token_that_is_cut_anywhere_is_heard_whole_and_resolved() -> None:
    events = await events_of_reply(PIECES)
    assert "".join(pieces_of(events)) == "Two says so [1], and one: [2] [1] [2] [1] [?]. [["
    assert all(piece.count("[") == piece.count("]") for piece in pieces_of(events)[:-1])


async def test_what_is_held_back_is_heard_before_the_answer_is() -> None:
    *_, last, answer = [
        event
        for event in await events_of_reply(["`open [[S:1]]"])
        if isinstance(event, Delta) or isinstance(event.body, tl.Completion)
    ]
    assert isinstance(last, Delta)
    assert last.text.endswith("[1]")
    assert isinstance(answer, tl.Block)


async def test_what_is_stored_keeps_its_tokens_and_the_marks_are_places_in_the_sources() -> None:
    async with Harness.open(bundle, store="memory:", model=InPieces(PIECES)) as harness:
        result = await harness.conversation("c").say("go")
    assert result.answer == "".join(PIECES)
    assert [source.url for source in result.sources] == [
        "https://two.example",
        "https://one.example",
    ]


def pool(newest: int) -> tl.SourcePool:
    source_pool = tl.SourcePool()
    for sid in range(1, newest + 1):
        source_pool.take(tl.SourceAdded(sid=sid, source=tl.Source(url=f"https://{sid}.example")))
    return source_pool


def stream_to(events: list[Event], steps: int = 0) -> ReplyStream:
    format_of_reply = ReplyFormat(protocol=protocol("native"), pool=pool(3), steps=steps)
    return ReplyStream(ChannelTexts(events.append), format_of_reply)


def listened(*pieces: str | TextDelta) -> list[Event]:
    """What is heard of these pieces of a reply; a text is one of the answer."""
    events = list[Event]()
    stream = stream_to(events)
    for piece in pieces:
        stream(TextDelta(text=piece) if isinstance(piece, str) else piece)
    stream.close()
    return events


def answer(text: str, attempt: int = 1) -> Delta:
    return Delta(type="delta", channel="answer", text=text, attempt=attempt)


def test_only_the_answer_is_resolved() -> None:
    thinking = TextDelta(channel="thinking", text="[[S:1]]")
    heard = Delta(type="delta", channel="thinking", text="[[S:1]]")
    assert listened("[[S", thinking, ":3]]") == [heard, answer("[1]")]


def test_notes_beside_an_answer_keep_their_citations_as_they_are() -> None:
    events = list[Event]()
    stream = stream_to(events, steps=1)
    stream(TextDelta(text="✓ [1] seen [[S:1]]\n[[S:3]]"))
    stream.close()
    notes = Delta(type="delta", channel="notes", text="✓ [1] seen [[S:1]]")
    assert events == [notes, answer("[1]")]


async def test_a_reset_drops_what_was_held_back_and_the_numbers_begin_again() -> None:
    events = list[Event]()
    stream = stream_to(events)
    stream(TextDelta(text="[[S:3]] [[S:"))
    await stream.open(2)
    stream(TextDelta(text="[[S:2]]"))
    stream.close()
    reset = Delta(type="reset", channel="answer", attempt=2)
    assert events == [answer("[1] "), reset, answer("[1]", attempt=2)]


def test_nothing_is_told_of_a_piece_that_is_held_back_whole() -> None:
    assert listened("[[S:", "") == [answer("[[S:")]


@given(
    st.lists(st.sampled_from(["[[S:1]]", "[[S:2-9]]", "[[S:", "]]", "`", "a ", "\n"]), max_size=20),
    st.lists(st.integers(0, 80), max_size=8),
)
def test_the_pieces_say_what_the_whole_does(atoms: list[str], cuts: list[int]) -> None:
    text = "".join(atoms)
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = tl.citations.resolve(text, tl.citations.Marks({1, 2, 3}), newest=3)
    reported_text = listened(*(text[start:end] for start, end in pairwise(ends)))
    assert "".join(pieces_of(reported_text)) == whole.strip()


class Unending(InPieces):
    """A model that writes these pieces and then never ends."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        async for event in super().stream(prompt):
            if isinstance(event, Reply) and not event.calls:
                await asyncio.Event().wait()
            yield event


async def test_a_turn_that_is_stopped_stores_what_was_written_and_its_sources_are_known() -> None:
    pieces = ["Two says so [[S:2]], ", "and one: [[S:1]]", " and that is", " all [[S:2"]
    model, events = Unending(pieces), list[Event]()
    async with talking(model, bundle=bundle) as talk:
        async for event in talk.stream("go"):
            events.append(event)
            if isinstance(event, Delta) and event.text.endswith(" all "):
                await talk.stop()
    (answer,) = [e for e in events if isinstance(e, tl.Block) and isinstance(e.body, tl.Completion)]
    assert isinstance(answer.body, tl.Completion)
    assert answer.body.text == "".join(pieces)
    assert answer.body.sources_used == (2, 1)
    assert "".join(pieces_of(events)).endswith(
        "Two says so [1], and one: [2] and that is all [[S:2"
    )
    assert not [event for event in events if isinstance(event, Delta) and event.type == "reset"]
