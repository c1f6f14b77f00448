"""Chat: messages, answers and approvals, stop, recall, resume and fork, and the events of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import JsonValue, ValidationError
from pydantic_core import to_jsonable_python
from starlette.datastructures import FormData, UploadFile

from loopline.conversations import Conversation, Receipt, Submission
from loopline.errors import AttachmentError, BundleError
from loopline.events import DialectName
from loopline.files import Attachment, AttachmentCaps
from loopline.models import well_formed
from loopline.server.access import HostDep, OwnKeyDep, ReadKeyDep
from loopline.server.approvals import waiting_approvals
from loopline.server.bodies import (
    FILES,
    AnswersBody,
    ApprovalAnswer,
    ApprovalsAnswer,
    DoneAnswer,
    ForkAnswer,
    ForkBody,
    InterruptBody,
    MessageBody,
    PlaceAnswer,
    RecallBody,
    ReceiptAnswer,
    TurnAnswer,
    turn_answer,
    turn_of,
)
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import (
    MEDIA_TYPE,
    EarlyEvents,
    answer_open_calls,
    check_unanswered,
    counted_stream,
    event_stream,
    start_position,
    submit_answers,
)
from loopline.server.problems import not_found
from loopline.timeline import (
    ConversationKey,
    TurnResult,
    open_timeline,
    reaching,
    turn_number,
)

MESSAGE, FILE = "message", "files"
MESSAGE_BYTES = 4 * 1024 * 1024
"""How long the message may be written in JSON; its text has a limit of its own."""
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [MESSAGE],
                    "properties": {
                        MESSAGE: {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "The message as for /messages, without attachments.",
                        },
                        FILE: {
                            "type": "array",
                            "maxItems": FILES,
                            "items": {"type": "string", "format": "binary"},
                        },
                    },
                }
            }
        },
    }
}
"""The form as OpenAPI describes it."""


async def read_form(request: Request, caps: AttachmentCaps) -> tuple[MessageBody, list[Attachment]]:
    """Return the message and the files of a form, whose files are on disk until they are known to be small enough.

    Raises:
        HTTPException: the form is broken, or has more parts or bytes than it may have.
        RequestValidationError: there is no such message.
        AttachmentError: a file, or all together, are too large.
    """
    async with request.form(max_files=FILES, max_fields=1, max_part_size=MESSAGE_BYTES) as form:
        return _message(form), await _files(form, caps)


def _message(form: FormData) -> MessageBody:
    texts = [value for value in form.getlist(MESSAGE) if isinstance(value, str)]
    if len(texts) != 1:
        raise _fault(MESSAGE, "a form needs one message, as JSON")
    try:
        body = MessageBody.model_validate_json(texts[0])
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from error
    if body.attachments:
        raise _fault("attachments", f"the files of a form are its parts {FILE!r}")
    return body


async def _files(form: FormData, caps: AttachmentCaps) -> list[Attachment]:
    parts = [value for value in form.getlist(FILE) if isinstance(value, UploadFile)]
    if len(parts) + 1 < len(form.multi_items()):
        raise _fault(FILE, f"a form has one {MESSAGE!r} and {FILE!r}, nothing else")
    limit = max(caps.image_bytes, caps.pdf_bytes, caps.text_bytes, caps.file_bytes)
    total = 0
    for part in parts:
        size = part.size or 0
        total += size
        if size > limit:
            raise AttachmentError(f"{part.filename} has {size:,} bytes: a file may have {limit:,}")
        if total > caps.message_bytes:
            raise AttachmentError(
                f"{part.filename}: with it the message has {total:,} bytes: it may have {caps.message_bytes:,}"
            )
    return [
        Attachment(part.filename or "", await part.read(), part.content_type or "")
        for part in parts
    ]


def _fault(name: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body", name), "msg": message, "type": "value_error"}])


router: APIRouter = APIRouter(
    prefix="/conversations/{tenant}/{project}/{conversation}", tags=["chat"]
)
OwnDialect = Literal["loopline", "fim", "nadoo", "chatcli", "beakr", "kdcube", "ag-ui", "vercel"]
DialectHeader = Annotated[OwnDialect | None, Header(alias="Loopline-Dialect")]
KeyHeader = Annotated[str, Header(alias="Idempotency-Key", max_length=200)]


def dialect_name(name: OwnDialect | None) -> DialectName:
    """Return the dialect by the name that clients use: ours has the name of the project."""
    match name:
        case None | "loopline":
            return "plain"
        case _:
            return name


@router.post("/messages", response_model=TurnAnswer, responses={202: {"model": ReceiptAnswer}})
async def send_message(
    host: HostDep,
    key: OwnKeyDep,
    body: MessageBody,
    request: Request,
    idempotency_key: KeyHeader = "",
    name: DialectHeader = None,
) -> Response:
    """Send a message.

    The answer is the turn's result; its events, if `text/event-stream` is accepted; or, with `background`, the receipt.
    A message with an `Idempotency-Key` that was used in the conversation before is not sent again.
    """
    files = [Attachment(file.name, file.data, file.mime) for file in body.attachments]
    sent = SentMessage(body=body, files=files, key=idempotency_key)
    return await _send(host, key, sent, request, name)


@router.post(
    "/messages/multipart",
    response_model=TurnAnswer,
    responses={202: {"model": ReceiptAnswer}},
    openapi_extra=FORM,
)
async def send_form(
    host: HostDep,
    key: OwnKeyDep,
    request: Request,
    idempotency_key: KeyHeader = "",
    name: DialectHeader = None,
) -> Response:
    """Send a message as a form: the part `message` as JSON, and its files as parts `files`. The answer is that of `/messages`."""
    body, files = await read_form(request, host.settings.caps)
    sent = SentMessage(body=body, files=files, key=idempotency_key)
    return await _send(host, key, sent, request, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message as it came, with its files and its key."""

    body: MessageBody
    files: Sequence[Attachment]
    key: str


