"""Chat routes: messages, answers and approvals, stop, recall, resume and fork, and the events of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import JsonValue, ValidationError
from pydantic_core import to_jsonable_python
from starlette.datastructures import FormData, UploadFile

from loopline import timeline as tl
from loopline.conversations import Receipt, Submission
from loopline.errors import AttachmentError, BundleError, LooplineError
from loopline.events import DialectName, dialect
from loopline.files import Attachment, AttachmentCaps
from loopline.models import well_formed
from loopline.reader import check_name
from loopline.server import bodies, event_streams
from loopline.server.access import AnsweringDep, HostDep, OwnDep, OwnKeyDep, ReadKeyDep
from loopline.server.broadcasts import find_turns_begin
from loopline.server.bundle_host import BundleHost
from loopline.server.problems import PROBLEMS, not_found
from loopline.server.request_access import SLASH
from loopline.server.turn_requests import ServedConversation, TurnRequest, serve

MESSAGE = "message"
FILE = "files"
MESSAGE_BYTES = 4 * 1024 * 1024
"""The size limit of the JSON message in a form. The text in it has a limit too."""
WAIT_SECONDS = 60.0
"""The most seconds that a request waits for calls in the background."""
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [MESSAGE],
                    "additionalProperties": False,
                    "properties": {
                        MESSAGE: {"$ref": "#/components/schemas/MessageBody"},
                        FILE: {
                            "type": "array",
                            "maxItems": bodies.FILES,
                            "items": {"type": "string", "format": "binary"},
                        },
                    },
                },
                "encoding": {MESSAGE: {"contentType": "application/json"}},
            }
        },
    }
}
"""The description of the form for the OpenAPI document."""


async def read_form(
    request: Request, caps: AttachmentCaps
) -> tuple[bodies.MessageBody, list[Attachment]]:
    """Parse a form to its message and files. Sizes are checked before the files are read into memory.

    Raises:
        HTTPException: the form is malformed, or has too many parts or bytes.
        RequestValidationError: the message is missing or not valid.
        AttachmentError: a file, or all files together, are too large.
    """
    async with request.form(
        max_files=bodies.FILES, max_fields=1, max_part_size=MESSAGE_BYTES
    ) as form:
        return _parse_message(form), await _read_files(form, caps)


def _parse_message(form: FormData) -> bodies.MessageBody:
    """Parse the one part `message` of a form; its files are read elsewhere.

    Raises:
        RequestValidationError: there is not exactly one such part, or it is not a valid message without attachments.
    """
    texts = [value for value in form.getlist(MESSAGE) if isinstance(value, str)]
    if len(texts) != 1:
        raise _field_error(MESSAGE, "a form needs one message, as JSON")
    try:
        body = bodies.MessageBody.model_validate_json(texts[0])
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from error
    if body.attachments:
        raise _field_error("attachments", f"send the files of a form as parts {FILE!r}")
    return body


async def _read_files(form: FormData, caps: AttachmentCaps) -> list[Attachment]:
    """Return the files of a form, after all their sizes were checked against `caps`.

    A file or a sum above the limits raises an `AttachmentError`, an unknown part a `RequestValidationError`.
    """
    parts = [value for value in form.getlist(FILE) if isinstance(value, UploadFile)]
    if len(parts) + 1 < len(form.multi_items()):
        raise _field_error(FILE, f"a form may have one {MESSAGE!r} and {FILE!r}, nothing else")
    limit = max(caps.image_bytes, caps.pdf_bytes, caps.text_bytes, caps.file_bytes)
    total = 0
    for part in parts:
        size = part.size or 0
        total += size
        if size > limit:
            raise AttachmentError(f"{part.filename} has {size:,} bytes; a file may have {limit:,}")
        if total > caps.message_bytes:
            raise AttachmentError(
                f"{part.filename}: the files up to it have {total:,} bytes; all files of a message may have {caps.message_bytes:,}"
            )
    return [
        Attachment(part.filename or "", await part.read(), part.content_type or "")
        for part in parts
    ]


def _field_error(name: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body", name), "msg": message, "type": "value_error"}])


router: APIRouter = APIRouter(
    prefix="/conversations/{tenant}/{project}/{conversation}", tags=["chat"], responses=PROBLEMS
)
OwnDialect = Literal["loopline", "fim", "nadoo", "chatcli", "beakr", "kdcube", "ag-ui", "vercel"]
DialectHeader = Annotated[OwnDialect, Header(alias="Loopline-Dialect")]
KeyHeader = Annotated[str, Header(alias="Idempotency-Key", max_length=200)]


def dialect_name(name: OwnDialect) -> DialectName:
    """Return the dialect of a name in the API: `plain` for `loopline`."""
    return "plain" if name == "loopline" else name


@router.post(
    "/messages", response_model=bodies.TurnAnswer, responses={202: {"model": bodies.ReceiptAnswer}}
)
async def send_message(
    host: HostDep,
    key: OwnKeyDep,
    body: bodies.MessageBody,
    request: Request,
    idempotency_key: KeyHeader = "",
    name: DialectHeader = "loopline",
) -> Response:
    """Send a message.

    The response is the turn's result; its events, if the request accepts `text/event-stream`; or, with `background`, the
    receipt. A message with an `Idempotency-Key` that was used in the conversation before is not sent again.
    """
    files = [Attachment(file.name, file.data, file.mime) for file in body.attachments]
    return await _send(host, key, body, files, idempotency_key, request, name)


@router.post(
    "/messages/multipart",
    response_model=bodies.TurnAnswer,
    responses={202: {"model": bodies.ReceiptAnswer}},
    openapi_extra=FORM,
)
async def send_form(
    host: HostDep,
    key: OwnKeyDep,
    request: Request,
    idempotency_key: KeyHeader = "",
    name: DialectHeader = "loopline",
) -> Response:
    """Send a message as a form: the part `message` as JSON, and its files as parts `files`. The response is that of `/messages`."""
    body, files = await read_form(request, host.settings.caps)
    return await _send(host, key, body, files, idempotency_key, request, name)


async def _send(
    host: BundleHost,
    key: tl.ConversationKey,
    message: bodies.MessageBody,
    files: Sequence[Attachment],
    idempotency_key: str,
    request: Request,
    dialect_header: OwnDialect,
) -> Response:
    """Send a message, and answer with its events, its receipt or its result.

    The events are sent if the request accepts them, otherwise the receipt if the message is in the background.

    Raises:
        LooplineError: the webhook cannot be sent, or the message is refused as in `ServedConversation.submit`.
    """
    if message.webhook:
        host.webhooks.check(message.webhook)
    served = await serve(host, key, message.bundle_id)
    with event_streams.subscribe_early(served, is_streamed=_accepts_events(request)) as early:
        submission = await served.submit(
            message.text,
            attachments=files,
            when_busy=message.when_busy,
            key=idempotency_key,
            webhook=message.webhook,
            tools=[tool.tool() for tool in message.tools],
            **message.options(),
        )
        if message.background and early is None:
            return _receipt_response(host, key, submission.receipt, request)
        return await _respond(served, submission, dialect_header, early)


@router.post(
    "/answers", response_model=bodies.TurnAnswer, responses={202: {"model": bodies.ReceiptAnswer}}
)
async def answer_calls(
    answering: AnsweringDep,
    body: bodies.AnswersBody,
    request: Request,
    name: DialectHeader = "loopline",
) -> Response:
    """Answer calls that wait for the user, and continue the paused turn.

    Without values a turn that was cut off is continued. A call that stays open while its turn runs, here or in another
    process, receives its answer, and the response says so with 202. So does the response to an approver, who gives the
    further approval of a call in a conversation of the user `user_id`.
    """
    await answering.check(body.values)
    served, by = answering.served, answering.by
    answered = await served.answer_open_calls(body.values, body.approvals, by=by)
    if answered is not None:
        if not answered.is_first:
            await served.check_unanswered(body.values)
        return JSONResponse(bodies.DoneAnswer(done=answered.is_first).model_dump(), 202)
    await served.check_unanswered(body.values)
    if body.only_open:
        raise not_found("call that stays open for an answer")
    if by:
        await served.resume(body.values, by=by)
        return JSONResponse(bodies.DoneAnswer(done=True).model_dump(), 202)
    with event_streams.subscribe_early(served, is_streamed=_accepts_events(request)) as early:
        submission = await served.resume(body.values, **body.options())
        return await _respond(served, submission, name, early)


@router.get("/approvals")
async def read_approvals(answering: AnsweringDep) -> bodies.ApprovalsAnswer:
    """Return the calls that await approval, each with a signed approval that is valid from now on.

    An approver reads those of the user `user_id` that several people must approve.
    """
    served = answering.served
    waiting = await answering.waiting()
    return bodies.ApprovalsAnswer(
        approvals=[
            bodies.ApprovalAnswer(
                call_id=call.call_id,
                tool=call.tool,
                question=call.question,
                arguments=None if call.stays_open else call.arguments,
                people=call.people,
                approved_by=[*call.approved_by],
                approval=served.host.approvals.sign(served.key, call.call_id, call.digest),
            )
            for call in waiting.values()
            if call.kind == "approval"
        ]
    )


@router.get("/mode")
async def read_mode(served: OwnDep) -> bodies.ModeAnswer:
    """Return what happens to calls that need approval: the mode of the conversation, and the rules that count in it."""
    conversation = served.conversation
    return bodies.ModeAnswer(mode=await conversation.mode(), rules=await conversation.rules())


@router.post("/mode")
async def set_mode(served: OwnDep, body: bodies.ModeBody) -> bodies.DoneAnswer:
    """Change the approval mode of a conversation, also for the turn that runs."""
    await served.conversation.set_mode(body.mode)
    served.host.audit("mode", served.key, mode=body.mode)
    return bodies.DoneAnswer(done=True)


@router.delete("/rules/{rule_id}")
async def revoke_rule(served: OwnDep, rule_id: str) -> bodies.DoneAnswer:
    """Revoke a rule that counts in the conversation. `done` is false if there is no such rule."""
    conversation = served.conversation
    is_there = any(rule.rule_id == rule_id for rule in await conversation.rules())
    if is_there:
        await conversation.revoke_rule(rule_id)
    served.host.audit("revoke_rule", served.key, rule=rule_id)
    return bodies.DoneAnswer(done=is_there)


@router.post("/retry")
async def retry(served: OwnDep) -> bodies.DoneAnswer:
    """Put back the turn that was cut off too often, so that it may be continued once more. `done` is false without one."""
    try:
        await served.conversation.retry()
    except LooplineError:
        is_done = False
    else:
        is_done = True
    served.host.audit("retry", served.key)
    return bodies.DoneAnswer(done=is_done)


@router.post("/schedule", status_code=201)
async def schedule_message(
    host: HostDep, key: OwnKeyDep, body: bodies.ScheduleBody
) -> bodies.ScheduledAnswer:
    """Store a message that begins a turn later, once or repeatedly. A worker or this server begins the turn."""
    served = await serve(host, key, body.bundle_id)
    message = await served.conversation.schedule(
        body.text, at=body.at, delay=body.delay, every=body.every, zone=body.zone, **body.options()
    )
    host.audit("schedule", key, message=message.id)
    return bodies.ScheduledAnswer.of_message(message)


@router.get("/schedule")
async def read_schedule(served: OwnDep) -> bodies.ScheduleAnswer:
    """Return the messages that wait for their time, the first to begin first."""
    messages = await served.conversation.scheduled()
    return bodies.ScheduleAnswer(
        messages=[bodies.ScheduledAnswer.of_message(message) for message in messages]
    )


@router.delete("/schedule/{message_id}")
async def unschedule_message(served: OwnDep, message_id: str) -> bodies.DoneAnswer:
    """Remove a message that waits for its time. `done` is false if there is no such message."""
    is_done = await served.conversation.unschedule(message_id)
    served.host.audit("unschedule", served.key, message=message_id)
    return bodies.DoneAnswer(done=is_done)


@router.get("/background")
async def read_background(
    served: OwnDep, wait: Annotated[float, Query(ge=0, le=WAIT_SECONDS)] = 0
) -> bodies.BackgroundAnswer:
    """Return the calls that run in the background, after waiting at most so many seconds until none runs."""
    calls = await served.conversation.background.wait(seconds=wait)
    return bodies.BackgroundAnswer(
        calls=[bodies.BackgroundCallAnswer(**asdict(call)) for call in calls]
    )


@router.post("/background/{call_id}/stop")
async def stop_background_call(served: OwnDep, call_id: str) -> bodies.DoneAnswer:
    """Stop a call that runs in the background of any process. `done` is false if no such call runs."""
    calls = await served.conversation.background.calls()
    is_there = any(call.call_id == call_id for call in calls)
    if is_there:
        await served.conversation.background.stop(call_id)
    served.host.audit("stop_background", served.key, call=call_id)
    return bodies.DoneAnswer(done=is_there)


@router.post("/stop")
async def stop_turn(served: OwnDep) -> bodies.DoneAnswer:
    """Stop the running turn, and take back the messages that wait for it to end."""
    return bodies.DoneAnswer(done=await served.stop())


@router.post("/interrupts", status_code=202)
async def interrupt_turn(
    served: OwnDep, body: bodies.InterruptBody, idempotency_key: KeyHeader = ""
) -> bodies.PlaceAnswer:
    """Add a message to the running turn, or redirect the turn. If no turn runs, the next one receives the message."""
    files = [Attachment(file.name, file.data, file.mime) for file in body.attachments]
    conversation = served.conversation
    send = conversation.steer if body.kind == "steer" else conversation.followup
    receipt = await send(body.text, attachments=files, key=idempotency_key)
    served.host.audit(body.kind, served.key, seq=receipt.seq)
    return bodies.PlaceAnswer(turn_id=receipt.turn_id, seq=receipt.seq)


@router.get("/turns/{turn}")
async def read_turn(host: HostDep, key: ReadKeyDep, turn: str) -> bodies.TurnAnswer:
    """Return the result of a turn. A turn that has neither ended nor paused is `interrupted`."""
    number = tl.turn_number(turn)
    timeline = await tl.reaching(host.log, key, await tl.open_timeline(host.log, key), number)
    if number not in timeline.turns:
        raise not_found(f"turn {well_formed(turn)[:40]!r} in this conversation")
    return bodies.turn_of(key.name, timeline, number)


@router.post("/recall")
async def recall_message(served: OwnDep, body: bodies.RecallBody) -> bodies.DoneAnswer:
    """Take a message back. `done` is false if a round has used it already."""
    conversation = served.conversation
    pending = {block.seq: block for block in await conversation.interrupts.pending()}
    block = pending.get(body.seq)
    is_message = block is not None and block.turn_id == body.turn_id
    done = is_message and await conversation.recall(Receipt(body.seq, tl.turn_number(body.turn_id)))
    served.host.audit("recall", served.key, seq=body.seq)
    return bodies.DoneAnswer(done=done)


@router.post("/fork", status_code=201)
async def fork_conversation(served: OwnDep, body: bodies.ForkBody) -> bodies.ForkAnswer:
    """Create a conversation with the blocks up to a seq."""
    if body.name:
        check_name("conversation", body.name, is_in_url=True)
    fork = await served.conversation.fork(seq=body.seq, name=body.name)
    served.host.audit("fork", served.key, seq=body.seq, to=fork.conversation.name)
    return bodies.ForkAnswer(conversation_id=fork.conversation.name)


@router.get("/events", response_class=Response)
@router.get("/events/{dialect}", response_class=Response)
async def listen(
    host: HostDep,
    key: OwnKeyDep,
    dialect_in_path: Annotated[OwnDialect | None, Path(alias="dialect")] = None,
    name: DialectHeader = "loopline",
    after: Annotated[str, Query(max_length=40)] = "",
    last_event_id: Annotated[str, Header(max_length=40)] = "",
    bundle_id: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Stream the events of a conversation after the position `after` or `Last-Event-ID`, and then live.

    Without a position the first event is that of the first block.
    """
    position = event_streams.start_position(last_event_id or after or "0")
    bundle = (await host.harness_of(key, bundle_id)).bundle.id
    served = await serve(host, key, bundle)
    dialect_chosen = dialect_name(dialect_in_path or name)
    frames = host.broadcasts.frames(host.log, bundle, served.conversation, dialect_chosen, position)
    return event_streams.EventResponse(served, frames)


