"""A server under load, in a process of its own: `load_server.py loopline STORE` or `load_server.py starlette`.

Both tell the time in the first piece of every answer; the clock is one for all processes of a machine. The second is what the
same listeners cost with nothing but Starlette and a queue for each.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from time import perf_counter

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from loopline import Bundle
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.server import ServerSettings, app, make_server
from tests.support.live_server import listening_socket


class ClockModel:
    """Answers at once with the time, and with as much text as it is asked for: `say 2000`."""

    name = "clock"
    capabilities = Capabilities(window=1_000_000, tool_call=True)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        words = f"{prompt.messages[-1]}".partition("say ")[2].split()
        size = int("".join(filter(str.isdecimal, words[0]))) if words else 0
        text = f"time={perf_counter():.7f} "
        yield TextDelta(text=text)
        await asyncio.sleep(0)  # as between two reads of a socket
        if size:
            yield TextDelta(text="x" * size)
        yield Reply(text=text + "x" * size)


def bare() -> Starlette:
    """Return an app that passes a line on to all who listen to a channel."""
    listeners = defaultdict[str, set[asyncio.Queue[bytes]]](set)

    async def events(request: Request) -> StreamingResponse:
        queue = asyncio.Queue[bytes]()
        channel = listeners[request.path_params["channel"]]

        async def frames() -> AsyncIterator[bytes]:
            channel.add(queue)
            yield b"retry: 2000\n\n"
            while True:
                yield await queue.get()

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def send(request: Request) -> PlainTextResponse:
        text = f'event: delta\ndata: {{"text":"time={perf_counter():.7f} "}}\n\n'
        for queue in listeners[request.path_params["channel"]]:
            queue.put_nowait(text.encode())
        return PlainTextResponse("ok")

    return Starlette(
        routes=[
            Route("/{channel}/events", events),
            Route("/{channel}/messages", send, methods=["POST"]),
        ]
    )


def main() -> None:
    listener = listening_socket(backlog=2_048)
    if sys.argv[1] == "starlette":
        server = uvicorn.Server(uvicorn.Config(bare(), log_level="warning", access_log=False))
    else:
        settings = ServerSettings(requests_per_minute=10_000_000, turns=1_000)
        clock = Bundle(id="clock", instructions="You tell the time.")
        served = app(clock, store=sys.argv[2], model=ClockModel(), settings=settings)
        server = make_server(served, host="127.0.0.1", port=0)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    asyncio.run(server.serve([listener]))


if __name__ == "__main__":
    main()
