"""Socket.IO as clients of KDCube speak it: messages in, events in KDCube's envelopes out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from importlib import import_module
from secrets import token_hex
from typing import Any, Literal, Protocol, cast
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from loopline.conversations import Conversation, HandedOver, WhenBusy
from loopline.errors import LooplineError
from loopline.events import Record, dialect
from loopline.events.dialects.encoder import position
from loopline.files import Attachment
from loopline.models import Json, JsonObject
from loopline.server.access import key_of
from loopline.server.bodies import FILES, NAME, TEXT
from loopline.server.bundle_host import BundleHost
from loopline.server.conversation_views import state_of
from loopline.server.event_streams import EarlyEvents, conversation_events, start_position
from loopline.server.open_tokens import OpenStream
from loopline.server.principals import Principal, Unauthenticated
from loopline.server.problems import RequestProblem, problem_of, response_to
from loopline.server.request_access import (
    FIRST_PACKET_SECONDS,
    RETRY,
    ListenerSlot,
    SocketEntry,
)
from loopline.server.turn_requests import send_answers, submit_message
from loopline.timeline import ConversationKey, iso_time, open_timeline, turn_id

_POLICIES: dict[str, WhenBusy] = {
    "event.user.prompt": "queue",
    "event.user.followup": "followup",
    "event.user.steer": "steer",
}
_ATTACHMENT = "event.user.attachment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketMessage:
    """A message: its text, how it joins a running turn, and its files. `key` is that of the event, if it has an id."""

    conversation: str
    bundle_id: str
    text: str
    when_busy: WhenBusy = "queue"
    key: str = ""
    files: Sequence[Attachment] = ()


def text_of(data: Json, name: str) -> str:
    """Return a text of an object; empty if it has none of that name.

    Raises:
        LooplineError: it is too long.
    """
    value = data[name] if isinstance(data, dict) and name in data else ""
    if value is None:
        return ""
    most = TEXT if name in ("text", "message") else NAME
    if not isinstance(value, str) or len(value) > most:
        raise LooplineError(f"{name} must be a text of at most {most:,} characters")
    return value


def approvals_of(data: Json) -> dict[str, str]:
    """Return the signed approvals of an answer, by call."""
    match data:
        case {"approvals": {**approvals}}:
            return {f"{call}": text for call, text in approvals.items() if isinstance(text, str)}
        case _:
            return {}


def read_message(data: Json, files: Sequence[bytes]) -> SocketMessage:
    """Return the message of a submission: events, or in the older form an object with the text.

    Raises:
        LooplineError: it is neither, or has no text.
    """
    submission = data if isinstance(data, dict) else JsonObject()
    match submission:
        case {"external_events": [*events]}:
            return _of_events(submission, events, files)
        case {"message": {"message": str()} | {"text": str()} as message}:
            return SocketMessage(
                conversation=text_of(message, "conversation_id"),
                bundle_id=text_of(message, "bundle_id"),
                text=text_of(message, "message") or text_of(message, "text"),
                files=_attachments(_names(submission), files),
            )
        case _:
            raise LooplineError("chat_message has external_events, or a message with its text")


def _of_events(data: JsonObject, events: Sequence[Json], files: Sequence[bytes]) -> SocketMessage:
    texts, names, kind, key = list[str](), list[str](), "event.user.prompt", ""
    for event in events:
        match event:
            case {"type": str(name), "payload": {"event": {"filename": str(filename)}}} if (
                name.startswith(_ATTACHMENT)
            ):
                names.append(filename)
            case {"type": str(name), "payload": {"event": {"text": str(text)}}} if (
                name in _POLICIES
            ):
                texts.append(text)
                kind, key = name, key or text_of(event, "event_id")
            case _:
                raise LooplineError("an event is of the user, with a text or the name of a file")
    return SocketMessage(
        conversation=text_of(data, "conversation_id"),
        bundle_id=text_of(data, "bundle_id"),
        text="\n".join(text for text in texts if text),
        when_busy=_POLICIES[kind],
        key=key,
        files=_attachments(names, files),
    )


def _names(submission: JsonObject) -> list[str]:
    match submission:
        case {"attachment_meta": [*items]}:
            return [text_of(item, "filename") or text_of(item, "name") for item in items]
        case _:
            return []


def _attachments(names: Sequence[str], files: Sequence[bytes]) -> list[Attachment]:
    if len(names) != len(files) or len(files) > FILES:
        raise LooplineError(
            f"{len(names)} files are named and {len(files)} came: send each, {FILES} at most"
        )
    return [
        Attachment(name or f"file-{number}", content)
        for number, (name, content) in enumerate(zip(names, files, strict=True), start=1)
    ]


SocketState = Literal["processing_started", "followup_accepted", "steer_accepted"]
STATES: dict[WhenBusy, SocketState] = {
    "queue": "processing_started",
    "reject": "processing_started",
    "followup": "followup_accepted",
    "steer": "steer_accepted",
}
"""What a client is told of a message that joined a turn, by how it did."""


PATH = "/socket.io"
QUEUED_PACKETS = 100
"""With so many packets that its client has not read, a socket gets no more until it has read them: the log has the rest."""
STRANGERS = 500
"""So many connections may be open whose sender is not known by a first packet."""
ENTRY = "loopline.socket"
TRY_AGAIN_LATER = 1013
_log = logging.getLogger("loopline")
_Handler = Callable[..., Coroutine[Any, Any, Json]]


class _Queue(Protocol):
    def qsize(self) -> int: ...
    async def join(self) -> None: ...


class _Socket(Protocol):
    """A connection of Engine.IO, with the packets that its client has not read."""

    @property
    def queue(self) -> _Queue: ...


class _Engine(Protocol):
    @property
    def sockets(self) -> Mapping[str, _Socket]: ...
    async def disconnect(self, sid: str) -> None: ...


class _Manager(Protocol):
    def eio_sid_from_sid(self, sid: str, namespace: str) -> str | None: ...


class _SocketServer(Protocol):
    """What is used of python-socketio's server, which has no types."""

    @property
    def eio(self) -> _Engine: ...
    @property
    def manager(self) -> _Manager: ...
    def on(self, event: str, handler: Callable[..., Awaitable[Json | None]]) -> None: ...
    async def emit(self, event: str, data: Json, *, to: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    async def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSocket:
    """A socket whose sender is known: its connection of Engine.IO, its token, and what ends it with the token."""

    connection: str
    principal: Principal
    token: str
    stream: OpenStream
    slot: ListenerSlot


class SocketHost:
    """The sockets of a server: who connected each, and the conversations whose events it receives.

    A connection whose sender is not known by its first packet is ended, and so is a socket whose token does not count
    any more.
    """

    def __init__(self, host: BundleHost) -> None:
        self._host = host
        self._module = import_module("socketio")
        self._server = cast(
            "_SocketServer",
            self._module.AsyncServer(
                async_mode="asgi",
                cors_allowed_origins=[],  # the app's own middleware says who may read answers
                ping_interval=host.settings.keep_alive_seconds,
                max_http_buffer_size=host.settings.body_bytes,
                logger=False,
                engineio_logger=False,
            ),
        )
        self._open: dict[str, _OpenSocket] = {}
        self._known: dict[str, Principal] = {}
        self._entries: dict[str, SocketEntry] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._pumps: dict[tuple[str, ConversationKey], asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._is_asked = False
        handlers: Mapping[str, _Handler] = {
            "chat_message": self._send_message,
            "chat_answer": self._answer,
            "chat_stop": self._stop,
            "chat_listen": self._listen,
            "conv_status.get": self._status,
        }
        self._server.on("connect", self._connect)
        self._server.on("disconnect", self._disconnect)
        self._server.on("ping", self._pong)
        for event, handler in handlers.items():
            self._server.on(event, self._acknowledged(handler))

    def asgi(self) -> ASGIApp:
        """Return the app that is mounted at the path of Socket.IO, wherever the server itself is mounted."""
        inner = cast("ASGIApp", self._module.ASGIApp(self._server, socketio_path=PATH))

        async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
            self._is_asked = True
            is_new = not _connection(scope)
            if is_new and len(self._strangers) >= STRANGERS:
                await _refuse(scope, receive, send)
                return
            await inner({**scope, "path": f"{PATH}/"}, receive, send)
            if is_new and scope["type"] == "http":  # a WebSocket has ended by now
                asyncio.get_running_loop().call_later(
                    FIRST_PACKET_SECONDS, self._end_strangers, self._strangers
                )

        return mounted

    @property
    def _strangers(self) -> list[str]:
        """The connections whose sender is not known."""
        return [sid for sid in self._server.eio.sockets if sid not in self._known]

    def _end_strangers(self, connections: Sequence[str]) -> None:
        """End those of these connections that are open, and whose sender is still not known."""
        strangers = set(self._strangers)
        for connection in connections:
            if connection in strangers:
                self._end(self._server.eio.disconnect(connection))

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def covers(self, scope: Scope) -> bool:
        """Return whether a request is one of a socket."""
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        return path == PATH or path.startswith(f"{PATH}/")

    def sender(self, scope: Scope) -> Principal | None:
        """Return the sender of the socket that a request names; None if nobody is known yet."""
        return self._known.get(_connection(scope))

    def enter(self, scope: Scope, entry: SocketEntry) -> None:
        """Have `entry` opened once the sender of this WebSocket is known."""
        connection = _connection(scope)
        if connection in self._known:
            entry.open()
        elif connection:  # it is upgraded, perhaps before its first packet has come
            self._entries[connection] = entry
        else:
            scope[ENTRY] = entry

    async def close(self) -> None:
        """Say that the server ends, and end every socket."""
        for sid in self.sids:
            await self._server.emit("server_shutdown", {}, to=sid)
            await self._server.disconnect(sid)
        if self._ending is not None:
            self._ending.cancel()
        if self._is_asked:  # only then there is something to shut down, and once
            self._is_asked = False
            await self._server.shutdown()

    def queued(self, sid: str) -> int:
        """Return how many packets the client of a socket has not read."""
        queue = self._queue(sid)
        return 0 if queue is None else queue.qsize()

    async def _drained(self, sid: str) -> None:
        """Wait until the client has read every packet; the end of the socket ends the wait."""
        queue = self._queue(sid)
        if queue is not None:
            await queue.join()

    def _queue(self, sid: str) -> _Queue | None:
        connection = self._server.manager.eio_sid_from_sid(sid, "/") or ""
        sockets = self._server.eio.sockets
        return sockets[connection].queue if connection in sockets else None

    @property
    def sids(self) -> list[str]:
        """The sockets that are connected."""
        return list(self._open)

    async def _connect(self, sid: str, environ: Mapping[str, Any], auth: Json = None) -> None:
        """Take a socket whose token is right, and whose tenant and project, if it names them, are the token's."""
        try:
            await self._host.open()
            token = _token(environ, auth)
            principal = await self._host.admit(token)
            tenant, project = text_of(auth, "tenant"), text_of(auth, "project")
            is_own = tenant in ("", principal.tenant) and project in ("", principal.project)
            if not is_own:
                raise LooplineError("the token is of another tenant or project")
            slot = self._host.listeners.take(principal)
        except LooplineError as error:
            raise self._module.exceptions.ConnectionRefusedError(str(error)) from None
        connection = self._server.manager.eio_sid_from_sid(sid, "/") or ""
        stream = self._host.tokens.add(token, principal, lambda _: self._end(self._refuse(sid)))
        self._open[sid] = _OpenSocket(
            connection=connection, principal=principal, token=token, stream=stream, slot=slot
        )
        self._known[connection] = principal
        scope: Scope = environ["asgi.scope"]
        entries = self._entries.pop(connection, None), scope.get(ENTRY)
        for entry in entries:
            if isinstance(entry, SocketEntry):
                entry.open()
        self._ending = self._ending or asyncio.create_task(self._end_when_draining())
        session: JsonObject = {
            "session_id": text_of(auth, "user_session_id") or sid,
            "user_type": "privileged" if principal.is_privileged else "registered",
            "user_id": principal.user,
            "username": principal.user,
            "tenant": principal.tenant,
            "project": principal.project,
            "connected_at": iso_time(self._host.clock.now()),
        }
        await self._server.emit("session_info", session, to=sid)

    async def _disconnect(self, sid: str, reason: str = "") -> None:
        del reason
        opened = self._open.pop(sid, None)
        if opened is not None:
            opened.slot.release()
            self._host.tokens.discard(opened.token, opened.stream)
            self._known.pop(opened.connection, None)
        for place, pump in list(self._pumps.items()):
            if place[0] == sid:
                pump.cancel()

    async def _refuse(self, sid: str) -> None:
        """End a socket whose token does not count any more, with its connection."""
        opened = self._open.get(sid)
        if opened is not None:
            await self._server.disconnect(sid)
            await self._server.eio.disconnect(opened.connection)

    async def _end_when_draining(self) -> None:
        await self._host.draining.wait()
        self._ending = None
        await self.close()

    async def _pong(self, sid: str, data: Json = None) -> None:
        del data
        await self._server.emit("pong", {"timestamp": iso_time(self._host.clock.now())}, to=sid)

    def _acknowledged(self, handler: _Handler) -> _Handler:
        """Return the handler with a problem as its acknowledgement."""

        async def acknowledged(sid: str, data: Json = None, *files: bytes) -> Json:
            opened = self._open[sid]
            try:
                principal = await self._host.admit(opened.token)
                if principal != opened.principal:
                    raise Unauthenticated("the token names somebody else now: connect again")
                return await handler(sid, principal, data, *files)
            except LooplineError as error:
                problem = problem_of(error)
                return {
                    "ok": False,
                    "status": int(problem.status),
                    "error_type": problem.status.phrase,
                    "error": str(problem),
                }

        return acknowledged

    async def _send_message(
        self, sid: str, principal: Principal, data: Json, *files: bytes
    ) -> Json:
        message = read_message(data, files)
        key = key_of(principal, message.conversation or f"chat-{token_hex(12)}")
        is_new = await self._host.log.find(key) is None
        talk = await self._host.conversation(key, message.bundle_id)
        await self._follow(sid, talk, after=None)
        if message.when_busy == "steer" and not message.text:
            return await self._stop(sid, principal, {"conversation_id": key.name})
        submission = await submit_message(
            self._host,
            talk,
            message.text,
            attachments=message.files,
            when_busy=message.when_busy,
            key=message.key and f"kdcube:{message.key}",
        )
        receipt = submission.receipt
        return {
            "ok": True,
            "status": STATES[message.when_busy],
            "task_id": f"{key.name}:{receipt.turn_id}",
            "session_id": sid,
            "conversation_id": key.name,
            "turn_id": receipt.turn_id,
            "conversation_created": is_new,
            "user_type": "privileged" if principal.is_privileged else "registered",
            "is_continuation": message.when_busy in ("followup", "steer"),
        }

    async def _answer(self, sid: str, principal: Principal, data: Json) -> Json:
        talk = await self._talk(principal, data)
        values = data["values"] if isinstance(data, dict) and "values" in data else None
        if not isinstance(values, dict) or not values:
            raise LooplineError("values are the answers by call id")
        await self._follow(sid, talk, after=None)
        request = await send_answers(self._host, talk, values, approvals_of(data))
        return {"ok": True, "turn_id": turn_id(request.turn)}

    async def _stop(self, sid: str, principal: Principal, data: Json) -> Json:
        del sid
        talk = await self._talk(principal, data)
        done = await talk.stop()
        self._host.audit("stop", talk.conversation)
        return {"ok": True, "done": done}

    async def _listen(self, sid: str, principal: Principal, data: Json) -> Json:
        """Send the events of a conversation behind `after`, a seq or the id of an event, and then live."""
        talk = await self._talk(principal, data)
        await self._follow(sid, talk, after=start_position(text_of(data, "after") or "0"))
        return {"ok": True, "conversation_id": talk.conversation.name}

    async def _status(self, sid: str, principal: Principal, data: Json) -> Json:
        talk = await self._talk(principal, data)
        timeline = await open_timeline(self._host.log, talk.conversation)
        summary = await self._host.log.find(talk.conversation)
        newest: datetime = summary.last_activity_at if summary else self._host.clock.now()
        status: JsonObject = {"state": state_of(timeline), "updated_at": iso_time(newest)}
        name = talk.conversation.name
        envelope: JsonObject = {
            "type": "conv.status",
            "timestamp": iso_time(self._host.clock.now()),
            "service": {"tenant": principal.tenant, "project": principal.project},
            "conversation": {"session_id": sid, "conversation_id": name},
            "event": {"step": "conv.state", "status": "completed"},
            "data": status,
        }
        await self._server.emit("conv_status", envelope, to=sid)
        return {"conversation_id": name, **status}

    async def _talk(self, principal: Principal, data: Json) -> Conversation[Any]:
        """Return the conversation that the data names.

        Raises:
            LooplineError: it has not begun.
        """
        key = key_of(principal, text_of(data, "conversation_id"))
        if await self._host.log.find(key) is None:
            raise LooplineError(f"there is no conversation {key.name!r} here")
        return await self._host.conversation(key)

    async def _follow(
        self, sid: str, talk: Conversation[Any], *, after: tuple[int, int] | None
    ) -> None:
        """Send the socket the events of a conversation behind a position, without one those from now on.

        A conversation that it follows already goes on as it is, unless a position is asked for.
        """
        place = sid, talk.conversation
        running = self._pumps.get(place)
        if running is not None and not running.done():
            if after is None:
                return
            running.cancel()
        with EarlyEvents(talk) as early:
            if after is None:
                summary = await self._host.log.find(talk.conversation)
                after = start_position(f"{summary.head if summary else 0}")
            pump = asyncio.create_task(self._pump(sid, talk, early, after))
        self._pumps[place] = pump
        pump.add_done_callback(lambda done: self._forget(place, done))

    def _forget(self, place: tuple[str, ConversationKey], pump: asyncio.Task[None]) -> None:
        if self._pumps.get(place) is pump:
            del self._pumps[place]
        if not pump.cancelled() and (error := pump.exception()) is not None:
            _log.error("the events of a socket broke off", exc_info=error)

    async def _pump(
        self, sid: str, talk: Conversation[Any], early: EarlyEvents, after: tuple[int, int]
    ) -> None:
        spoken = dialect("kdcube", talk.conversation)
        events = conversation_events(self._host, talk, early=early)
        try:
            async with aclosing(events):
                with suppress(HandedOver):  # the socket is told by `server_shutdown`
                    async for event in events:
                        for record in spoken.take(event):
                            if not record.id or position(record.id) > after:
                                if self.queued(sid) >= QUEUED_PACKETS:
                                    await self._drained(sid)
                                await self._server.emit(record.event, _envelope(record), to=sid)
        finally:
            early.close()


def _connection(scope: Scope) -> str:
    """Return the connection that a request names; empty if it begins one."""
    query = str(scope["query_string"], "ascii", "replace")
    return parse_qs(query).get("sid", [""])[0]


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a connection, while too many have not said whose they are."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
        return
    text = f"{STRANGERS} sockets have not authenticated yet: try again"
    problem = RequestProblem(HTTPStatus.SERVICE_UNAVAILABLE, text, headers=RETRY)
    await response_to(problem)(scope, receive, send)


def _envelope(record: Record) -> JsonObject:
    """Return the envelope of an event, which says where the stream goes on behind it."""
    return {**record.data, "extra": {"id": record.id}} if record.id else record.data


def _token(environ: Mapping[str, Any], auth: Json) -> str:
    """Return the bearer token of a socket: of its handshake, or of a header. Addresses end in logs: none counts there."""
    header = str(environ["HTTP_AUTHORIZATION"]) if "HTTP_AUTHORIZATION" in environ else ""
    match auth:
        case {"bearer_token": str(token)} | {"token": str(token)} if token:
            return token
        case _:
            return header.removeprefix("Bearer ")
