"""HyDE: before a search, a model imagines its answer; the search then also looks for keywords of that answer."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from msgspec import structs

from loopline import models
from loopline.errors import ModelError
from loopline.search import STOP_WORDS
from loopline.timeline import SearchExpanded
from loopline.tools import Outcome, RerunnableTool, Tool, ToolInvocation

KEYWORDS = 5
REQUEST_SECONDS = 30.0
LEAST_LETTERS = 3
HYPOTHESIS_CHARACTERS = 2_000
_WORD = re.compile(r"[^\W_][\w'-]*")
_SYSTEM = (
    "Imagine that the answer to the search was found. Write it down in two to four sentences, with the words that such a "
    "text would use. Do not say that you are guessing."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyde:
    """Expands queries to knowledge and past turns by `keywords` words of an imagined answer.

    `model` is the role of the model that imagines the answer. If its request fails or its reply is empty, the query is
    not expanded.
    """

    keywords: int = KEYWORDS
    model: str = "fast"

    def choose_keywords(self, query: str, hypothesis: str) -> tuple[str, ...]:
        """Return the most frequent words of the hypothesis that are not in the query, in lower case, most frequent first.

        They are at most `keywords`, without stop words and words of fewer than 3 letters.
        """
        query_terms = {term.lower() for term in _WORD.findall(query)}
        counts = Counter(
            term.lower()
            for term in _WORD.findall(hypothesis)
            if len(term) >= LEAST_LETTERS and term.lower() not in STOP_WORDS
        )
        terms = [term for term, _ in counts.most_common() if term not in query_terms]
        return tuple(terms[: self.keywords])


class ExpandedSearch(RerunnableTool):
    """A tool that searches for the `query` of its arguments and for keywords of an imagined answer."""

    def __init__(self, tool: Tool, hyde: Hyde, model: models.Model) -> None:
        self.spec: models.ToolSpec = tool.spec
        self._tool = tool
        self._hyde = hyde
        self._model = model

    def check(self, arguments: models.JsonObject) -> None:
        """Check the arguments as the wrapped search does."""
        self._tool.check(arguments)

    async def run(self, arguments: models.JsonObject, call: ToolInvocation) -> Outcome:
        """Return the outcome of the search for the expanded query, with a record of the expansion.

        If the query is blank or the model fails, the search runs with the arguments as they are, without a record.
        """
        query = {"query": "", **arguments}["query"]
        reply = await self._imagine_answer(str(query)) if str(query).strip() else None
        if reply is None:
            return await self._tool.run(arguments, call)
        hypothesis = models.well_formed(reply.text).strip()[:HYPOTHESIS_CHARACTERS]
        keywords = self._hyde.choose_keywords(str(query), hypothesis)
        expanded = SearchExpanded(
            call_id=call.context.call_id,
            query=str(query),
            hypothesis=hypothesis,
            keywords=keywords,
            model=self._model.name,
            usage=reply.usage,
            cost=self._model.capabilities.cost(reply.usage),
        )
        outcome = await self._tool.run(
            {**arguments, "query": " ".join([str(query), *keywords])}, call
        )
        return structs.replace(outcome, bodies=(*outcome.bodies, expanded))

    async def _imagine_answer(self, query: str) -> models.Reply | None:
        """Request an imagined answer; return None if the model fails, or the reply has neither text nor usage."""
        prompt = models.Prompt(
            system=_SYSTEM, messages=(models.UserMessage(text=query),), purpose="search"
        )
        try:
            reply = await models.complete_reply(self._model, prompt, REQUEST_SECONDS)
        except ModelError:
            return None
        # A reply without text has cost tokens too, which are recorded with the search.
        return reply if reply.text.strip() or reply.usage.input_tokens else None
