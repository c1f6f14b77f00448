"""The cache of one graph: equal calls of its steps to tools that opt in are made once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from loopline.models import JsonObject, ToolSpec
from loopline.timeline import Effect
from loopline.tools import CallCache, Outcome, RerunnableTool, Tool, ToolInvocation


@dataclass(slots=True, eq=False)
class GraphCache:
    """What equal calls gave; a call that others wait for runs once, and one that failed is made again.

    `patterns` name the tools; only those that read are ever cached.
    """

    patterns: tuple[str, ...]
    _running: dict[str, asyncio.Future[Outcome]] = field(
        default_factory=dict[str, "asyncio.Future[Outcome]"]
    )

    def takes(self, tool: str, effect: Effect) -> bool:
        """Return whether calls to that tool are cached."""
        return effect == "read" and any(fnmatchcase(tool, pattern) for pattern in self.patterns)

    async def outcome(
        self, tool: str, arguments: JsonObject, run: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Return the outcome of an equal call, or of this one."""
        key = json.dumps([tool, arguments], sort_keys=True)
        while (running := self._running.get(key)) is not None:
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if not running.cancelled():  # whoever waits here is cancelled, and not the call
                    raise
        self._running[key] = own = asyncio.get_running_loop().create_future()
        try:
            outcome = await run()
        except BaseException:
            del self._running[key]
            own.cancel()
            raise
        own.set_result(outcome)
        return outcome


class CachedTool(RerunnableTool):
    """A tool that reads, with its calls in a cache."""

    def __init__(self, tool: Tool, cache: CallCache) -> None:
        self.spec: ToolSpec = tool.spec
        self._tool = tool
        self._cache = cache

    def check(self, arguments: JsonObject) -> None:
        """Refuse what the tool refuses."""
        self._tool.check(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return what the tool gives, or gave for an equal call."""
        work = partial(self._tool.run, arguments, call)
        return await self._cache.outcome(self.spec.name, arguments, work)


def with_cache(tools: Iterable[Tool], cache: CallCache) -> list[Tool]:
    """Return the tools, with the calls of those cached that the cache takes."""
    return [
        CachedTool(tool, cache) if cache.takes(tool.spec.name, tool.effect) else tool
        for tool in tools
    ]
