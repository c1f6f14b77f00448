"""The lists of tools that a server sends: usable tools, and the reasons why other tools are unusable."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self, cast

from mcp.client._transport import ReadStream, TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, ListToolsResult, Tool, ToolAnnotations
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from loopline.models import Json, JsonObject, dumps, one_line, well_formed
from loopline.models.bounded_schema import UnusableSchema, check_schema
from loopline.models.json_schema import is_object_schema
from loopline.timeline import Effect
from loopline.tools import McpToolSpec

MAX_TOOLS = 1_000
SCHEMA_BYTES = 100_000
"""The maximum size of the schemas of one tool."""
PAGE_BYTES = 2_000_000
"""The maximum size of the schemas of all tools in one message."""
DESCRIPTION_CHARACTERS = 4_000
REASON_CHARACTERS = 200
_LIST = "tools/list"
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class _UnusableTool(Exception):
    """A tool cannot be used; the message says why."""


class ToolLists:
    """The listed tools of a server: the `usable` tools, and the reasons for `unusable` tools, by name.

    The SDK gets only usable tools, because it rejects a list with one invalid tool. Output schemas are removed, because
    the SDK would check results with patterns that can take exponential time.
    """

    def __init__(self) -> None:
        self.version = "2025-11-25"
        self.usable: dict[str, McpToolSpec] = {}
        self.unusable: dict[str, str] = {}

    def clear(self) -> None:
        """Remove all tools, before a server lists them again."""
        self.usable.clear()
        self.unusable.clear()

    @asynccontextmanager
    async def read_from(
        self, transport: AbstractAsyncContextManager[TransportStreams]
    ) -> AsyncGenerator[TransportStreams]:
        """Open a transport that removes unusable tools from received lists."""
        async with transport as (received, to_send):
            yield _UsableTools(received, self), to_send

    async def change(self, message: SessionMessage | Exception) -> SessionMessage | Exception:
        """Return a list of tools without unusable tools and output schemas; other messages are not changed."""
        match message:
            case SessionMessage(message=JSONRPCResponse(result={"tools": list()}) as response):
                result = await asyncio.to_thread(self._read_tools, response.result)
                changed = response.model_copy(update={"result": result})
                return replace(message, message=changed)
            case _:
                return message

    def _read_tools(self, result: JsonObject) -> JsonObject:
        """Return a list of tools without unusable tools and output schemas. Large schemas take long.

        The tools are added to `usable`, or with the reason to `unusable`, each up to `MAX_TOOLS`. If a name is listed twice,
        the first tool is kept.
        """
        seen = list[Json]()
        remaining = PAGE_BYTES
        listed = cast("list[Json]", result["tools"])
        for raw in listed:
            try:
                tool = self._parse(result, raw)
                remaining -= _check_tool(tool, remaining)
            except _UnusableTool as error:
                if len(self.unusable) < MAX_TOOLS:
                    name = raw.get("name") if isinstance(raw, dict) else None
                    shown = one_line(name) if isinstance(name, str) else "a tool without a name"
                    self.unusable[shown] = one_line(str(error), REASON_CHARACTERS)
                continue
            if tool.name not in self.usable and len(self.usable) < MAX_TOOLS:
                self.usable[tool.name] = _spec(tool)
                fields = cast("JsonObject", raw).items()
                seen.append({name: value for name, value in fields if name != "outputSchema"})
        return {**result, "tools": seen}

    def _parse(self, result: JsonObject, raw: Json) -> Tool:
        """Parse one tool of a list; raise `_UnusableTool` with the first fault if it is not valid."""
        try:
            page = parse_server_result(_LIST, self.version, {**result, "tools": [raw]})
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in detail["loc"] if part not in {"tools", 0})
            raise _UnusableTool(f"{field}: {detail['msg']}" if field else detail["msg"]) from error
        [tool] = cast("ListToolsResult", page).tools
        return tool


def _check_tool(tool: Tool, remaining: int) -> int:
    """Check a tool, and return the size of its schemas, which may have `remaining` bytes.

    Raises:
        _UnusableTool: its name, arguments or schemas cannot be used, it runs only as a task, or its schemas are larger
            than `SCHEMA_BYTES` or `remaining`.
    """
    schemas = [tool.input_schema, *([] if tool.output_schema is None else [tool.output_schema])]
    if _NAME.fullmatch(tool.name) is None:
        raise _UnusableTool("its name has other characters than letters, digits, and _ . / -")
    if not is_object_schema(tool.input_schema):
        raise _UnusableTool("its arguments are not an object")
    if tool.execution is not None and tool.execution.task_support == "required":
        raise _UnusableTool("it runs only as a task, and tasks are not supported")
    try:
        size = len(dumps(cast("Json", schemas)))
        if size > SCHEMA_BYTES:
            raise _UnusableTool(f"its schemas have {size:,} bytes, more than {SCHEMA_BYTES:,}")
        if size > remaining:
            raise _UnusableTool(
                f"the schemas listed with it have more than {PAGE_BYTES:,} bytes together"
            )
        for schema in schemas:
            check_schema(schema, skip_unreadable=True)
    except UnusableSchema as error:
        raise _UnusableTool(f"its schema cannot be used: {error}") from error
    except RecursionError as error:
        raise _UnusableTool("its schema is nested too deeply") from error
    return size


def _spec(tool: Tool) -> McpToolSpec:
    """Return the spec of a tool; its description, or its title without one, is cut to `DESCRIPTION_CHARACTERS`."""
    return McpToolSpec(
        name=tool.name,
        description=well_formed(tool.description or tool.title or "")[:DESCRIPTION_CHARACTERS],
        parameters=tool.input_schema,
        output_schema=tool.output_schema,
        effect=_effect(tool.annotations),
        idempotent=bool(tool.annotations and tool.annotations.idempotent_hint),
    )


def _effect(hints: ToolAnnotations | None) -> Effect:
    """Return the effect of a tool from its hints; without hints it is exclusive."""
    if hints is not None and hints.read_only_hint:
        return "read"
    return "write" if hints is not None and hints.destructive_hint is False else "exclusive"


class _UsableTools:
    """A stream of received messages that `ToolLists` changes."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], lists: ToolLists) -> None:
        self._stream = stream
        self._lists = lists

    @property
    def last_context(self) -> object:
        """The context of the sender of the last message, in which the SDK handles the message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._lists.change(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return await self._lists.change(await anext(self._stream))

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)
