"""Search in knowledge spaces: `react.search_knowledge` for one, `knowledge_search` for several."""

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
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, ResultSection, counted
from loopline.tools.parameters import (
    QUERY,
    check_names,
    fraction_argument,
    integer_argument,
    limit_schema,
    names_argument,
    object_schema,
    optional_text,
    text_argument,
)
from loopline.tools.tool import RerunnableTool

DEFAULT_LIMIT = 5
LARGEST_LIMIT = 50
NO_ANSWER = "the space probably holds no answer"
"""What a search says when the score of its best passage is below `ANSWER_SCORE`."""
PASSAGE_LIMIT = 4_000
"""Characters of one passage that a search shows."""


class KnowledgeSearch(Protocol):
    """A search function of a knowledge space: `async search(query, *, limit=5) -> Sequence[Passage]`."""

    async def __call__(self, query: str, *, limit: int = DEFAULT_LIMIT) -> Sequence[Passage]:
        """Return the passages that best answer the query, best first."""
        ...


class FilteredSearch(Protocol):
    """A search function that can look at some files only, such as that of a `KnowledgeSpace`."""

    async def __call__(
        self, query: str, *, limit: int = DEFAULT_LIMIT, within: SearchFilter | None = None
    ) -> Sequence[Passage]:
        """Return the passages that best answer the query among the files that fit, best first."""
        ...


_FILTERS: JsonObject = {
    "root": {"type": "string", "description": "Search only below this folder, such as docs."},
    "language": {
        "type": "string",
        "description": "Search only files whose name ends so, such as py.",
    },
    "path": {
        "type": "string",
        "description": "Search only files whose path fits this pattern, such as docs/*.md.",
    },
}


class SearchTool(RerunnableTool):
    """The tool that searches the knowledge space; it has filters if the search function takes them."""

    def __init__(self, search: KnowledgeSearch | FilteredSearch) -> None:
        self._search = search
        limits: JsonObject = {"query": QUERY, "limit": limit_schema(DEFAULT_LIMIT, LARGEST_LIMIT)}
        self.spec: ToolSpec = ToolSpec(
            name="react.search_knowledge",
            description=(
                "Search the knowledge space by words. Gives passages with their source number "
                "[[S:n]], title and pinned ks: ref; react.read reads more of a path around a passage."
            ),
            parameters=object_schema(
                limits | _FILTERS if takes_filters(search) else limits, "query"
            ),
        )

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a query, a limit and the filters."""
        check_names(self.spec, arguments, "" if takes_filters(self._search) else "query and limit")
        _query(arguments)
        _filter(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return a section for each passage."""
        del call
        query, limit = _query(arguments)
        within = _filter(arguments)
        if takes_filters(self._search) and within is not None:
            passages = await self._search(query, limit=limit, within=within)
        else:
            passages = await self._search(query, limit=limit)
        return Outcome(
            text=f'{counted(len(passages), "passage")} for "{query}"{_doubt(passages)}',
            sections=tuple(map(passage_section, passages)),
            match_count=len(passages),
            shows=shown_refs(passages),
        )


def takes_filters(search: KnowledgeSearch | FilteredSearch) -> TypeIs[FilteredSearch]:
    """Return whether a search function has a parameter `within`."""
    return "within" in signature(search).parameters


def _filter(arguments: JsonObject) -> SearchFilter | None:
    """Return the filter that the arguments ask for; None if they ask for none."""
    root, language, path = (optional_text(arguments, name).removeprefix("ks:") for name in _FILTERS)
    within = SearchFilter(root=root, language=language, path=path)
    return None if within == SearchFilter() else within


def _doubt(passages: Sequence[Passage]) -> str:
    """Return what to say when the best passage's score is too low for an answer; empty if it is not."""
    score = passages[0].score if passages else None
    if score is None or score >= ANSWER_SCORE:
        return ""
    return f"; {NO_ANSWER} (score {score:.2f} of 1)"


def shown_refs(passages: Sequence[Passage]) -> tuple[tuple[str, str], ...]:
    """Return the refs of passages that are shown in full, each with the sha256 of its text."""
    complete = [passage for passage in passages if len(passage.text) <= PASSAGE_LIMIT]
    return tuple((p.ref, sha256(well_formed(p.text).encode()).hexdigest()) for p in complete)


