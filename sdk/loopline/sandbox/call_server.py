"""The supervisor's side of the socket: one program, one token, calls within limits."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from loopline.models import Json
from loopline.sandbox.execution import Execution, ServedCall, Session, StopProgram
from loopline.sandbox.messages import CallMessage, EmitMessage, Hello, MessageError, parse_message

MESSAGE_SECONDS = 10.0
"""Seconds that a message may take once its first byte has come."""
MOST_EVENTS = 1_000
MOST_AT_ONCE = 16
ANSWER_BYTES = 2_000_000


class CallServer:
    """Serves the calls of one execution. `ready` is set when its executor has isolated itself.

    `stopped` gets the reason if the program may not go on. A connection that does not begin with the token, that comes from
    another user, or that is a second one, is closed. `is_member` tells whether the process of a connection is where its
    limits hold.
    """

    def __init__(
        self,
        path: Path,
        execution: Execution,
        session: Session,
        *,
        user: int,
        features: Collection[str],
        is_member: Callable[[int], bool] = lambda _process: True,
    ) -> None:
        self._path = path
        self._execution = execution
        self._session = session
        self._user = user
        self._features = frozenset(features)
        self._is_member = is_member
        self._spent = False
        self._numbers: set[int] = set()
        self._events = 0
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self.token: str = os.urandom(32).hex()
        self.refused: list[str] = []
        self.features: Collection[str] = ()
        self.ready: asyncio.Event = asyncio.Event()
        stopped = session.stopped or asyncio.get_running_loop().create_future()
        self.stopped: asyncio.Future[StopProgram] = stopped

    async def __aenter__(self) -> Self:
        limit = self._execution.limits.message_bytes
        self._server = await asyncio.start_unix_server(
            self._accept, path=str(self._path), limit=limit, backlog=4
        )
        self._path.chmod(0o666)  # its folder is closed to everyone else
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self.stopped.done():
            self.stopped.cancel()

    def stop(self, reason: StopProgram) -> None:
        """Have the program stopped for that reason, unless it is stopped already."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(reader, writer))

    def _begin(self, step: object) -> None:
        if not asyncio.iscoroutine(step):
            raise TypeError(f"{step!r} is no coroutine")
        task: asyncio.Task[None] = asyncio.ensure_future(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            process = self._checked_peer(writer)
            async with asyncio.timeout(MESSAGE_SECONDS):
                self._check_hello(await self._line(reader), process)
            writer.write(b"go\n")
            self.ready.set()
            while True:
                await self._take(await self._line(reader, reader_waits=True), writer)
        except (MessageError, TimeoutError) as error:
            self.refused.append(str(error) or "a message took too long")
            if self._spent and self.ready.is_set():
                self.stop(StopProgram("message_refused", self.refused[-1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the program has ended, or closed the connection
        finally:
            writer.close()

    async def _line(self, reader: asyncio.StreamReader, *, reader_waits: bool = False) -> bytes:
        first = await reader.readexactly(1) if reader_waits else b""
        try:
            async with asyncio.timeout(MESSAGE_SECONDS):
                return first + await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            limit = self._execution.limits.message_bytes
            raise MessageError(f"the message has more than {limit:,} bytes") from error

    def _checked_peer(self, writer: asyncio.StreamWriter) -> int:
        """Return the process that has connected, if it is of the user that programs run as."""
        peer: socket.socket = writer.get_extra_info("socket")
        stored = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, user, _ = struct.unpack("3i", stored)
        if user != self._user:
            raise MessageError(f"a connection of user {user} is refused")
        return int(process)

    def _check_hello(self, line: bytes, process: int) -> None:
        message = parse_message(line, self._execution.limits.message_bytes)
        if not isinstance(message, Hello) or self._spent:
            raise MessageError("a connection without a fresh token is refused")
        if not hmac.compare_digest(message.token.encode(), self.token.encode()):
            raise MessageError("a connection with another token is refused")
        self._spent = True
        self.features = message.features
        missing = sorted(self._features - set(message.features))
        missing += [] if self._is_member(process) else ["cgroup"]
        if missing:
            self.stop(StopProgram("isolation_unavailable", f"not in force: {', '.join(missing)}"))
            raise MessageError("the executor is not isolated")

    async def _take(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        limits = self._execution.limits
        match parse_message(line, limits.message_bytes):
            case Hello():
                raise MessageError("a second hello")
            case EmitMessage(name=name, data=data):
                self._events += 1
                if self._events > MOST_EVENTS:
                    raise MessageError(f"more than {MOST_EVENTS} events")
                self._session.on_event(name, data)
            case CallMessage() as call:
                if call.number in self._numbers:
                    raise MessageError(f"a second call {call.number}")
                self._numbers.add(call.number)
                if len(self._numbers) > limits.calls:
                    reason = f"a program may call tools {limits.calls} times"
                    self.stop(StopProgram("call_limit", reason))
                    return
                await self._slots.acquire()
                self._begin(self._answer(call, writer))

    async def _answer(self, call: CallMessage, writer: asyncio.StreamWriter) -> None:
        try:
            served = await self._served(call)
            document: dict[str, Json] = {
                "id": call.number,
                "ok": served.ok,
                "value": served.value,
                "error": served.error,
                "code": served.code,
            }
            line = json.dumps(document).encode() + b"\n"
            if len(line) > ANSWER_BYTES:
                problem = f"the result has {len(line):,} bytes, and may have {ANSWER_BYTES:,}"
                document |= {"ok": False, "value": None, "error": problem, "code": "too_large"}
                line = json.dumps(document).encode() + b"\n"
            writer.write(line)
            await writer.drain()
        except StopProgram as reason:
            self.stop(reason)
        except ConnectionError:
            pass  # the program has ended
        finally:
            self._slots.release()

    async def _served(self, call: CallMessage) -> ServedCall:
        if call.tool not in self._execution.tools:
            allowed = ", ".join(self._execution.tools) or "none"
            return ServedCall(False, None, f"no tool {call.tool!r} here: {allowed}", "not_allowed")
        seconds = self._execution.limits.call_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._session.serve(call.tool, call.arguments)
        except TimeoutError:
            return ServedCall(False, None, f"it was cut off after {seconds:g} s", "timeout")