async def _send(
    host: BundleHost,
    key: ConversationKey,
    sent: SentMessage,
    request: Request,
    name: OwnDialect | None,
) -> Response:
    """Send a message, and answer as its sender wants it."""
    body = sent.body
    if body.webhook:
        host.webhooks.check(body.webhook)
    talk = await host.conversation(key, body.bundle_id)
    with _early_events(host, talk, request) as listening:
        async with host.turn_slot(key, sent.key):
            submission = await talk.submit(
                body.text,
                attachments=sent.files,
                when_busy=body.when_busy,
                key=sent.key,
                **body.limits.options(),
            )
            host.watch(key, submission, body.webhook)
        host.audit("message", key, seq=submission.receipt.seq)
        if body.background and listening is None:
            return _accepted(host, key, submission.receipt, request)
        return await _respond(host, talk, submission, name, listening)


@router.post("/answers", response_model=TurnAnswer, responses={202: {"model": ReceiptAnswer}})
async def answer_calls(
    host: HostDep, key: OwnKeyDep, body: AnswersBody, request: Request, name: DialectHeader = None
) -> Response:
    """Answer the calls that wait for the user, and continue the turn; without values continue one that was cut off.

    A call that asks while it stays open, here or in another process, goes on with its answer.
    """
    talk = await _begun(host, key)
    await host.check_approvals(talk, body.values, body.approvals)
    answered = await answer_open_calls(talk, body.values) if body.values else None
    if answered is not None:
        host.audit("answer", key, calls=",".join(body.values))
        if not answered.first:
            await check_unanswered(host.log, key, body.values)
        return JSONResponse(DoneAnswer(done=answered.first).model_dump(), 202)
    await check_unanswered(host.log, key, body.values)
    if body.only_open:
        raise not_found("call that stays open for an answer")
    with _early_events(host, talk, request) as listening:
        async with host.turn_slot(key):
            submission = await submit_answers(host.log, talk, body.values, **body.limits.options())
            host.watch(key, submission)
        host.audit("answer", key, calls=",".join(body.values))
        return await _respond(host, talk, submission, name, listening)


@router.get("/approvals")
async def read_approvals(host: HostDep, key: OwnKeyDep) -> ApprovalsAnswer:
    """Return the calls that await approval, each with a signed approval that is valid from now on."""
    waiting = await waiting_approvals(host.log, await _begun(host, key))
    return ApprovalsAnswer(
        approvals=[
            ApprovalAnswer(
                call_id=call.call_id,
                tool=call.tool,
                question=call.question,
                arguments=to_jsonable_python(call.arguments),
                approval=host.approvals.sign(key, call.call_id, call.digest),
            )
            for call in waiting.values()
        ]
    )


@router.post("/stop")
async def stop_turn(host: HostDep, key: OwnKeyDep) -> DoneAnswer:
    """Stop the turn that runs, and take back the messages that wait behind it."""
    talk = await _begun(host, key)
    done = await talk.stop()
    host.audit("stop", key)
    return DoneAnswer(done=done)


@router.post("/interrupts", status_code=202)
async def interrupt_turn(
    host: HostDep, key: OwnKeyDep, body: InterruptBody, idempotency_key: KeyHeader = ""
) -> PlaceAnswer:
    """Add a message to the turn that runs, or redirect that turn; if none runs, the next turn takes the message."""
    talk = await _begun(host, key)
    files = [Attachment(file.name, file.data, file.mime) for file in body.attachments]
    send = talk.steer if body.kind == "steer" else talk.followup
    receipt = await send(body.text, attachments=files, key=idempotency_key)
    host.audit(body.kind, key, seq=receipt.seq)
    return PlaceAnswer(turn_id=receipt.turn_id, seq=receipt.seq)