def passage_section(passage: Passage) -> ResultSection:
    """Return a passage as a section of a result, with its text cut to `PASSAGE_LIMIT`."""
    text, source = well_formed(passage.text), passage_source(passage)
    source = structs.replace(source, text=text)
    if len(text) > PASSAGE_LIMIT:
        omitted = len(text) - PASSAGE_LIMIT
        text = f"{text[:PASSAGE_LIMIT]}\n… cut: {omitted} characters; the whole is {passage.ref}"
    title = one_line(passage.title)
    return ResultSection(heading=f"{title} — {passage.ref}", text=text, source=source)


def _query(arguments: JsonObject) -> tuple[str, int]:
    query = text_argument(arguments, "query", "words to look for")
    return query, integer_argument(arguments, "limit", DEFAULT_LIMIT, LARGEST_LIMIT)


MAX_PASSAGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacePassage:
    """A passage, its space, and its score from 0 to 1.

    `measured` says whether a search gave the score; otherwise it comes from the rank.
    """

    passage: Passage
    space: str
    score: float
    measured: bool


class KnowledgeSearchTool(RerunnableTool):
    """The tool that searches named spaces, all of them or some."""

    def __init__(self, spaces: Mapping[str, KnowledgeSearch]) -> None:
        self._spaces = dict(spaces)
        self.spec: ToolSpec = ToolSpec(
            name="knowledge_search",
            description=(
                "Search the knowledge spaces by words. Gives passages with their source number "
                "[[S:n]], title, ref, space and score from 0 to 1, best first."
            ),
            parameters=object_schema(
                {
                    "query": QUERY,
                    "limit": limit_schema(DEFAULT_LIMIT, MAX_PASSAGES),
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

    def check(self, arguments: JsonObject) -> None:
        """Refuse what is no query, limit, threshold or name of a space."""
        check_names(self.spec, arguments)
        self._parsed(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return a section for each of the best passages of all spaces.

        Raises:
            ToolError: a search failed.
        """
        del call
        query, limit, threshold, searched = self._parsed(arguments)
        answers = await self._answers(searched, query, limit)
        ranked = merge_passages(answers, limit, threshold)
        passages = [passage.passage for passage in ranked]
        return Outcome(
            text=f'{counted(len(ranked), "passage")} for "{query}" in {", ".join(searched)}',
            sections=tuple(map(_section, ranked)),
            match_count=len(ranked),
            shows=shown_refs(passages),
        )

    def _parsed(self, arguments: JsonObject) -> tuple[str, int, float, list[str]]:
        return (
            text_argument(arguments, "query"),
            integer_argument(arguments, "limit", DEFAULT_LIMIT, MAX_PASSAGES),
            fraction_argument(arguments, "score_threshold"),
            names_argument(arguments, "spaces", list(self._spaces)),
        )

    async def _answers(
        self, searched: Sequence[str], query: str, limit: int
    ) -> dict[str, Sequence[Passage]]:
        """Return what each space answers, after all have answered or failed."""
        searches = (self._spaces[name](query, limit=limit) for name in searched)
        answers: dict[str, Sequence[Passage]] = {}
        for name, answer in zip(
            searched, await asyncio.gather(*searches, return_exceptions=True), strict=True
        ):
            if isinstance(answer, ToolError):
                raise ToolError(f"{name}: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer
            answers[name] = answer
        return answers


def merge_passages(
    answers: Mapping[str, Sequence[Passage]], limit: int, threshold: float = 0.0
) -> list[SpacePassage]:
    """Return the best passages of the answers by space, best first, each ref once.

    Scores up to 1 count as they are. If the best score of an answer is above 1, its scores count as shares of it, since
    scores of two searches do not compare. A passage without a score counts as 1 / its rank, and a threshold above 0 drops
    it. Among equals the better rank, then the earlier space, comes first.
    """
    candidates = [
        (passage, rank)
        for space, passages in answers.items()
        for rank, passage in enumerate(_scored(space, passages), 1)
        if passage.score >= threshold and (passage.measured or not threshold)
    ]
    best = sorted(candidates, key=lambda pair: (-pair[0].score, pair[1]))
    different: dict[str, SpacePassage] = {}
    for passage, _ in best:
        different.setdefault(passage.passage.ref, passage)
    return list(different.values())[:limit]


def _scored(space: str, passages: Sequence[Passage]) -> list[SpacePassage]:
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
