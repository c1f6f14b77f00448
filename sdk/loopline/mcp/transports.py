"""Transports to a server: a child process with one JSON message in each line, or HTTP.

The transports of the SDK have no limits. These end the connection if a message is too large, or if a process sends too
many bytes between two answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from shutil import which

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from mcp_types.jsonrpc import jsonrpc_message_adapter

from loopline.bundle import McpConnectionSettings
from loopline.errors import ToolError
from loopline.models import Json, dumps, well_formed_json
from loopline.tasks import wait_until_done

MESSAGE_BYTES = 8 * 2**20
"""The maximum size of a message."""
UNANSWERED_BYTES = 32 * 2**20
"""The maximum number of bytes between two answers."""
STDERR_LINES = 5
STDERR_LINE_CHARACTERS = 200
GRACE_SECONDS = 1.0
"""How long a server may run after its input is closed, and again after SIGTERM."""
POLLS = 200


class ServerProcess:
    """The process of a server. `ending` is the reason for the end of the connection, and empty before it ends."""

    def __init__(self, settings: McpConnectionSettings) -> None:
        self._settings = settings
        self._stderr = deque[str](maxlen=STDERR_LINES)
        self.ending: str = ""
        self.ended: asyncio.Event = asyncio.Event()

    @property
    def last_words(self) -> str:
        """The last lines that the server wrote to its error output."""
        return " | ".join(self._stderr)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[TransportStreams]:
        """Start the process, and stop it and its children at the end of the context.

        Raises:
            ToolError: the command or the folder does not exist.
            OSError: the process cannot be started.
        """
        loop = asyncio.get_running_loop()
        self._check_command()
        transport, process = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(MESSAGE_BYTES, loop),
            *self._settings.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(self._settings.env),
            cwd=self._settings.cwd,
            start_new_session=True,
        )
        inward, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_send, outward = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, inward)),
            asyncio.create_task(self._write(process, outward, inward)),
            asyncio.create_task(self._read_stderr(process)),
        ]
        try:
            yield received, to_send
        finally:
            stopping = asyncio.ensure_future(_stop(transport, process))
            await wait_until_done(stopping)
            for task in tasks:
                task.cancel()
            await wait_until_done(asyncio.gather(*tasks, return_exceptions=True))
            for stream in (inward, received, to_send, outward):
                stream.close()

    def _check_command(self) -> None:
        """Raise a ToolError if the command or the working directory does not exist."""
        command = self._settings.command[0]
        cwd = self._settings.cwd
        if cwd is not None and not cwd.is_dir():
            raise ToolError(f"there is no folder {str(cwd)!r} to start it in")
        if which(command, path=self._settings.env.get("PATH")) is None and not (
            cwd is not None and (cwd / command).is_file()
        ):
            raise ToolError(f"there is no command {command!r}: install it, or correct its path")

    async def _read(
        self,
        process: SubprocessStreamProtocol,
        inward: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Pass messages from the output of the process to `inward`; ignore lines that are not messages.

        When the output ends or exceeds a limit, set `ending` to the reason and set `ended`.
        """
        assert process.stdout is not None
        unanswered = 0
        ending = "it ended"
        message: JSONRPCMessage | None
        try:
            async with inward:
                while line := await process.stdout.readuntil(b"\n"):
                    unanswered += len(line)
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        message = await asyncio.to_thread(_repair_message, line)
                    if isinstance(message, JSONRPCResponse | JSONRPCError):
                        unanswered = 0
                    if unanswered > UNANSWERED_BYTES:
                        ending = f"it sent {unanswered:,} bytes without an answer"
                        return
                    if message is not None:
                        await inward.send(SessionMessage(message))
        except asyncio.LimitOverrunError:
            ending = f"it sent a message of more than {MESSAGE_BYTES:,} bytes"
        except (asyncio.IncompleteReadError, ConnectionError, anyio.BrokenResourceError):
            pass
        finally:
            self.ending = self.ending or ending
            self.ended.set()

    async def _write(
        self,
        process: SubprocessStreamProtocol,
        outward: MemoryObjectReceiveStream[SessionMessage],
        inward: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Write each message of `outward` to the process as a line of JSON; close `inward` if the process has ended."""
        assert process.stdin is not None
        try:
            async with outward:
                async for sent in outward:
                    text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()
        except (ConnectionError, anyio.BrokenResourceError):
            inward.close()

    async def _read_stderr(self, process: SubprocessStreamProtocol) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(2**16):
            for line in chunk.decode("utf-8", "replace").splitlines()[-STDERR_LINES:]:
                if line.strip():
                    self._stderr.append(line.strip()[:STDERR_LINE_CHARACTERS])


def _repair_message(line: bytes) -> JSONRPCMessage | None:
    """Return the message in a line, without characters that no Unicode text has; None if the line is other output."""
    # The SDK rejects the whole message for half a character in one text.
    try:
        value: Json = json.loads(line.decode("utf-8", "replace"))
        return jsonrpc_message_adapter.validate_json(dumps(well_formed_json(value)), by_name=False)
    except (ValueError, RecursionError):
        return None


async def _stop(transport: asyncio.SubprocessTransport, process: SubprocessStreamProtocol) -> None:
    """Close the input of the process; if it does not exit, send SIGTERM and SIGKILL to it and its children."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _has_exited(transport):
            break
        _signal_group(transport.get_pid(), number)
    await _has_exited(transport)
    _signal_group(
        transport.get_pid(), signal.SIGKILL
    )  # children may still run after the process has exited
    transport.close()


async def _has_exited(transport: asyncio.SubprocessTransport) -> bool:
    """Return whether the process has exited, after waiting for it up to a second.

    Its pipes are ignored, because children may keep them open.
    """
    for _ in range(POLLS):
        if transport.get_returncode() is not None:
            break
        await asyncio.sleep(GRACE_SECONDS / POLLS)
    return transport.get_returncode() is not None


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


CONNECT_SECONDS = 10.0
IDLE_SECONDS = 3_600.0
"""The maximum number of seconds without a byte of a reply; a timeout for a whole call is set by the caller."""
NOT_FOUND = 404
_SESSION = "mcp-session-id"


class HttpEndpoint:
    """The HTTP endpoint of a server. `ending` is the reason for the end of the session, and empty before it ends."""

    last_words = ""

    def __init__(self, settings: McpConnectionSettings, auth: httpx2.Auth | None = None) -> None:
        self._settings = settings
        self._auth = auth
        self.ending: str = ""
        self.ended: asyncio.Event = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[TransportStreams, None]:
        """Provide streams of messages over HTTP, and end the session on the server at the end of the context."""
        async with (
            httpx2.AsyncClient(
                headers={"Accept-Encoding": "identity", **self._settings.headers},
                timeout=httpx2.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS),
                auth=self._auth,
                event_hooks={"response": [self._watch]},
            ) as client,
            streamable_http_client(
                self._settings.url, http_client=client, max_sse_event_size=MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _watch(self, response: httpx2.Response) -> None:
        """Limit the size of a reply in one document, and detect a lost session; the SDK limits the size of events.

        Raises:
            httpx2.DecodingError: the reply is compressed, so that its size is not known before it is decompressed.
        """
        if response.status_code == NOT_FOUND and _SESSION in response.request.headers:
            self.ending = "it has forgotten the session"
            self.ended.set()
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise httpx2.DecodingError("the reply is compressed, which was not requested")
        stream = response.stream
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "text/event-stream" and isinstance(stream, httpx2.AsyncByteStream):
            response.stream = _BoundedStream(stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MESSAGE_BYTES:
                raise httpx2.ReadError(f"the reply has more than {MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
