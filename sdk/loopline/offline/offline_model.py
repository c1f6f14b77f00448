"""The embedded default model: it plans, searches, reads and quotes, and takes every step from the prompt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loopline.errors import ModelError
from loopline.models import (
    OFFLINE,
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
from loopline.offline.english import STOP_WORDS, stems, synonyms, tokens
from loopline.offline.evidence import Evidence, weigh
from loopline.offline.prompt_turn import (
    PromptTurn,
    answer_from_trace,
    doubted_queries,
    rank_passages,
    read_turn,
    refs_to_read,
)
from loopline.offline.question import Question, QuestionTerm, parse_question
from loopline.offline.quoted_answers import answer, catalogue, is_answerable

QUERY_CHARACTERS = 300
QUERY_WORDS = 20
KEY_TERMS = 6
LONG_QUESTION = 6
WINDOW = 3
WINDOW_LIMIT = 3
FEEDBACK_PASSAGES = 4
FEEDBACK_WORDS = 4


def first_queries(question: Question) -> list[str]:
    """Return up to three queries: the question's own words, then its telling ones.

    The telling words of a long question are searched in halves, since no passage is about all of them. Those of a short
    one are searched with and as their synonyms.
    """
    own = " ".join(question.text.split())[:QUERY_CHARACTERS]
    if question.borrowed:
        own = f"{own} {_joined(question.borrowed)}"
    telling = question.telling
    half = len(telling) // 2
    if len(telling) >= LONG_QUESTION:
        queries = [own, _joined(telling[:half]), _joined(telling[half:])]
    else:
        replaced = [synonyms(term.stem) or (term.written,) for term in telling]
        terms = [term for group in replaced for term in group]
        queries = [own, _with_synonyms(telling), " ".join(terms[:QUERY_WORDS])]
    return list(dict.fromkeys(query for query in queries if query.strip()))


def further_queries(evidence: Evidence) -> list[str]:
    """Return other queries: synonyms, neighbouring terms, and key terms with words of the best passages."""
    telling = evidence.question.telling
    windows = [
        telling[start : start + WINDOW] for start in range(max(1, len(telling) - WINDOW + 1))
    ]
    step = max(1, -(-len(windows) // WINDOW_LIMIT))
    missing = {term.stem for term in evidence.missing}
    terms = [term for term in key_terms(evidence.question) if term.stem not in missing]
    feedback = " ".join([*(term.written for term in terms), *_feedback(evidence)])
    related = _with_synonyms(telling) if len(telling) >= LONG_QUESTION else ""
    queries = (related, *map(_joined, windows[::step]), feedback)
    return [query for query in queries if query.strip()]


def key_terms(question: Question) -> list[QuestionTerm]:
    """Return the heaviest terms in the order of the question."""
    heaviest = sorted(question.telling, key=lambda term: term.weight, reverse=True)[:KEY_TERMS]
    return [term for term in question.terms if term in heaviest]


def _with_synonyms(terms: Sequence[QuestionTerm]) -> str:
    written = [term.written for term in terms]
    related = [synonym for term in terms for synonym in synonyms(term.stem)]
    return " ".join(dict.fromkeys([*written, *related][:QUERY_WORDS]))


def _feedback(evidence: Evidence) -> Sequence[str]:
    """Return words of the best sentences, those of several passages first."""
    question_stems = {term.stem for term in evidence.question.terms}
    passages: dict[str, set[str]] = {}
    written: dict[str, str] = {}
    for scored in evidence.scored:
        if len(passages) >= FEEDBACK_PASSAGES and scored.passage.ref not in passages:
            continue
        passage = passages.setdefault(scored.passage.ref, set())
        text = f"{scored.passage.title} {scored.sentence.text}"
        passage |= {stem for stem in stems(text) if len(stem) > 3 and stem not in question_stems}
        for token in tokens(text):
            written.setdefault(token.stem, token.written)
    counts = Counter(stem for passage in passages.values() for stem in sorted(passage))
    shared = [
        written[stem] for stem, count in counts.most_common() if count > 1 and stem in written
    ]
    return [term for term in shared if term.lower() not in STOP_WORDS][:FEEDBACK_WORDS]


def _joined(terms: Sequence[QuestionTerm]) -> str:
    return " ".join(term.written for term in terms)


PLAN, SEARCH, READ = "react.plan", "react.search_knowledge", "react.read"
SEARCH_LIMIT = 8
SEARCH_ROUNDS = 2
TITLE_WORDS = 8
CHARACTERS_PER_TOKEN = 4
FAILURE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Move:
    """A step of the turn: the text in pieces, and the calls."""

    pieces: tuple[str, ...]
    calls: tuple[ToolCall, ...] = ()


class OfflineModel:
    """A deterministic reader, not a language model: the same prompt always gets the same reply."""

    name: str = OFFLINE
    capabilities: Capabilities = Capabilities(
        write_decisions=False,
        window=1_000_000,
        price=Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0),
    )

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Yield the reply, an answer sentence by sentence.

        Raises:
            ModelError: the protocol puts decisions into the text, which this model does not read.
        """
        if prompt.options.protocol != "native":
            raise ModelError("the model offline makes native tool calls: set no protocol for it")
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
    """Return the next step of the turn that the prompt shows."""
    turn = read_turn(prompt)
    match prompt.purpose:
        case "title":
            text = " ".join(question.text for question in turn.questions)
            terms = (text or " ".join(turn.previous)).split()
            return Move((" ".join(terms[:TITLE_WORDS]),))
        case "summary" | "selection" | "search" | "lesson":
            return Move(())  # the loop has a mechanical way, or does without
        case "answer" if text := answer_from_trace(prompt):
            return Move((text,))
        case "decision" | "answer":
            return _TurnReader(prompt, turn).move()


