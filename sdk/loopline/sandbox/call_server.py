"""The server for the calls of a program: one connection over a Unix socket, a token, and limits."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.sandbox.execution import Execution, ServedCall, Session, StopProgram
from loopline.tasks import cancel_all
from loopline.timeline.codec import nesting_depth

LONGEST_NAME = 200
DEEPEST = 32
"""The deepest nesting of objects and lists in a message."""
MOST_DIGITS = 300
"""The number of digits in a row from which a message is refused."""
_DIGITS = re.compile(rf"[0-9]{{{MOST_DIGITS}}}")


class MessageError(LooplineError):
    """A message of a program is malformed or not allowed, and its connection is closed."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an executor: the token of the execution, and the isolation steps that it has done."""

    token: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallMessage:
    """The message with which the program calls a tool; the response has the same `number`."""

    number: int
    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class EmitMessage:
    """The message with which the program emits an event."""

    name: str
    data: Json


Message = Hello | CallMessage | EmitMessage


def parse_message(line: bytes, limit_bytes: int) -> Message:
    """Parse a line as a message.

    Raises:
        MessageError: the line is too long, nested too deeply, not JSON, or not one of the three messages.
    """
    match _parse_object(line, limit_bytes):
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


def _parse_object(line: bytes, limit_bytes: int) -> JsonObject:
    """Decode a line as a JSON object.

    Raise MessageError if it has more than `limit_bytes` bytes or 300 digits in a row, is nested deeper than 32, or is
    not a JSON object in UTF-8.
    """
    if len(line) > limit_bytes:
        raise MessageError(
            f"the message has {len(line):,} bytes or more, and may have {limit_bytes:,}"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError("the message is not UTF-8") from error
    if nesting_depth(text) > DEEPEST:
        raise MessageError(f"the message is nested deeper than {DEEPEST}")
    if _DIGITS.search(text):
        raise MessageError(f"the message has a number of {MOST_DIGITS} digits or more")
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MessageError("the message is not JSON") from error
    if not isinstance(value, dict):
        raise MessageError("the message is not an object")
    return cast("JsonObject", value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _encode_answer(number: int, served: ServedCall) -> bytes:
    """Return the line with the result of a call; a result above 2 MB, or nested too deeply, is replaced by an error."""
    document: JsonObject = {
        "id": number,
        "ok": served.ok,
        "value": served.value,
        "error": served.error,
        "code": served.code,
        "ran_with": served.ran_with,
    }
    try:
        line = json.dumps(document).encode() + b"\n"
    except RecursionError:
        return _encode_answer(number, too_deep())
    if len(line) <= ANSWER_BYTES:
        return line
    problem = f"the result has {len(line):,} bytes, and may have {ANSWER_BYTES:,}"
    return _encode_answer(number, ServedCall(False, None, problem, "too_large"))


def too_deep() -> ServedCall:
    """Return the error for a result that is nested too deeply."""
    return ServedCall(False, None, "the result is nested too deeply to be JSON", "too_deep")


MESSAGE_SECONDS = 10.0
"""The seconds within which a message must be complete after its first byte."""
MOST_EVENTS = 1_000
MOST_AT_ONCE = 16
ANSWER_BYTES = 2_000_000


class CallServer:
    """Serves the calls of one execution on the socket `path`, while its context is open.

    The first message of a connection must have the `token`, come from a process of `user` for which `is_member` is true,
    and list all `features`. Other connections, and all after the first that had the token, are closed. `ready` is set
    when the first message was accepted. If the program must be stopped, `stopped` has the reason as its result.
    """

    def __init__(
        self,
        path: Path,
        execution: Execution,
        session: Session,
        *,
        token: str,
        user: int,
        features: Collection[str],
        is_member: Callable[[int], bool],
    ) -> None:
        self._path = path
        self._execution = execution
        self._session = session
        self._token = token
        self._user = user
        self._features = features
        self._is_member = is_member
        self._is_token_used = False
        self._numbers: set[int] = set()
        self._events = 0
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready: asyncio.Event = asyncio.Event()
        stopped = session.stopped or asyncio.get_running_loop().create_future()
        self.stopped: asyncio.Future[StopProgram] = stopped

    async def __aenter__(self) -> Self:
        limit = self._execution.limits.message_bytes
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Not by its path, because a program can read the address of its connection in `/proc/net/unix`.
            listener.bind(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=limit, backlog=4, start_serving=False
        )
        try:
            await self._server.start_serving()
        except asyncio.CancelledError:
            self._server.close()
            raise
        self._path.chmod(0o666)  # other users cannot enter its folder
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        await cancel_all(*self._tasks)
        if not self.stopped.done():
            self.stopped.cancel()

    def _stop(self, reason: StopProgram) -> None:
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start_task(self._serve(reader, writer))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed: send `go` after its hello, and then handle its messages.

        A refused connection is closed. After the hello was accepted, a malformed message stops the program.
        """
        is_accepted = False
        try:
            process = self._check_peer(writer)
            async with asyncio.timeout(MESSAGE_SECONDS):
                self._check_hello(await self._read_line(reader), process)
            writer.write(b"go\n")
            is_accepted = True
            self.ready.set()
            while True:
                first = await reader.readexactly(1)  # without a timeout: the next call may be late
                line = await self._read_line(reader, first)
                await self._handle(line, writer)
        except (MessageError, TimeoutError) as error:
            if is_accepted:
                reason = str(error) or "a message took too long"
                self._stop(StopProgram("message_refused", reason))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the program has ended, or closed the connection
        finally:
            writer.close()

    async def _read_line(self, reader: asyncio.StreamReader, first: bytes = b"") -> bytes:
        """Return `first`, a byte that was read already, with the rest of its line.

        Raises:
            MessageError: the line exceeds the limit of a message.
            TimeoutError: the line is not complete after ten seconds.
            IncompleteReadError: the connection was closed.
        """
        try:
            async with asyncio.timeout(MESSAGE_SECONDS):
                return first + await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            limit = self._execution.limits.message_bytes
            raise MessageError(f"the message has more than {limit:,} bytes") from error

    def _check_peer(self, writer: asyncio.StreamWriter) -> int:
        """Return the id of the process that has connected; raise MessageError if it runs as another user."""
        peer: socket.socket = writer.get_extra_info("socket")
        stored = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, user, _ = struct.unpack("3i", stored)
        if user != self._user:
            raise MessageError(f"a connection of user {user} is refused")
        return int(process)

    def _check_hello(self, line: bytes, process: int) -> None:
        """Check the first message of a connection, and mark the token as used.

        If an isolation step is missing, the program is stopped. All problems are a MessageError.
        """
        message = parse_message(line, self._execution.limits.message_bytes)
        if not isinstance(message, Hello) or self._is_token_used:
            raise MessageError("a connection without a new token is refused")
        if not hmac.compare_digest(message.token.encode(), self._token.encode()):
            raise MessageError("a connection with another token is refused")
        self._is_token_used = True
        missing = sorted(set(self._features) - set(message.features))
        if not self._is_member(process):
            missing.append("cgroup")
        if missing:
            self._stop(StopProgram("isolation_unavailable", f"not in force: {', '.join(missing)}"))
            raise MessageError("the executor is not isolated")

    async def _handle(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        """Emit an event, or start a tool call in a task; waits while 16 calls are running.

        A call above the limit of calls stops the program. Raise MessageError for a second hello, more than 1,000
        events, or a call number that was used before.
        """
        limits = self._execution.limits
        match parse_message(line, limits.message_bytes):
            case Hello():
                raise MessageError("the hello is sent twice")
            case EmitMessage(name=name, data=data):
                self._events += 1
                if self._events > MOST_EVENTS:
                    raise MessageError(f"a program may emit {MOST_EVENTS:,} events")
                self._session.on_event(name, data)
            case CallMessage() as call:
                if call.number in self._numbers:
                    raise MessageError(f"the call number {call.number} is used twice")
                self._numbers.add(call.number)
                if len(self._numbers) > limits.calls:
                    reason = f"a program may call tools {limits.calls} times"
                    self._stop(StopProgram("call_limit", reason))
                    return
                await self._slots.acquire()
                self._start_task(self._answer(call, writer))

    async def _answer(self, call: CallMessage, writer: asyncio.StreamWriter) -> None:
        """Run a call and send its answer; StopProgram stops the program, and a lost connection is ignored."""
        try:
            writer.write(_encode_answer(call.number, await self._call_tool(call)))
            await writer.drain()
        except StopProgram as reason:
            self._stop(reason)
        except ConnectionError:
            pass  # the program has ended
        finally:
            self._slots.release()

    async def _call_tool(self, call: CallMessage) -> ServedCall:
        """Run a tool; if the tool is not allowed or takes too long, return an error.

        Raises:
            StopProgram: the program must be stopped.
        """
        if call.tool not in self._execution.tools:
            allowed = ", ".join(self._execution.tools) or "none"
            return ServedCall(False, None, f"no tool {call.tool!r} here: {allowed}", "not_allowed")
        seconds = self._execution.limits.call_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._session.serve(call.tool, call.arguments)
        except TimeoutError:
            return ServedCall(False, None, f"it was cut off after {seconds:g} s", "timeout")
