"""A bundle as an MCP server: its tools, a question, its timelines and knowledge, its skills as prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from loopline.bundle import BundleService
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.timeline import Effect
from loopline.tools import Tool

Context = ServerRequestContext[Any, Any]
ASK = "ask"
ASK_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The question or task."},
        "conversation": {
            "type": "string",
            "description": "The conversation to go on with, as an earlier answer names it.",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}


class BundleServer:
    """The requests of clients, answered from what is served."""

    def __init__(self, served: BundleService, version: str) -> None:
        self._served = served
        self._server: Server[Any] = Server(
            served.name,
            version=version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )

    async def serve_stdio(self) -> None:
        """Serve one client over the standard input and output, until it closes them."""
        async with stdio_server() as (received, sent):
            await self._server.run(received, sent, self._server.create_initialization_options())

    async def serve_http(self, host: str, port: int) -> None:
        """Serve any number of clients at `/mcp` of that address, until the process gets a signal."""
        app = self._server.streamable_http_app(host=host)
        config = uvicorn.Config(app, host=host, port=port, log_level="warning")
        await uvicorn.Server(config).serve()

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        tools = [_listed(tool) for tool in await self._served.tools()]
        question = types.Tool(
            name=ASK,
            description=f"Ask {self._served.name}; it works on the question and answers with sources.",
            input_schema=ASK_SCHEMA,
        )
        return types.ListToolsResult(tools=[question, *tools])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments: JsonObject = params.arguments or {}
        progress = _ProgressReport(context)
        try:
            if params.name == ASK:
                text, conversation = _question(arguments)
                result = await self._served.ask(text, conversation, progress.show)
            else:
                result = await self._served.call(params.name, arguments, progress.show)
        except LooplineError as error:
            return _texts(str(error), is_error=True)
        finally:
            await progress.close()
        texts = [
            result.text,
            *([f"conversation: {result.conversation}"] if result.conversation else []),
        ]
        return _texts(*texts, is_error=not result.ok)

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        del context, params
        listed = [
            types.Resource(uri=item.uri, name=item.name, mime_type=item.mime)
            for item in await self._served.resources()
        ]
        return types.ListResourcesResult(resources=listed)

    async def _list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        del context, params
        timeline = types.ResourceTemplate(
            uri_template="timeline:{conversation}",
            name="timeline",
            description="All blocks of a conversation, as a document.",
            mime_type="application/json",
        )
        knowledge = types.ResourceTemplate(
            uri_template="ks:{+path}",
            name="knowledge",
            description="A file of the knowledge space, whole or by lines: ks:docs/a.md#L1-L20.",
            mime_type="text/plain",
        )
        templates = [timeline, *([knowledge] if self._served.has_knowledge else [])]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        del context
        uri = str(params.uri)
        try:
            result = await self._served.read(uri)
        except LooplineError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from error
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, text=result.text)]
        )

    async def _list_prompts(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        del context, params
        prompts = [
            types.Prompt(name=skill.full_id, title=skill.name, description=skill.description)
            for skill in await self._served.skills()
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        del context
        for skill in await self._served.skills():
            if skill.full_id == params.name:
                message = types.PromptMessage(
                    role="user", content=types.TextContent(text=skill.body)
                )
                return types.GetPromptResult(description=skill.description, messages=[message])
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no skill {params.name!r}")


class _ProgressReport:
    """Progress on its way to the client, in order; `show` does not wait."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._last: asyncio.Task[None] | None = None

    def show(self, text: str) -> None:
        """Send the text as the next step."""
        self._count += 1
        self._last = asyncio.create_task(self._send(self._last, self._count, text))

    async def close(self) -> None:
        """Wait until all of it is sent."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)

    async def _send(self, before: asyncio.Task[None] | None, count: int, text: str) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._context.session.report_progress(count, None, text)


def _question(arguments: JsonObject) -> tuple[str, str]:
    """Return the text of a question and the conversation it goes on with.

    Raises:
        LooplineError: there is no text.
    """
    match {"conversation": "", **arguments}:
        case {"text": str(text), "conversation": str(conversation)} if text.strip():
            return text, conversation
        case _:
            raise LooplineError("ask: text must be a text that is not empty")


def _listed(tool: Tool) -> types.Tool:
    parameters: dict[str, Json] = dict(tool.spec.parameters)
    return types.Tool(
        name=tool.spec.name,
        description=tool.spec.description,
        input_schema=parameters,
        annotations=_annotations(tool.effect),
    )


def _annotations(effect: Effect) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=effect == "read", destructive_hint=effect in ("write", "exclusive")
    )


def _texts(*texts: str, is_error: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text=text) for text in texts]
    return types.CallToolResult(content=content, is_error=is_error)
