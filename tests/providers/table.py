"""The table of faults, made of real turns on all three wires: `python -m tests.providers.table` writes its page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import Generic, TypeAlias, TypeVar

from loopline import Harness
from loopline.errors import ModelError
from loopline.events import Delta, Event
from loopline.models import Capabilities, JsonObject, Model, Prompt, Reply, TextDelta
from loopline.testing import FakeClock
from loopline.timeline import Block, Decision, Exit
from tests.docs.pages import ROOT
from tests.providers.flat_request import WIRES
from tests.providers.local_model import PATIENT, model_at
from tests.providers.recorded import FAILED, FILTERED
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import MESSAGES, Anthropic
from tests.support.peers.behaviors import (
    Behaviour,
    BrokenOff,
    Cut,
    HalfClosed,
    Malformed,
    Silence,
    Speech,
    Status,
    Vendor,
    steps,
)
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer, Request, Step, serving
from tests.support.peers.openai_like import CHAT, RESPONSES, OpenAI
from tests.support.peers.overflow_errors import OPENAI as OPENAI_OVERFLOW
from tests.support.peers.streams import Stream
from tests.support.workbench import workbench

PAGE = ROOT / "docs" / "internals" / "model-faults.md"

TEXT, ANSWER = "Half a thought.", "Four minutes."
LOOK = Call("w__count", '{"number": 1234567}', "call_1")
HALF_A_CALL = Call("w__count", '{"number": 12', "call_1")
MUCH = Call("w__big", '{"size": 9000}', "call_1")
PATIENCE = replace(PATIENT, read=1.0)

PHASES = {
    "before the first delta": "",
    "after text was shown": "thought",
    "after a call had begun": "1234",
    "at the very end": "",
}
"""Where a stream breaks, and what it has said last by then."""
DOCUMENTED_ERRORS = {
    "400": Status(400),
    "400 that names a window": OPENAI_OVERFLOW,
    "401": Status(401),
    "403": Status(403),
    "404": Status(404),
    "413": Status(413),
    "429": Status(429),
    "429 that asks for 7 s": Status(429, headers={"Retry-After": "7"}),
    "429 that asks for 2 min": Status(429, headers={"Retry-After": "120"}),
    "500": Status(500),
    "503": Status(503),
    "529": Status(529),
}
OF_OPENAI = {
    "400 with `tool_use_failed` (Groq)": Status(400, body={"error": FAILED}),
    "400 with `content_filter` (Azure)": Status(400, body={"error": FILTERED}),
}
"""What only who speaks as OpenAI does is seen to answer."""
TOO_LONG = ("400 that names a window", "413")
"""For these there is something that can be made smaller."""
NO_CONNECTION = "before there is a connection"
SayT = TypeVar("SayT", bound=Speech)


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a fault: the error, what was heard, kept and asked next, and what the next turn was shown."""

    error: str
    listener: str
    timeline: str
    again: str
    later: str


Rows: TypeAlias = dict[tuple[str, str], Row]
"""By phase and fault."""


class Witnessed:
    """A model whose errors are kept."""

    def __init__(self, model: Model) -> None:
        self.name: str = model.name
        self.capabilities: Capabilities = model.capabilities
        self.errors: list[str] = []
        self._model = model

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """What the model says."""
        try:
            async for piece in self._model.stream(prompt):
                yield piece
        except ModelError as error:
            self.errors.append(type(error).__name__)
            raise


