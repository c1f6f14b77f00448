"""The results of calls and the contents of resources that a server sends, as values of Loopline."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from loopline.models import Json, dumps, one_line, well_formed, well_formed_json
from loopline.tools import McpFile, McpResult


def call_result(result: CallToolResult) -> McpResult:
    """Return the texts and links of a result, the bytes in it, and its structured value."""
    joined = joined_result(map(content_part, result.content))
    text, files = joined.text, joined.files
    structured: Json = well_formed_json(result.structured_content)
    if structured is not None and not text:
        return McpResult(text=dumps(structured), files=files, is_error=result.is_error)
    if _says_all(text, structured):
        structured = None
    return McpResult(text=text, files=files, structured=structured, is_error=result.is_error)


def joined_result(parts: Iterable[str | McpFile]) -> McpResult:
    """Return the result of these texts and files."""
    texts, files = list[str](), list[McpFile]()
    for part in parts:
        if isinstance(part, McpFile):
            files.append(part)
        elif part:
            texts.append(well_formed(part))
    return McpResult(text="\n\n".join(texts), files=tuple(files))


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


def content_part(block: ContentBlock) -> str | McpFile:
    """Return what a block says, or the bytes that it has."""
    match block:
        case TextContent(text=text):
            return text
        case EmbeddedResource(resource=contents):
            return resource_part(contents)
        case ResourceLink():
            kind = f" ({one_line(block.mime_type)})" if block.mime_type else ""
            return f"a resource: {one_line(block.name)}{kind} at {one_line(str(block.uri))}"
        case ImageContent(mime_type=mime, data=data):
            return _decoded("an image", mime, data, "")
        case AudioContent(mime_type=mime, data=data):
            return _decoded("a sound", mime, data, "")


def resource_part(contents: TextResourceContents | BlobResourceContents) -> str | McpFile:
    """Return the text of a resource below its address, or its bytes."""
    address = str(contents.uri)
    match contents:
        case TextResourceContents(text=text):
            return f"{one_line(address)}:\n{text}"
        case BlobResourceContents(blob=blob, mime_type=mime):
            return _decoded("a resource", mime or "", blob, address)


def _decoded(what: str, mime: str, data: str, address: str) -> str | McpFile:
    """Return the bytes, or a line that says that there are none."""
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return f"[{what}: {one_line(mime)}, whose data is no base64]"
    return McpFile(data=content, mime=mime, name=address.rpartition("/")[2])
