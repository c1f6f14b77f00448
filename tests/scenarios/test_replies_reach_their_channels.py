"""What a listener hears of a reply while it is written: the right text in the right channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from loopline import Harness
from loopline.events import Delta
from loopline.models import Capabilities, Prompt, ProtocolName, Reply, TextDelta
from loopline.prompt import protocol
from loopline.testing import Call, Raw, Say
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Completion, Draft, Notes, PlanAck, Thinking, ToolResult
from tests.support.playground import bundle
from tests.support.scripted_conversation import talking

PLAN = Call("react.plan", mode="new", steps=["look", "answer"])
FIND = Call("play.find", url="https://x.example")


async def deltas(
    script: Sequence[Entry], protocol: ProtocolName = "native"
) -> tuple[list[Delta], list[Block]]:
    """The deltas of the last reply's channels, and all blocks of the turn."""
    async with talking(script) as talk:
        events = [event async for event in talk.stream("go", protocol=protocol)]
    blocks = [event for event in events if isinstance(event, Block)]
    last = max(
        n for n, event in enumerate(events) if getattr(event, "type", "") == "react.round.start"
    )
    return [event for event in events[last:] if isinstance(event, Delta)], blocks


def told(deltas: Sequence[Delta]) -> list[tuple[str, str, str]]:
    return [(delta.type, delta.channel, delta.text) for delta in deltas]


def the(kind: type[Completion | Notes | Thinking], blocks: Sequence[Block]) -> str:
    return [block.body.text for block in blocks if isinstance(block.body, kind)][-1]


TALLIES = "✓ 12 tests pass\n✗ 3 tests fail\nSee the log."


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_lines_of_an_answer_that_acknowledge_no_step_stay_in_it(name: ProtocolName) -> None:
    heard, blocks = await deltas([PLAN, TALLIES], name)
    assert the(Completion, blocks) == TALLIES
    assert "".join(delta.text for delta in heard if delta.channel == "answer") == TALLIES
    assert not [block for block in blocks if isinstance(block.body, PlanAck | Notes)]


async def test_an_answer_of_nothing_but_tallies_is_an_answer() -> None:
    _, blocks = await deltas([PLAN, "✓ 2 tests pass\n✗ [3] fails"])
    assert the(Completion, blocks) == "✓ 2 tests pass\n✗ [3] fails"


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_marks_that_lead_an_answer_are_heard_as_notes_and_never_as_answer(
    name: ProtocolName,
) -> None:
    heard, blocks = await deltas([PLAN, "✓ [1] run\n✓ 2. told\n✗ [3] is none\nThe answer."], name)
    answer = "✗ [3] is none\nThe answer."
    assert told(heard) == [("delta", "notes", "✓ [1] run\n✓ 2. told"), ("delta", "answer", answer)]
    assert the(Notes, blocks) == "✓ [1] run\n✓ 2. told"
    assert the(Completion, blocks) == answer


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
        "<channel:thinking>hm</channel:thinking>\n<channel:canvas># Tea\nGreen [[S:1]].</channel:canvas>"
        "<channel:answer>See above [[S:1]].</channel:answer>"
    )
    heard, blocks = await deltas([FIND, Raw(text)], "tagged")
    assert the(Thinking, blocks) == "hm"
    assert the(Completion, blocks) == "# Tea\nGreen [[S:1]].\n\nSee above [[S:1]]."
    assert told(heard) == [
        ("delta", "thinking", "hm"),
        ("delta", "answer", "# Tea\nGreen [1].\n\nSee above [1]."),
    ]


class Letters:
    """A model that writes one reply letter by letter."""

    name = "letters"
    capabilities = Capabilities()

    def __init__(self, text: str) -> None:
        self._text = text

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        text = protocol(prompt.options.protocol).render_answer(self._text).text
        for letter in text:
            yield TextDelta(text=letter)
            await asyncio.sleep(0)  # a listener takes it before the next one comes
        yield Reply(text=text)


@pytest.mark.parametrize("name", ["native", "json", "tagged", "thought_action"])
async def test_an_answer_is_heard_while_it_is_written(name: ProtocolName) -> None:
    text = 'Tea "grün" 🍵\\n.\n\n<\\channel:x> C:\\temp\tso'
    async with Harness.open(bundle, store="memory:", model=Letters(text)) as harness:
        talk = harness.conversation("c")
        events = [event async for event in talk.stream("go", protocol=name)]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [delta.type for delta in deltas].count("reset") == 0
    assert "".join(delta.text for delta in deltas) == text
    assert len(deltas) > 10


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
    assert [e.body.text for e in events if isinstance(e, Block) and isinstance(e.body, ToolResult)]


async def test_a_draft_is_heard_as_a_draft_and_the_answer_is_that_of_the_synthesis() -> None:
    async with talking(["In short.", "At length."]) as talk:
        events = [event async for event in talk.stream("go", answer_mode="synthesize")]
    assert told([event for event in events if isinstance(event, Delta)]) == [
        ("delta", "draft", "In short."),
        ("delta", "answer", "At length."),
    ]
    assert [e.body.text for e in events if isinstance(e, Block) and isinstance(e.body, Draft)]


async def test_an_answer_that_stands_in_for_the_models_is_heard_too() -> None:
    async with talking([FIND], name="c") as talk:
        events = [e async for e in talk.stream("go", max_iterations=1, on_exhausted="summary")]
    answer = the(Completion, [event for event in events if isinstance(event, Block)])
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
    notices = [str(e.body) for e in events if isinstance(e, Block) and e.type == "react.notice"]
    assert told(deltas) == [("delta", "answer", "Tea.")]
    assert len(notices) == 1
    assert '<tool_call name="…">{…}</tool_call>' in notices[0]


async def test_a_call_in_the_short_tag_is_made() -> None:
    text = 'I look.\n<tool name="@play.look" args="{&quot;text&quot;: &quot;tea&quot;}" />'
    async with talking([Raw(text), "Tea."]) as talk:
        events = [event async for event in talk.stream("go", protocol="tagged")]
    results = [
        e.body.text for e in events if isinstance(e, Block) and isinstance(e.body, ToolResult)
    ]
    assert results == ["seen tea"]