class Server(Generic[SayT]):
    """A server that does one thing a request, and what it can do."""

    def __init__(
        self,
        *,
        vendor: Vendor[SayT],
        path: str,
        thought: SayT,
        half_a_call: SayT,
        much: SayT,
        answer: SayT,
    ) -> None:
        self.vendor = vendor
        self.path = path
        self.thought = thought
        self.half_a_call = half_a_call
        self.much = much
        self.answer = answer
        self._left: list[Behaviour[SayT]] = []

    def script(self, *behaviours: Behaviour[SayT]) -> None:
        """What it is to do from now on."""
        self._left = list(behaviours)

    def respond(self, asked: Request) -> Sequence[Step]:
        """Do the next of it."""
        return steps(self._left.pop(0), asked, self.vendor)

    def faults(self) -> Iterator[tuple[str, str, Behaviour[SayT]]]:
        """Each phase with each of its faults."""
        for fault, refusal in {
            **DOCUMENTED_ERRORS,
            **(OF_OPENAI if self.path != MESSAGES else {}),
        }.items():
            yield "at the status", fault, refusal
        yield "at the status", "a reset", Cut(self.thought, after_bytes=0)
        yield "at the status", "silence", Silence(self.thought)
        for phase in PHASES:
            at = self.behind(phase)
            yield phase, "a reset", Cut(self.thought, after_chunks=at)
            yield phase, "an end", HalfClosed(self.thought, after_chunks=at)
            yield phase, "silence", Silence(self.thought, after_chunks=at)
            yield phase, "JSON that is none", Malformed(self.thought, chunk=at)
            yield phase, "an error event", BrokenOff(self.thought, after_chunks=at)
        yield "at the very end", "half a call", self.half_a_call

    def behind(self, phase: str) -> int:
        """The number of events before the break."""
        body: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
        request = Request(method="POST", path=self.path, headers={}, raw=b"", body=body)
        reply = self.vendor.reply(self.thought, request)
        assert isinstance(reply, Stream)
        match phase:
            case "before the first delta":
                return 0
            case "at the very end":
                return len(reply.events) - 1
            case _:
                word = PHASES[phase]
                return next(at for at, item in enumerate(reply.events, 1) if word in item.data)


async def rows(wire: str) -> Rows:
    """What comes of each fault on that wire."""
    if wire == "messages":
        anthropic = Server(
            vendor=Anthropic(),
            path=MESSAGES,
            thought=ant.Says(TEXT, (LOOK,), pieces=2),
            half_a_call=ant.Says(TEXT, (HALF_A_CALL,)),
            much=ant.Says(calls=(MUCH,)),
            answer=ant.Says(ANSWER),
        )
        return await _rows(wire, anthropic)
    openai = Server(
        vendor=OpenAI(),
        path=CHAT if wire == "chat" else RESPONSES,
        thought=oai.Says(TEXT, (LOOK,), pieces=2),
        half_a_call=oai.Says(TEXT, (HALF_A_CALL,)),
        much=oai.Says(calls=(MUCH,)),
        answer=oai.Says(ANSWER),
    )
    return await _rows(wire, openai)


async def _rows(wire: str, server: Server[SayT]) -> Rows:
    found: Rows = {}
    async with serving(Peer(), server.respond) as peer, _at_work(peer, wire) as work:
        for phase, fault, behaviour in server.faults():
            found[phase, fault] = await work.row(server, peer, phase, fault, behaviour)
    async with _at_work(peer, wire) as work:
        gone = await work.row(server, peer, NO_CONNECTION, "nobody listens", server.answer)
    return {(NO_CONNECTION, "nobody listens"): gone, **found}


@dataclass(frozen=True, slots=True)
class Work:
    """A harness, and the model that it asks."""

    harness: Harness
    model: Witnessed

    async def row(
        self,
        server: Server[SayT],
        peer: Peer,
        phase: str,
        fault: str,
        behaviour: Behaviour[SayT],
    ) -> Row:
        """What comes of that fault, in a conversation of its own."""
        talk = self.harness.conversation(re.sub(r"\W+", "-", f"{phase}-{fault}"))
        if fault in TOO_LONG:
            server.script(server.much, server.answer)
            await talk.say("Look at all of it.")
        self.model.errors.clear()
        server.script(behaviour, server.answer, server.answer)
        before = len(peer.requests)
        events = [event async for event in talk.stream("How long?")]
        errors = list(dict.fromkeys(self.model.errors))
        raws = [request.raw for request in peer.requests[before:]]
        server.script(server.answer)
        before = len(peer.requests)
        await talk.say("And then?")
        later = [request.raw for request in peer.requests[before:]]
        return Row(
            error=" ".join(code(error) for error in errors) or "none",
            listener=listener(events),
            timeline=timeline(events),
            again=again(raws),
            later=shown(later),
        )


