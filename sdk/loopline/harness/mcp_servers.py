"""The MCP servers of a harness: their stored tool lists, and connections to the servers that run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from loopline import bundle as bundles
from loopline.bundle.mcp_config import MCP_FILE, START_SECONDS
from loopline.clock import Clock
from loopline.errors import BundleError, ToolError
from loopline.models import JsonObject
from loopline.names import nearest_hint
from loopline.tasks import ThreadCache
from loopline.tools import AskPerson, McpResult, McpTool, is_tool_name

if TYPE_CHECKING:
    from loopline.mcp.connection import McpConnection
    from loopline.mcp.tool_cache import CachedTools

logger: logging.Logger = logging.getLogger("loopline")

NAMED = 5
"""The maximum number of unusable tools that a notice names with their reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSetup:
    """The settings of the servers of a harness.

    `file` is the `.mcp.json`, None without a folder of the bundle. `folder` stores the lists of tools; it is None for a store
    in memory.
    """

    file: Path | None
    folder: Path | None
    environment: Mapping[str, str] = field(repr=False)
    clock: Clock
    start_seconds: float


def mcp_servers_of(
    loaded: bundles.LoadedBundle,
    properties: bundles.Properties,
    store_file: Path | None,
    environment: Mapping[str, str],
    clock: Clock,
) -> McpServers:
    """Return the servers of the bundle's `.mcp.json`, which is read later; this starts no server."""
    name = properties.at("mcp.file")
    seconds = properties.at("mcp.start_seconds")
    file = Path(str(name or MCP_FILE)).expanduser()
    setup = McpSetup(
        file=(loaded.folder or Path()) / file if loaded.folder or name else None,
        folder=None if store_file is None else store_file.with_name(f"{store_file.name}-mcp"),
        environment=environment,
        clock=clock,
        start_seconds=float(seconds) if isinstance(seconds, int | float) else START_SECONDS,
    )
    return McpServers(setup, partial(bundles.load_mcp_selections, bundle=loaded))


