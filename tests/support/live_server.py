"""A server that listens on this machine, in a thread of its own, while a test asks it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from loopline import Bundle, Output, OutputFile, ToolContext, tool
from loopline.models import Json, JsonObject
from loopline.server import make_server


@tool(effect="write", key="booking")
async def book(name: str, context: ToolContext) -> str:
    """Book a table."""
    return context.ask_user(f"Book {name}?")


@tool(effect="write", key="drawing")
async def draw(name: str) -> Output:
    """Make a file."""
    page = b"<script>alert(1)</script>"
    return Output(
        f"drew {name}",
        files=[
            OutputFile(f"{name}.html", page),
            OutputFile("a/b.bin", b"\x00\x01" * 50),
            OutputFile("own.txt", "for the agent alone", "internal"),
        ],
    )


@tool(effect="read")
async def wait(name: str) -> str:
    """Wait for a while."""
    await asyncio.sleep(float(name))
    return "waited"


SHOP = Bundle(id="shop", instructions="You help.", tools=[book, draw, wait])


def listening_socket(port: int = 0, backlog: int = 128) -> socket.socket:
    """Listen on this machine, at a free port if none is named.

    Without the option each reply waits 40 ms for an acknowledgement: asyncio sets it only on sockets that it makes.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=backlog)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def serving(app: FastAPI) -> Generator[str]:
    """Serve an app at a free port of this machine, and yield its URL."""
    server = make_server(app, host="127.0.0.1", port=0)
    listening = listening_socket()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@asynccontextmanager
async def in_process(app: FastAPI) -> AsyncGenerator[httpx2.AsyncClient]:
    """Open an app in this process, and yield a client that asks it."""
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


def streamed_messages(
    text: str, here: str = "/conversations/default/default/c1"
) -> dict[str, JsonObject]:
    """The requests that send a text to the conversation at the path `here`, and whose answers are streams, by path."""
    name = here.rpartition("/")[2]
    message: JsonObject = {"id": "m", "role": "user"}
    run: JsonObject = {"threadId": name, "runId": "r", "state": {}, "tools": [], "context": []}
    named: JsonObject = {"conversation_id": name}
    part: JsonObject = {"type": "text", "text": text}
    said: JsonObject = {**message, "content": text}
    completion: JsonObject = {"messages": [said], "stream": True, "metadata": named}
    return {
        f"{here}/messages": {"text": text},
        "/ag-ui": {**run, "forwardedProps": {}, "messages": [said]},
        "/api/chat": {"id": name, "messages": [{**message, "parts": [part]}]},
        "/v1/chat/completions": completion,
        "/v1/responses": {"input": text, "conversation": name, "stream": True},
    }


Record = tuple[str, str, Json]
"""The id, the name and the data of an event."""


def sse_records(response: httpx2.Response) -> Iterator[Record]:
    """Yield the events of a stream."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields.get("id") or "", fields["event"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def until(records: Iterator[Record], name: str) -> list[Record]:
    """Return the events of a stream up to the next one of that name."""
    result = list[Record]()
    for record in records:
        result.append(record)
        if record[1] == name:
            break
    return result


@contextmanager
def refusing(app: FastAPI) -> Generator[tuple[str, set[str]]]:
    """Serve an app, and yield its URL and the last parts of the paths, none at first, that the server refuses."""
    refused = set[str]()

    async def refuse(
        request: Request, handle: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.url.path.rpartition("/")[2] in refused:
            return JSONResponse({"detail": "it is refused"}, status_code=403)
        return await handle(request)

    app.middleware("http")(refuse)
    with serving(app) as url:
        yield url, refused
