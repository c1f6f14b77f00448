"""A mailbox holds so much and no more, and whatever it drops is named, or stood for by what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loopline import LooplineError
from loopline.events import Delta, Event, Mailbox, event_size
from loopline.events.mailbox import HELD_EVENTS
from loopline.timeline import Block, Exit, Notes

CHANNELS: tuple[str, ...] = ("answer", "notes")
ENOUGH = 7
"""Room for a text and a reset of each channel, one progress, what was missed, and a block."""


def block(seq: int, body: Notes | Exit | None = None) -> Block:
    return Block(
        seq=seq,
        turn=1,
        round=1,
        n=seq,
        ts=datetime(2026, 1, 1, tzinfo=UTC),
        term=1,
        body=body or Notes(text=f"note {seq}"),
    )


def text(text: str, channel: str = "answer", attempt: int = 1) -> Delta:
    return Delta(type="delta", channel=channel, text=text, attempt=attempt)


def reset(channel: str = "answer") -> Delta:
    return Delta(type="reset", channel=channel)


def filled(events: Sequence[Event], room: int = HELD_EVENTS) -> Mailbox:
    """A mailbox into which all of these were put while nobody took any."""
    mailbox = Mailbox(room)
    for event in events:
        mailbox.put(event)
    return mailbox


async def rest(mailbox: Mailbox) -> list[Event]:
    mailbox.close()
    return [event async for event in mailbox]


def taken(mailbox: Mailbox) -> Event:
    """What waits is given without waiting."""
    step = mailbox.__anext__()
    try:
        step.send(None)
    except StopIteration as stop:
        event: Event = stop.value
        return event
    raise AssertionError("it waited although something was there")


class Listening(RuleBasedStateMachine):
    """Events are put and taken in any order, by a listener who keeps account of them."""

    def __init__(self) -> None:
        super().__init__()
        self.room = ENOUGH
        self.mailbox = Mailbox(self.room)
        self.put = 0
        self.known = 0
        self.written = dict.fromkeys(CHANNELS, "")
        self.heard = dict.fromkeys(CHANNELS, "")

    @rule(channel=st.sampled_from(CHANNELS), piece=st.sampled_from("abc"))
    def write(self, channel: str, piece: str) -> None:
        self.mailbox.put(text(piece, channel))
        self.written[channel] += piece

    @rule(channel=st.sampled_from(CHANNELS))
    def void(self, channel: str) -> None:
        self.mailbox.put(reset(channel))
        self.written[channel] = ""

    @rule()
    def progress(self) -> None:
        self.mailbox.put(Delta(type="progress", channel="tool", text="on it"))

    @rule(times=st.integers(1, 9))
    def record(self, times: int) -> None:
        for _ in range(times):
            self.put += 1
            self.mailbox.put(block(self.put))
        self.written = dict.fromkeys(CHANNELS, "")

    @precondition(lambda self: len(self.mailbox) > 0)
    @rule(times=st.integers(1, 9))
    def listen(self, times: int) -> None:
        for _ in range(min(times, len(self.mailbox))):
            self.take(taken(self.mailbox))

    def take(self, event: Event) -> None:
        match event:
            case Block(seq=seq):
                assert seq == self.known + 1
                self.known = seq
                self.heard = dict.fromkeys(CHANNELS, "")
            case Delta(type="missed", after=after, through=through):
                assert after == self.known
                assert through > after
                self.known = through
                self.heard = dict.fromkeys(CHANNELS, "")
            case Delta(type="delta", channel=channel, text=piece):
                self.heard[channel] += piece
            case Delta(type="reset", channel=channel):
                self.heard[channel] = ""
            case Delta():
                pass

    @invariant()
    def no_more_is_held_than_there_is_room_for(self) -> None:
        assert len(self.mailbox) <= self.room

    def teardown(self) -> None:
        while len(self.mailbox):
            self.take(taken(self.mailbox))
        assert self.known == self.put
        assert self.heard == self.written


TestEveryBlockIsHeardOrNamedAndNoTextIsLostWithoutItsBlock = Listening.TestCase


class ListeningWithinASize(Listening):
    """The same where the size has a limit, which a few blocks reach."""

    def __init__(self) -> None:
        super().__init__()
        self.room = HELD_EVENTS
        self.mailbox = Mailbox(self.room, limit=400)


TestTheSameHoldsWhereTheSizeHasALimit = ListeningWithinASize.TestCase


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60), st.integers(1, 9_000))
def test_no_more_is_held_than_the_limit_but_for_the_newest_block(
    sizes: list[int], limit: int
) -> None:
    blocks = [block(seq, Notes(text="x" * size)) for seq, size in enumerate(sizes, 1)]
    mailbox = Mailbox(limit=limit)
    for each in blocks:
        mailbox.put(each)
        mailbox.put(Delta(type="custom", channel="tool", name=f"n{each.seq}", data="y" * 99))
    heard = asyncio.run(rest(mailbox))
    held = [event for event in heard if isinstance(event, Block)]
    assert held == blocks[len(blocks) - len(held) :]
    assert held
    assert sum(map(event_size, held[:-1])) <= limit
    missed = [event.through for event in heard if isinstance(event, Delta) and event.through]
    assert missed == ([] if len(held) == len(blocks) else [len(blocks) - len(held)])


@given(st.integers(2, 40), st.integers(1, 99))
def test_of_blocks_alone_the_newest_are_heard_and_the_others_named_once(
    room: int, count: int
) -> None:
    heard = asyncio.run(rest(filled([block(seq) for seq in range(1, count + 1)], room)))
    missed = [event for event in heard if isinstance(event, Delta)]
    seqs = [event.seq for event in heard if isinstance(event, Block)]
    if count <= room:
        assert (missed, seqs) == ([], list(range(1, count + 1)))
    else:
        [gap] = missed
        assert (gap.after, [*range(1, gap.through + 1), *seqs]) == (0, list(range(1, count + 1)))
        assert room - room // 10 <= len(heard) <= room


@given(
    st.lists(
        st.builds(
            Delta,
            type=st.sampled_from(["delta", "reset", "progress", "pending", "compaction", "custom"]),
            channel=st.sampled_from("abcdefgh"),
            name=st.sampled_from(["", "chart"]),
            call_id=st.sampled_from(["", "c1", "c2"]),
            text=st.text(max_size=2),
            attempt=st.integers(1, 3),
        ),
        max_size=80,
    ),
    st.integers(2, 5),
)
def test_the_last_block_is_heard_last_whatever_came_before_it(
    deltas: list[Delta], room: int
) -> None:
    exit_block = block(1, Exit(reason="complete"))
    mailbox = filled([*deltas, exit_block], room)
    assert len(mailbox) <= room
    assert asyncio.run(rest(mailbox))[-1] == exit_block


async def test_a_full_mailbox_makes_room_for_a_tenth_at_once() -> None:
    mailbox = filled([block(seq) for seq in range(1, 101)], 100)
    mailbox.put(block(101))
    assert len(mailbox) == 90
    missed, oldest, *_ = await rest(mailbox)
    assert isinstance(missed, Delta)
    assert (missed.through, oldest) == (12, block(13))


async def test_neighbouring_texts_of_one_channel_and_attempt_are_joined() -> None:
    events: list[Event] = [
        text("a"),
        text("b"),
        text("c", "notes"),
        text("d"),
        text("e", attempt=2),
    ]
    assert await rest(filled(events)) == [text("ab"), *events[2:]]


async def test_texts_on_the_two_sides_of_a_reset_or_a_block_are_not_joined() -> None:
    events: list[Event] = [text("a"), reset(), text("b"), block(1), text("c")]
    assert await rest(filled(events)) == events


async def test_texts_go_before_blocks_where_there_is_no_room() -> None:
    events: list[Event] = [text("a"), block(1), text("b", "notes"), block(2), block(3)]
    assert await rest(filled(events, 3)) == [block(1), block(2), block(3)]


async def test_what_was_reset_goes_and_the_reset_stays() -> None:
    events: list[Event] = [text("a"), text("x", "notes"), reset(), text("b"), block(1)]
    assert await rest(filled(events[:4], 3)) == [text("x", "notes"), reset(), text("b")]
    assert await rest(filled(events, 2)) == [reset(), block(1)]


async def test_a_sleeper_is_held_no_more_text_than_one_block_stands_for() -> None:
    pieces: list[Event] = [text("so"), text("much", "notes")] * 50
    mailbox = Mailbox(10)
    for seq in range(1, 300):
        for event in [*pieces, reset(), block(seq)]:
            mailbox.put(event)
    held = await rest(mailbox)
    texts = [event.text for event in held if isinstance(event, Delta) and event.type == "delta"]
    assert len("".join(texts)) <= len("somuch") * 50
    assert held[-2:] == [reset(), block(299)]


async def test_of_events_of_a_tool_the_newest_of_each_call_and_name_outlives_a_block() -> None:
    events: list[Event] = [
        Delta(type="custom", channel="tool", name=name, data=number, call_id=call_id)
        for number in range(20)
        for name, call_id in (("chart", "c1"), ("chart", "c2"), ("mood", "c1"))
    ]
    assert await rest(filled([*events, block(1)])) == [*events, block(1)]
    assert await rest(filled([*events, block(1)], 4)) == [*events[-3:], block(1)]


async def test_missed_says_where_to_read_what_was_missed() -> None:
    missed, *_ = await rest(filled([block(seq) for seq in range(4, 9)], 3))
    assert missed == Delta(
        type="missed",
        channel="",
        after=3,
        through=6,
        text="too slow for 3 blocks: talk.blocks(after=3, limit=3) has them",
    )


async def test_what_one_mailbox_missed_is_missed_by_the_next() -> None:
    first = await rest(filled([block(seq) for seq in range(1, 9)], 4))
    second = await rest(filled(first, 2))
    assert isinstance(second[0], Delta)
    assert (second[0].after, second[0].through, second[1:]) == (0, 7, [block(8)])


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    mailbox = Mailbox()
    waiting = asyncio.ensure_future(anext(mailbox, None))
    await asyncio.sleep(0)
    mailbox.put(block(1))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await rest(mailbox) == [block(1)]


def test_a_mailbox_has_room_for_two_events_at_least() -> None:
    with pytest.raises(LooplineError, match="room for 2 events or more, not 1"):
        Mailbox(1)
