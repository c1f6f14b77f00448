"""Names and patterns of tools in the settings of a bundle, and the check that each of them matches a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from loopline.names import nearest_hint
from loopline.tools.mcp_tool import MCP

_GLOB = re.compile(r"[*?\[]")
_ALL_OF_SERVERS = f"{MCP}.*"
"""The pattern for all tools of MCP servers; a bundle may use it even if it has no server yet."""


class ToolPattern(Struct, frozen=True):
    """A tool name or a pattern such as `shop.*` in a setting; `location` is its file and line, empty if unknown."""

    setting: str
    pattern: str
    location: str = ""


class KnownTools(Struct, frozen=True):
    """The names of all tools that a bundle may offer.

    `later` are prefixes of names that are not known yet, such as the tools of an MCP server that cannot be reached.
    """

    names: frozenset[str]
    later: frozenset[str] = frozenset()

    def __or__(self, other: KnownTools) -> KnownTools:
        """Return the names and prefixes of both."""
        return KnownTools(self.names | other.names, self.later | other.later)

    def unknown(self, patterns: Iterable[ToolPattern]) -> list[ToolPattern]:
        """Return the patterns that match none of the names."""
        return [tool for tool in patterns if not self._matches(tool.pattern)]

    def problems(self, patterns: Iterable[ToolPattern]) -> list[str]:
        """Return an error message, with the nearest name, for each pattern that matches no name and no prefix in `later`."""
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
        candidates = [*self.names, *(f"{prefix}*" for prefix in self.later)]
        verb = "is called" if is_tool_name(tool.pattern) else "matches"
        if verb == "matches":
            candidates += {f"{name.partition('.')[0]}.*" for name in self.names}
        hint = nearest_hint(tool.pattern, candidates)
        text = f"{tool.setting}: no tool {verb} {tool.pattern!r}, {hint}"
        return f"{tool.location}: {text}" if tool.location else text


def is_tool_name(pattern: str) -> bool:
    """Return whether the pattern has no wildcard, and thus is the name of one tool."""
    return _GLOB.search(pattern) is None


def may_begin(pattern: str, prefixes: Iterable[str]) -> bool:
    """Return whether a name that matches the pattern may begin with one of the prefixes."""
    head = _GLOB.split(pattern, maxsplit=1)[0]
    return any(
        head.startswith(prefix) or (head != pattern and prefix.startswith(head))
        for prefix in prefixes
    )