class McpServers:
    """The servers of a harness. A server starts with the first call of its tools, or if its tool list is not stored."""

    def __init__(
        self, setup: McpSetup, selections: Callable[[str], tuple[bundles.McpSelection, ...] | None]
    ) -> None:
        self._setup = setup
        self._selections = ThreadCache(selections)
        self._entries: dict[str, bundles.McpServerEntry] | None = None
        self._servers: dict[str, _SharedServer] = {}
        self._reading = asyncio.Lock()

    async def tools(self, module: str) -> bundles.McpTools:
        """Return the tools that a descriptor module selects, or those of all servers if it does not select any.

        Servers without a stored tool list are started. A server that does not start, and a name that does not match a
        tool, are problems in the result and not errors.

        Raises:
            BundleError: `.mcp.json` or the descriptor is wrong, or the extra is not installed.
        """
        selections = await self._selections(module)
        if selections == () or (selections is None and self._setup.file is None):
            return bundles.McpTools()
        entries = await self._read_entries()
        left_out: list[str] = []
        if selections is None:
            selections = tuple(self._all_selections(entries))
            left_out = [entry.problem for entry in entries.values() if entry.problem]
        servers = {selection.server_id: self._server(selection) for selection in selections}
        problems = await asyncio.gather(*(server.ensure_tools() for server in servers.values()))
        down = {name for name, problem in zip(servers, problems, strict=True) if problem}
        tools: list[McpTool] = []
        unknown: list[str] = []
        for selection in selections:
            chosen, missing, unusable = await servers[selection.server_id].select(selection)
            tools += chosen
            problems += [*missing.values(), *unusable]
            unknown += _unknown(selection, missing)
        return bundles.McpTools(
            tuple(tools),
            tuple(problem for problem in (*problems, *left_out) if problem),
            frozenset(each.alias for each in selections if each.server_id in down),
            tuple(unknown),
        )

    async def check_selections(self, module: str) -> None:
        """Check that `.mcp.json` declares each server that a descriptor module selects, and check the names of tools.

        This starts no server: names of tools are checked only if the tool list of the server is stored.

        Raises:
            BundleError: a server or a tool is unknown, or `.mcp.json` or the descriptor is wrong.
        """
        selections = await self._selections(module)
        unknown: list[str] = []
        if not selections:
            return
        await self._read_entries()
        for selection in selections:
            server = self._server(selection)
            await server.read_stored()
            _, missing, _ = await server.select(selection)
            unknown += _unknown(selection, missing)
        if unknown:
            raise BundleError(*unknown)

    async def sign_in(self, name: str, show: Callable[[str], None]) -> None:
        """Sign in to a server over HTTP; `show` receives the address that the user opens in a browser.

        Raises:
            BundleError: the server is not declared, or `.mcp.json` is wrong.
            ToolError: the server is started by a command, or the sign-in failed.
        """
        await self._read_entries()
        await self._server(bundles.McpSelection(server_id=name, alias=name)).sign_in(show)

    async def close(self) -> None:
        """Stop every server that runs."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _read_entries(self) -> dict[str, bundles.McpServerEntry]:
        """Return the servers that the file declares by name; the file is read once."""
        if self._entries is None:
            async with self._reading:
                if self._entries is None:
                    self._entries = await asyncio.to_thread(self._read_file)
        return self._entries

    def _read_file(self) -> dict[str, bundles.McpServerEntry]:
        file = self._setup.file
        return bundles.read_mcp_file(file) if file is not None and file.is_file() else {}

    def _all_selections(
        self, entries: Mapping[str, bundles.McpServerEntry]
    ) -> Iterator[bundles.McpSelection]:
        """Yield a selection of all tools for each server without a problem; its alias is the name of the server.

        Raises:
            BundleError: the name of a server cannot be an alias.
        """
        for name in (name for name, entry in entries.items() if not entry.problem):
            if not bundles.is_alias(name):
                raise BundleError(
                    f"{self._setup.file}: the server {name!r} cannot be an alias of tools: rename it, or give it an "
                    "alias in MCP_TOOL_SPECS"
                )
            yield bundles.McpSelection(server_id=name, alias=name)

    def _server(self, selection: bundles.McpSelection) -> _SharedServer:
        """Return the server that a selection names, without starting it; the first call creates the object.

        Raises:
            BundleError: the server is not declared or has a problem, or the package `mcp` is not installed.
        """
        name = selection.server_id
        location = selection.location or str(self._setup.file)
        entries = self._entries or {}
        if name not in entries:
            hint = nearest_hint(name, entries) if entries else "it declares no servers"
            raise BundleError(f"{location}: no server {name!r} in {self._setup.file}: {hint}")
        if entries[name].problem:
            raise BundleError(f"{self._setup.file}: {entries[name].problem}")
        if name not in self._servers:
            if find_spec("mcp") is None:
                hint = "MCP servers need the extra: pip install 'loopline[mcp]'"
                raise BundleError(f"{location}: {hint}")
            self._servers[name] = _SharedServer(entries[name], self._setup)
        return self._servers[name]


class _SharedServer:
    """A server of the harness: its tool list, and its connection after the first use."""

    def __init__(self, entry: bundles.McpServerEntry, setup: McpSetup) -> None:
        self._entry = entry
        self._setup = setup
        self._digest = entry.digest
        self._tool_list: CachedTools | None = None
        self._chosen: dict[
            bundles.McpSelection, tuple[CachedTools, list[McpTool], Mapping[str, str], list[str]]
        ] = {}
        self._connection: McpConnection | None = None
        self._reading = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    async def ensure_tools(self) -> str:
        """Read the stored tool list, or start the server to get it; return the problem as text, empty if there is none."""
        await self.read_stored()
        async with self._reading:
            if self._tool_list is None:
                try:
                    await (await self._connect()).start()
                except ToolError as error:
                    return f"Its tools are not available now: {error}."
        return ""

    async def read_stored(self) -> None:
        """Read the stored tool list of the server if no list is known yet."""
        async with self._reading:
            if self._tool_list is None:
                self._tool_list = await asyncio.to_thread(self._read)

    async def select(
        self, selection: bundles.McpSelection
    ) -> tuple[list[McpTool], Mapping[str, str], list[str]]:
        """Return the selected tools, a text for each pattern without a match, and texts about unusable tools.

        All are empty if the tool list is not known. The selection is kept until the tool list changes.
        """
        tool_list = self._tool_list
        if tool_list is None:
            return [], {}, []
        known = self._chosen.get(selection)
        if known is None or known[0] is not tool_list:
            chosen = await asyncio.to_thread(self._choose, selection, tool_list)
            known = self._chosen[selection] = (tool_list, *chosen)
        return known[1], known[2], known[3]

    async def call(
        self,
        tool: str,
        arguments: JsonObject,
        on_progress: Callable[[str], None],
        on_question: AskPerson,
    ) -> McpResult:
        """Call a tool, and start the server if it does not run.

        Raises:
            ToolError: the call failed, or the server cannot be started.
        """
        return await (await self._connect()).call(tool, arguments, on_progress, on_question)

    async def sign_in(self, show: Callable[[str], None]) -> None:
        """Let the user sign in, and list the tools; a running connection is closed, and opened again by the next call.

        Raises:
            ToolError: the server is started by a command, or the sign-in failed.
        """
        if not self._entry.fields.url:
            raise ToolError(
                f"{self._entry.name!r} is started by a command: it does not use a sign-in"
            )
        connection = await asyncio.to_thread(self._open_connection, show)
        try:
            await connection.start()
        finally:
            await connection.close()
        async with self._connecting:
            if self._connection is not None:
                await self._connection.close()
            self._connection = None

    async def close(self) -> None:
        """Stop the server, and finish storing its tool list."""
        if self._connection is not None:
            await self._connection.close()
        await asyncio.gather(*self._writes)

    def _read(self) -> CachedTools | None:
        from loopline.mcp.tool_cache import read_cached_tools

        return read_cached_tools(self._setup.folder, self._digest)

    async def _connect(self) -> McpConnection:
        async with self._connecting:
            if self._connection is None:
                self._connection = await asyncio.to_thread(self._open_connection)
            return self._connection

    def _open_connection(self, show: Callable[[str], None] | None = None) -> McpConnection:
        """Import the SDK and make a connection; the import blocks, so this runs in a thread."""
        from loopline.mcp.connection import McpConnection
        from loopline.mcp.oauth import SIGN_IN_SECONDS, authorization

        name = self._entry.name
        setup = self._setup
        path: Path | None = None
        if setup.folder is not None:
            path = setup.folder / f"{self._digest}-{sha256(name.encode()).hexdigest()[:8]}.oauth"
            if show is None and not path.exists():
                # Earlier versions had one file for all servers with this digest.
                with suppress(OSError):
                    path.with_name(f"{self._digest}.oauth").rename(path)
        return McpConnection(
            name,
            lambda: self._entry.resolve(setup.environment),
            clock=setup.clock,
            start_seconds=setup.start_seconds + (0.0 if show is None else SIGN_IN_SECONDS),
            on_tools=self._use_list,
            authorize=authorization(name, path, setup.clock, show),
        )

    def _choose(
        self, selection: bundles.McpSelection, tool_list: CachedTools
    ) -> tuple[list[McpTool], Mapping[str, str], list[str]]:
        """Return the matching tools, texts for patterns without a match, by pattern, and a text about unusable tools.

        Patterns are case-sensitive. `*` without a match gets no text. The last text names up to 5 tools.
        """

        def selects(name: str) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in selection.tools)

        def hint(pattern: str) -> str:
            return f": {nearest_hint(pattern, names)}" if names else ""

        names = [*(tool.name for tool in tool_list.tools), *tool_list.left_out]
        chosen = [
            McpTool(selection.alias, tool, self) for tool in tool_list.tools if selects(tool.name)
        ]
        missing = {
            pattern: f"The MCP server {self._entry.name!r} has no tool {pattern!r}{hint(pattern)}."
            for pattern in selection.tools
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names)
        }
        unusable = [f"{name!r}: {why}" for name, why in tool_list.left_out.items() if selects(name)]
        if not unusable:
            return chosen, missing, []
        more = f"; and {len(unusable) - NAMED} more" if len(unusable) > NAMED else ""
        problem = (
            f"The MCP server {self._entry.name!r} has tools that are left out, because they cannot be used: "
            f"{'; '.join(unusable[:NAMED])}{more}."
        )
        return chosen, missing, [problem]

    def _use_list(self, tools: CachedTools) -> None:
        """Use a new tool list from the next turn on, and store it in the background; ignore an equal list."""
        if tools == self._tool_list:
            return
        self._tool_list = tools
        task = asyncio.create_task(self._write(tools))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, tools: CachedTools) -> None:
        """Store the tool list in a thread, after any earlier write; an OSError is logged as a warning, not raised."""
        from loopline.mcp.tool_cache import write_cached_tools

        async with self._writing:
            try:
                await asyncio.to_thread(write_cached_tools, self._setup.folder, self._digest, tools)
            except OSError as error:
                logger.warning("the tools of %s are not stored: %s", self._entry.name, error)


def _unknown(selection: bundles.McpSelection, missing: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts about missing tools that are named without wildcards, with the location of the selection."""
    for pattern, text in missing.items():
        if is_tool_name(pattern):
            yield f"{selection.location}: {text}"
