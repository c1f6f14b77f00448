"""Search in knowledge spaces: `react.search_knowledge` for the bundle's space, `knowledge_search` for several spaces."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from inspect import signature
from typing import Protocol

from msgspec import structs
from typing_extensions import TypeIs

from loopline.errors import ToolError
from loopline.knowledge import Passage, SearchFilter
from loopline.models import JsonObject, ToolSpec, one_line, well_formed
from loopline.reader import passage_source
from loopline.search import ANSWER_SCORE
from loopline.tools import parameters
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, ResultSection, count_text

DEFAULT_LIMIT = 5
LARGEST_LIMIT = 50
NO_ANSWER = "the space probably holds no answer"
"""The note in the result of a search if the score of the best passage is below `ANSWER_SCORE`."""
PASSAGE_LIMIT = 4_000
"""The number of characters of a passage that a search shows."""


class KnowledgeSearch(Protocol):
    """A search function of a knowledge space: `async search(query, *, limit=5) -> Sequence[Passage]`."""

    async def __call__(self, query: str, *, limit: int = DEFAULT_LIMIT) -> Sequence[Passage]:
        """Return the passages that best answer the query, the best one first."""
        ...


class FilteredSearch(Protocol):
    """A search function that can be restricted to some files, such as that of a `KnowledgeSpace`."""

    async def __call__(
        self, query: str, *, limit: int = DEFAULT_LIMIT, within: SearchFilter | None = None
    ) -> Sequence[Passage]:
        """Return the passages in the files that match `within` that best answer the query, the best one first."""
        ...


_FILTERS: JsonObject = {
    "root": {"type": "string", "description": "Only below this folder."},
    "language": {"type": "string", "description": "A file ending, such as py."},
    "path": {"type": "string", "description": "A pattern such as docs/*.md."},
}


class SearchTool(RerunnableTool):
    """The tool that searches the knowledge space. It has filters if the search function has the parameter `within`."""

    def __init__(self, search: KnowledgeSearch | FilteredSearch) -> None:
        self._search = search
        limits: JsonObject = {
            "query": {"type": "string"},
            "limit": parameters.limit_schema(DEFAULT_LIMIT, LARGEST_LIMIT),
        }
        self.spec: ToolSpec = ToolSpec(
            name="react.search_knowledge",
            description=(
                "Search the knowledge space for passages, each with [[S:n]] and a ks: ref, around which "
                "react.read reads more."
            ),
            parameters=parameters.object_schema(
                limits | _FILTERS if takes_filters(search) else limits, "query"
            ),
        )

    def parse(self, arguments: JsonObject) -> tuple[str, int, SearchFilter | None]:
        """Return the query, the limit, and the filter, None if all of its fields are empty."""
        query = parameters.text_argument(arguments, "query", "a string with the words to look for")
        limit = parameters.integer_argument(arguments, "limit", DEFAULT_LIMIT, LARGEST_LIMIT)
        texts = [parameters.optional_text(arguments, name).removeprefix("ks:") for name in _FILTERS]
        within = SearchFilter(**dict(zip(_FILTERS, texts, strict=True)))
        return query, limit, None if within == SearchFilter() else within

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Search, and return a section for each passage, with a note if the best score is too low for an answer.

        Errors of the search are raised unchanged. A search without filters ignores them.
        """
        del call
        query, limit, within = self.parse(arguments)
        if takes_filters(self._search) and within is not None:
            passages = await self._search(query, limit=limit, within=within)
        else:
            passages = await self._search(query, limit=limit)
        return Outcome(
            text=f'{count_text(len(passages), "passage")} for "{query}"{_doubt(passages)}',
            sections=tuple(map(passage_section, passages)),
            match_count=len(passages),
            shows=list_complete_refs(passages),
        )


def takes_filters(search: KnowledgeSearch | FilteredSearch) -> TypeIs[FilteredSearch]:
    """Return whether a search function has the parameter `within`."""
    return "within" in signature(search).parameters


def _doubt(passages: Sequence[Passage]) -> str:
    """Return a note if the score of the best passage is too low for an answer, otherwise ""."""
    score = passages[0].score if passages else None
    if score is None or score >= ANSWER_SCORE:
        return ""
    return f"; {NO_ANSWER} (score {score:.2f} of 1)"


def list_complete_refs(passages: Sequence[Passage]) -> tuple[tuple[str, str], ...]:
    """Return the refs of the passages that are not cut, each with the sha256 of its text."""
    complete = [passage for passage in passages if len(passage.text) <= PASSAGE_LIMIT]
    return tuple((p.ref, sha256(well_formed(p.text).encode()).hexdigest()) for p in complete)


def passage_section(passage: Passage) -> ResultSection:
    """Convert a passage to a section of a result, with its text cut to `PASSAGE_LIMIT` characters."""
    text = well_formed(passage.text)
    source = structs.replace(passage_source(passage), text=text)
    if len(text) > PASSAGE_LIMIT:
        omitted = len(text) - PASSAGE_LIMIT
        text = f"{text[:PASSAGE_LIMIT]}\n… cut: {omitted} characters; the whole is {passage.ref}"
    title = one_line(passage.title)
    return ResultSection(heading=f"{title} — {passage.ref}", text=text, source=source)


