"""Replies with reasoning, which go back to their provider as they came."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai import ModelResponse, ModelResponsePart, TextPart, ThinkingPart

from loopline.models import AssistantMessage, JsonObject, ReasoningReplay, dumps
from loopline.tools import ProviderNames

FAMILY = "pydantic-ai"
"""The first part of a family of the bridge; the provider follows."""
_PARTS: TypeAdapter[list[ModelResponsePart]] = TypeAdapter(
    list[ModelResponsePart],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"),
)


def replay_of(
    response: ModelResponse, thinking_fields: frozenset[str], family: str
) -> ReasoningReplay | None:
    """Return the parts of a reply in their order, if its provider wants any of them back.

    Of a call only its id is kept. `thinking_fields` are the fields whose plain thinking the provider takes
    back.
    """
    required = [part for part in response.parts if _is_required(part, thinking_fields)]
    if not required:
        return None
    parts: list[JsonObject] = _PARTS.dump_python(
        [*_complete(response, required)], mode="json", exclude_none=True
    )
    bound = any(isinstance(part, ThinkingPart) and part.signature for part in required)
    return ReasoningReplay(wire=family, parts=tuple(map(_without_call, parts)), bound=bound)


def parts_of(
    echo: ReasoningReplay, message: AssistantMessage, names: ProviderNames
) -> list[ModelResponsePart]:
    """Return the parts as they came, without calls that were never made; none if it only thought."""
    completed = [_with_call(part, message, names) for part in echo.parts]
    parts = _PARTS.validate_json(dumps([part for part in completed if part is not None]))
    while parts and isinstance(parts[-1], ThinkingPart):
        parts.pop()
    return parts


def _is_required(part: ModelResponsePart, thinking_fields: frozenset[str]) -> bool:
    """Return whether a part holds what only its provider can read, or thinking that it takes back."""
    match part:
        case ThinkingPart(signature=str(signature)) if signature:
            return True
        case ThinkingPart(id=str(name)) if name in thinking_fields:
            return True
        case _:
            return bool(part.provider_details)


def _complete(
    response: ModelResponse, required: list[ModelResponsePart]
) -> Iterator[ModelResponsePart]:
    """Yield the parts that can be sent again: thinking with its signature or beside it, and text unless blank."""
    items = {part.id for part in required if isinstance(part, ThinkingPart) and part.id}
    for part in response.parts:
        match part:
            case ThinkingPart(id=item) if part not in required and item not in items:
                pass
            case TextPart(content=text) if part not in required and not text.strip():
                pass
            case _:
                yield part


def _without_call(part: JsonObject) -> JsonObject:
    match part:
        case {"part_kind": "tool-call"}:
            return {
                name: value for name, value in part.items() if name not in ("tool_name", "args")
            }
        case _:
            return part


def _with_call(
    part: JsonObject, message: AssistantMessage, names: ProviderNames
) -> JsonObject | None:
    """Return a part as it goes back: a call with its name and arguments, None if it was never made."""
    match part:
        case {"part_kind": "tool-call", "tool_call_id": str(provider_id)}:
            for call in message.calls:
                if call.provider_id == provider_id:
                    name = names.provider_name(call.name)
                    return {**part, "tool_name": name, "args": call.arguments}
            return None
        case _:
            return part
