"""The tools of a run by name, and their names in requests to a provider."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from itertools import count

from loopline.errors import BundleError, ToolError
from loopline.models import ToolSpec
from loopline.tools.client_tools import RequestTool
from loopline.tools.functions import BoundTool, Tool
from loopline.tools.parameters import nearest_first

LONGEST_PROVIDER_NAME = 64

_PLAIN = re.compile(r"(?:mcp\.(?=[A-Za-z0-9_-]++\.))?[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+)?")
_AMBIGUOUS = re.compile(r"__|_\.|\._|\.\.")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST = 12


@dataclass(frozen=True, slots=True)
class ProviderNames:
    """The mapping between tool names and the names that a provider accepts, in both directions."""

    by_name: Mapping[str, str]
    by_provider_name: Mapping[str, str]

    def provider_name(self, name: str) -> str:
        """Return the name for the provider: `[A-Za-z0-9_-]`, at most 64 characters."""
        return self.by_name[name]

    def name(self, provider_name: str) -> str:
        """Return the tool name for a name in a reply; in an unknown name, each `__` becomes a dot."""
        return self.by_provider_name.get(provider_name, provider_name.replace("__", "."))


def provider_names(names: Iterable[str]) -> ProviderNames:
    """Return a provider name for each tool name.

    Each dot becomes `__`. If the result would be too long, invalid or ambiguous, the provider name ends in a digest
    instead. The result does not depend on the order of the names.
    """
    by_provider_name: dict[str, str] = {}
    with_digest: list[str] = []
    for name in sorted(set(names)):
        dotted = name.replace(".", "__")
        fits = 0 < len(dotted) <= LONGEST_PROVIDER_NAME
        if fits and _PLAIN.fullmatch(name) and not _AMBIGUOUS.search(name):
            by_provider_name[dotted] = name
        else:
            with_digest.append(name)
    for name in with_digest:
        unused = (digest for digest in _digests(name) if digest not in by_provider_name)
        by_provider_name[next(unused)] = name
    return ProviderNames({name: new for new, name in by_provider_name.items()}, by_provider_name)


def _digests(name: str) -> Iterator[str]:
    """Yield provider names that end in a digest; the later ones are for the case that another tool has the first name."""
    prefix = _FOREIGN.sub("_", name)[: LONGEST_PROVIDER_NAME - _DIGEST - 1]
    for attempt in count():
        digest = sha256(f"{name}\n{attempt}".encode("utf-8", "surrogatepass")).hexdigest()
        yield f"{prefix}_{digest[:_DIGEST]}"


def _make_duplicate_error(first: Tool, second: Tool) -> BundleError:
    """Return the error for two tools of one name, with the files and lines of those that are functions."""
    functions = [tool.function for tool in (first, second) if isinstance(tool, BoundTool)]
    locations = " and ".join(dict.fromkeys(function.location for function in functions))
    where = f", at {locations}" if locations else ""
    return BundleError(
        f"two tools are called {first.spec.name!r}{where}: give one of them another name or alias"
    )


class ToolSet(Mapping[str, Tool]):
    """Tools by name, in their original order.

    Raises:
        BundleError: two tools have the same name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            name = tool.spec.name
            if name in self._tools:
                raise _make_duplicate_error(self._tools[name], tool)
            self._tools[name] = tool

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    # Mapping has these methods too, but its versions are slower because they call `__getitem__`.
    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def values(self) -> ValuesView[Tool]:
        """Return the tools."""
        return self._tools.values()

    def items(self) -> ItemsView[str, Tool]:
        """Return the tools with their names."""
        return self._tools.items()

    def __repr__(self) -> str:
        return f"ToolSet({list(self._tools)})"

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specifications of the tools for a model."""
        return tuple([tool.spec for tool in self._tools.values()])

    @property
    def client_tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls the client runs."""
        # Not by `runs_on_client`, since each turn would call it for each of its tools.
        names = [
            name
            for name, tool in self._tools.items()
            if isinstance(tool, RequestTool)
            or (isinstance(tool, BoundTool) and tool.function.client)
        ]
        return tuple(names)

    @cached_property
    def provider_names(self) -> ProviderNames:
        """The names of the tools for a provider."""
        return provider_names(self._tools)

    def find(self, name: str) -> Tool:
        """Return the tool with this name.

        Raises:
            ToolError: the tool does not exist; the message lists the tools, the nearest name first.
        """
        if name not in self._tools:
            raise ToolError(f"no tool {name!r}: here only {nearest_first(name, self._tools)}")
        return self._tools[name]

    def allow(self, patterns: Iterable[str]) -> ToolSet:
        """Return the tools whose names match one of the patterns, such as `shop.*` or a whole name."""
        allowed = tuple(patterns)
        return ToolSet(
            tool
            for name, tool in self._tools.items()
            if any(fnmatchcase(name, pattern) for pattern in allowed)
        )
