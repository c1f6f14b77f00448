"""A server and its conversations, with the methods that a harness and its conversations have."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, Unpack
from urllib.parse import quote

from msgspec import structs, to_builtins
from msgspec.json import decode
from typing_extensions import TypeForm, TypeVar

from loopline import timeline
from loopline.client.connection import (
    RETRY_SECONDS,
    ApprovalDocument,
    BlocksDocument,
    FormFile,
    ListedDocument,
    ModeDocument,
    PositionDocument,
    PrincipalDocument,
    ScheduledDocument,
    ServerConnection,
    ServerProblem,
    ServerRequest,
    StatusDocument,
    http_client,
)
from loopline.client.turn_stream import EVENT_STREAM, EventStream
from loopline.clock import Clock, SystemClock
from loopline.conversations import BackgroundState, Receipt, WhenBusy
from loopline.errors import AttachmentError, ConflictError, LooplineError
from loopline.events import AnswerText, Delta, Event, NotesMode
from loopline.files import Attachment, AttachmentInput
from loopline.models import Json, JsonObject, OutputType, dumps, output_type_of
from loopline.names import AsyncContext, check_type
from loopline.react import Limits, stored_settings
from loopline.reader import Reading, block_at, check_name

Out = TypeVar("Out", default=Any)
Attachments = AttachmentInput | Sequence[AttachmentInput]
NOT_FOUND = 404
PAGE_BLOCKS = 1_000


_FILES = timeline.BodyUnion[timeline.FileAdded](timeline.FileAdded)


class RemoteConversation:
    """One conversation of the key's user on a server, with the methods of `Conversation`.

    A request is repeated when its connection is lost, and a stream continues after the last block, even if the server was
    killed and restarted. A message is stored once, and every block is received once, in order. If bundle code fails, the
    result has the exit reason "error"; `BundleError` is not raised here.
    """

    def __init__(
        self, connection: ServerConnection, conversation: timeline.ConversationKey, bundle: str = ""
    ) -> None:
        self.conversation: timeline.ConversationKey = conversation
        self._connection = connection
        self._bundle = bundle
        self._open_questions: set[str] = set()
        names = (conversation.tenant, conversation.project, conversation.name)
        self._path = "/conversations/" + "/".join(quote(name, safe="") for name in names)

    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        output_type: TypeForm[Out] | None = None,
        tools: Sequence[timeline.ClientTool] = (),
        **limits: Unpack[Limits],
    ) -> timeline.TurnResult[Out]:
        """Send a message, and return the result of its turn.

        With a `key` that was used in the conversation before, nothing is sent and the result is that of the first message.
        The turn may call `tools`, which the caller runs, as for `Conversation.say`. The bundle chooses the type of its
        answer. `output_type` decodes the answer here; without one, `output` is the JSON value.

        Raises:
            AttachmentError: a file cannot be attached; nothing was stored.
            ConflictError: the conversation is busy, and `when_busy` is "reject"; or the key was used for another text.
            ServerProblem: the server refuses the message.
            ServerUnreachable: the server could not be reached for too long.
        """
        output = output_type_of(output_type)
        stream = await self._message(text, attachments, when_busy, key, limits, tools)
        return await self._result(stream, output)

    async def stream(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        tools: Sequence[timeline.ClientTool] = (),
        **limits: Unpack[Limits],
    ) -> AsyncIterator[Event]:
        """Send a message and yield the events of its turn; the last one is the turn's `react.exit` block.

        Errors are those of `say`. If you leave the iteration, the turn keeps running.
        """
        stream = await self._message(text, attachments, when_busy, key, limits, tools)
        async for event in self._events(stream):
            yield event

    async def stream_text(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        tools: Sequence[timeline.ClientTool] = (),
        notes: NotesMode = "hold",
        **limits: Unpack[Limits],
    ) -> AsyncIterator[str]:
        """Send a message and yield the text of its answer alone, as `Conversation.stream_text` does."""
        answer = AnswerText(notes)
        async for event in self.stream(
            text, attachments=attachments, when_busy=when_busy, key=key, tools=tools, **limits
        ):
            if piece := answer.feed(event):
                yield piece

    async def listen(self, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of all turns from now on; with `after`, first every stored block after that seq."""
        start = (await self._status()).last_seq if after is None else after
        async for event in self._events(EventStream(self._connection, self._path, after=start)):
            yield event

    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: TypeForm[Out] | None = None,
        **limits: Unpack[Limits],
    ) -> timeline.TurnResult[Out]:
        """Continue the turn that was cut off or is paused. `values` answer its calls by id, an approval with True or False.

        `output_type` decodes the answer, as for `say`.

        Raises:
            LooplineError: no turn can be resumed.
            ServerProblem: no call waits for one of the values.
        """
        output = output_type_of(output_type)
        return await self._result(await self._continuation(values, limits), output)

    async def stream_resume(
        self, values: Mapping[str, Json] | None = None, **limits: Unpack[Limits]
    ) -> AsyncIterator[Event]:
        """Resume as `resume` does, and yield the events of the turn."""
        async for event in self._events(await self._continuation(values, limits)):
            yield event

    async def approve(self, call_id: str, *, approved: bool = True) -> timeline.TurnResult[Any]:
        """Approve or deny a paused call, and return the result of its turn."""
        return await self.resume({call_id: approved})

    def asks(self, call_id: str) -> bool:
        """Return whether an open call of a turn that is streamed here asked a question that was not answered here."""
        return call_id in self._open_questions

    async def answer(self, call_id: str, value: Json) -> bool:
        """Answer the question of an open call; None declines. Return False if the call got another answer or has ended."""
        self._open_questions.discard(call_id)
        try:
            approvals = await self._approvals([call_id])
            values: JsonObject = {call_id: value}
            body: JsonObject = {"values": values, "approvals": approvals, "only_open": True}
            return await self._done("answers", body)
        except ConflictError:  # another answer came first
            return False
        except ServerProblem as problem:
            if problem.status == NOT_FOUND:
                return False
            raise

    async def followup(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Add a message to the running turn, or to the next turn if no turn runs."""
        return await self._interrupt("followup", text, attachments, key)

    async def steer(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Redirect the running turn: its model reply or tool calls are cancelled for this message."""
        return await self._interrupt("steer", text, attachments, key)

    async def recall(self, receipt: Receipt) -> bool:
        """Take a message back. Return False if a round has used it already."""
        position: JsonObject = {"seq": receipt.seq, "turn_id": receipt.turn_id}
        return await self._done("recall", position)

    async def stop(self) -> bool:
        """Stop the turn that runs or is paused. Return False if there was no such turn."""
        return await self._done("stop", {})

    async def retry(self) -> bool:
        """Put back the turn that was cut off too often. Return False if there is no such turn."""
        return await self._done("retry", {})

    async def schedule(
        self,
        text: str,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        every: str = "",
        zone: str = "",
        **limits: Unpack[Limits],
    ) -> timeline.ScheduledMessage:
        """Store a message that begins a turn at `at`, `delay` (seconds) from now, or at the times of the line of cron `every`.

        It works as `Conversation.schedule`. The bundle chooses the type of the answer.

        Raises:
            ServerProblem: there is no time, a value is not valid, or the conversation has too many scheduled messages.
            BundleError: `at` is not a datetime.
        """
        check_type(at, (datetime, type(None)), "at", "a datetime")
        body: JsonObject = {
            "text": text,
            "at": at.isoformat() if at else None,
            "delay": delay.total_seconds() if isinstance(delay, timedelta) else delay,
            "every": every,
            "zone": zone,
            **_limits(limits),
            "bundle_id": self._bundle,
        }
        request = replace(self._request("schedule", body), repeatable=False)
        return _scheduled(await self._connection.read(request, ScheduledDocument))

    async def scheduled(self) -> Sequence[timeline.ScheduledMessage]:
        """Return the messages that wait for their time, the first to begin first, with their texts alone."""
        messages = await self._connection.read_field(
            self._get("schedule"), "messages", list[ScheduledDocument]
        )
        return [_scheduled(message) for message in messages]

    async def unschedule(self, message_id: str = "") -> bool:
        """Remove the scheduled message of an id, or all scheduled messages without an id.

        Return False if there was none.
        """
        ids = [message_id] if message_id else [message.id for message in await self.scheduled()]
        removed = False
        for id in ids:
            removed |= await self._remove("schedule", id)
        return removed

    async def feedback(
        self,
        turn: str,
        reaction: timeline.Reaction | None,
        *,
        text: str = "",
        ts: datetime | None = None,
    ) -> None:
        """Rate a turn. A new reaction replaces the one before, and None removes it. `ts` is its time, if it is not now."""
        body: JsonObject = {
            "reaction": reaction,
            "text": text,
            "ts": ts.isoformat() if ts else None,
        }
        action = f"turns/{quote(turn, safe='')}/feedback"
        await self._connection.send(self._request(action, body))

    async def background_calls(self, *, wait: float = 0) -> Sequence[BackgroundState]:
        """Return the calls that run in the background, after waiting at most `wait` seconds, up to 60, until none runs."""
        request = self._get("background", ("wait", f"{wait:g}"))
        return await self._connection.read_field(request, "calls", list[BackgroundState])

    async def stop_background_call(self, call_id: str) -> bool:
        """Stop a call that runs in the background of any process. Return False if no such call runs."""
        return await self._done(f"background/{quote(call_id, safe='')}/stop", {})

    async def mode(self) -> timeline.ApprovalMode:
        """Return what happens to calls that need approval."""
        return (await self._connection.read(self._get("mode"), ModeDocument)).mode

    async def set_mode(self, mode: timeline.ApprovalMode) -> None:
        """Change what happens to calls that need approval, as `Conversation.set_mode` does; the conversation must have begun."""
        await self._done("mode", {"mode": mode})

    async def rules(self) -> Sequence[timeline.GrantedRule]:
        """Return the rules by which calls run without a question here, oldest first."""
        return (await self._connection.read(self._get("mode"), ModeDocument)).rules

    async def revoke_rule(self, rule_id: str) -> None:
        """Revoke a rule, also one of the user's other conversations.

        Raises:
            LooplineError: no such rule counts here.
        """
        if not await self._remove("rules", rule_id):
            raise LooplineError(f"no rule {rule_id!r} counts here")

    async def satisfaction(self) -> timeline.Satisfaction:
        """Return the counts of the user's current reactions, and the share of "ok" in them."""
        return await self._connection.read(self._get("satisfaction"), timeline.Satisfaction)

    async def fork(self, *, seq: int, name: str = "") -> RemoteConversation:
        """Create a conversation with the blocks up to `seq`. Without a name it is named after this conversation.

        Raises:
            ConflictError: there is no block with that seq, or a conversation of that name exists.
        """
        request = self._request("fork", {"seq": seq, "name": name})
        request = replace(request, repeatable=bool(name))
        fork = await self._connection.read_field(request, "conversation_id", str)
        key = structs.replace(self.conversation, name=fork)
        return RemoteConversation(self._connection, key, self._bundle)

    async def read(self, refs: str | Sequence[str]) -> Reading:
        """Read one ref or several. A ref that does not exist is in `missing`; the others are read."""
        ref_list: list[Json] = [refs] if isinstance(refs, str) else [*refs]
        request = self._request("read", {"refs": ref_list})
        return await self._connection.read(request, Reading)

    async def blocks(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: str | Sequence[str] = (),
        turn: str | None = None,
    ) -> Sequence[timeline.Block]:
        """Return the blocks after the seq `after`, at most `limit`; none if the conversation does not exist.

        `types`, such as `user.prompt` or `react.tool`, selects blocks of these types and of their subtypes. `turn`, such
        as `turn_2`, selects blocks of one turn.
        """
        filters = [("types", kind) for kind in ([types] if isinstance(types, str) else types)]
        if turn is not None:
            filters.append(("turn", turn))
        blocks: list[timeline.Block] = []
        page_after: int | None = after
        while page_after is not None and (limit is None or len(blocks) < limit):
            count = PAGE_BLOCKS if limit is None else min(limit - len(blocks), PAGE_BLOCKS)
            request = self._get(
                "blocks", ("after", f"{page_after}"), ("limit", f"{count}"), *filters
            )
            try:
                page = await self._connection.read(request, BlocksDocument)
            except ServerProblem as problem:
                if problem.status == NOT_FOUND:
                    return ()
                raise
            blocks += map(_block, page.blocks)
            page_after = page.next_after
        return blocks

    async def export(self) -> JsonObject:
        """Return the whole conversation as a document of the format `artifact:conv.timeline.v1`."""
        return decode(await self._connection.send(self._get("export")), type=JsonObject)

    async def forget(self) -> None:
        """Delete the conversation for good, with its files and child runs."""
        await self._connection.send(ServerRequest(method="DELETE", path=self._path))

    async def _message(
        self,
        text: str,
        attachments: Attachments,
        when_busy: WhenBusy,
        key: str,
        limits: Limits,
        tools: Sequence[timeline.ClientTool],
    ) -> EventStream:
        """Read the attachments, and return the stream that sends the message when its events are iterated.

        With attachments the request is a form. An empty `key` becomes a random one.
        """
        body: JsonObject = {
            "text": text,
            "when_busy": when_busy,
            **_limits(limits),
            "bundle_id": self._bundle,
        }
        if tools:
            body["tools"] = to_builtins(tools)
        files = await _read_files(attachments)
        request = self._request("messages", body, key or self._connection.clock.new_id())
        if files:
            form: list[FormFile] = [("message", (None, dumps(body).encode(), "application/json"))]
            form += [("files", _form_file(file)) for file in files]
            request = replace(request, path=f"{request.path}/multipart", body=None, form=form)
        request = _stream_request(request)
        joins = when_busy in ("followup", "steer")
        return EventStream(self._connection, self._path, request=request, joins=joins)

    async def _continuation(self, values: Mapping[str, Json] | None, limits: Limits) -> EventStream:
        """Return a stream that answers calls and continues the first resumable turn when it is iterated.

        If no turn can be resumed, raise a LooplineError.
        """
        status = await self._status()
        if not status.resumable_turns:
            raise LooplineError("there is nothing to resume: say something")
        receipt = Receipt(status.last_seq, timeline.turn_number(status.resumable_turns[0]))
        body: JsonObject = {
            "values": dict(values or {}),
            "approvals": await self._approvals(values or {}),
            **_limits(limits),
        }
        request = self._request("answers", body, self._connection.clock.new_id())
        return EventStream(
            self._connection, self._path, request=_stream_request(request), receipt=receipt
        )

    async def _approvals(self, call_ids: Collection[str], *query: tuple[str, str]) -> JsonObject:
        """Request signed approvals, and return those of `call_ids` by call id; calls that need none are left out.

        `query` has further parameters of the request.
        """
        if not call_ids:
            return {}
        rows = await self._connection.read_field(
            self._get("approvals", *query), "approvals", tuple[ApprovalDocument, ...]
        )
        return {row.call_id: row.approval for row in rows if row.call_id in call_ids}

    async def approve_for(
        self, user: str, call_id: str, *, approved: bool = True, reason: str = ""
    ) -> None:
        """Approve or deny a waiting call of another user's conversation of this name, as a further person.

        The key of the client must have the role `approver`, and several people must have to approve the call.

        Raises:
            ServerProblem: the caller may not do so, or has approved the call already; or no such call waits.
        """
        owner = ("user_id", user)
        signed = await self._approvals([call_id], owner)
        value: Json = approved or {"approved": False, "reason": reason}
        request = self._request("answers", {"values": {call_id: value}, "approvals": signed})
        await self._connection.read_field(replace(request, query=(owner,)), "done", bool)

    async def _interrupt(self, kind: str, text: str, attachments: Attachments, key: str) -> Receipt:
        """Send a followup or steer with files in base64, and return its receipt. An empty `key` becomes random."""
        files: list[Json] = [
            {"name": file.name, "data": b64encode(file.data).decode(), "mime": file.mime}
            for file in await _read_files(attachments)
        ]
        body: JsonObject = {"text": text, "kind": kind, "attachments": files}
        request = self._request("interrupts", body, key or self._connection.clock.new_id())
        position = await self._connection.read(request, PositionDocument)
        return Receipt(position.seq, timeline.turn_number(position.turn_id))

    async def _result(
        self, stream: EventStream, output: OutputType[Any] | None
    ) -> timeline.TurnResult[Any]:
        """Read all events of the stream, and return the result with the contents of its files and its decoded output.

        Only a successful answer is decoded. If the message was recalled, the exit reason is "stopped".
        """
        async for _ in self._events(stream):
            pass
        result = await stream.result()
        if result.exit_reason == "interrupted":  # the message was recalled before its turn began
            return replace(result, exit_reason="stopped")
        if result.files:
            result = replace(result, files=await self._fetch_files(result))
        if output is not None and result.ok:
            return replace(result, output=output.read(result.answer))
        return result

    async def _fetch_files(self, result: timeline.TurnResult[Any]) -> list[timeline.TurnFile]:
        """Return the files of a result with their contents."""
        blocks = await self.blocks(types="file.added", turn=result.turn_id)
        bodies = {block.ref: body for block, body in _FILES.among(blocks)}
        return [replace(file, body=bodies.get(file.ref)) for file in result.files]

    async def _events(self, stream: EventStream) -> AsyncGenerator[Event, None]:
        """Yield the events, and note the calls that ask a question and stay open for the answer."""
        events = stream.events()
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta) and event.type == "pending" and event.data is not None:
                    self._open_questions.add(event.call_id)
                yield event

    async def _status(self) -> StatusDocument:
        return await self._connection.read_field(self._get("status"), "meta", StatusDocument)

    async def _done(self, action: str, body: JsonObject) -> bool:
        return await self._connection.read_field(self._request(action, body), "done", bool)

    async def _remove(self, kind: str, id: str) -> bool:
        path = f"{self._path}/{kind}/{quote(id, safe='')}"
        request = ServerRequest(method="DELETE", path=path)
        return await self._connection.read_field(request, "done", bool)

    def _get(self, action: str, *query: tuple[str, str]) -> ServerRequest:
        return ServerRequest(method="GET", path=f"{self._path}/{action}", query=query)

    def _request(self, action: str, body: JsonObject, key: str = "") -> ServerRequest:
        path = f"{self._path}/{action}"
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        return ServerRequest(method="POST", path=path, body=dumps(body).encode(), headers=headers)