class _TurnReader:
    """One step of a turn, as a function of the prompt."""

    def __init__(self, prompt: Prompt, turn: PromptTurn) -> None:
        self._prompt = prompt
        self._turn = turn
        self._tools = {tool.name for tool in prompt.tools}
        self._searches = turn.calls_of(SEARCH)
        self._queries = [call.query for call in self._searches]
        self._last_search = max((call.index for call in self._searches), default=-1)

    def move(self) -> Move:
        """Plan, search, search again, read or answer: whichever comes next."""
        if SEARCH not in self._tools and not self._searches:
            return Move(tuple(catalogue(self._turn.bundle, self._prompt.tools)))
        may_call = self._prompt.options.allow_calls and self._prompt.purpose == "decision"
        return (self._next_calls() if may_call else None) or self._answer()

    def _next_calls(self) -> Move | None:
        """Return the next calls, or None when it is time to answer."""
        if PLAN in self._tools and not self._turn.calls_of(PLAN):
            return self._plan()
        if SEARCH in self._tools and (queries := self._next_queries()):
            return self._search(queries)
        has_read = any(call.index > self._last_search for call in self._turn.calls_of(READ))
        if READ in self._tools and self._answerable and not has_read:
            return self._read()
        return None

    @cached_property
    def _questions(self) -> list[Question]:
        """The questions of this turn, each with what it refers back to."""
        previous: Question | None = None
        for text in self._turn.previous:
            previous = parse_question(text, previous)
        questions: list[Question] = []
        for item in self._turn.questions:
            previous = parse_question(item.text, previous)
            questions.append(previous)
        return questions

    @cached_property
    def _evidences(self) -> list[Evidence]:
        passages, queries = rank_passages(self._searches, self._turn.calls_of(READ))
        doubted = doubted_queries(self._searches)
        return [
            replace(
                weigh(question, passages, queries, tries=self._tries),
                is_doubted=not doubted.isdisjoint(first_queries(question)[:1]),
            )
            for question in self._questions
        ]

    @property
    def _tries(self) -> int:
        """The number of rounds that searched for the last question."""
        last = self._turn.questions[-1].index if self._turn.questions else -1
        return len({call.index for call in self._searches if call.index > last})

    @property
    def _answerable(self) -> list[Evidence]:
        return [evidence for evidence in self._evidences if is_answerable(evidence)]

    def _next_queries(self) -> list[str]:
        """Return the first queries of questions not searched yet, else others if those found too little."""
        pairs = zip(self._turn.questions, self._questions, strict=True)
        waiting = [question for item, question in pairs if item.index > self._last_search]
        if waiting:
            return [query for question in waiting for query in first_queries(question)]
        if self._answerable or self._tries >= SEARCH_ROUNDS:
            return []
        queries = [query for evidence in self._evidences for query in further_queries(evidence)]
        return [query for query in queries if query not in self._queries]

    def _plan(self) -> Move:
        keys = " ".join(term.written for item in self._questions for term in key_terms(item))
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
        action = "searching again in other words" if self._searches else "searching"
        return Move(self._marks(f"… [1] {action}"), tuple(calls))

    def _read(self) -> Move:
        paths: list[Json] = list(refs_to_read(self._answerable))
        marks = self._marks(f"✓ [1] {self._passage_count()}", "… [2] reading")
        return Move(marks, (ToolCall(name=READ, arguments={"paths": paths}),))

    def _answer(self) -> Move:
        pieces = answer(self._evidences, self._queries, self._failures())
        return Move((*(f"{mark}\n\n" for mark in self._closing_marks()), *pieces))

    def _closing_marks(self) -> tuple[str, ...]:
        if self._answerable:
            has_read = any(call.ok for call in self._turn.calls_of(READ))
            return self._marks(
                f"✓ [1] {self._passage_count()}",
                "✓ [2] read the best passages" if has_read else "✗ [2] nothing more could be read",
                "✓ [3] answered in quoted sentences",
            )
        has_scored = any(evidence.scored for evidence in self._evidences)
        count = f"✓ [1] {self._passage_count()}, none with an answer"
        first = count if has_scored else "✗ [1] nothing found"
        return self._marks(first, "✗ [2] nothing worth reading", "✗ [3] the space holds no answer")

    def _marks(self, *lines: str) -> tuple[str, ...]:
        """Return the lines that tick the steps of a plan as one piece; nothing without a plan."""
        return ("\n".join(lines),) if any(call.ok for call in self._turn.calls_of(PLAN)) else ()

    def _passage_count(self) -> str:
        sids = {item.passage.sid for evidence in self._evidences for item in evidence.scored}
        return f"found {len(sids)} passage{'' if len(sids) == 1 else 's'}"

    def _failures(self) -> list[str]:
        """Return the error of each failed tool once."""
        failed = [call for call in self._turn.calls if call.result and not call.ok]
        texts = [f"{call.call.name} failed: {call.text}"[:FAILURE_CHARACTERS] for call in failed]
        return list(dict.fromkeys(texts))
