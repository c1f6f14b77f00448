"""`react.search_knowledge`: passages of the bundle's knowledge space, each citable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

from loopline.errors import ToolError
from loopline.knowledge import Passage
from loopline.models import JsonObject, ToolSpec, one_line, well_formed
from loopline.reader import passage_source
from loopline.timeline import Effect
from loopline.tools.call import Call
from loopline.tools.outcome import Outcome, Section

DEFAULT_LIMIT = 5
LARGEST_LIMIT = 50
PASSAGE_LIMIT = 4_000
"""Characters of one passage that a search shows."""


class KnowledgeSearch(Protocol):
    """What answers searches: `async search(query, *, limit=5) -> Sequence[Passage]`."""

    async def __call__(self, query: str, *, limit: int = DEFAULT_LIMIT) -> Sequence[Passage]:
        """The passages that best answer the query, best first."""
        ...


class SearchTool:
    """Searches the knowledge space."""

    effect: Effect = "read"
    spec: ToolSpec = ToolSpec(
        name="react.search_knowledge",
        description=(
            "Search the knowledge space by words. Gives passages with their source number [[S:n]], "
            "title and pinned ks: ref; react.read reads more of a path around a passage."
        ),
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": LARGEST_LIMIT,
                    "default": DEFAULT_LIMIT,
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )

    def __init__(self, search: KnowledgeSearch) -> None:
        self._search = search

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a query and a limit."""
        _query(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Searches exclude nothing."""
        del arguments
        return ""

    async def reconcile(self, arguments: JsonObject, call: Call) -> Outcome | None:
        """What it does is in the log or has not happened: it may simply be run."""
        return await self.run(arguments, call)

    async def run(self, arguments: JsonObject, call: Call) -> Outcome:
        """A section for each passage."""
        del call
        query, limit = _query(arguments)
        passages = await self._search(query, limit=limit)
        return Outcome(
            text=_headline(query, len(passages)),
            sections=tuple(map(passage_section, passages)),
            found=len(passages),
            shows=shown(passages),
        )


def shown(passages: Sequence[Passage]) -> tuple[tuple[str, str], ...]:
    """The refs of those that are shown whole, each with the sha256 of its text."""
    whole = [one for one in passages if len(one.text) <= PASSAGE_LIMIT]
    return tuple((p.ref, sha256(well_formed(p.text).encode()).hexdigest()) for p in whole)


def _headline(query: str, count: int) -> str:
    if not count:
        return f'no passage for "{query}"'
    return f'{count} passage{"s" if count > 1 else ""} for "{query}"'


def passage_section(passage: Passage) -> Section:
    """A passage as a part of a result, its text cut to `PASSAGE_LIMIT`."""
    text, source = well_formed(passage.text), passage_source(passage)
    source = replace(source, text=text)
    if len(text) > PASSAGE_LIMIT:
        rest = len(text) - PASSAGE_LIMIT
        text = f"{text[:PASSAGE_LIMIT]}\n… cut: {rest} characters; the whole is {passage.ref}"
    title = one_line(passage.title)
    return Section(heading=f"{title} — {passage.ref}", text=text, source=source)


def _query(arguments: JsonObject) -> tuple[str, int]:
    unknown = sorted(set(arguments) - {"query", "limit"})
    if unknown:
        raise ToolError(f"react.search_knowledge has no field {unknown[0]!r}: query and limit")
    query, limit = arguments.get("query"), arguments.get("limit", DEFAULT_LIMIT)
    if not isinstance(query, str) or not query.strip():
        raise ToolError("query: words to look for")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_LIMIT:
        raise ToolError(f"limit: a whole number from 1 to {LARGEST_LIMIT}")
    return query, limit