@asynccontextmanager
async def _at_work(peer: Peer, wire: str) -> AsyncGenerator[Work, None]:
    async with model_at(peer, wire, PATIENCE) as wired:
        model = Witnessed(wired)
        opened = Harness.open(workbench(), store="memory:", model=model, clock=FakeClock())
        async with opened as harness:
            yield Work(harness, model)


def listener(heard: Sequence[Event]) -> str:
    """What was heard on the way, in its order; a delta with its attempt."""
    deltas = [event for event in heard if isinstance(event, Delta)]
    texts = [f"delta {delta.attempt}" if delta.type == "delta" else delta.type for delta in deltas]
    return ", ".join(name for name, _ in groupby(texts))


def timeline(heard: Sequence[Event]) -> str:
    """The blocks behind the first round's begin, and how the turn ended."""
    blocks = [event for event in heard if isinstance(event, Block)]
    types = [block.type for block in blocks]
    kept_blocks = blocks[types.index("react.round.start") + 1 :]
    return ", ".join(_told(block) for block in kept_blocks)


def _told(block: Block) -> str:
    match block.body:
        case Decision(attempt=attempt) if attempt > 1:
            return f"{code(block.type)} of attempt {attempt}"
        case Exit(reason=reason):
            return f"{code(block.type)} {reason}"
        case _:
            return code(block.type)


_OUTPUT = re.compile(rb'"max_(?:completion_|output_)?tokens":\d+')


def again(asked: Sequence[bytes]) -> str:
    """What the model is asked behind the request that failed."""
    match asked:
        case [first, *_, last] if last == first:
            return "the same, to the byte"
        case [first, *_, last] if _OUTPUT.sub(b"", last) == _OUTPUT.sub(b"", first):
            return "the same, with a shorter reply"
        case [first, *_, last]:
            return "a smaller one" if len(last) < len(first) else "with what was wrong"
        case _:
            return "nothing"


def shown(later: Sequence[bytes]) -> str:
    """What of it all the next turn's request has in it."""
    words = {
        TEXT: "what was said",
        ANSWER: "the answer",
        "There is no answer": "that there was none",
    }
    text = later[0].decode() if later else ""
    return ", ".join(name for word, name in words.items() if word in text) or "nothing is asked"


def code(text: str) -> str:
    return f"`{text}`"


async def page() -> str:
    """The page with its tables made anew."""
    of_wires = dict(zip(WIRES, await asyncio.gather(*map(rows, WIRES)), strict=True))
    parts = [PAGE.read_text("utf-8").partition("\n## ")[0]]
    for phase, faults in groupby(of_wires["chat"], key=lambda one: one[0]):
        lines = [
            _cells(at[1], [of_wire[at] for of_wire in of_wires.values() if at in of_wire])
            for at in faults
        ]
        parts.append(f"## {phase[0].upper()}{phase[1:]}\n\n{_COLUMNS}{''.join(lines)}")
    return "\n".join(parts)


_COLUMNS = """| what happens | error | the subscriber receives | the timeline has | the model is asked | the next turn is shown |
|---|---|---|---|---|---|
"""


def _cells(fault: str, of_wires: Sequence[Row]) -> str:
    """A line of the table; where the wires differ a cell has what each of them does."""
    cells = [dict.fromkeys(column) for column in zip(*map(astuple, of_wires), strict=True)]
    return f"| {' | '.join([fault, *('; '.join(cell) for cell in cells)])} |\n"


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), "utf-8")
