"""Replies that go back to their provider as they came."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai import ModelResponse, ModelResponsePart, TextPart, ThinkingPart

from loopline.models import AssistantMessage, JsonObject, ReasoningReplay, dumps
from loopline.tools import ProviderNames

WIRE = "pydantic-ai"
"""What a family of the bridge begins with; behind it stands the provider."""
_PARTS: TypeAdapter[list[ModelResponsePart]] = TypeAdapter(
    list[ModelResponsePart],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"),
)


def echo_of(
    response: ModelResponse, thinking_fields: frozenset[str], family: str
) -> ReasoningReplay | None:
    """The parts of a reply in their order, where its provider wants something of them back.

    Calls are left out but for their ids. `thinking_fields` are those in which plain thinking came that
    the provider takes back.
    """
    wanted = [part for part in response.parts if _is_wanted(part, thinking_fields)]
    if not wanted:
        return None
    written: list[JsonObject] = _PARTS.dump_python(
        [*_whole(response, wanted)], mode="json", exclude_none=True
    )
    bound = any(isinstance(part, ThinkingPart) and part.signature for part in wanted)
    return ReasoningReplay(wire=family, parts=tuple(map(_without_call, written)), bound=bound)


def parts_of(
    echo: ReasoningReplay, message: AssistantMessage, names: ProviderNames
) -> list[ModelResponsePart]:
    """The parts as they came, but for calls that were never made; none of a reply that only thought."""
    written = [_with_call(part, message, names) for part in echo.parts]
    parts = _PARTS.validate_json(dumps([part for part in written if part is not None]))
    while parts and isinstance(parts[-1], ThinkingPart):
        parts.pop()
    return parts


def _is_wanted(part: ModelResponsePart, thinking_fields: frozenset[str]) -> bool:
    """Whether it bears what its provider alone can read, or thinking that it takes back as it is."""
    match part:
        case ThinkingPart(signature=str(signature)) if signature:
            return True
        case ThinkingPart(id=str(name)) if name in thinking_fields:
            return True
        case _:
            return bool(part.provider_details)


def _whole(response: ModelResponse, wanted: list[ModelResponsePart]) -> Iterator[ModelResponsePart]:
    """The parts that can be sent again: thinking with its signature or beside it, text with something in it."""
    items = {part.id for part in wanted if isinstance(part, ThinkingPart) and part.id}
    for part in response.parts:
        match part:
            case ThinkingPart(id=item) if part not in wanted and item not in items:
                pass
            case TextPart(content=text) if part not in wanted and not text.strip():
                pass
            case _:
                yield part


def _without_call(part: JsonObject) -> JsonObject:
    said = {"tool_name", "args"} if part.get("part_kind") == "tool-call" else set[str]()
    return {name: value for name, value in part.items() if name not in said}


def _with_call(
    part: JsonObject, message: AssistantMessage, names: ProviderNames
) -> JsonObject | None:
    if part.get("part_kind") != "tool-call":
        return part
    for call in message.calls:
        if call.provider_id == part.get("tool_call_id"):
            return {**part, "tool_name": names.provider_name(call.name), "args": call.arguments}
    return None
