"""Chat: messages, answers and approvals, stop, recall, resume and fork, and the events of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from loopline.conversations import Conversation, Receipt, Submission
from loopline.errors import BundleError
from loopline.events import DialectName
from loopline.files import Attachment
from loopline.react import TurnResult
from loopline.server.access import HostDep, OwnKeyDep
from loopline.server.bodies import (
    AnswersBody,
    DoneAnswer,
    ForkAnswer,
    ForkBody,
    MessageBody,
    RecallBody,
    ReceiptAnswer,
    TurnAnswer,
    turn_answer,
)
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import MEDIA_TYPE, event_stream, start_position
from loopline.server.problems import not_found
from loopline.timeline import ConversationKey, turn_number

router: APIRouter = APIRouter(
    prefix="/conversations/{tenant}/{project}/{conversation}", tags=["chat"]
)
OwnDialect = Literal["loopline", "fim", "nadoo", "chatcli", "beakr", "kdcube"]
DialectHeader = Annotated[OwnDialect | None, Header(alias="Loopline-Dialect")]
KeyHeader = Annotated[str, Header(alias="Idempotency-Key", max_length=200)]


def dialect_name(name: OwnDialect | None) -> DialectName:
    """Return the dialect by the name that clients use: ours has the name of the project."""
    return "plain" if name in (None, "loopline") else cast("DialectName", name)


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
    with host.turn_slot():
        talk = await host.conversation(key, body.bundle_id)
        submission = await talk.submit(
            body.text,
            attachments=files,
            when_busy=body.when_busy,
            key=idempotency_key,
            **body.limits.options(),
        )
        host.watch(key, submission)
    host.audit("message", key, seq=submission.receipt.seq)
    return await _respond(host, talk, submission, request, name, in_background=body.background)


@router.post("/answers", response_model=TurnAnswer, responses={202: {"model": ReceiptAnswer}})
async def answer_calls(
    host: HostDep, key: OwnKeyDep, body: AnswersBody, request: Request, name: DialectHeader = None
) -> Response:
    """Answer the calls that wait for the user, and continue the turn; without values continue one that was cut off."""
    with host.turn_slot():
        talk = await _begun(host, key)
        if body.values and all(talk.answer(call, value) for call, value in body.values.items()):
            host.audit("answer", key, calls=",".join(body.values))
            return JSONResponse(DoneAnswer(done=True).model_dump(), 202)
        submission = await talk.submit_resume(body.values or None, **body.limits.options())
        host.watch(key, submission)
    host.audit("answer", key, calls=",".join(body.values))
    return await _respond(host, talk, submission, request, name, in_background=False)


@router.post("/stop")
async def stop_turn(host: HostDep, key: OwnKeyDep) -> DoneAnswer:
    """Stop the turn that runs, and take back the messages that wait behind it."""
    talk = await _begun(host, key)
    done = await talk.stop()
    host.audit("stop", key)
    return DoneAnswer(done=done)


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
    talk = await host.conversation(key, bundle_id)
    return event_stream(host, talk, dialect_name(dialect or name), after=position)


async def _begun(host: BundleHost, key: ConversationKey) -> Conversation[Any]:
    """Return the handle of a conversation that has begun.

    Raises:
        RequestProblem: it has not.
    """
    if await host.log.find(key) is None:
        raise not_found(f"conversation {key.name!r}")
    return await host.conversation(key)


async def _respond(
    host: BundleHost,
    talk: Conversation[Any],
    submission: Submission,
    request: Request,
    name: OwnDialect | None,
    *,
    in_background: bool,
) -> Response:
    """Return the events, the receipt or the result, as the client wants it."""
    key, receipt = talk.conversation, submission.receipt
    if any(MEDIA_TYPE in accepted for accepted in request.headers.getlist("accept")):
        position = start_position(f"{receipt.seq - 1}")
        return event_stream(host, talk, dialect_name(name), after=position, submission=submission)
    if in_background:
        path = request.url.path.rpartition("/")[0]
        accepted = ReceiptAnswer(
            conversation_id=key.name,
            turn_id=receipt.turn_id,
            seq=receipt.seq,
            events=f"{path}/events?after={receipt.seq - 1}",
        )
        return JSONResponse(accepted.model_dump(), 202)
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
    return JSONResponse(turn_answer(key.name, result, output).model_dump())
