"""Socket.IO for the pages of KDCube: messages in, and events in KDCube's envelopes out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from secrets import token_hex
from typing import Annotated, Any, Literal, cast
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

from pydantic import Field, TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from loopline.conversations import HandedOver, WhenBusy
from loopline.errors import LooplineError
from loopline.events import Record, dialect
from loopline.events.dialects.encoder import position
from loopline.files import Attachment
from loopline.models import Json, JsonObject
from loopline.server.access import key_of
from loopline.server.bodies import FILES, NAME, TEXT, ClientToolBody
from loopline.server.bundle_host import BundleHost
from loopline.server.conversation_views import state_of
from loopline.server.event_streams import EarlyEvents, conversation_events, start_position
from loopline.server.open_tokens import OpenStream
from loopline.server.principals import Principal, Unauthenticated
from loopline.server.problems import problem_of, response_to, unavailable
from loopline.server.request_access import FIRST_PACKET_SECONDS, SocketEntry
from loopline.server.turn_requests import ServedConversation, serve
from loopline.timeline import ClientTool, ConversationKey, iso_time, open_timeline, turn_id
from loopline.tools import MAX_CLIENT_TOOLS

_POLICIES: dict[str, WhenBusy] = {
    "event.user.prompt": "queue",
    "event.user.followup": "followup",
    "event.user.steer": "steer",
}
_ATTACHMENT = "event.user.attachment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketMessage:
    """A message of a client. `when_busy` is how it joins a running turn, and `key` the id of its event, if it has one.

    `tools` are those that the client runs.
    """

    conversation: str
    bundle_id: str
    text: str
    when_busy: WhenBusy = "queue"
    key: str = ""
    files: Sequence[Attachment] = ()
    tools: Sequence[ClientTool] = ()


def text_of(data: Json, name: str) -> str:
    """Return a text field of an object; an empty text if the field is null or missing, or `data` is not an object.

    Raises:
        LooplineError: the field is not a text, or is too long.
    """
    value = data[name] if isinstance(data, dict) and name in data else ""
    if value is None:
        return ""
    limit = TEXT if name in ("text", "message") else NAME
    if not isinstance(value, str) or len(value) > limit:
        raise LooplineError(f"{name} must be a text of at most {limit:,} characters")
    return value


def approvals_of(data: Json) -> dict[str, str]:
    """Return the signed approvals of an answer by call id. Values that are not texts are left out."""
    match data:
        case {"approvals": {**approvals}}:
            return {f"{call}": text for call, text in approvals.items() if isinstance(text, str)}
        case _:
            return {}


def read_message(data: Json, files: Sequence[bytes]) -> SocketMessage:
    """Parse a submission: `external_events`, or in the older form an object `message` with the text.

    `files` are the bytes of the files that the submission names, in the same order.

    Raises:
        LooplineError: the submission has neither form, or names another number of files.
    """
    submission = data if isinstance(data, dict) else JsonObject()
    match submission:
        case {"external_events": [*events]}:
            return _read_events(submission, events, files)
        case {"message": {"message": str()} | {"text": str()} as message}:
            return SocketMessage(
                conversation=text_of(message, "conversation_id"),
                bundle_id=text_of(message, "bundle_id"),
                text=text_of(message, "message") or text_of(message, "text"),
                files=_attachments(_file_names(submission), files),
                tools=_client_tools(submission),
            )
        case _:
            raise LooplineError("chat_message needs external_events, or a message with its text")


def _read_events(data: JsonObject, events: Sequence[Json], files: Sequence[bytes]) -> SocketMessage:
    """Join the texts of the events by line breaks to one message, with the files in their order.

    The last event with a text says how the message joins a running turn. The first event id is the key.

    Raises:
        LooplineError: an event has neither a text nor a file name, or a field or the number of files is not valid.
    """
    texts = list[str]()
    names = list[str]()
    kind = "event.user.prompt"
    key = ""
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
                kind = name
                key = key or text_of(event, "event_id")
            case _:
                raise LooplineError(
                    "an event must be one of the user, with a text or the name of a file"
                )
    return SocketMessage(
        conversation=text_of(data, "conversation_id"),
        bundle_id=text_of(data, "bundle_id"),
        text="\n".join(text for text in texts if text),
        when_busy=_POLICIES[kind],
        key=key,
        files=_attachments(names, files),
        tools=_client_tools(data),
    )


_TOOLS = TypeAdapter[list[ClientToolBody]](
    Annotated[list[ClientToolBody], Field(max_length=MAX_CLIENT_TOOLS)]
)


def _client_tools(submission: JsonObject) -> list[ClientTool]:
    """Return the tools of a submission, or an empty list; raise a LooplineError with the first invalid field."""
    if "tools" not in submission:
        return []
    try:
        tools = _TOOLS.validate_python(submission["tools"])
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, detail["loc"]))
        raise LooplineError(f"tools.{where}: {detail['msg']}") from error
    return [tool.tool() for tool in tools]


def _file_names(submission: JsonObject) -> list[str]:
    match submission:
        case {"attachment_meta": [*items]}:
            return [text_of(item, "filename") or text_of(item, "name") for item in items]
        case _:
            return []


def _attachments(names: Sequence[str], files: Sequence[bytes]) -> list[Attachment]:
    """Pair names with bytes; an empty name becomes `file-` with its number.

    Raise a LooplineError if the numbers differ, or if there are more than `FILES` files.
    """
    if len(names) != len(files) or len(files) > FILES:
        raise LooplineError(
            f"{len(names)} files are named and {len(files)} were received; at most {FILES} may be sent"
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
"""The status that acknowledges a message, by how the message joins a running turn."""


PATH = "/socket.io"
QUEUED_PACKETS = 100
"""How many packets may wait for a client. Then the socket gets no more until the client has read all of them."""
STRANGERS = 500
"""How many connections may be open that have not authenticated."""
ENTRY = "loopline.socket"
TRY_AGAIN_LATER = 1013
_log = logging.getLogger("loopline")
_Handler = Callable[..., Coroutine[Any, Any, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSocket:
    """A socket that has authenticated: its Engine.IO connection, its token, the check of the token, and its listener slot."""

    connection: str
    principal: Principal
    token: str
    stream: OpenStream
    slot: ExitStack


class SocketHost:
    """The sockets of a server: their users, and the conversations that each of them listens to.

    A connection that does not authenticate with its first packet is closed, and so is a socket when its token is revoked or
    expires.
    """

    def __init__(self, host: BundleHost) -> None:
        self._host = host
        self._module = import_module("socketio")  # the library has no types
        self._server: Any = self._module.AsyncServer(
            async_mode="asgi",
            cors_allowed_origins=[],  # the middleware of the app checks origins
            ping_interval=host.settings.keep_alive_seconds,
            max_http_buffer_size=host.settings.body_bytes,
            logger=False,
            engineio_logger=False,
        )
        self._open: dict[str, _OpenSocket] = {}
        self._known: dict[str, Principal] = {}
        self._entries = WeakValueDictionary[str, SocketEntry]()
        self._endings: set[asyncio.Task[None]] = set()
        self._pumps: dict[tuple[str, ConversationKey], asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._is_used = False
        handlers: Mapping[str, _Handler] = {
            "chat_message": self._submit,
            "chat_answer": self._answer,
            "chat_stop": self._stop,
            "chat_listen": self._listen,
            "conv_status.get": self._status,
        }
        self._server.on("connect", self._connect)
        self._server.on("disconnect", self._disconnect)
        self._server.on("ping", self._pong)
        for event, handler in handlers.items():
            self._server.on(event, self._acknowledge_errors(handler))

    def asgi(self) -> ASGIApp:
        """Return the app to mount at `PATH`. It works below any path at which the server itself is mounted."""
        inner = cast("ASGIApp", self._module.ASGIApp(self._server, socketio_path=PATH))

        async def serve_socket(scope: Scope, receive: Receive, send: Send) -> None:
            """Serve a request; refuse a new connection at `STRANGERS`, and later end one without authentication."""
            self._is_used = True
            is_new = not _connection(scope)
            if is_new and len(self._strangers) >= STRANGERS:
                await _refuse(scope, receive, send)
                return
            await inner({**scope, "path": f"{PATH}/"}, receive, send)
            if is_new and scope["type"] == "http":  # a WebSocket has ended by now
                asyncio.get_running_loop().call_later(
                    FIRST_PACKET_SECONDS, self._end_strangers, self._strangers
                )

        return serve_socket

    @property
    def _strangers(self) -> list[str]:
        """The connections that have not authenticated."""
        return [sid for sid in self._server.eio.sockets if sid not in self._known]

    def _end_strangers(self, connections: Sequence[str]) -> None:
        """Close those of the connections that are open and still have not authenticated."""
        strangers = set(self._strangers)
        for connection in connections:
            if connection in strangers:
                self._start_end(self._server.eio.disconnect(connection))

    def _start_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Close a connection in the background. The reference to the task keeps it from being collected."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def covers(self, scope: Scope) -> bool:
        """Return whether a request belongs to a socket, by its path."""
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        return path == PATH or path.startswith(f"{PATH}/")

    def sender(self, scope: Scope) -> Principal | None:
        """Return the user of the socket that a request belongs to, or None if the socket has not authenticated."""
        return self._known.get(_connection(scope))

    def enter(self, scope: Scope, entry: SocketEntry) -> None:
        """Call `entry.open` once the socket of this WebSocket has authenticated, or at once if it has already."""
        connection = _connection(scope)
        if connection in self._known:
            entry.open()
        elif connection:  # an upgrade of a connection, perhaps before its first packet
            self._entries[connection] = entry
        else:
            scope[ENTRY] = entry

    async def close(self) -> None:
        """Send `server_shutdown` to every socket, and close all of them."""
        for sid in self.sids:
            await self._server.emit("server_shutdown", {}, to=sid)
            await self._server.disconnect(sid)
        if self._ending is not None:
            self._ending.cancel()
        if self._is_used:  # an unused server has no tasks, and cannot be shut down twice
            self._is_used = False
            await self._server.shutdown()

    def unread_packets(self, sid: str) -> int:
        """Return the number of packets that the client of a socket has not read; 0 if the socket has ended."""
        queue = self._queue(sid)
        count: int = 0 if queue is None else queue.qsize()
        return count

    def _queue(self, sid: str) -> Any:
        """Return the queue of the packets that the client has not read, or None if the socket has ended."""
        connection = self._server.manager.eio_sid_from_sid(sid, "/") or ""
        sockets = self._server.eio.sockets
        return sockets[connection].queue if connection in sockets else None

    @property
    def sids(self) -> list[str]:
        """The ids of the connected sockets."""
        return list(self._open)

    async def _connect(
        self, sid: str, environ: Mapping[str, Any], auth: Json = None
    ) -> Literal[False] | None:
        """Authenticate a socket, take a listener slot for it and send `session_info`.

        The handshake may name the tenant and the project, but they must be those of the token. If the socket is refused,
        raise the `ConnectionRefusedError` of the library with the reason. Return False for an event of a client with the name
        `connect`, which the library also passes to this handler.
        """
        if not self._server.manager.is_pre_connected(sid, "/"):
            return False
        try:
            await self._host.open()
            token = _token(environ, auth)
            principal = await self._host.admit(token)
            tenant, project = text_of(auth, "tenant"), text_of(auth, "project")
            is_own = tenant in ("", principal.tenant) and project in ("", principal.project)
            if not is_own:
                raise LooplineError("the token is of another tenant or project")
            session_id = text_of(auth, "user_session_id") or sid
            slot = self._host.listeners.take(principal)
        except LooplineError as error:
            raise self._module.exceptions.ConnectionRefusedError(str(error)) from None
        connection = self._server.manager.eio_sid_from_sid(sid, "/") or ""
        stream = self._host.tokens.add(
            token, principal, lambda _: self._start_end(self._end_socket(sid))
        )
        self._open[sid] = _OpenSocket(
            connection=connection, principal=principal, token=token, stream=stream, slot=slot
        )
        self._known[connection] = principal
        scope: Scope = environ["asgi.scope"]
        for entry in (self._entries.pop(connection, None), scope.get(ENTRY)):
            if isinstance(entry, SocketEntry):
                entry.open()
        self._ending = self._ending or asyncio.create_task(self._end_when_draining())
        session: JsonObject = {
            "session_id": session_id,
            "user_type": "privileged" if principal.is_privileged else "registered",
            "user_id": principal.user,
            "username": principal.user,
            "tenant": principal.tenant,
            "project": principal.project,
            "connected_at": iso_time(self._host.clock.now()),
        }
        await self._server.emit("session_info", session, to=sid)
        if self._has_ended(connection):  # the library has not called `_disconnect` for it
            await self._disconnect(sid)
            raise self._module.exceptions.ConnectionRefusedError("the connection has ended")
        return None

    def _has_ended(self, connection: str) -> bool:
        socket = self._server.eio.sockets.get(connection)
        return socket is None or socket.closing or socket.closed

    async def _disconnect(self, sid: str, reason: str = "") -> None:
        """Free the listener slot of a socket, end the checks of its token, and cancel its event streams.

        An event of a client with the name `disconnect`, which the library also passes to this handler, is ignored.
        """
        del reason
        if self._server.manager.is_connected(sid, "/"):
            return
        opened = self._open.pop(sid, None)
        if opened is not None:
            opened.slot.close()
            self._host.tokens.discard(opened.token, opened.stream)
            self._known.pop(opened.connection, None)
        for (socket_id, _), pump in list(self._pumps.items()):
            if socket_id == sid:
                pump.cancel()

    async def _end_socket(self, sid: str) -> None:
        """Close a socket and its connection, because its token was revoked or has expired."""
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

    def _acknowledge_errors(self, handler: _Handler) -> _Handler:
        """Wrap a handler: authenticate the socket's token again before each event, and acknowledge an error as a problem."""

        async def handle(sid: str, data: Json = None, *files: bytes) -> Json:
            """Authenticate the token, then run the handler; return a LooplineError as an object with `ok` false."""
            opened = self._open[sid]
            try:
                principal = await self._host.admit(opened.token)
                if principal != opened.principal:
                    raise Unauthenticated("the token belongs to another user now: connect again")
                return await handler(sid, principal, data, *files)
            except LooplineError as error:
                problem = problem_of(error)
                return {
                    "ok": False,
                    "status": int(problem.status),
                    "error_type": problem.status.phrase,
                    "error": str(problem),
                }

        return handle

    async def _submit(self, sid: str, principal: Principal, data: Json, *files: bytes) -> Json:
        """Submit a message, and return the acknowledgement with the turn id.

        From then on the socket receives the events of the conversation. Without a conversation id a new conversation is
        created. A steer without a text stops the running turn.
        """
        message = read_message(data, files)
        key = key_of(principal, message.conversation or f"chat-{token_hex(12)}")
        is_new = await self._host.log.find(key) is None
        served = await serve(self._host, key, message.bundle_id)
        await self._follow(sid, served, after=None)
        if message.when_busy == "steer" and not message.text:
            return await self._stop(sid, principal, {"conversation_id": key.name})
        submission = await served.submit(
            message.text,
            attachments=message.files,
            when_busy=message.when_busy,
            key=message.key and f"kdcube:{message.key}",
            tools=message.tools,
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
        """Answer waiting calls by the field `values`; from then on the socket receives the conversation's events.

        If `values` is missing or empty, raise a LooplineError.
        """
        served = await self._existing_conversation(principal, data)
        values = data["values"] if isinstance(data, dict) and "values" in data else None
        if not isinstance(values, dict) or not values:
            raise LooplineError("values must be the answers by call id")
        await self._follow(sid, served, after=None)
        request = await served.send_answers(values, approvals_of(data))
        return {"ok": True, "turn_id": turn_id(request.turn)}

    async def _stop(self, sid: str, principal: Principal, data: Json) -> Json:
        del sid
        served = await self._existing_conversation(principal, data)
        return {"ok": True, "done": await served.stop()}

    async def _listen(self, sid: str, principal: Principal, data: Json) -> Json:
        """Start to send the events of a conversation after `after`, a seq or the id of an event."""
        served = await self._existing_conversation(principal, data)
        await self._follow(sid, served, after=start_position(text_of(data, "after") or "0"))
        return {"ok": True, "conversation_id": served.key.name}

    async def _status(self, sid: str, principal: Principal, data: Json) -> Json:
        """Emit `conv_status` with the state and the last activity of a conversation, and return both."""
        key = (await self._existing_conversation(principal, data)).key
        timeline = await open_timeline(self._host.log, key)
        summary = await self._host.log.find(key)
        newest: datetime = summary.last_activity_at if summary else self._host.clock.now()
        status: JsonObject = {"state": state_of(timeline), "updated_at": iso_time(newest)}
        envelope: JsonObject = {
            "type": "conv.status",
            "timestamp": iso_time(self._host.clock.now()),
            "service": {"tenant": principal.tenant, "project": principal.project},
            "conversation": {"session_id": sid, "conversation_id": key.name},
            "event": {"step": "conv.state", "status": "completed"},
            "data": status,
        }
        await self._server.emit("conv_status", envelope, to=sid)
        return {"conversation_id": key.name, **status}

    async def _existing_conversation(self, principal: Principal, data: Json) -> ServedConversation:
        """Return the existing conversation that the data names.

        Raises:
            LooplineError: the conversation does not exist.
        """
        key = key_of(principal, text_of(data, "conversation_id"))
        if await self._host.log.find(key) is None:
            raise LooplineError(f"there is no conversation {key.name!r} here")
        return await serve(self._host, key)

    async def _follow(
        self, sid: str, served: ServedConversation, *, after: tuple[int, int] | None
    ) -> None:
        """Send a socket the events of a conversation after a position; with None, only events from now on.

        If the socket receives them already, nothing changes with None; with a position they are sent again from there.
        A socket that has ended is sent nothing.
        """
        pump_key = (sid, served.key)
        if after is None and self._is_followed(pump_key):
            return
        with EarlyEvents(served.conversation) as early:
            begin = after
            if begin is None:
                summary = await self._host.log.find(served.key)
                begin = start_position(f"{summary.head if summary else 0}")
            # While this task waited, the socket may have ended, or another event of it may have done the same.
            if sid not in self._open or (after is None and self._is_followed(pump_key)):
                early.close()
                return
            if pump_key in self._pumps:
                self._pumps[pump_key].cancel()
            pump = asyncio.create_task(self._pump(sid, served, early, begin))
        self._pumps[pump_key] = pump
        pump.add_done_callback(lambda done: self._discard_pump(pump_key, done))
        pump.add_done_callback(lambda _: early.close())  # a pump that never ran has not closed it

    def _is_followed(self, pump_key: tuple[str, ConversationKey]) -> bool:
        pump = self._pumps.get(pump_key)
        return pump is not None and not pump.done()

    def _discard_pump(
        self, pump_key: tuple[str, ConversationKey], pump: asyncio.Task[None]
    ) -> None:
        """Remove a pump that has ended if it was not replaced, and log its error if it has failed."""
        if self._pumps.get(pump_key) is pump:
            del self._pumps[pump_key]
        if not pump.cancelled() and (error := pump.exception()) is not None:
            _log.error("the events of a socket broke off", exc_info=error)

    async def _pump(
        self, sid: str, served: ServedConversation, early: EarlyEvents, after: tuple[int, int]
    ) -> None:
        """Emit the records after a position until the server shuts down; wait if `QUEUED_PACKETS` are unread."""
        url_maker = self._host.urls.file_url_maker(served.key)
        encoder = dialect("kdcube", served.key, file_url=url_maker)
        async with aclosing(conversation_events(served, early=early)) as events:
            with suppress(HandedOver):  # the client receives `server_shutdown`
                async for event in events:
                    for record in encoder.take(event):
                        if not record.id or position(record.id) > after:
                            if self.unread_packets(sid) >= QUEUED_PACKETS:
                                await self._queue(sid).join()
                            await self._server.emit(record.event, _envelope(record), to=sid)


def _connection(scope: Scope) -> str:
    """Return the connection id in the query of a request, or an empty text if the request opens a connection."""
    query = str(scope["query_string"], "ascii", "replace")
    return parse_qs(query).get("sid", [""])[0]


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a connection, because too many connections have not authenticated."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
        return
    text = f"{STRANGERS} sockets have not authenticated yet: try again later"
    await response_to(unavailable(text))(scope, receive, send)


def _envelope(record: Record) -> JsonObject:
    """Return the data of a record, with its id, from which a client can listen again."""
    return {**record.data, "extra": {"id": record.id}} if record.id else record.data


def _token(environ: Mapping[str, Any], auth: Json) -> str:
    """Return the bearer token of a handshake, otherwise of its `Authorization` header; empty without one.

    Query parameters are ignored, because URLs end up in logs.
    """
    header = str(environ["HTTP_AUTHORIZATION"]) if "HTTP_AUTHORIZATION" in environ else ""
    match auth:
        case {"bearer_token": str(token)} | {"token": str(token)} if token:
            return token
        case _:
            return header.removeprefix("Bearer ")
