"""The embedded default model: it plans, searches, reads and quotes, each step read off the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from loopline.adapters.offline.answers import answer, catalogue, hopeful
from loopline.adapters.offline.evidence import Evidence, gather, readable, weigh
from loopline.adapters.offline.prompt_turn import Done, Turn, read, traced
from loopline.adapters.offline.queries import again, forms, key_terms
from loopline.adapters.offline.question import Question, follow
from loopline.errors import ModelError
from loopline.models import (
    Capabilities,
    Json,
    Price,
    Prompt,
    Reply,
    StopReason,
    TextDelta,
    ToolCall,
    Usage,
)

PLAN, SEARCH, READ = "react.plan", "react.search_knowledge", "react.read"
SEARCH_LIMIT = 8
SEARCH_ROUNDS = 2
TITLE_WORDS = 8
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Move:
    """What to say next, in pieces, and what to call."""

    pieces: tuple[str, ...]
    calls: tuple[ToolCall, ...] = ()


class OfflineModel:
    """A deterministic reader, not a language model: the same prompt always gets the same reply."""

    @property
    def name(self) -> str:
        """`offline`."""
        return "offline"

    @property
    def capabilities(self) -> Capabilities:
        """Tool calls, and a window that fits whatever there is to read; it costs nothing."""
        return Capabilities(
            tool_call=True,
            write_decisions=False,
            window=1_000_000,
            output_limit=8_000,
            price=Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0),
        )

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The reply, an answer sentence by sentence.

        Raises:
            ModelError: decisions are to travel as text, which it does not read.
        """
        if prompt.options.protocol != "native":
            raise ModelError("offline decides by native calls: leave the protocol to it")
        move = await asyncio.to_thread(next_move, prompt)
        for piece in move.pieces:
            yield TextDelta(text=piece)
        text = "".join(move.pieces)
        written = len(text) + sum(len(str(call)) for call in move.calls)
        usage = Usage(
            input_tokens=len(str(prompt)) // CHARACTERS_PER_TOKEN,
            output_tokens=written // CHARACTERS_PER_TOKEN,
        )
        reason: StopReason = "tool_use" if move.calls else "stop"
        yield Reply(text=text, calls=move.calls, stop_reason=reason, usage=usage)


def next_move(prompt: Prompt) -> Move:
    """The next step of the turn that the prompt shows."""
    turn = read(prompt)
    match prompt.purpose:
        case "title":
            return Move((_title(turn),))
        case "summary" | "selection":
            return Move(())  # whoever asks for one has a mechanical way of their own
        case "answer" if told := traced(prompt):
            return Move((told,))
        case "decision" | "answer":
            return _Reader(prompt, turn).move()


def _title(turn: Turn) -> str:
    said = " ".join(each.text for each in turn.asked) or " ".join(turn.before)
    return " ".join(said.split()[:TITLE_WORDS])


