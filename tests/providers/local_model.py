"""A model on a wire, asked at a server of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from loopline.models import (
    Capabilities,
    Model,
    Prompt,
    Reply,
    TextDelta,
    Timeouts,
    ToolSpec,
    UserMessage,
)
from loopline.providers.http import ClientFactory, HttpModel, HttpTransport
from tests.providers.flat_request import WIRES, account_of
from tests.support.peers.http_server import Peer, Step, serving

TOOL = ToolSpec(
    name="shop.find",
    description="Look something up.",
    parameters={"type": "object", "properties": {"name": {"type": "string"}}},
)
PROMPT = Prompt(system="You keep a shop.", tools=(TOOL,), messages=(UserMessage(text="Tea?"),))
PATIENT = Timeouts(connect=10.0, read=30.0, total=60.0)
"""A server may have to wait for the machine."""
QUICK = replace(PATIENT, read=0.2)
"""For a server that falls silent."""


@asynccontextmanager
async def saying(*steps: Step) -> AsyncGenerator[Peer, None]:
    """A server that answers every request with these bytes."""
    async with serving(Peer(), lambda _: steps) as peer:
        yield peer


@asynccontextmanager
async def model_at(
    peer: Peer, wire: str, timeouts: Timeouts = PATIENT, make: ClientFactory | None = None
) -> AsyncGenerator[HttpModel, None]:
    """The model that speaks this wire with the server, by the usual client or another."""
    http = HttpTransport(make)
    url = peer.url if wire == "messages" else f"{peer.url}/v1"
    made = WIRES[wire](
        f"{wire}:m",
        model="m",
        url=url,
        credentials=account_of(wire),
        capabilities=Capabilities(),
        http=http,
        timeouts=timeouts,
    )
    try:
        yield made
    finally:
        await http.close()


async def read_on(replies: AsyncIterator[object], seconds: float | None = None) -> None:
    """Listen to the end, or stop listening after that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for _ in replies:
                pass


async def asked(model: Model, prompt: Prompt = PROMPT) -> tuple[list[TextDelta], Reply]:
    """What comes of a request: the deltas, and the reply."""
    deltas, replies = list[TextDelta](), list[Reply]()
    async for piece in model.stream(prompt):
        match piece:
            case TextDelta():
                deltas.append(piece)
            case Reply():
                replies.append(piece)
    (reply,) = replies
    return deltas, reply