@router.get("/turns/{turn}")
async def read_turn(host: HostDep, key: ReadKeyDep, turn: str) -> TurnAnswer:
    """Return what a turn has come to; the one that has neither ended nor paused is `interrupted` until it does."""
    number = turn_number(turn)
    timeline = await reaching(host.log, key, await open_timeline(host.log, key), number)
    if number not in timeline.turns:
        raise not_found(f"turn {well_formed(turn)[:40]!r} in this conversation")
    return turn_of(key.name, timeline, number)


@router.post("/recall")
async def recall_message(host: HostDep, key: OwnKeyDep, body: RecallBody) -> DoneAnswer:
    """Take a message back, unless a round has taken it."""
    talk = await _begun(host, key)
    pending = {block.seq: block for block in await talk.interrupts.pending()}
    block = pending.get(body.seq)
    is_message = block is not None and block.turn_id == body.turn_id
    done = is_message and await talk.recall(Receipt(body.seq, turn_number(body.turn_id)))
    host.audit("recall", key, seq=body.seq)
    return DoneAnswer(done=done)


@router.post("/fork", status_code=201)
async def fork_conversation(host: HostDep, key: OwnKeyDep, body: ForkBody) -> ForkAnswer:
    """Begin another conversation with the blocks up to a seq."""
    talk = await _begun(host, key)
    fork = await talk.fork(seq=body.seq, name=body.name)
    host.audit("fork", key, seq=body.seq, to=fork.conversation.name)
    return ForkAnswer(conversation_id=fork.conversation.name)


@router.get("/events", response_class=Response)
@router.get("/events/{dialect}", response_class=Response)
async def listen(
    host: HostDep,
    key: OwnKeyDep,
    dialect: OwnDialect | None = None,
    name: DialectHeader = None,
    after: Annotated[str, Query(max_length=40)] = "",
    last_event_id: Annotated[str, Header(max_length=40)] = "",
    bundle_id: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Stream the events of a conversation, from the first block or behind `after` or `Last-Event-ID`, and then live."""
    position = start_position(last_event_id or after or "0")
    harness = await host.harness_of(key, bundle_id)
    talk = await host.conversation(key, harness.bundle.id)
    frames = host.broadcasts.frames(
        host.log, harness.bundle.id, talk, dialect_name(dialect or name), position
    )
    return counted_stream(host, key, frames)


async def _begun(host: BundleHost, key: ConversationKey) -> Conversation[Any]:
    """Return the handle of a conversation that has begun.

    Raises:
        RequestProblem: it has not.
    """
    if await host.log.find(key) is None:
        raise not_found(f"conversation {key.name!r}")
    return await host.conversation(key)


def _early_events(
    host: BundleHost, talk: Conversation[Any], request: Request
) -> AbstractContextManager[EarlyEvents | None]:
    """Begin to listen, if the client takes server-sent events, until sending fails.

    Raises:
        RequestProblem: as many listen as may; nothing was sent yet.
    """
    if not any(MEDIA_TYPE in accepted for accepted in request.headers.getlist("accept")):
        return nullcontext()
    return EarlyEvents(talk, host.listeners.take(talk.conversation))


def _accepted(
    host: BundleHost, key: ConversationKey, receipt: Receipt, request: Request
) -> Response:
    """Return where a message is stored that is answered in the background."""
    path = request.url.path.removesuffix("/multipart").removesuffix("/messages")
    if host.urls.base:  # it has the prefix of an app that this one is mounted in
        path = path.removeprefix(str(request.scope["root_path"]))
    accepted = ReceiptAnswer(
        conversation_id=key.name,
        turn_id=receipt.turn_id,
        seq=receipt.seq,
        events=f"{host.urls.begin(path)}/events?after={receipt.seq - 1}",
    )
    return JSONResponse(accepted.model_dump(), 202)


async def _respond(
    host: BundleHost,
    talk: Conversation[Any],
    submission: Submission,
    name: OwnDialect | None,
    listening: EarlyEvents | None,
) -> Response:
    """Return the events, if they are listened to, or the result."""
    key, receipt = talk.conversation, submission.receipt
    if listening is not None:
        return event_stream(
            host,
            talk,
            dialect_name(name),
            after=start_position(f"{receipt.seq - 1}"),
            submission=submission,
            listening=listening,
        )
    try:
        result: TurnResult[Any] = await submission.result()
    except BundleError as error:
        # The place in the author's code is for the log: the sender only gets that it failed.
        failed = TurnResult[Any](
            answer="",
            turn_id=receipt.turn_id,
            exit_reason="error",
            ok=False,
            error=f"the bundle's code failed: {type(error).__name__}",
        )
        return JSONResponse(turn_answer(key.name, failed, None).model_dump())
    output: JsonValue = to_jsonable_python(result.output, fallback=str)
    waiting = await waiting_approvals(host.log, talk) if result.pending else {}
    approvals = {
        call_id: host.approvals.sign(key, call_id, call.digest) for call_id, call in waiting.items()
    }
    return JSONResponse(turn_answer(key.name, result, output, approvals).model_dump())
