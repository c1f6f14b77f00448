"""AG-UI: runs of a bundle as a stream of events, for `HttpAgent` and the interfaces that are built on it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

from ag_ui.core import ResumeEntry, RunAgentInput, TextPart, UserMessage
from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import JsonValue

from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.events import ClientRun, run_dialect
from loopline.models import Json, JsonObject
from loopline.server.access import CallerDep, HostDep, key_of
from loopline.server.approvals import approved_call
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import (
    EarlyEvents,
    answer_open_calls,
    answered_frames,
    counted_stream,
    dialect_frames,
    joined_frames,
    newest_turn,
    start_position,
    submit_answers,
    waiting_calls,
)
from loopline.timeline import turn_number

router: APIRouter = APIRouter(tags=["ag-ui"])


@router.post("/ag-ui", response_class=StreamingResponse)
async def run_agent(host: HostDep, caller: CallerDep, body: RunAgentInput) -> Response:
    """Run a bundle with the newest message of the user, or with answers to its interrupts, and stream the events.

    The thread is a conversation of the sender. Without a new message the events are those of its newest turn: so a
    client reads a thread again, and follows a turn that runs.
    """
    key = key_of(caller, body.thread_id)
    talk = await host.conversation(key, _bundle_id(body.forwarded_props))
    message = _newest_message(body)
    if message is None and not body.resume:
        return await _join(host, talk, body)
    with EarlyEvents(talk, host.listeners.take(talk.conversation)) as listening:
        return await _send(host, talk, body, message, listening)


async def _send(
    host: BundleHost,
    talk: Conversation[Any],
    body: RunAgentInput,
    message: UserMessage | None,
    listening: EarlyEvents,
) -> Response:
    """Send the answers or the message, and return the events of the run."""
    key, answers = talk.conversation, body.resume or []
    values = await _values(host, talk, answers)
    if values:
        signed = {approved_call(answer.interrupt_id): answer.interrupt_id for answer in answers}
        await host.check_approvals(talk, values, signed)
        answered = await answer_open_calls(talk, values)
        if answered is not None:
            host.audit("answer", key, calls=",".join(values))
            run = _run(host, talk, body, answered.turn, answered.asked_at)
            spoken = run_dialect("ag-ui", key, run)
            frames = answered_frames(host, talk, spoken, answered, listening, run_error)
            return counted_stream(host, talk.conversation, frames, listening=listening)
    message_key = _key(message) if message is not None and not answers else ""
    async with host.turn_slot(key, message_key):
        if answers:
            submission = await submit_answers(host.log, talk, values)
        else:
            assert message is not None
            submission = await talk.submit(_text(message), key=message_key)
        host.watch(key, submission)
    receipt = submission.receipt
    host.audit("answer" if answers else "message", key, seq=receipt.seq)
    after = receipt.seq if answers else receipt.seq - 1
    message_id = "" if answers or message is None else message.id
    run = _run(host, talk, body, turn_number(receipt.turn_id), after, message_id)
    spoken = run_dialect("ag-ui", key, run)
    frames = dialect_frames(
        host,
        talk,
        spoken,
        after=start_position(f"{after}"),
        submission=submission,
        until=lambda: spoken.is_over,
        listening=listening,
        failure=run_error,
    )
    return counted_stream(host, talk.conversation, frames, listening=listening)


def _run(
    host: BundleHost,
    talk: Conversation[Any],
    body: RunAgentInput,
    turn: int,
    after: int,
    message_id: str = "",
) -> ClientRun:
    """Return the run that the client follows behind a seq."""
    return ClientRun(
        turn=turn,
        run_id=body.run_id,
        message_id=message_id,
        ends_after=after,
        message_ids=frozenset(item.id for item in body.messages),
        sign=host.approvals.signature(talk.conversation),
    )


async def _join(host: BundleHost, talk: Conversation[Any], body: RunAgentInput) -> Response:
    """Return the events of the newest turn, and of the whole thread what the client lacks."""
    turn = await newest_turn(host, talk)
    if turn is None:
        raise LooplineError("the last message must be one of the user: this thread has none yet")
    run = ClientRun(
        turn=turn.number,
        run_id=body.run_id,
        ends_after=turn.head,
        sign=host.approvals.signature(talk.conversation),
    )
    spoken = run_dialect("ag-ui", talk.conversation, run)
    frames = joined_frames(host, talk, spoken, turn, run_error)
    return counted_stream(host, talk.conversation, frames)


def run_error(reason: str) -> JsonObject:
    """Return the event of a run whose stream breaks off."""
    return {"type": "RUN_ERROR", "message": reason, "code": "interrupted"}


def _bundle_id(forwarded: object) -> str:
    """Return the forwarded property that names the bundle of a new thread; empty without one."""
    match forwarded:
        case {"bundle_id": str(bundle_id)}:
            return bundle_id
        case _:
            return ""


def _key(message: UserMessage) -> str:
    """Return the key by which a message that is sent again is known."""
    return f"ag-ui:{sha256(message.id.encode()).hexdigest()}"


def _newest_message(body: RunAgentInput) -> UserMessage | None:
    """Return the last message, if it is one of the user."""
    last = body.messages[-1] if body.messages else None
    return last if isinstance(last, UserMessage) else None


def _text(message: UserMessage) -> str:
    """Return the text of a message.

    Raises:
        LooplineError: it has none, or parts that are no text.
    """
    if isinstance(message.content, str):
        parts = [message.content]
    else:
        parts = [part.text for part in message.content if isinstance(part, TextPart)]
        if len(parts) != len(message.content):
            raise LooplineError("files come with POST /conversations/…/messages: send a text here")
    text = "\n".join(part for part in parts if part)
    if not text:
        raise LooplineError("the message has no text")
    return text


async def _values(
    host: BundleHost, talk: Conversation[Any], answers: Sequence[ResumeEntry]
) -> dict[str, Json]:
    """Return the answers by call; a cancelled one declines."""
    if not answers:
        return {}
    kinds = await waiting_calls(host.log, talk)
    values: dict[str, Json] = {}
    for answer in answers:
        is_call = answer.interrupt_id in kinds
        call_id = answer.interrupt_id if is_call else approved_call(answer.interrupt_id)
        is_approval = kinds.get(call_id) == "approval"
        values[call_id or answer.interrupt_id] = _value(answer, is_approval=is_approval)
    return values


def _value(answer: ResumeEntry, *, is_approval: bool) -> Json:
    if answer.status == "cancelled":
        return False if is_approval else "The user did not answer."
    payload = cast("JsonValue", answer.payload)
    match payload:
        case {"approved": bool(approved)} if is_approval:
            return approved
        case _:
            return payload
