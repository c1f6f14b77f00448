"""What a listener hears of an answer has its citations resolved, whatever pieces it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loopline import Harness
from loopline.events import Delta, Event
from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall
from loopline.react import CitationFilter
from loopline.timeline import Block, Completion, Source, SourceAdded, SourcePool, citations
from tests.support.playground import bundle


class InPieces:
    """A model that finds two pages, then answers in these pieces."""

    name = "in pieces"
    capabilities = Capabilities()

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Calls first, the answer once there are results."""
        if len(prompt.messages) == 1:
            urls = ("https://one.example", "https://two.example")
            yield Reply(calls=tuple(ToolCall(name="play.find", arguments={"url": u}) for u in urls))
            return
        for piece in self._pieces:
            yield TextDelta(text=piece)
        yield Reply(text="".join(self._pieces))


async def heard(pieces: Sequence[str]) -> list[Event]:
    """The events after the results of the turn that is answered so."""
    async with Harness.open(bundle, store="memory:", model=InPieces(pieces)) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
    begun = [n for n, event in enumerate(events) if isinstance(event, Block) and event.round == 2]
    return events[begun[0] :]


def said(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Delta) and event.type == "delta"]


PIECES = ["Two says so [", "[S", ":2]", "], and one: [[S:1,2", "]] [[S:1-9", "99]] [[S:7]]. [["]


async def test_a_token_that_is_cut_anywhere_is_heard_whole_and_resolved() -> None:
    events = await heard(PIECES)
    assert "".join(said(events)) == "Two says so [1], and one: [2] [1] [2] [1] [?]. [["
    assert all(piece.count("[") == piece.count("]") for piece in said(events)[:-1])


async def test_what_is_held_back_is_heard_before_the_answer_is() -> None:
    *_, last, answer = [
        event
        for event in await heard(["`open [[S:1]]"])
        if isinstance(event, Delta) or isinstance(event.body, Completion)
    ]
    assert isinstance(last, Delta)
    assert last.text.endswith("[1]")
    assert isinstance(answer, Block)


async def test_what_is_stored_keeps_its_tokens_and_the_marks_are_places_in_the_sources() -> None:
    async with Harness.open(bundle, store="memory:", model=InPieces(PIECES)) as harness:
        result = await harness.conversation("c").say("go")
    assert result.answer == "".join(PIECES)
    assert [source.url for source in result.sources] == [
        "https://two.example",
        "https://one.example",
    ]


def pool(newest: int) -> SourcePool:
    source_pool = SourcePool()
    for sid in range(1, newest + 1):
        source_pool.take(SourceAdded(sid=sid, source=Source(url=f"https://{sid}.example")))
    return source_pool


def listened(*events: Event) -> list[Event]:
    """What is heard of these events of a reply."""
    reported_events = list[Event]()
    listen = CitationFilter(reported_events.append, pool(3))
    for event in events:
        listen(event)
    listen.close()
    return reported_events


def answer(text: str, attempt: int = 1) -> Delta:
    return Delta(type="delta", channel="answer", text=text, attempt=attempt)


def test_only_the_answer_is_resolved() -> None:
    notes = Delta(type="delta", channel="notes", text="[[S:1]]")
    progress = Delta(type="progress", channel="tool", text="[[S:1]]")
    text = listened(answer("[[S"), notes, progress, answer(":3]]"))
    assert text == [notes, progress, answer("[1]")]


def test_a_reset_drops_what_was_held_back_and_the_numbers_begin_again() -> None:
    reset = Delta(type="reset", channel="answer")
    text = listened(answer("[[S:3]] [[S:"), reset, answer("[[S:2]]", attempt=2))
    assert text == [answer("[1] "), reset, answer("[1]", attempt=2)]


def test_nothing_is_told_of_a_piece_that_is_held_back_whole() -> None:
    assert listened(answer("[[S:"), answer("")) == [answer("[[S:")]


@given(
    st.lists(st.sampled_from(["[[S:1]]", "[[S:2-9]]", "[[S:", "]]", "`", "a ", "\n"]), max_size=20),
    st.lists(st.integers(0, 80), max_size=8),
)
def test_the_pieces_say_what_the_whole_does(atoms: list[str], cuts: list[int]) -> None:
    text = "".join(atoms)
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = citations.resolve(text, citations.Marks({1, 2, 3}), newest=3)
    reported_text = listened(*(answer(text[start:end]) for start, end in pairwise(ends)))
    assert "".join(said(reported_text)) == whole


class Unending(InPieces):
    """A model that writes these pieces and then never ends."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Calls first, then what has no end."""
        async for event in super().stream(prompt):
            if isinstance(event, Reply) and not event.calls:
                await asyncio.Event().wait()
            yield event


async def test_a_turn_that_is_stopped_stores_what_was_written_and_its_sources_are_known() -> None:
    pieces = ["Two says so [[S:2]], ", "and one: [[S:1]]", " and that is", " all [[S:2"]
    model, events = Unending(pieces), list[Event]()
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("go"):
            events.append(event)
            if isinstance(event, Delta) and event.text.endswith(" all "):
                await talk.stop()
    (answer,) = [e for e in events if isinstance(e, Block) and isinstance(e.body, Completion)]
    assert isinstance(answer.body, Completion)
    assert answer.body.text == "".join(pieces)
    assert answer.body.sources_used == (2, 1)
    assert "".join(said(events)).endswith("Two says so [1], and one: [2] and that is all [[S:2")
    assert not [event for event in events if isinstance(event, Delta) and event.type == "reset"]
