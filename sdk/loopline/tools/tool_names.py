"""Names and patterns of tools in the settings of a bundle, and the check that each of them is the name of a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from loopline.names import nearest_name
from loopline.tools.mcp_tool import MCP

_GLOB = re.compile(r"[*?\[]")
_ALL_OF_SERVERS = f"{MCP}.*"
"""The pattern of all tools of MCP servers, which a bundle may name before it has a server."""


class ToolPattern(Struct, frozen=True):
    """A name of a tool, or a pattern such as `shop.*`, in a setting; `location` is the file and line, empty if unknown."""

    setting: str
    pattern: str
    location: str = ""


class KnownTools(Struct, frozen=True):
    """The names of all tools that a bundle may offer.

    `later` are beginnings of names that cannot be known yet, such as those of the tools of an MCP server that is down.
    """

    names: frozenset[str]
    later: frozenset[str] = frozenset()

    def __or__(self, other: KnownTools) -> KnownTools:
        """Return the names and beginnings of both."""
        return KnownTools(self.names | other.names, self.later | other.later)

    def unknown(self, patterns: Iterable[ToolPattern]) -> list[ToolPattern]:
        """Return the patterns that match none of the names."""
        return [tool for tool in patterns if not self._matches(tool.pattern)]

    def problems(self, patterns: Iterable[ToolPattern]) -> list[str]:
        """Return a message for each pattern that matches no tool, now or later: its place and the nearest name."""
        return [
            self._problem(tool)
            for tool in self.unknown(patterns)
            if not may_begin(tool.pattern, self.later)
        ]

    def _matches(self, pattern: str) -> bool:
        if pattern in self.names or pattern == _ALL_OF_SERVERS:
            return True
        return any(fnmatchcase(name, pattern) for name in self.names)

    def _problem(self, tool: ToolPattern) -> str:
        candidates = [*sorted(self.names), *(f"{beginning}*" for beginning in sorted(self.later))]
        verb = "is called" if is_tool_name(tool.pattern) else "matches"
        nearest = nearest_name(tool.pattern, candidates)
        text = f"{tool.setting}: no tool {verb} {tool.pattern!r}, nearest is {nearest!r}"
        return f"{tool.location}: {text}" if tool.location else text


def is_tool_name(pattern: str) -> bool:
    """Return whether the pattern has no wildcard, so that it is the name of one tool."""
    return _GLOB.search(pattern) is None


def may_begin(pattern: str, beginnings: Iterable[str]) -> bool:
    """Return whether a name that matches the pattern may begin with one of `beginnings`."""
    head = _GLOB.split(pattern, maxsplit=1)[0]
    return any(
        head.startswith(beginning) or (head != pattern and beginning.startswith(head))
        for beginning in beginnings
    )