def _stream_request(request: ServerRequest) -> ServerRequest:
    """Return the request with an `Accept` header for an event stream; the parts of a form have their own types."""
    headers = {**request.headers, "Accept": EVENT_STREAM}
    if request.form:
        del headers["Content-Type"]
    return replace(request, headers=headers)


def _form_file(file: Attachment) -> tuple[str, bytes, str]:
    """Return the file as a part of a form. Characters of its name that UTF-8 cannot encode become question marks."""
    name = file.name.encode("utf-8", "replace").decode()
    return name, bytes(file.data), file.mime or "application/octet-stream"


def _block(row: JsonObject) -> timeline.Block:
    match row:
        case {"seq": int(seq)}:
            return block_at(row, seq)[0]
        case _:
            raise LooplineError("the server sent a block without a seq")


def _scheduled(message: ScheduledDocument) -> timeline.ScheduledMessage:
    """Convert a document of the server to a scheduled message, which has the text of its prompt alone."""
    return timeline.ScheduledMessage(
        id=message.id,
        at=message.at,
        prompt=timeline.UserPrompt(text=message.text),
        every=message.every,
        zone=message.zone,
    )


def _limits(limits: Limits) -> JsonObject:
    """Return the fields of a request for the limits, and for the settings of the model if there are any.

    Raises:
        LooplineError: the settings are not valid.
    """
    fields: JsonObject = {
        "limits": {
            name: value for name, value in limits.items() if isinstance(value, int | float | str)
        }
    }
    if settings := stored_settings(limits):
        fields |= {"settings": settings}
    return fields


