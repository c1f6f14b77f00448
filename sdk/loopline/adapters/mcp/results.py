"""What a server sends, as values of Loopline: its tools, and the results of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

from loopline.models import Json, dumps, one_line, well_formed, well_formed_json
from loopline.models.json_schema import is_object_schema
from loopline.timeline import Effect
from loopline.tools import McpResult, McpToolSpec

MAX_TOOLS = 1_000
SCHEMA_BYTES = 100_000
DESCRIPTION_CHARACTERS = 4_000
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


def tool_specs(listed: Iterable[Tool]) -> tuple[McpToolSpec, ...]:
    """Return the tools that can be offered, each name once.

    Left out is a tool with an odd name, with arguments that are no object, or with a huge schema.
    """
    specs = dict[str, McpToolSpec]()
    for tool in listed:
        parameters, output = tool.input_schema, tool.output_schema
        size = len(dumps([parameters, output]))
        if _NAME.fullmatch(tool.name) and size <= SCHEMA_BYTES and is_object_schema(parameters):
            spec = McpToolSpec(
                name=tool.name,
                description=well_formed(tool.description or tool.title or "")[
                    :DESCRIPTION_CHARACTERS
                ],
                parameters=parameters,
                output_schema=output,
                effect=_effect(tool.annotations),
                idempotent=bool(tool.annotations and tool.annotations.idempotent_hint),
            )
            specs.setdefault(spec.name, spec)
    return tuple(specs.values())[:MAX_TOOLS]


def _effect(hints: ToolAnnotations | None) -> Effect:
    """Return the effect that the hints promise; a tool without hints runs alone."""
    if hints is not None and hints.read_only_hint:
        return "read"
    return "write" if hints is not None and hints.destructive_hint is False else "exclusive"


def call_result(result: CallToolResult) -> McpResult:
    """Return the texts of a result, a line for everything else, and its structured value."""
    texts = [well_formed(text) for text in _texts(result.content)]
    text = "\n\n".join(part for part in texts if part)
    structured: Json = well_formed_json(result.structured_content)
    if structured is not None and not text:
        return McpResult(text=dumps(structured), is_error=result.is_error)
    if _says_all(text, structured):
        structured = None
    return McpResult(text=text, structured=structured, is_error=result.is_error)


def _says_all(text: str, structured: Json) -> bool:
    """Return whether the text has the structured value: as its JSON, or as the only value in it."""
    values: list[Json] = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += structured.values()
    if text in values:
        return True
    try:
        return json.loads(text) in values
    except (ValueError, RecursionError):
        return False


def _texts(content: Iterable[ContentBlock]) -> Iterator[str]:
    for block in content:
        match block:
            case TextContent(text=text):
                yield text
            case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
                yield f"{one_line(str(uri))}:\n{text}"
            case EmbeddedResource(resource=resource):
                yield _binary("a resource", resource.mime_type or "", str(resource.uri))
            case ResourceLink():
                kind = f" ({one_line(block.mime_type)})" if block.mime_type else ""
                yield f"a resource: {one_line(block.name)}{kind} at {one_line(str(block.uri))}"
            case ImageContent(mime_type=mime, data=data):
                yield _binary("an image", mime, f"{len(data) * 3 // 4:,} bytes")
            case AudioContent(mime_type=mime, data=data):
                yield _binary("a sound", mime, f"{len(data) * 3 // 4:,} bytes")


def _binary(what: str, mime: str, detail: str) -> str:
    return f"[{what}: {one_line(mime)}, {one_line(detail)}]"
