"""The AI SDK: chats of `useChat` as UI message streams, which are resumed where a turn runs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loopline.conversations import Conversation, Submission
from loopline.errors import LooplineError
from loopline.events import ClientRun, RunDialect, run_dialect
from loopline.files import Attachment
from loopline.models import Json, JsonObject
from loopline.server.access import CallerDep, HostDep, key_of
from loopline.server.bodies import FILES, NAME
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import (
    EarlyEvents,
    answer_open_calls,
    answered_frames,
    check_unanswered,
    counted_stream,
    dialect_frames,
    joined_frames,
    newest_turn,
    start_position,
    submit_answers,
    waiting_calls,
    with_done,
)
from loopline.timeline import TimelineLog, turn_number

router: APIRouter = APIRouter(prefix="/api/chat", tags=["ai-sdk"])
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
MESSAGES = 2_000


class UiMessage(BaseModel):
    """A message of the client. Of the last one the parts count: texts, files, outputs and approvals of calls."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    id: Annotated[str, Field(max_length=4_096)] = ""
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, JsonValue]], Field(max_length=10_000)] = []

    def text(self) -> str:
        """Return the text of the message."""
        texts = [str(part["text"]) for part in self._parts("text") if "text" in part]
        return "\n".join(text for text in texts if text)

    def files(self) -> list[Attachment]:
        """Return the files of the message.

        Raises:
            LooplineError: one of them is not in the request itself.
        """
        files = [_file(number, part) for number, part in enumerate(self._parts("file"), start=1)]
        if len(files) > FILES:
            raise LooplineError(f"a message may have {FILES} files, not {len(files)}")
        return files

    def answers(self) -> dict[str, Json]:
        """Return the approvals and outputs of calls."""
        answers: dict[str, Json] = {}
        for part in self.parts:
            match part:
                case {
                    "state": "approval-responded",
                    "toolCallId": str(call_id),
                    "approval": {"approved": bool(approved)},
                }:
                    answers[call_id] = approved
                case {"state": "output-available", "toolCallId": str(call_id), "output": output}:
                    answers[call_id] = output
                case _:
                    pass
        return answers

    def approvals(self) -> dict[str, str]:
        """Return the signed approvals that the message brings, by call."""
        approvals: dict[str, str] = {}
        for part in self.parts:
            match part:
                case {
                    "state": "approval-responded",
                    "toolCallId": str(call_id),
                    "approval": {"id": str(approval)},
                } if approval != call_id:
                    approvals[call_id] = approval
                case _:
                    pass
        return approvals

    def _parts(self, kind: str) -> list[dict[str, JsonValue]]:
        return [part for part in self.parts if "type" in part and part["type"] == kind]


