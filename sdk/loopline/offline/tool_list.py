"""The answer for a bundle without a knowledge space: its tools, each with a command to try."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from loopline.models import Json, JsonObject, ToolSpec, dumps
from loopline.offline.answers import NATURE, join_lines

LANGUAGE_MODELS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)
_SCHEMA_DEPTH = 4
_SAMPLES: dict[str, Json] = {
    "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {},
    "date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "time": "12:00:00",
    "email": "ann@example.org", "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip


def list_tools(bundle: str, tools: Sequence[ToolSpec]) -> str:
    """Return an answer that lists the tools of the bundle, without those of Loopline itself."""
    own = [tool for tool in tools if not tool.name.startswith(("react.", "crew."))]
    subject = f"the bundle {join_lines(bundle)}" if bundle else "this bundle"
    if own:
        lead = (
            f"I am {NATURE}, so I cannot decide which tool answers you, and there is no knowledge space "
            f"to read. These are the tools of {subject}, each with a line to try:"
        )
    else:
        lead = f"I am {NATURE}, and {subject} has neither a knowledge space to read nor tools."
    entries = [_entry(bundle or "BUNDLE", tool) for tool in own]
    return "\n\n".join([lead, *entries, LANGUAGE_MODELS])


def _entry(bundle: str, tool: ToolSpec) -> str:
    purpose = join_lines(tool.description.strip().partition("\n\n")[0]) or "no description"
    sample = _sample(tool.parameters, tool.parameters, "", 0)
    arguments = dumps(sample if isinstance(sample, dict) else {}).replace("'", "'\"'\"'")
    command = f"loopline tool {shlex.quote(bundle)} {shlex.quote(tool.name)} '{arguments}'"
    return f"- `{tool.name}`: {purpose}\n\n      {command}"


def _sample(schema: Json, root: JsonObject, name: str, depth: int) -> Json:
    """Return a value that the schema accepts, as far as examples, enums, defaults, types and formats say.

    A string is the `name` of its property. Schemas nested deeper than four levels get None.
    """
    if depth > _SCHEMA_DEPTH:
        return None
    match schema:
        case {"examples": [value, *_]} | {"enum": [value, *_]}:
            return value
        case {"const": value} | {"default": value} if value is not None:
            return value
        case {"$ref": str(ref)}:
            return _sample(_definition(ref, root), root, name, depth + 1)
        case {"anyOf": [option, *_]} | {"oneOf": [option, *_]} | {"allOf": [option, *_]}:
            return _sample(option, root, name, depth + 1)
        case {"properties": dict() as properties}:
            pairs = [(key, properties[key]) for key in properties if key in _list_required(schema)]
            pairs = pairs or list(properties.items())[:1]
            return {key: _sample(value, root, key, depth + 1) for key, value in pairs}
        case {"type": "array" | ["array", *_], "items": items}:
            item = _sample(items, root, name, depth + 1)
            return [] if item is None else [item]
        case {"minimum": int() | float() as minimum}:
            return minimum
        case {"format": str(kind)} | {"type": str(kind) | [str(kind), *_]} if kind in _SAMPLES:
            return _SAMPLES[kind]
        case _:
            return name or "text"


def _list_required(schema: Json) -> list[Json]:
    match schema:
        case {"required": [*names]}:
            return names
        case _:
            return []


def _definition(ref: str, root: JsonObject) -> Json:
    """Return the schema that a reference such as `#/$defs/Item` names, or None."""
    value: Json = root
    for step in ref.removeprefix("#").split("/")[1:]:
        value = value.get(step) if isinstance(value, dict) else None
    return value