def _accepts_events(request: Request) -> bool:
    """Return whether an `Accept` header of the request names `text/event-stream`."""
    return any(
        event_streams.MEDIA_TYPE in accepted for accepted in request.headers.getlist("accept")
    )


def _receipt_response(
    host: BundleHost, key: tl.ConversationKey, receipt: Receipt, request: Request
) -> Response:
    """Return the receipt of a message in the background, with the URL of its events, as 202."""
    path = "%2F".join(quote(part) for part in str(request.scope["path"]).split(SLASH))
    path = path.removesuffix("/multipart").removesuffix("/messages")
    if host.urls.base:  # the public URL includes the path at which this app is mounted
        path = path.removeprefix(str(request.scope["root_path"]))
    receipt_answer = bodies.ReceiptAnswer(
        conversation_id=key.name,
        turn_id=receipt.turn_id,
        seq=receipt.seq,
        events=f"{host.urls.begin(path)}/events?after={receipt.seq - 1}",
    )
    return JSONResponse(receipt_answer.model_dump(), 202)


async def _respond(
    served: ServedConversation,
    submission: Submission,
    dialect_header: OwnDialect,
    early: event_streams.EarlyEvents | None,
) -> Response:
    """Stream the turn's events if there is a subscription, or wait for its result.

    If bundle code fails, the result is that of the stored turn, with the exit reason "error".
    """
    host = served.host
    key = served.key
    receipt = submission.receipt
    if early is not None:
        headers = {"Loopline-Turn": receipt.turn_id, "Loopline-Seq": f"{receipt.seq}"}
        file_url = host.urls.file_url_maker(key)
        encoder = dialect(dialect_name(dialect_header), key, file_url=file_url)
        request = TurnRequest.of_message(submission)
        stream_format = event_streams.StreamFormat(headers=headers)
        seq = request.after if encoder.is_stateless else 0
        begin = await find_turns_begin(served.conversation, seq)
        return event_streams.run_response(
            served, encoder, stream_format, request, early, begin=begin
        )
    try:
        result: tl.TurnResult[Any] = await submission.result()
    except BundleError:
        return JSONResponse((await read_turn(host, key, receipt.turn_id)).model_dump())
    output: JsonValue = to_jsonable_python(result.output, fallback=str)
    waiting = await served.waiting() if result.pending else {}
    approvals = {
        call_id: host.approvals.sign(key, call_id, call.digest)
        for call_id, call in waiting.items()
        if call.kind == "approval"
    }
    return JSONResponse(bodies.turn_answer(key.name, result, output, approvals).model_dump())
