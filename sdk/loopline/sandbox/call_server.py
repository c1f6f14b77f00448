"""The supervisor's side of the socket: one program, one token, calls within limits."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, cast

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.sandbox.execution import Execution, ServedCall, Session, StopProgram

LONGEST_NAME = 200
DEEPEST = 32
"""Brackets that a message may have open at once."""
MOST_DIGITS = 300
"""Digits that a number may have."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string, if need be up to the end of the text, or a bracket."""
_DIGITS = re.compile(rf"[0-9]{{{MOST_DIGITS}}}")


class MessageError(LooplineError):
    """A message of a program is malformed, and its connection is closed."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: the token of the execution, and what the executor has put in force."""

    token: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallMessage:
    """The program calls a tool."""

    number: int
    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class EmitMessage:
    """The program emits an event."""

    name: str
    data: Json


Message = Hello | CallMessage | EmitMessage


def parse_message(line: bytes, limit_bytes: int) -> Message:
    """Return the message of a line.

    Raises:
        MessageError: it is too long or too deep, is no JSON, or is none of the messages.
    """
    fields = _fields(line, limit_bytes)
    match fields:
        case {"hello": str(token), "features": list(features), **others} if not others:
            return Hello(token, tuple(str(feature)[:LONGEST_NAME] for feature in features[:50]))
        case {"id": int(number), "tool": str(tool), "arguments": dict(arguments), **others} if (
            not others and not isinstance(number, bool)
        ):
            if not 0 < number < 2**53 or not 0 < len(tool) <= LONGEST_NAME:
                raise MessageError("the call's id or tool is out of range")
            return CallMessage(number, tool, arguments)
        case {"emit": str(name), "data": data, **others} if not others:
            return EmitMessage(name[:LONGEST_NAME], data)
        case _:
            raise MessageError("the message is neither hello, call nor emit")


def _fields(line: bytes, limit_bytes: int) -> JsonObject:
    if len(line) > limit_bytes:
        raise MessageError(
            f"the message has {len(line):,} bytes or more, and may have {limit_bytes:,}"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError("the message is no UTF-8") from error
    if _depth(text) > DEEPEST:
        raise MessageError(f"the message is nested deeper than {DEEPEST}")
    if _DIGITS.search(text):
        raise MessageError(f"the message has a number of {MOST_DIGITS} digits or more")
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MessageError("the message is no JSON") from error
    if not isinstance(value, dict):
        raise MessageError("the message is no object")
    return cast("JsonObject", value)


def _depth(text: str) -> int:
    """Return how many brackets are open at once, those in strings not counted."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                depth += 1
                deepest = max(deepest, depth)
            case "]" | "}":
                depth -= 1
            case _:
                pass  # a string
    return deepest


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


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