class ChatBody(BaseModel):
    """A request of `DefaultChatTransport`. `bundle_id` names the bundle of a new chat, if several are served."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    id: Annotated[str, Field(min_length=1, max_length=NAME)]
    messages: Annotated[list[UiMessage], Field(min_length=1, max_length=MESSAGES)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""

    @property
    def key(self) -> str:
        """The key by which a message that is sent again is known; none if its answer is wanted anew."""
        last = self.messages[-1]
        if self.trigger == "regenerate-message" or not last.id:
            return ""
        return f"ai-sdk:{sha256(last.id.encode()).hexdigest()}"


@router.post("", response_class=StreamingResponse)
async def chat(host: HostDep, caller: CallerDep, body: ChatBody) -> Response:
    """Send the last message of a chat, or the answers to its calls, and stream the message of the assistant."""
    talk = await host.conversation(key_of(caller, body.id), body.bundle_id)
    last = body.messages[-1]
    with EarlyEvents(talk, host.listeners.take(talk.conversation)) as listening:
        answers: Mapping[str, Json] = dict[str, Json]()
        if last.role == "assistant":
            answers = await _answers(host, talk, last)
            answered = await answer_open_calls(talk, answers)
            if answered is not None:
                host.audit("answer", talk.conversation, calls=",".join(answers))
                spoken = _spoken(host, talk, answered.turn, answered.asked_at)
                frames = answered_frames(host, talk, spoken, answered, listening, error_part)
                return counted_stream(
                    host, talk.conversation, with_done(frames), HEADERS, listening=listening
                )
        async with host.turn_slot(talk.conversation, body.key):
            submission, after = await _submit(host.log, talk, body, answers)
            host.watch(talk.conversation, submission)
        receipt = submission.receipt
        host.audit("message", talk.conversation, seq=receipt.seq)
        spoken = _spoken(host, talk, turn_number(receipt.turn_id), after)
        frames = dialect_frames(
            host,
            talk,
            spoken,
            after=start_position(f"{after}"),
            submission=submission,
            until=lambda: spoken.is_over,
            listening=listening,
            retry_ms=None,
            failure=error_part,
        )
        return counted_stream(
            host, talk.conversation, with_done(frames), HEADERS, listening=listening
        )


@router.get("/{chat_id}/stream", response_class=StreamingResponse, responses={204: {"model": None}})
async def resume_stream(
    host: HostDep,
    caller: CallerDep,
    chat_id: Annotated[str, Path(min_length=1, max_length=NAME)],
    bundle_id: Annotated[str, Query(max_length=NAME)] = "",
) -> Response:
    """Stream the message of the turn that runs from its beginning; 204 if none does."""
    talk = await host.conversation(key_of(caller, chat_id), bundle_id)
    turn = await newest_turn(host, talk)
    if turn is None or not turn.is_running:
        return Response(status_code=204)
    spoken = _spoken(host, talk, turn.number, turn.head)
    frames = joined_frames(host, talk, spoken, turn, error_part)
    return counted_stream(host, talk.conversation, with_done(frames), HEADERS)


def error_part(reason: str) -> JsonObject:
    """Return the part of a stream that breaks off."""
    return {"type": "error", "errorText": reason}


def _spoken(host: BundleHost, talk: Conversation[Any], turn: int, after: int) -> RunDialect:
    """Return the dialect of the run that the client follows behind a seq."""
    run = ClientRun(
        turn=turn,
        ends_after=after,
        sign=host.approvals.signature(talk.conversation),
        file_url=host.urls.of_conversation(talk.conversation),
    )
    return run_dialect("vercel", talk.conversation, run)


async def _answers(
    host: BundleHost, talk: Conversation[Any], message: UiMessage
) -> Mapping[str, Json]:
    """Return what a message answers, by call.

    Raises:
        LooplineError: no call waits for it; a RequestProblem if it has been answered already.
    """
    waiting = await waiting_calls(host.log, talk)
    results = message.answers()
    answers = {call_id: value for call_id, value in results.items() if call_id in waiting}
    if not answers:
        await check_unanswered(host.log, talk.conversation, results)
        raise LooplineError("no call of this chat waits for what the message answers")
    await host.check_approvals(talk, answers, message.approvals())
    return answers


async def _submit(
    log: TimelineLog, talk: Conversation[Any], body: ChatBody, answers: Mapping[str, Json]
) -> tuple[Submission, int]:
    """Send the answers or what the last message says; return also the seq behind which the stream begins.

    Raises:
        LooplineError: it says nothing.
    """
    last = body.messages[-1]
    if answers:
        submission = await submit_answers(log, talk, answers)
        return submission, submission.receipt.seq
    text = last.text()
    if not text:
        raise LooplineError("the last message has no text")
    submission = await talk.submit(text, attachments=last.files(), key=body.key)
    return submission, submission.receipt.seq - 1


def _file(number: int, part: Mapping[str, JsonValue]) -> Attachment:
    match part:
        case {"url": str(url)} if url.startswith("data:") and ";base64," in url:
            try:
                data = base64.b64decode(url.partition(";base64,")[2], validate=True)
            except binascii.Error as error:
                raise LooplineError(f"file {number}: its bytes are not in base64") from error
        case _:
            raise LooplineError(f"file {number}: send its bytes in a data URL")
    match part:
        case {"filename": str(name)} if name:
            return Attachment(name, data)
        case _:
            return Attachment(f"file-{number}", data)
