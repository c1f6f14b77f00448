"""The request of a round as people read it: the text of each message, and the whole request as JSON."""

from __future__ import annotations

from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    ToolMessage,
    UserMessage,
    dumps,
)
from loopline.prompt.model_requests import ModelRequest
from loopline.timeline import Timeline, TurnHeader


def answer_schema(timeline: Timeline, request: ModelRequest) -> JsonObject | None:
    """Return the JSON Schema of the answer that the request asked the provider to enforce; None without a schema."""
    start = request.round_start
    if start.answer_by != "schema":
        return None
    headers = (block.body for block in timeline.blocks if isinstance(block.body, TurnHeader))
    schemas = (header.output for header in headers if header.output is not None)
    return next((s.form.schema for s in schemas if s.sha256 == start.schema_sha256), None)


def message_role(message: Message) -> str:
    """Return `user`, `assistant`, `tool` with the tool's name, or `tail of before` for the tail of an earlier round."""
    match message:
        case AssistantMessage():
            return "assistant"
        case ToolMessage(name=name):
            return f"tool {name}"
        case UserMessage(passing=True):
            return "tail of before"
        case UserMessage():
            return "user"


def message_text(message: Message) -> str:
    """Return the text of a message as people read it, with a line for each call, attachment and replayed part."""
    match message:
        case AssistantMessage(text=text, calls=calls, echo=echo):
            call_lines = [f"{call.call_id} {call.name} {dumps(call.arguments)}" for call in calls]
            replayed_parts = [f"as it came: {dumps(part)}" for part in echo.parts] if echo else []
            return "\n".join(
                [*replayed_parts, *([text] if text and not replayed_parts else []), *call_lines]
            )
        case UserMessage(text=text, attachments=attachments):
            return "\n".join([text, *map(str, attachments)])
        case ToolMessage(text=text):
            return text


def prompt_document(request: ModelRequest, schema: JsonObject | None) -> JsonObject:
    """Return the whole request as JSON. `schema` is the form of the answer, from `answer_schema`."""
    start = request.round_start
    messages: list[Json] = [
        {"role": message_role(message), "ref": ref, "text": message_text(message)}
        for message, ref in zip(request.messages, request.refs, strict=True)
    ]
    points: list[Json] = [
        {"name": point.name, "messages": point.messages, "tokens": point.tokens}
        for point in start.points
    ]
    return {
        "turn_id": request.block.turn_id,
        "round": request.block.round,
        "ref": request.block.ref,
        "model": start.model,
        "protocol": start.protocol,
        "epoch": start.epoch,
        "opened_by": start.opened_by,
        "tokens": start.tokens,
        "exact": not request.inexact,
        "system": request.system,
        "tools": request.tools,
        "settings": start.settings,
        "dropped_settings": dict[str, Json](start.dropped_settings),
        "form": schema,
        "messages": messages,
        "cache_points": points,
        "tail": start.tail,
        "tail_kind": start.tail_kind,
    }
