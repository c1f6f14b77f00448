"""The built-in tools that a descriptor chooses by name, each over what it needs of the bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from loopline.bundle.wiring import guarded_search
from loopline.errors import BundleError
from loopline.tools import (
    Calculator,
    KnowledgeSearch,
    KnowledgeSearchTool,
    Tool,
    WebFetch,
    WebFetchTool,
    WebSearch,
    WebSearchTool,
)


def builtin(name: str, port: object) -> Tool:
    """The tool of that name, one of `BUILTINS`.

    Raises:
        BundleError: the port is not what the tool needs.
    """
    return BUILTINS[name](port)


def _calculator(port: object) -> Tool:
    if port is not None:
        raise BundleError(f"calculator needs no port, and was given {port!r}")
    return Calculator()


def _web_search(port: object) -> Tool:
    if not isinstance(port, WebSearch):
        raise BundleError(
            f"web_search needs a port with `async search(query, limit)`, not {port!r}"
        )
    return WebSearchTool(port)


def _web_fetch(port: object) -> Tool:
    if not isinstance(port, WebFetch):
        raise BundleError(f"web_fetch needs a port with `async fetch(url)`, not {port!r}")
    return WebFetchTool(port)


def _knowledge_search(port: object) -> Tool:
    none: Mapping[object, object] = {}
    given = cast("Mapping[object, object]", port) if isinstance(port, Mapping) else none
    spaces = {name: search for name, search in given.items() if isinstance(name, str) and name}
    if not spaces or len(spaces) != len(given) or not all(map(callable, spaces.values())):
        problem = 'as its port a dict such as {"docs": search_docs} of search functions'
        raise BundleError(f"knowledge_search needs {problem}, not {port!r}")
    return KnowledgeSearchTool(
        {name: guarded_search(cast("KnowledgeSearch", one)) for name, one in spaces.items()}
    )


BUILTINS: Mapping[str, Callable[[object], Tool]] = {
    "calculator": _calculator,
    "web_search": _web_search,
    "web_fetch": _web_fetch,
    "knowledge_search": _knowledge_search,
}