class _Reader:
    """One step of a turn; everything it knows is a function of the prompt."""

    def __init__(self, prompt: Prompt, turn: Turn) -> None:
        self._prompt = prompt
        self._turn = turn
        self._tools = {tool.name for tool in prompt.tools}
        self._searches = turn.calls(SEARCH)
        self._may_call = prompt.options.allow_calls and prompt.purpose == "decision"

    def move(self) -> Move:
        """Plan, search, search again, read or answer: whichever comes next."""
        if SEARCH not in self._tools and not self._searches:
            return Move(tuple(catalogue(self._turn.bundle, self._prompt.tools)))
        return (self._step() if self._may_call else None) or self._answer()

    def _step(self) -> Move | None:
        """The next calls, or None when it is time to answer."""
        if PLAN in self._tools and not self._turn.calls(PLAN):
            return self._plan()
        if SEARCH in self._tools and (queries := self._queries_due()):
            return self._search(queries)
        if READ in self._tools and self._answerable and not self._has_read():
            return self._read()
        return None

    @cached_property
    def _questions(self) -> list[Question]:
        """What is asked in this turn, each question understood after the one before it."""
        before: Question | None = None
        for text in self._turn.before:
            before = follow(before, text)
        asked: list[Question] = []
        for each in self._turn.asked:
            before = follow(before, each.text)
            asked.append(before)
        return asked

    @cached_property
    def _evidences(self) -> list[Evidence]:
        found, queries = gather(self._searches, self._turn.calls(READ))
        tries = self._tries
        return [weigh(question, found, queries, tries=tries) for question in self._questions]

    @property
    def _tries(self) -> int:
        """How often the last question has been searched."""
        last = self._turn.asked[-1].place if self._turn.asked else -1
        return len({done.place for done in self._searches if done.place > last})

    @property
    def _answerable(self) -> list[Evidence]:
        return [evidence for evidence in self._evidences if hopeful(evidence)]

    def _queries_due(self) -> list[str]:
        """The first queries of questions not searched yet, else others when those found too little."""
        last = max((done.place for done in self._searches), default=-1)
        pairs = zip(self._turn.asked, self._questions, strict=True)
        waiting = [question for asked, question in pairs if asked.place > last]
        if waiting:
            return [query for question in waiting for query in forms(question)]
        if self._answerable or self._tries >= SEARCH_ROUNDS:
            return []
        made = set(self._queries(self._searches))
        queries = [query for evidence in self._evidences for query in again(evidence)]
        return [query for query in queries if query not in made]

    def _has_read(self) -> bool:
        last = max((done.place for done in self._searches), default=-1)
        return any(done.place > last for done in self._turn.calls(READ))

    def _plan(self) -> Move:
        keys = " ".join(term.written for each in self._questions for term in key_terms(each))
        steps: list[Json] = [
            f"search the knowledge space for {' '.join(keys.split()) or 'the question'}",
            "read the best passages",
            "answer in quoted sentences with their sources",
        ]
        return Move((), (ToolCall(name=PLAN, arguments={"mode": "new", "steps": steps}),))

    def _search(self, queries: Sequence[str]) -> Move:
        calls = [
            ToolCall(name=SEARCH, arguments={"query": query, "limit": SEARCH_LIMIT})
            for query in dict.fromkeys(queries)
        ]
        doing = "searching again in other words" if self._searches else "searching"
        return Move(self._marks(f"… [1] {doing}"), tuple(calls))

    def _read(self) -> Move:
        paths: list[Json] = list(readable(self._answerable))
        marks = self._marks(f"✓ [1] {self._counted()}", "… [2] reading")
        return Move(marks, (ToolCall(name=READ, arguments={"paths": paths}),))

    def _answer(self) -> Move:
        pieces = answer(self._evidences, self._queries(self._searches), self._failures())
        marks = self._closing_marks()
        return Move((*(f"{mark}\n\n" for mark in marks), *pieces))

    def _closing_marks(self) -> tuple[str, ...]:
        if self._answerable:
            reads = [done for done in self._turn.calls(READ) if done.ok]
            second = "✓ [2] read the best passages" if reads else "✗ [2] nothing more could be read"
            first = f"✓ [1] {self._counted()}"
            return self._marks(first, second, "✓ [3] answered in quoted sentences")
        found = any(evidence.scored for evidence in self._evidences)
        none = f"✓ [1] {self._counted()}, none with an answer" if found else "✗ [1] nothing found"
        return self._marks(none, "✗ [2] nothing worth reading", "✗ [3] the space holds no answer")

    def _marks(self, *lines: str) -> tuple[str, ...]:
        """The lines that acknowledge steps as one piece, if there is a plan to acknowledge."""
        return ("\n".join(lines),) if any(done.ok for done in self._turn.calls(PLAN)) else ()

    def _counted(self) -> str:
        count = len({each.passage.sid for evidence in self._evidences for each in evidence.scored})
        return f"found {count} passage{'' if count == 1 else 's'}"

    @staticmethod
    def _queries(searches: Sequence[Done]) -> list[str]:
        return [str(done.call.arguments.get("query", "")) for done in searches]

    def _failures(self) -> list[str]:
        """What tools refused, each once and on one line."""
        failed: list[Done] = [done for done in self._turn.done if done.result and not done.ok]
        said = [f"{done.call.name} failed: {done.text}"[:200] for done in failed]
        return list(dict.fromkeys(said))