async def _read_files(attachments: Attachments) -> list[Attachment]:
    inputs = [attachments] if isinstance(attachments, AttachmentInput) else attachments
    return [await asyncio.to_thread(_read_file, source) for source in inputs]


def _read_file(source: AttachmentInput) -> Attachment:
    """Return an attachment as it is, or read the file at a path; raise an AttachmentError if it cannot be read."""
    if isinstance(source, Attachment):
        return source
    path = Path(source)
    try:
        return Attachment(path.name, path.read_bytes())
    except OSError as error:
        raise AttachmentError(f"{path}: the file cannot be read: {error.strerror}") from error


def connect(
    url: str, key: str = "", *, retry_seconds: float = RETRY_SECONDS, clock: Clock | None = None
) -> RemoteServer:
    """Return a server, to be opened with `async with`. Its method `conversation` is that of a harness.

    A request is repeated for `retry_seconds` while the server cannot be reached.

    Raises:
        LooplineError: the URL is not an address of a server, or would carry the key unencrypted to another machine.
    """
    client = http_client(url, key)
    return RemoteServer(ServerConnection(client, clock or SystemClock(), retry_seconds))


class RemoteServer(AsyncContext):
    """A server, as the user of the key sees it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._principal: PrincipalDocument | None = None

    async def __aenter__(self) -> Self:
        """Request the user of the key and the served bundles.

        Raises:
            LooplineError: the key is wrong, or the server could not be reached for too long.
        """
        request = ServerRequest(method="GET", path="/me")
        try:
            self._principal = await self._connection.read(request, PrincipalDocument)
        except BaseException:
            await self._connection.client.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close every connection."""
        await self._connection.client.aclose()

    @property
    def bundles(self) -> tuple[str, ...]:
        """The ids of the served bundles. The first one runs a new conversation for which no bundle is named."""
        return self._open.bundles

    @property
    def user(self) -> str:
        """The user of the key."""
        return self._open.user

    @property
    def _open(self) -> PrincipalDocument:
        if self._principal is None:
            raise LooplineError("the server is not open: use async with connect(…)")
        return self._principal

    def conversation(
        self,
        name: str,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        bundle: str = "",
    ) -> RemoteConversation:
        """Return a conversation of the key's user. If it is new, `bundle` runs it.

        Raises:
            LooplineError: the key is of another user, project or tenant, or the name is not valid.
        """
        check_name("conversation", name, is_in_url=True)
        own = self._open
        for kind, expected, actual in (
            ("user", user, own.user),
            ("project", project, own.project),
            ("tenant", tenant, own.tenant),
        ):
            if expected not in (None, actual):
                raise LooplineError(f"the key is of the {kind} {actual!r}, not of {expected!r}")
        key = timeline.ConversationKey(
            name=name, user=own.user, project=own.project, tenant=own.tenant
        )
        return RemoteConversation(self._connection, key, bundle)

    async def conversations(self, *, limit: int = 100) -> tuple[ListedDocument, ...]:
        """Return the newest `limit` conversations of the user by last activity, newest first."""
        own = self._open
        request = ServerRequest(
            method="GET",
            path=f"/conversations/{quote(own.tenant, safe='')}/{quote(own.project, safe='')}",
            query=[("last_n", f"{limit}")],
        )
        return await self._connection.read_field(request, "items", tuple[ListedDocument, ...])
