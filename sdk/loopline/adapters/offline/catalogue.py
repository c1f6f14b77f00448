"""What a bundle without a knowledge space can do: its tools, each with a line to try."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from loopline.adapters.offline.quoting import harmless
from loopline.models import Json, JsonObject, ToolSpec, dumps

NATURE = "offline — a deterministic reader, not a language model"
OTHERS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)
"""How to have something else decide."""
_DEEPEST = 4
_SAMPLES: dict[str, Json] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None,
}  # fmt: skip
_FORMATS: dict[str, Json] = {
    "date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "time": "12:00:00",
    "email": "ann@example.org", "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip


def catalogue(bundle: str, tools: Sequence[ToolSpec]) -> list[str]:
    """The pieces of an answer that lists the bundle's own tools."""
    own = [tool for tool in tools if not tool.name.startswith("react.")]
    name = bundle or "BUNDLE"
    if not own:
        return [
            f"I am {NATURE}, and {_called(bundle)} has neither a knowledge space to read nor tools.",
            f"\n\n{OTHERS}",
        ]
    lead = (
        f"I am {NATURE}, so I cannot decide which tool answers you, and there is no knowledge space "
        f"to read. These are the tools of {_called(bundle)}, each with a line to try:"
    )
    return [lead, *(f"\n\n{_entry(name, tool)}" for tool in own), f"\n\n{OTHERS}"]


def example(tool: ToolSpec) -> JsonObject:
    """Arguments the tool's schema would accept: what is required, and what has an example."""
    sample = _sample(tool.parameters, tool.parameters, "", 0)
    return sample if isinstance(sample, dict) else {}


def _called(bundle: str) -> str:
    return f"the bundle {harmless(bundle)}" if bundle else "this bundle"


def _entry(bundle: str, tool: ToolSpec) -> str:
    purpose = harmless(tool.description.strip().partition("\n\n")[0]) or "no description"
    line = " ".join(
        ("loopline tool", shlex.quote(bundle), shlex.quote(tool.name), _quoted(example(tool)))
    )
    return f"- `{tool.name}`: {purpose}\n\n      {line}"


def _quoted(arguments: JsonObject) -> str:
    return "'" + dumps(arguments).replace("'", "'\"'\"'") + "'"


def _sample(schema: Json, root: JsonObject, name: str, depth: int) -> Json:
    """A value the schema accepts, as far as types, enums, defaults and examples tell."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    for told in (schema.get("examples"), schema.get("enum")):
        if isinstance(told, list) and told:
            return told[0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    return _made(schema, root, name, depth)


def _made(schema: JsonObject, root: JsonObject, name: str, depth: int) -> Json:
    if isinstance(ref := schema.get("$ref"), str):
        return _sample(_resolved(ref, root), root, name, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list) and options:
            return _sample(options[0], root, name, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return _object(schema, root, depth)
    if kind == "array":
        item = _sample(schema.get("items"), root, name, depth + 1)
        return [] if item is None else [item]
    return _scalar(schema, kind, name)


def _object(schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    properties = schema.get("properties")
    required = schema.get("required")
    if not isinstance(properties, dict):
        return {}
    wanted = required if isinstance(required, list) else []
    names = [name for name in properties if name in wanted] or list(properties)[:1]
    return {name: _sample(properties[name], root, name, depth + 1) for name in names}


def _scalar(schema: JsonObject, kind: Json, name: str) -> Json:
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        return _FORMATS[form]
    if kind in ("integer", "number") and isinstance(least := schema.get("minimum"), int | float):
        return least
    if kind == "string":
        return name or "text"
    return _SAMPLES.get(kind) if isinstance(kind, str) else name or "text"


def _resolved(ref: str, root: JsonObject) -> Json:
    at: Json = root
    for step in ref.removeprefix("#/").split("/"):
        at = at.get(step) if isinstance(at, dict) else None
    return at
