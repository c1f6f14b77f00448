"""The AI SDK: chats of `useChat` as UI message streams, which resume while a turn runs."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loopline.conversations import UnansweredCall
from loopline.errors import ConflictError, LooplineError
from loopline.events import ClientRun, RunDialect, run_dialect
from loopline.files import Attachment
from loopline.models import Json, JsonObject
from loopline.server import event_streams
from loopline.server.access import CallerDep, HostDep, Name, key_of
from loopline.server.approvals import decline, deny
from loopline.server.bodies import NAME, ClientToolFields, decode_file
from loopline.server.problems import PROBLEMS
from loopline.server.turn_requests import ServedConversation, TurnRequest, serve
from loopline.tools import MAX_CLIENT_TOOLS

router: APIRouter = APIRouter(prefix="/api/chat", tags=["ai-sdk"], responses=PROBLEMS)
MESSAGES = 2_000
RECENT = 100
"""How many of the user's newest conversations are searched for forks of a chat."""


class UiMessage(BaseModel):
    """A message of the client. Only the parts of the last message are used: texts, files, outputs and approvals."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    id: Annotated[str, Field(max_length=4_096)] = ""
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[dict[str, JsonValue]], Field(max_length=10_000)] = []

    def text(self) -> str:
        """Return the texts of the message, joined by line breaks."""
        texts = [str(part["text"]) for part in self._parts("text") if "text" in part]
        return "\n".join(text for text in texts if text)

    def files(self) -> list[Attachment]:
        """Decode the files of the message.

        Raises:
            LooplineError: a file is not a data URL in base64.
        """
        return [_file(number, part) for number, part in enumerate(self._parts("file"), start=1)]

    def answers(self, waiting: Mapping[str, UnansweredCall]) -> dict[str, Json]:
        """Return the responses to approvals, and the outputs of calls, by call id; other parts are left out.

        A call with an error of the client is declined.
        """
        answers: dict[str, Json] = {}
        for part in self.parts:
            match part:
                case {
                    "state": "approval-responded",
                    "toolCallId": str(call_id),
                    "approval": {"approved": bool(approved), **others},
                }:
                    answers[call_id] = approved or deny(_text(others, "reason"))
                case {"state": "output-available", "toolCallId": str(call_id), "output": output}:
                    answers[call_id] = output
                case {"state": "output-available", "toolCallId": str(call_id)}:
                    answers[call_id] = None  # the output of a function without a value has no key
                case {"state": "output-error", "toolCallId": str(call_id), **others}:
                    answers[call_id] = decline(waiting.get(call_id), _text(others, "errorText"))
                case _:
                    pass
        return answers

    def outputs(self) -> dict[str, JsonObject]:
        """Return the parts of the message with the output or the error of a call, by call id."""
        parts: dict[str, JsonObject] = {}
        for part in self.parts:
            match part:
                case {"state": "output-available" | "output-error", "toolCallId": str(call_id)}:
                    parts[call_id] = part
                case _:
                    pass
        return parts

    def approvals(self) -> dict[str, str]:
        """Return the signed approvals of the message by call id. An approval that is only the call id is left out."""
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
    """A request of `DefaultChatTransport`. `bundle_id` names the bundle of a new chat, if several are served.

    `tools` are those that the client runs, by name.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    id: Annotated[str, Field(min_length=1, max_length=NAME)]
    messages: Annotated[list[UiMessage], Field(min_length=1, max_length=MESSAGES)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""
    tools: Annotated[dict[str, ClientToolFields], Field(max_length=MAX_CLIENT_TOOLS)] = {}

    @property
    def branch(self) -> str:
        """The name of the conversation: that of the chat, or of the fork that the newest message of the assistant is in."""
        ids = (item.id for item in reversed(self.messages) if item.role == "assistant")
        name, _, _ = next(ids, "").rpartition("/")
        return name if name.startswith(_edits_of(self.id)) else self.id

    @property
    def key(self) -> str:
        """The idempotency key of the last message; empty if the id is missing or the answer is regenerated."""
        last = self.messages[-1]
        if self.trigger == "regenerate-message" or not last.id:
            return ""
        return f"ai-sdk:{sha256(last.id.encode()).hexdigest()}"


@router.post("", response_class=StreamingResponse)
async def chat(host: HostDep, caller: CallerDep, body: ChatBody) -> Response:
    """Send the last message of a chat, or the answers to its calls, and stream the message of the assistant."""
    served = await serve(host, key_of(caller, body.branch), body.bundle_id)
    try:
        return await _send(served, body)
    except ConflictError:
        fork = await _fork_before(served, body)
        if fork is None:
            raise
        return await _send(fork, body)


async def _send(served: ServedConversation, body: ChatBody) -> Response:
    """Send the last message, or the answers to calls of the chat, and stream the message of the assistant.

    Raises:
        ConflictError: a message with the same id and another text was sent before.
        LooplineError: the message of the user does not have a text, or no call waits for the answers.
    """
    last = body.messages[-1]
    with event_streams.subscribe_early(served) as early:
        if last.role == "assistant":
            request = await served.send_answers(await _answers(served, last), last.approvals())
        else:
            if not (text := last.text()):
                raise LooplineError("the last message has no text")
            tools = [tool.tool(name) for name, tool in body.tools.items()]
            submission = await served.submit(
                text, attachments=last.files(), key=body.key, tools=tools
            )
            request = TurnRequest.of_message(submission)
        encoder = _encoder(served, body.id, request.turn, request.after, last.outputs())
        return event_streams.run_response(served, encoder, FORMAT, request, early)


async def _fork_before(served: ServedConversation, body: ChatBody) -> ServedConversation | None:
    """Return the fork in which the edited last message is sent: the blocks before the first message with its id.

    The fork of the same edit is always the same. The result is None if no message has the id.
    """
    receipt = await served.conversation.interrupts.receipt_of(body.key)
    if receipt is None:
        return None
    last = body.messages[-1]
    edit = f"{served.key.name} {last.id} {last.text()}"
    name = f"{_edits_of(body.id)}{sha256(edit.encode()).hexdigest()[:12]}"
    return await served.fork(receipt.seq - 1, name)


def _edits_of(chat_id: str) -> str:
    """Return the beginning of the names of a chat's forks. Each has a message that was edited."""
    return f"{chat_id[: NAME - 20]}-edit-"


@router.get("/{chat_id}/stream", response_class=StreamingResponse, responses={204: {"model": None}})
async def resume_stream(
    host: HostDep,
    caller: CallerDep,
    chat_id: Name,
    bundle_id: Annotated[str, Query(max_length=NAME)] = "",
) -> Response:
    """Stream the message of the running turn from its beginning; answer 204 if no turn runs.

    The turn is one of the chat, or of a fork for an edited message, whichever was active last.
    """
    key = key_of(caller, chat_id)
    recent = await host.log.conversations(
        user=key.user, project=key.project, tenant=key.tenant, limit=RECENT
    )
    names = [item.conversation.name for item in recent]
    edits = _edits_of(chat_id)
    newest = next((name for name in names if name == chat_id or name.startswith(edits)), chat_id)
    served = await serve(host, key_of(caller, newest), bundle_id)
    turn = await event_streams.newest_turn(served)
    if turn is None or not turn.is_running:
        return Response(status_code=204)
    encoder = _encoder(served, chat_id, turn.number, turn.head)
    return event_streams.replay_response(served, encoder, FORMAT, turn)


FORMAT = event_streams.StreamFormat(
    error_data=lambda reason: {"type": "error", "errorText": reason},
    headers={"x-vercel-ai-ui-message-stream": "v1"},
    retry_ms=None,
    last_frame=event_streams.DONE_FRAME,
)


def _encoder(
    served: ServedConversation,
    chat_id: str,
    turn: int,
    after: int,
    results: Mapping[str, JsonObject] | None = None,
) -> RunDialect:
    """Return an encoder for the run that ends when the turn ends or asks the user after the seq `after`.

    `results` are parts of the client with the output of a call, by call id. In a fork of the chat, the ids of messages
    name the fork, so the chat continues there.
    """
    key = served.key
    run = ClientRun(
        turn=turn,
        ends_after=after,
        sign=served.host.approvals.signature(key),
        results=results or {},
        file_url=served.host.urls.file_url_maker(key),
        branch="" if key.name == chat_id else f"{key.name}/",
    )
    return run_dialect("vercel", key, run)


async def _answers(served: ServedConversation, message: UiMessage) -> Mapping[str, Json]:
    """Return the answers of a message to calls that wait, by call id; answers to other calls are left out.

    Raises:
        ConflictError: no call waits, and a call of the message has been answered already.
        LooplineError: no call waits for an answer of the message.
    """
    waiting = await served.waiting()
    results = message.answers(waiting)
    answers = {call_id: value for call_id, value in results.items() if call_id in waiting}
    if not answers:
        await served.check_unanswered(results)
        raise LooplineError("no call of this chat waits for the answers of the message")
    return answers


def _text(fields: Mapping[Any, object], name: str) -> str:
    """Return a field as a text, which is empty if the field is missing or null."""
    return str(fields.get(name) or "")


def _file(number: int, part: Mapping[str, JsonValue]) -> Attachment:
    """Decode a file. Without a `filename` it is named after its number in the message.

    Raises:
        LooplineError: the part does not have a data URL in base64.
    """
    name = _text(part, "filename") or f"file-{number}"
    data = decode_file(name, _text(part, "url")).data
    return Attachment(name, data)  # the bytes say the type