MAX_PASSAGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacePassage:
    """A passage with the name of its space and a score from 0 to 1.

    If the search gave no score, `measured` is false and the score is computed from the rank.
    """

    passage: Passage
    space: str
    score: float
    measured: bool


class KnowledgeSearchTool(RerunnableTool):
    """The tool that searches several spaces by name."""

    def __init__(self, spaces: Mapping[str, KnowledgeSearch]) -> None:
        self._spaces = dict(spaces)
        self.spec: ToolSpec = ToolSpec(
            name="knowledge_search",
            description=(
                "Search the knowledge spaces by words. Gives passages with their source number "
                "[[S:n]], title, ref, space and score from 0 to 1, best first."
            ),
            parameters=parameters.object_schema(
                {
                    "query": parameters.QUERY,
                    "limit": parameters.limit_schema(DEFAULT_LIMIT, MAX_PASSAGES),
                    "score_threshold": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": 1,
                        "default": 0,
                        "description": "Leave out passages with a lower score, or with none.",
                    },
                    "spaces": {
                        "type": "array",
                        "items": {"type": "string", "enum": list(self._spaces)},
                        "description": "Which to search; all when it is left out.",
                    },
                },
                "query",
            ),
        )

    def parse(self, arguments: JsonObject) -> tuple[str, int, float, list[str]]:
        """Return the query, the limit, the threshold and the names of the spaces."""
        return (
            parameters.text_argument(arguments, "query"),
            parameters.integer_argument(arguments, "limit", DEFAULT_LIMIT, MAX_PASSAGES),
            parameters.fraction_argument(arguments, "score_threshold"),
            parameters.names_argument(arguments, "spaces", list(self._spaces)),
        )

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Search the spaces at the same time, and return a section for each of the `limit` best passages of all.

        Raises:
            ToolError: a search failed.
        """
        del call
        query, limit, threshold, spaces = self.parse(arguments)
        passages_by_space = await self._search(spaces, query, limit)
        ranked = merge_passages(passages_by_space, limit, threshold)
        passages = [passage.passage for passage in ranked]
        found = f'{count_text(len(ranked), "passage")} for "{query}" in {", ".join(spaces)}'
        return Outcome(
            text=f"{found}{_doubt(passages)}",
            sections=tuple(map(_section, ranked)),
            match_count=len(ranked),
            shows=list_complete_refs(passages),
        )

    async def _search(
        self, spaces: Sequence[str], query: str, limit: int
    ) -> dict[str, Sequence[Passage]]:
        """Return the passages of each space, when all searches have ended.

        Raises:
            ToolError: a search raised a ToolError; the message begins with the name of the space. Other exceptions of a
                search are raised unchanged.
        """
        searches = [self._spaces[name](query, limit=limit) for name in spaces]
        results = await asyncio.gather(*searches, return_exceptions=True)
        passages: dict[str, Sequence[Passage]] = {}
        for name, result in zip(spaces, results, strict=True):
            if isinstance(result, ToolError):
                raise ToolError(f"{name}: {result}") from result
            if isinstance(result, BaseException):
                raise result
            passages[name] = result
        return passages


def merge_passages(
    passages_by_space: Mapping[str, Sequence[Passage]], limit: int, threshold: float = 0.0
) -> list[SpacePassage]:
    """Return the `limit` best passages of all spaces, the best one first, without duplicate refs.

    Scores up to 1 are used as they are. If the best score of a space is above 1, all of its scores are divided by it,
    because the scores of different searches cannot be compared. The score of a passage without one is 1 / its rank; with a
    threshold above 0 such passages are left out. Of equal scores, the better rank comes first, then the earlier space.
    """
    candidates = [
        (passage, rank)
        for space, passages in passages_by_space.items()
        for rank, passage in enumerate(_score(space, passages), 1)
        if passage.score >= threshold and (passage.measured or not threshold)
    ]
    by_ref: dict[str, SpacePassage] = {}
    for passage, _ in sorted(candidates, key=lambda pair: (-pair[0].score, pair[1])):
        by_ref.setdefault(passage.passage.ref, passage)
    return list(by_ref.values())[:limit]


def _score(space: str, passages: Sequence[Passage]) -> list[SpacePassage]:
    """Return the passages with scores of at least 0, divided by the highest score if it is above 1.

    A passage without a score has 1 / its rank, and is not `measured`.
    """
    scale = max([1.0, *(passage.score for passage in passages if passage.score is not None)])
    return [
        SpacePassage(
            passage=passage,
            space=space,
            score=1 / rank if passage.score is None else max(passage.score / scale, 0.0),
            measured=passage.score is not None,
        )
        for rank, passage in enumerate(passages, 1)
    ]


def _section(ranked: SpacePassage) -> ResultSection:
    section = passage_section(ranked.passage)
    score = f", {ranked.score:.2f}" if ranked.measured else ""
    return structs.replace(section, heading=f"{section.heading} ({ranked.space}{score})")
