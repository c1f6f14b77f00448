"""Frames of a stream: what the dialect says, and a comment when it says nothing for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import pytest

from loopline.events import Delta, Event, Mailbox, Record, sse
from loopline.testing import FakeClock


class Spoken:
    """One record of each text."""

    def take(self, event: Event) -> Sequence[Record]:
        match event:
            case Delta(type="delta", text=text):
                return [Record(event="said", data={"text": text})]
            case _:
                return []

    def close(self) -> Sequence[Record]:
        return [Record(event="over")]


def said(text: str, channel: str = "answer") -> Delta:
    return Delta(type="delta", channel=channel, text=text)


NOTHING = Delta(type="progress", channel="tool")
OVER = b"event: over\ndata: {}\n\n"
SAID_A = b'event: said\ndata: {"text":"a"}\n\n'


class Source:
    """Events that come when they are put, and what becomes of whoever iterates."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.mailbox = Mailbox()
        self.closed = False
        self._fault = fault

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.mailbox:
                yield event
            if self._fault is not None:
                raise self._fault
        finally:
            self.closed = True


def streamed(source: Source, clock: FakeClock) -> AsyncGenerator[bytes, None]:
    return sse.frames(source.events(), Spoken(), clock=clock, keep_alive_seconds=15, retry_ms=100)


async def others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def coming(frames: AsyncGenerator[bytes, None]) -> asyncio.Future[bytes]:
    """The next frame, which is waited for."""
    frame = asyncio.ensure_future(anext(frames))
    await others_run()
    return frame


async def test_the_first_frame_says_when_to_come_back_and_the_last_is_the_last_record() -> None:
    source = Source()
    source.mailbox.put(said("a"))
    source.mailbox.close()
    frames = [frame async for frame in streamed(source, FakeClock())]
    assert frames == [b"retry: 100\n\n", SAID_A, OVER]
    assert source.closed


async def test_a_comment_is_sent_whenever_nothing_was_for_so_long() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    for _ in range(3):
        frame = await coming(frames)
        clock.advance(14.9)
        await others_run()
        assert not frame.done()
        clock.advance(0.1)
        assert await frame == sse.KEEP_ALIVE
    await frames.aclose()


async def test_what_comes_while_a_comment_is_sent_is_sent_next() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    heard = [await anext(frames)]
    for _ in range(3):
        frame = await coming(frames)
        clock.advance(15)
        heard.append(await frame)
        source.mailbox.put(said("a"))
        await others_run()
        heard.append(await anext(frames))
    assert heard == [b"retry: 100\n\n", *[sse.KEEP_ALIVE, SAID_A] * 3]
    await frames.aclose()


async def test_what_comes_at_the_very_moment_of_a_comment_is_sent_instead() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    frame = await coming(frames)
    clock.advance(15)
    source.mailbox.put(said("a"))
    assert await frame == SAID_A
    await frames.aclose()


async def test_what_the_dialect_has_no_word_for_does_not_keep_a_connection_alive() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    frame = await coming(frames)
    for _ in range(3):
        clock.advance(5)
        source.mailbox.put(NOTHING)
        await others_run()
    assert await frame == sse.KEEP_ALIVE
    await frames.aclose()


async def test_whoever_closes_the_frames_closes_the_events() -> None:
    waiting, source = Source(), Source()
    frames = streamed(waiting, FakeClock())
    await anext(frames)
    frame = await coming(frames)
    frame.cancel()
    with suppress(asyncio.CancelledError):
        await frame
    assert waiting.closed

    source.mailbox.put(said("a"))
    events = source.events()
    await anext(events)
    frames = sse.frames(events, Spoken(), clock=FakeClock())
    await anext(frames)
    await frames.aclose()
    assert source.closed


async def test_what_fails_in_the_events_fails_in_the_frames() -> None:
    source = Source(ValueError("broken"))
    source.mailbox.put(said("a"))
    source.mailbox.close()
    frames = streamed(source, FakeClock())
    assert [await anext(frames), await anext(frames)] == [b"retry: 100\n\n", SAID_A]
    with pytest.raises(ValueError, match="broken"):
        await anext(frames)
    assert source.closed
