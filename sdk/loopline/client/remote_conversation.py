"""A conversation on a server: say, add, stop, resume, read and give feedback, as with a harness."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self, Unpack, overload
from urllib.parse import quote

from msgspec import structs
from msgspec.json import decode
from typing_extensions import TypeForm, TypeVar

from loopline.client.connection import (
    RETRY_SECONDS,
    ApprovalsDocument,
    BlocksDocument,
    DoneDocument,
    ForkDocument,
    ListDocument,
    ListedDocument,
    PlaceDocument,
    PrincipalDocument,
    ServerConnection,
    ServerProblem,
    ServerRequest,
    StatusDocument,
    server_session,
)
from loopline.client.turn_stream import EVENT_STREAM, EventStream, TurnStream
from loopline.clock import Clock, SystemClock
from loopline.conversations import Receipt, WhenBusy
from loopline.errors import AttachmentError, ConflictError, LooplineError
from loopline.events import Delta, Event
from loopline.files import Attachment, AttachmentInput
from loopline.models import Json, JsonObject, OutputType, dumps, output_type_of
from loopline.react import Limits
from loopline.reader import Reading, block_at, check_name
from loopline.timeline import (
    Block,
    ConversationKey,
    Reaction,
    Satisfaction,
    TurnResult,
    turn_number,
)

_ESCAPES = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}


def encode_form(message: JsonObject, files: Sequence[Attachment]) -> tuple[bytes, str]:
    """Return the body of the form, and its type."""
    boundary = f"loopline-{token_hex(16)}"
    parts = [_part(boundary, 'name="message"', "application/json"), dumps(message).encode()]
    for file in files:
        name = file.name.translate(_ESCAPES)
        mime = file.mime.translate(_ESCAPES) or "application/octet-stream"
        parts += [_part(boundary, f'name="files"; filename="{name}"', mime), bytes(file.data)]
    body = b"".join([*parts, f"\r\n--{boundary}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={boundary}"


def _part(boundary: str, disposition: str, mime: str) -> bytes:
    lines = f"\r\n--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: {mime}\r\n\r\n"
    return lines.encode("utf-8", "replace")


Out = TypeVar("Out")
Attachments = AttachmentInput | Sequence[AttachmentInput]
NOT_FOUND = 404
PAGE_BLOCKS = 1_000


class RemoteConversation:
    """One conversation of the user whom the key names.

    It has the methods of `Conversation`. A request is repeated when its connection is lost, and a stream goes on behind
    the last block that came, also with a server that was killed and started again: a message is stored once, and every
    block comes once, in order. Where bundle code fails, the result says so; no `BundleError` is raised here.
    """

    def __init__(
        self, connection: ServerConnection, conversation: ConversationKey, bundle: str = ""
    ) -> None:
        self.conversation: ConversationKey = conversation
        self._connection = connection
        self._bundle = bundle
        self._open_questions: set[str] = set()
        names = conversation.tenant, conversation.project, conversation.name
        self._path = "/conversations/" + "/".join(quote(name, safe="") for name in names)

    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        output_type: None = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]: ...
    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        output_type: TypeForm[Out],
        **limits: Unpack[Limits],
    ) -> TurnResult[Out]: ...
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]:
        """Send a message, and return the result of its turn.

        With a `key` that was used in the conversation before, the result is that of the first message. The bundle chooses
        the type of its answer; `output_type` is the one that its answer is read as, else it is the JSON value.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            ConflictError: the conversation is busy, and `when_busy` is "reject"; or the key was used for another text.
            ServerProblem: the server refuses.
            ServerUnreachable: it could not be reached for too long.
        """
        output = output_type_of(output_type)
        stream = await self._message(text, attachments, when_busy, key, limits)
        return await self._result(stream, output)

    async def stream(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        **limits: Unpack[Limits],
    ) -> AsyncIterator[Event]:
        """Send a message and yield the events of its turn; the last one is the turn's `react.exit` block.

        If you leave the iteration, the turn keeps running.
        """
        stream = await self._message(text, attachments, when_busy, key, limits)
        async for event in self._events(stream):
            yield event

    async def listen(self, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of every turn from now on, or every block behind the seq `after` and then the live ones."""
        start = (await self._status()).meta.last_seq if after is None else after
        async for event in self._events(EventStream(self._connection, self._path, start)):
            yield event

    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: None = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]: ...
    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: TypeForm[Out],
        **limits: Unpack[Limits],
    ) -> TurnResult[Out]: ...
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]:
        """Continue the turn that was cut off or is paused; `values` answer its calls, for an approval True or False.

        Raises:
            ServerProblem: there is nothing to resume, or no call waits for such a value.
        """
        output = output_type_of(output_type)
        return await self._result(await self._continuation(values, limits), output)

    async def stream_resume(
        self, values: Mapping[str, Json] | None = None, **limits: Unpack[Limits]
    ) -> AsyncIterator[Event]:
        """Resume as `resume` does, and yield the events of the turn."""
        async for event in self._events(await self._continuation(values, limits)):
            yield event

    async def approve(self, call_id: str, *, approved: bool = True) -> TurnResult[Any]:
        """Approve or refuse the call that waits for it, and return the result of its turn."""
        return await self.resume({call_id: approved})

    def asks(self, call_id: str) -> bool:
        """Return whether a call of a turn that is streamed here asked a question and stays open for the answer."""
        return call_id in self._open_questions

    async def answer(self, call_id: str, value: Json) -> bool:
        """Answer a question that a call of the running turn asks; None declines. Return whether it gets this answer."""
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
        """Add a message to the running turn, or to the next one if none is running."""
        return await self._interrupt("followup", text, attachments, key)

    async def steer(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Redirect the running turn: its current model reply or tool calls are cut off for this message."""
        return await self._interrupt("steer", text, attachments, key)

    async def recall(self, receipt: Receipt) -> bool:
        """Take a message back, unless a round has taken it; return whether it was taken back."""
        position: JsonObject = {"seq": receipt.seq, "turn_id": receipt.turn_id}
        return await self._done("recall", position)

    async def stop(self) -> bool:
        """Stop the turn that runs or waits; return whether there was one."""
        return await self._done("stop", {})

    async def feedback(self, turn: str, reaction: Reaction | None, *, text: str = "") -> None:
        """Rate a turn; the newest reaction counts, and None removes it."""
        body: JsonObject = {"reaction": reaction, "text": text}
        await self._post(f"turns/{quote(turn, safe='')}/feedback", body)

    async def satisfaction(self) -> Satisfaction:
        """Return the counts of the user's reactions in force, and their rate."""
        return await self._connection.read(self._get("satisfaction"), Satisfaction)

    async def fork(self, *, seq: int, name: str = "") -> RemoteConversation:
        """Begin another conversation with the blocks up to `seq`.

        Raises:
            ConflictError: there is no such place, or a conversation of that name exists.
        """
        request = self._request("fork", {"seq": seq, "name": name})
        fork = await self._connection.read(replace(request, repeatable=bool(name)), ForkDocument)
        key = structs.replace(self.conversation, name=fork.conversation_id)
        return RemoteConversation(self._connection, key, self._bundle)

    async def read(self, refs: str | Sequence[str]) -> Reading:
        """Read one ref or several; a ref that does not exist does not stop the others."""
        refs_read: list[Json] = [refs] if isinstance(refs, str) else [*refs]
        request = self._request("read", {"refs": refs_read})
        return await self._connection.read(request, Reading)

    async def blocks(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: str | Sequence[str] = (),
        turn: str | None = None,
    ) -> Sequence[Block]:
        """Return the blocks whose seq is greater than `after`, at most `limit` of them; none if there is no conversation.

        `types`, such as `user.prompt` or `react.tool`, selects blocks of these types and of the types below them; `turn`,
        such as `turn_2`, selects those of one turn.
        """
        chosen = [("types", kind) for kind in ([types] if isinstance(types, str) else types)]
        chosen += [] if turn is None else [("turn", turn)]
        blocks: list[Block] = []
        page_after: int | None = after
        while page_after is not None and (limit is None or len(blocks) < limit):
            count = PAGE_BLOCKS if limit is None else min(limit - len(blocks), PAGE_BLOCKS)
            request = self._get(
                "blocks", ("after", f"{page_after}"), ("limit", f"{count}"), *chosen
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
        """Return the whole conversation as the document `artifact:conv.timeline.v1`."""
        return decode(await self._connection.send(self._get("export")), type=JsonObject)

    async def forget(self) -> None:
        """Delete the conversation for good, with its files and child runs."""
        await self._connection.send(ServerRequest(method="DELETE", path=self._path))

    async def _message(
        self, text: str, attachments: Attachments, when_busy: WhenBusy, key: str, limits: Limits
    ) -> TurnStream:
        body: JsonObject = {
            "text": text,
            "when_busy": when_busy,
            "limits": _limits(limits),
            "bundle_id": self._bundle,
        }
        key, files = key or self._connection.clock.new_id(), await _files(attachments)
        request = self._streamed("messages", body, key)
        if files:
            form, mime = encode_form(body, files)
            path, headers = f"{request.path}/multipart", {**request.headers, "Content-Type": mime}
            request = replace(request, path=path, body=form, headers=headers)
        joins = when_busy in ("followup", "steer")
        return TurnStream(self._connection, self._path, request, joins=joins)

    async def _continuation(self, values: Mapping[str, Json] | None, limits: Limits) -> TurnStream:
        meta = (await self._status()).meta
        if not meta.resumable_turns:
            raise LooplineError("there is nothing to resume: say something")
        position = Receipt(meta.last_seq, turn_number(meta.resumable_turns[0]))
        body: JsonObject = {
            "values": dict(values or {}),
            "approvals": await self._approvals(values or {}),
            "limits": _limits(limits),
        }
        request = self._streamed("answers", body, self._connection.clock.new_id())
        return TurnStream(self._connection, self._path, request, receipt=position)

    async def _approvals(self, call_ids: Collection[str]) -> JsonObject:
        """Return the signed approvals of those calls that await approval."""
        if not call_ids:
            return {}
        shown = await self._connection.read(self._get("approvals"), ApprovalsDocument)
        return {row.call_id: row.approval for row in shown.approvals if row.call_id in call_ids}

    async def _interrupt(self, kind: str, text: str, attachments: Attachments, key: str) -> Receipt:
        files: list[Json] = [
            {"name": file.name, "data": b64encode(file.data).decode(), "mime": file.mime}
            for file in await _files(attachments)
        ]
        body: JsonObject = {"text": text, "kind": kind, "attachments": files}
        request = self._request("interrupts", body, key or self._connection.clock.new_id())
        position = await self._connection.read(request, PlaceDocument)
        return Receipt(position.seq, turn_number(position.turn_id))

    async def _result(self, stream: TurnStream, output: OutputType[Any] | None) -> TurnResult[Any]:
        async for _ in self._events(stream):
            pass
        result = await stream.result()
        if result.exit_reason == "interrupted":  # it was taken back before its turn began
            return replace(result, exit_reason="stopped")
        if output is not None and result.ok:
            return replace(result, output=output.read(result.answer))
        return result

    async def _events(self, stream: EventStream) -> AsyncGenerator[Event, None]:
        events = stream.events()
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta) and event.type == "pending" and event.data is not None:
                    self._open_questions.add(event.call_id)
                yield event

    async def _status(self) -> StatusDocument:
        return await self._connection.read(self._get("status"), StatusDocument)

    async def _done(self, action: str, body: JsonObject) -> bool:
        return (await self._connection.read(self._request(action, body), DoneDocument)).done

    async def _post(self, action: str, body: JsonObject) -> None:
        await self._connection.send(self._request(action, body))

    def _get(self, action: str, *query: tuple[str, str]) -> ServerRequest:
        return ServerRequest(method="GET", path=f"{self._path}/{action}", query=query)

    def _request(self, action: str, body: JsonObject, key: str = "") -> ServerRequest:
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        path = f"{self._path}/{action}"
        return ServerRequest(method="POST", path=path, body=dumps(body).encode(), headers=headers)

    def _streamed(self, action: str, body: JsonObject, key: str) -> ServerRequest:
        request = self._request(action, body, key)
        return replace(request, headers={**request.headers, "Accept": EVENT_STREAM})


def _block(row: JsonObject) -> Block:
    """Return a block of an answer.

    Raises:
        LooplineError: it is none.
    """
    match row:
        case {"seq": int(seq)}:
            return block_at(row, seq)[0]
        case _:
            raise LooplineError("the server sent a block without a seq")


def _limits(limits: Limits) -> JsonObject:
    return {name: value for name, value in limits.items() if isinstance(value, int | float | str)}


async def _files(attachments: Attachments) -> list[Attachment]:
    inputs = [attachments] if isinstance(attachments, AttachmentInput) else attachments
    return [await asyncio.to_thread(_file, source) for source in inputs]


def _file(source: AttachmentInput) -> Attachment:
    """Return a file with its bytes.

    Raises:
        AttachmentError: it cannot be read.
    """
    if isinstance(source, Attachment):
        return source
    path = Path(source)
    try:
        return Attachment(path.name, path.read_bytes())
    except OSError as error:
        raise AttachmentError(f"{path}: it cannot be read: {error.strerror}") from error


def connect(
    url: str, key: str = "", *, retry_seconds: float = RETRY_SECONDS, clock: Clock | None = None
) -> RemoteServer:
    """Return a server, to be opened with `async with`; it has the `conversation` of a harness.

    A request is repeated for `retry_seconds` while the server cannot be reached.

    Raises:
        LooplineError: the URL is no address of a server, or a key could be read by others on its way.
    """
    session = server_session(url, key)
    return RemoteServer(ServerConnection(session, clock or SystemClock(), retry_seconds))


class RemoteServer:
    """A server, and the user whom the key names there."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._principal: PrincipalDocument | None = None

    async def __aenter__(self) -> Self:
        """Ask the server whom the key names.

        Raises:
            LooplineError: the key is wrong, or the server could not be reached for too long.
        """
        request = ServerRequest(method="GET", path="/me")
        try:
            self._principal = await self._connection.read(request, PrincipalDocument)
        except BaseException:
            await self._connection.session.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self._connection.session.close()

    @property
    def bundles(self) -> tuple[str, ...]:
        """The ids of the bundles that are served; the first begins a conversation that names none."""
        return self._open.bundles

    @property
    def user(self) -> str:
        """The user whom the key names."""
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
        """Return a conversation of the user whom the key names; `bundle` is the one that begins it.

        Raises:
            LooplineError: the key is of another user, project or tenant, or there can be no such name.
        """
        check_name("conversation", name)
        own = self._open
        for kind, wished, key_name in (
            ("user", user, own.user),
            ("project", project, own.project),
            ("tenant", tenant, own.tenant),
        ):
            if wished not in (None, key_name):
                raise LooplineError(f"the key is of the {kind} {key_name!r}, not of {wished!r}")
        key = ConversationKey(name=name, user=own.user, project=own.project, tenant=own.tenant)
        return RemoteConversation(self._connection, key, bundle)

    async def conversations(self, *, limit: int = 100) -> tuple[ListedDocument, ...]:
        """Return the user's conversations, the last active one first."""
        own = self._open
        request = ServerRequest(
            method="GET",
            path=f"/conversations/{own.tenant}/{own.project}",
            query=[("last_n", f"{limit}")],
        )
        return (await self._connection.read(request, ListDocument)).items
