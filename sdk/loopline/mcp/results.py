"""Converts results of calls to values of Loopline, and offers resources and prompts of a server as tools."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import mcp_types as types
from mcp import Client, MCPError

from loopline.errors import ToolError
from loopline.mcp.tool_lists import MAX_TOOLS
from loopline.models import Json, JsonObject, dumps, one_line, well_formed, well_formed_json
from loopline.tools import McpFile, McpResult, McpToolSpec

P = TypeVar("P", bound=types.PaginatedResult, covariant=True)
T = TypeVar("T")


def call_result(result: types.CallToolResult) -> McpResult:
    """Return a result with its texts and links joined, its files, and its structured value.

    The structured value is left out if the text contains the same value; without a text, its JSON is the text.
    """
    joined = join_parts(map(content_part, result.content))
    text = joined.text
    files = joined.files
    structured: Json = well_formed_json(result.structured_content)
    if structured is not None and not text:
        return McpResult(text=dumps(structured), files=files, is_error=result.is_error)
    if _says_all(text, structured):
        structured = None
    return McpResult(text=text, files=files, structured=structured, is_error=result.is_error)


def join_parts(parts: Iterable[str | McpFile]) -> McpResult:
    """Return a result with the files, and with the texts that are not empty, joined by empty lines."""
    texts = list[str]()
    files = list[McpFile]()
    for part in parts:
        if isinstance(part, McpFile):
            files.append(part)
        elif part:
            texts.append(well_formed(part))
    return McpResult(text="\n\n".join(texts), files=tuple(files))


def _says_all(text: str, structured: Json) -> bool:
    """Return whether the text equals the structured value, or the only value in it, as text or as JSON."""
    values: list[Json] = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += structured.values()
    if text in values:
        return True
    try:
        return json.loads(text) in values
    except (ValueError, RecursionError):
        return False


def content_part(block: types.ContentBlock) -> str | McpFile:
    """Return the text of a block, a line with the address of a linked resource, or the bytes of a block as a file."""
    match block:
        case types.TextContent(text=text):
            return text
        case types.EmbeddedResource(resource=contents):
            return resource_part(contents)
        case types.ResourceLink():
            kind = f" ({one_line(block.mime_type)})" if block.mime_type else ""
            return f"a resource: {one_line(block.name)}{kind} at {one_line(str(block.uri))}"
        case types.ImageContent(mime_type=mime, data=data):
            return _decode("an image", mime, data, "")
        case types.AudioContent(mime_type=mime, data=data):
            return _decode("a sound", mime, data, "")


def resource_part(
    contents: types.TextResourceContents | types.BlobResourceContents,
) -> str | McpFile:
    """Return the text of a resource after a line with its address, or its bytes as a file."""
    address = str(contents.uri)
    match contents:
        case types.TextResourceContents(text=text):
            return f"{one_line(address)}:\n{text}"
        case types.BlobResourceContents(blob=blob, mime_type=mime):
            return _decode("a resource", mime or "", blob, address)


def _decode(what: str, mime: str, data: str, address: str) -> str | McpFile:
    """Decode base64 to a file, named by the end of `address`; if it is not valid, return a line about `what`."""
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return f"[{what}: {one_line(mime)}, whose data is not base64]"
    return McpFile(data=content, mime=mime, name=address.rpartition("/")[2])


MAX_PAGES = 100
LISTED = 200
"""The maximum number of resources in a list."""
NAMED = 20
"""The maximum number of prompts in a description."""
LIST_RESOURCES = "list_resources"
READ_RESOURCE = "read_resource"
GET_PROMPT = "get_prompt"


@dataclass(frozen=True, slots=True)
class AddedTool:
    """A tool for requests of the protocol that are not tool calls."""

    spec: McpToolSpec
    run: Callable[[Client, JsonObject], Awaitable[McpResult]]


async def list_added_tools(client: Client, own_names: Collection[str]) -> dict[str, AddedTool]:
    """Return tools that list and read resources, and a tool that fetches prompts, by name, if the server has any.

    A tool of the server with the same name, one of `own_names`, has precedence.

    Raises:
        MCPError: the server cannot list its resources or prompts.
    """
    tools = list[AddedTool]()
    has = client.server_capabilities
    if has.resources is not None and await _has_resources(client):
        tools += [_list_tool(), _read_tool()]
    if has.prompts is not None:
        prompts = await list_pages(client.list_prompts, lambda page: page.prompts)
        tools += [_prompt_tool(prompts)] if prompts else []
    return {tool.spec.name: tool for tool in tools if tool.spec.name not in own_names}


async def _has_resources(client: Client) -> bool:
    if (await client.list_resources()).resources:
        return True
    return bool(await _templates(client, pages=1))


class _Request(Protocol[P]):
    """A request for one page of a list."""

    async def __call__(self, *, cursor: str | None) -> P: ...


async def list_pages(
    request: _Request[P], items: Callable[[P], Sequence[T]], pages: int = MAX_PAGES
) -> list[T]:
    """Return the items of at most `pages` pages of a list, and of no further page after `MAX_TOOLS` items.

    Raises:
        MCPError: the server refuses a page.
    """
    listed = list[T]()
    cursor = None
    for _ in range(pages):
        page = await request(cursor=cursor)
        listed += items(page)
        cursor = page.next_cursor
        if cursor is None or len(listed) >= MAX_TOOLS:
            break
    return listed


async def _templates(client: Client, pages: int = MAX_PAGES) -> list[types.ResourceTemplate]:
    try:
        request = client.list_resource_templates
        return await list_pages(request, lambda page: page.resource_templates, pages)
    except MCPError:  # the server has no templates
        return []


def _list_tool() -> AddedTool:
    properties: JsonObject = {
        "containing": {"type": "string", "description": "Only those whose line has this text."}
    }
    description = f"List the resources of the server, and templates of their addresses. {READ_RESOURCE} reads one."
    return AddedTool(_spec(LIST_RESOURCES, description, properties), _list)


async def _list(client: Client, arguments: JsonObject) -> McpResult:
    """Return at most `LISTED` lines of resources and templates that contain the text `containing` in any case."""
    search = str({"containing": "", **arguments}["containing"]).casefold()
    resources = await list_pages(client.list_resources, lambda page: page.resources)
    lines = [
        *(_line(str(each.uri), each) for each in resources),
        *(_line(f"template {each.uri_template}", each) for each in await _templates(client)),
    ]
    fitting = [line for line in lines if search in line.casefold()]
    if len(fitting) > LISTED:
        remainder = f"… and {len(fitting) - LISTED} more: narrow the list with containing"
        fitting = [*fitting[:LISTED], remainder]
    return McpResult(text="\n".join(fitting) or "There is no such resource.")


def _line(address: str, each: types.Resource | types.ResourceTemplate) -> str:
    kind = f" ({each.mime_type})" if each.mime_type else ""
    description = f": {each.description}" if each.description else ""
    return one_line(f"{address} — {each.name}{kind}{description}", 400)


def _read_tool() -> AddedTool:
    """Return the tool that reads a resource by its address, the required argument `uri`."""
    properties: JsonObject = {
        "uri": {
            "type": "string",
            "description": "Its address, as it is listed, or from a template.",
        }
    }
    description = (
        "Read a resource of the server by its address; its bytes become a file of the turn."
    )
    return AddedTool(_spec(READ_RESOURCE, description, properties, "uri"), _read)


async def _read(client: Client, arguments: JsonObject) -> McpResult:
    read = await client.read_resource(str(arguments["uri"]))
    return join_parts(map(resource_part, read.contents))


def _prompt_tool(prompts: Sequence[types.Prompt]) -> AddedTool:
    """Return the tool that fetches a prompt; its description lists the first `NAMED` prompts with their arguments."""
    names = [f"- {_signature(prompt)}" for prompt in prompts[:NAMED]]
    if len(prompts) > NAMED:
        names.append(f"- and {len(prompts) - NAMED} more")
    description = "\n".join(["Return a prompt that the server has written. There are:", *names])
    properties: JsonObject = {
        "name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    required = {
        prompt.name: [each.name for each in prompt.arguments or () if each.required]
        for prompt in prompts
    }

    async def run(client: Client, arguments: JsonObject) -> McpResult:
        return await _prompt_result(client, arguments, required)

    return AddedTool(_spec(GET_PROMPT, description, properties, "name"), run)


async def _prompt_result(
    client: Client, arguments: JsonObject, required: Mapping[str, Sequence[str]]
) -> McpResult:
    """Fetch a prompt and return its messages. `required` are the names of required arguments by prompt.

    Raises:
        ToolError: an argument is malformed or missing.
        MCPError: the server refuses the request.
    """
    match {"arguments": {}, **arguments}:
        case {"name": str(name), "arguments": dict(given)}:
            texts = {key: str(value) for key, value in given.items()}
        case _:
            raise ToolError("name is a text, and arguments are texts by name")
    missing = [each for each in required.get(name, ()) if each not in texts]
    if missing:
        raise ToolError(f"the prompt {name!r} needs the arguments {', '.join(missing)}")
    result = await client.get_prompt(name, texts)
    return join_parts(part for message in result.messages for part in _message_parts(message))


def _message_parts(message: types.PromptMessage) -> tuple[str | McpFile, ...]:
    part = content_part(message.content)
    return (f"{message.role}:\n{part}",) if isinstance(part, str) else (part,)


def _signature(prompt: types.Prompt) -> str:
    arguments = ", ".join(
        each.name if each.required else f"{each.name}?" for each in prompt.arguments or ()
    )
    description = f": {prompt.description}" if prompt.description else ""
    return one_line(f"{prompt.name}({arguments}){description}", 200)


def _spec(name: str, description: str, properties: JsonObject, *required: str) -> McpToolSpec:
    """Return the spec of a tool with the effect `read`; parameters that are not in `required` are optional."""
    parameters: JsonObject = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return McpToolSpec(name=name, description=description, parameters=parameters, effect="read")
