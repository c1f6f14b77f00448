"""AG-UI: runs of a bundle as a stream of events, for `HttpAgent` and the interfaces that are built on it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import cast

from ag_ui import core
from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import JsonValue

from loopline.errors import LooplineError
from loopline.events import ClientRun, run_dialect
from loopline.files import Attachment
from loopline.models import Json
from loopline.server import event_streams
from loopline.server.access import CallerDep, HostDep, key_of
from loopline.server.approvals import call_id_of, decline
from loopline.server.bodies import ClientToolFields, decode_file
from loopline.server.problems import PROBLEMS
from loopline.server.turn_requests import ServedConversation, TurnRequest, serve
from loopline.timeline import ClientTool

router: APIRouter = APIRouter(tags=["ag-ui"], responses=PROBLEMS)
EDITED = "editedArgs"
"""The field of an answer to an approval with the arguments that the user has edited."""


@router.post("/ag-ui", response_class=StreamingResponse)
async def run_agent(host: HostDep, caller: CallerDep, body: core.RunAgentInput) -> Response:
    """Send the newest message of the user, or answers to interrupts and results of calls, and stream the events of the run.

    The thread is a conversation of the caller. A message of the user brings the `tools` of the client, and a message with the
    result of a call that waits for the client continues the turn. If the last message does neither, and nothing is resumed,
    the response streams the newest turn from its first event, live if the turn runs.
    """
    key = key_of(caller, body.thread_id)
    match body.forwarded_props:
        case {"bundle_id": str(bundle_id)}:
            served = await serve(host, key, bundle_id)
        case _:
            served = await serve(host, key)
    last = body.messages[-1] if body.messages else None
    message = last if isinstance(last, core.UserMessage) else None
    entries = body.resume or []
    values = {} if message and not entries else await _answer_values(served, body, entries)
    if message is None and not values:
        return await _replay(served, body)
    with event_streams.subscribe_early(served) as early:
        if values or message is None:
            approvals = {call_id_of(entry.interrupt_id): entry.interrupt_id for entry in entries}
            request = await served.send_answers(values, approvals)
        else:
            text, files = _content(message)
            tools = _client_tools(body)
            submission = await served.submit(
                text, attachments=files, key=_key(message), tools=tools
            )
            request = TurnRequest.of_message(submission)
        run = await _client_run(served, body, request.turn, request.after)
        return event_streams.run_response(
            served, run_dialect("ag-ui", key, run), FORMAT, request, early
        )


async def _replay(served: ServedConversation, body: core.RunAgentInput) -> Response:
    """Stream the newest turn, and a snapshot of the messages of the thread that the client lacks.

    Raises:
        LooplineError: no turn of the thread has started.
    """
    turn = await event_streams.newest_turn(served)
    if turn is None:
        raise LooplineError(
            "the last message must be a message of the user, because no turn of this thread has started"
        )
    run = await _client_run(served, body, turn.number, turn.head)
    return event_streams.replay_response(
        served, run_dialect("ag-ui", served.key, run), FORMAT, turn
    )


async def _client_run(
    served: ServedConversation, body: core.RunAgentInput, turn: int, after: int
) -> ClientRun:
    """Return the run of a turn, with the messages, roles and results of calls that the client sent in `body`.

    The run is over at the first end or question of the turn after the seq `after`.
    """
    messages = {_key(item): item for item in body.messages if isinstance(item, core.UserMessage)}
    turns = await served.host.log.turns_of(served.key, messages)
    return ClientRun(
        turn=turn,
        run_id=body.run_id,
        prompts={
            turn: messages[key].model_dump(mode="json", by_alias=True, exclude_none=True)
            for key, turn in turns.items()
        },
        ends_after=after,
        roles={message.id: message.role for message in body.messages},
        results={
            message.tool_call_id: message.model_dump(mode="json", by_alias=True, exclude_none=True)
            for message in body.messages
            if isinstance(message, core.ToolMessage)
        },
        sign=served.host.approvals.signature(served.key),
    )


def _key(message: core.UserMessage) -> str:
    return f"ag-ui:{sha256(message.id.encode()).hexdigest()}"


FORMAT = event_streams.StreamFormat(
    error_data=lambda reason: {"type": "RUN_ERROR", "message": reason, "code": "interrupted"}
)


def _content(message: core.UserMessage) -> tuple[str, list[Attachment]]:
    """Return the text of a message, its parts joined by line breaks, and its files.

    Raises:
        LooplineError: the message does not have a text, or a file is not a data URL in base64.
    """
    parts = (
        message.content
        if isinstance(message.content, list)
        else [core.TextPart(text=message.content)]
    )
    texts: list[str] = []
    files: list[Attachment] = []
    for part in parts:
        if isinstance(part, core.TextPart):
            texts.append(part.text)
            continue
        name = f"{part.type}-{len(files) + 1}"
        match part.source:
            case core.DataSource(value=value, mime_type=mime):
                files.append(decode_file(name, f"data:{mime};base64,{value}"))
            case core.UrlSource(value=url) | core.FileSource(value=url):
                files.append(decode_file(name, url))
    text = "\n".join(text for text in texts if text)
    if not text:
        raise LooplineError("the message has no text")
    return text, files


def _client_tools(body: core.RunAgentInput) -> list[ClientTool]:
    """Return the tools that the client runs; raise a LooplineError if `parameters` is neither an object nor null."""
    tools: list[ClientTool] = []
    for tool in body.tools or []:
        parameters = cast("JsonValue", tool.parameters)
        if not isinstance(parameters, dict | None):
            raise LooplineError(f"the parameters of the tool {tool.name[:80]!r} are no JSON Schema")
        fields = ClientToolFields(description=tool.description, parameters=parameters)
        tools.append(fields.tool(tool.name))
    return tools


async def _answer_values(
    served: ServedConversation, body: core.RunAgentInput, entries: Sequence[core.ResumeEntry]
) -> dict[str, Json]:
    """Return the results of calls that wait for the client, and the answers to interrupts, by call id.

    Results of other calls are left out. An interrupt id is a call id or a signed approval; its answer is included even if no
    call waits for it. A cancelled interrupt declines its call.
    """
    questions = await served.waiting()
    values: dict[str, Json] = {}
    for message in body.messages:
        if isinstance(message, core.ToolMessage):
            question = questions.get(message.tool_call_id)
            if question is not None and question.kind == "client":
                values[question.call_id] = _result(message)
    for entry in entries:
        call_id = entry.interrupt_id
        if call_id not in questions:
            call_id = call_id_of(call_id) or call_id
        question = questions.get(call_id)
        is_cancelled = entry.status == "cancelled"
        payload = cast("JsonValue", entry.payload)
        if question is not None and question.kind == "approval":
            payload = _approval(payload)
        values[call_id] = decline(question) if is_cancelled else payload
    return values


def _approval(payload: JsonValue) -> JsonValue:
    """Return the answer to an approval, with `editedArgs` of AG-UI renamed to `arguments` if it is an object."""
    if not isinstance(payload, dict):
        return payload
    return {"arguments" if name == EDITED else name: value for name, value in payload.items()}


def _result(message: core.ToolMessage) -> Json:
    """Return the text of a result, or of its text parts joined by line breaks; an error becomes `{"error": …}`."""
    if message.error:
        return {"error": message.error}
    parts = message.content if isinstance(message.content, list) else []
    texts = [part.text for part in parts if isinstance(part, core.TextPart)]
    return message.content if isinstance(message.content, str) else "\n".join(texts)
