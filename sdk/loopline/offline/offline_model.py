"""The embedded default model: it plans, searches, reads and quotes, and derives each step from the prompt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TypeAlias

from loopline import models
from loopline.errors import ModelError
from loopline.offline.answers import decline_answer, join_lines, list_tools, quote_answer
from loopline.offline.evidence import Candidate, Question, find_candidates, is_about, parse_question
from loopline.offline.prompt_turn import answer_from_trace, rank_passages, read_turn
from loopline.tools import NO_ANSWER

PLAN = "react.plan"
SEARCH = "react.search_knowledge"
READ = "react.read"
KEY_WORDS = 6
SEARCH_LIMIT = 8
SEARCH_ROUNDS = 2
ENOUGH = 0.6
PASSAGES_READ = 3
LINES_AROUND = 12
TITLE_WORDS = 8
CHARACTERS_PER_TOKEN = 4
FAILURE_CHARACTERS = 200
Step: TypeAlias = tuple[str, tuple[models.ToolCall, ...]]
"""The text and the calls of a step."""
_BUNDLE = re.compile(r"^Bundle: (.+)$", re.MULTILINE)
_LINES = re.compile(r"#L(\d+)-L(\d+)$")


class OfflineModel:
    """A deterministic reader, not a language model: the same prompt always gets the same reply."""

    name: str = models.OFFLINE
    capabilities: models.Capabilities = models.Capabilities(
        write_decisions=False,
        window=1_000_000,
        price=models.Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0),
        accepts=models.EVERY_SETTING,
    )

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Yield the text of the reply line by line, then the reply.

        Raises:
            ModelError: the protocol puts decisions into the text, which this model does not read.
        """
        if prompt.options.protocol != "native":
            raise ModelError("the model offline makes native tool calls: set no protocol for it")
        text, calls = await asyncio.to_thread(_next_step, prompt)
        for line in text.splitlines(keepends=True):
            yield models.TextDelta(text=line)
        written = len(text) + sum(len(str(call)) for call in calls)
        usage = models.Usage(
            input_tokens=len(str(prompt)) // CHARACTERS_PER_TOKEN,
            output_tokens=written // CHARACTERS_PER_TOKEN,
        )
        reason: models.StopReason = "tool_use" if calls else "stop"
        yield models.Reply(text=text, calls=calls, stop_reason=reason, usage=usage)


def _next_step(prompt: models.Prompt) -> Step:
    """Return the text and the tool calls of the next step, derived from the prompt alone.

    A title is the first words of the questions. For summaries, selections, searches and lessons both are empty.
    """
    match prompt.purpose:
        case "title":
            turn = read_turn(prompt)
            texts = [*turn.questions.values()] or turn.previous
            return " ".join(" ".join(texts).split()[:TITLE_WORDS]), ()
        case "summary" | "selection" | "search" | "lesson":
            return "", ()  # the loop does this without a model
        case "answer" if text := answer_from_trace(prompt):
            return text, ()
        case "decision" | "answer":
            return _TurnReader(prompt).next_step()


class _TurnReader:
    """The next step of a turn, as a function of the prompt."""

    def __init__(self, prompt: models.Prompt) -> None:
        turn = read_turn(prompt)
        self._prompt = prompt
        self._calls = turn.calls
        self._has_plan = any(call.tool == PLAN for call in turn.calls)
        self._searches = [call for call in turn.calls if call.tool == SEARCH]
        self._reads = [call for call in turn.calls if call.tool == READ]
        self._last_search = max((call.round for call in self._searches), default=-1)
        passages = self._passages = rank_passages([*self._searches, *self._reads])
        question: Question | None = None
        for text in turn.previous:
            question = parse_question(text, question)
        self._unsearched: list[Question] = []
        self._found: dict[Question, list[Candidate]] = {}
        for index, text in turn.questions.items():
            question = parse_question(text, question)
            self._found[question] = find_candidates(question, passages)
            if index > self._last_search:
                self._unsearched.append(question)
        self._answered = [question for question in self._found if self._is_answered(question)]
        sids = {item.passage.sid for candidates in self._found.values() for item in candidates}
        self._count = f"found {len(sids)} passage{'' if len(sids) == 1 else 's'}"

    def _is_answered(self, question: Question) -> bool:
        """Return whether the best sentence has 60 % of the question's words and its subject, and the search has no doubt."""
        for call in self._searches:
            if call.query == question.query and NO_ANSWER in call.text.partition("\n")[0]:
                return False
        return any(
            candidate.covered >= ENOUGH and is_about(question, candidate, self._passages)
            for candidate in self._found[question][:1]
        )

    def next_step(self) -> Step:
        """Return the next step: plan, search, search in other words, read, answer or list tools."""
        tools = {tool.name for tool in self._prompt.tools}
        if SEARCH not in tools and not self._searches:
            bundle = _BUNDLE.search(self._prompt.system)
            return list_tools(bundle[1].strip() if bundle else "", self._prompt.tools), ()
        if self._prompt.options.allow_calls and self._prompt.purpose == "decision":
            if PLAN in tools and not self._has_plan:
                return self._plan()
            if SEARCH in tools and (queries := self._next_queries()):
                action = "searching again in other words" if self._searches else "searching"
                return self._tick(f"… [1] {action}"), tuple(
                    _call(SEARCH, query=query, limit=SEARCH_LIMIT) for query in queries
                )
            has_read = any(call.round > self._last_search for call in self._reads)
            if READ in tools and self._answered and not has_read:
                return self._read()
        return self._answer()

    def _plan(self) -> Step:
        """Return the call that makes a plan of three steps; the search step names the key words of the questions."""
        words = [word for question in self._found for word in question.weights][:KEY_WORDS]
        steps: list[models.Json] = [
            f"search the knowledge space for {' '.join(words) or 'the question'}",
            "read the best passages",
            "answer in quoted sentences with their sources",
        ]
        return "", (_call(PLAN, mode="new", steps=steps),)

    def _next_queries(self) -> list[str]:
        """Return the queries of new questions, or halves of their words if the first search answers no question."""
        queries: list[str] = []
        for question in self._unsearched:
            queries += [question.query, " ".join(question.weights)]
        rounds = {call.round for call in self._searches}
        if not queries and not self._answered and len(rounds) < SEARCH_ROUNDS:
            for question in self._found:
                words = [*question.weights]
                half = -(-len(words) // 2)
                queries += [" ".join(words[:half]), " ".join(words[half:])]
        searched = {"", *(call.query for call in self._searches)}
        return [query for query in dict.fromkeys(queries) if query not in searched]

    def _read(self) -> Step:
        """Return the call that reads the best three passages of each answered question, with lines around them."""
        paths: dict[str, None] = {}
        for question in self._answered:
            refs = dict.fromkeys(candidate.passage.ref for candidate in self._found[question])
            paths |= dict.fromkeys(_LINES.sub(_widen, ref) for ref in [*refs][:PASSAGES_READ])
        ticks = self._tick(f"✓ [1] {self._count}", "… [2] reading")
        return ticks, (_call(READ, paths=list[models.Json](paths)),)

    def _answer(self) -> Step:
        """Return the ticked plan, an answer to each question, quoted or declined, and the failed calls."""
        searched = self._count if any(self._found.values()) else ""
        has_read = any(call.ok for call in self._reads)
        ticks = self._tick(
            f"✓ [1] {searched}" if searched else "✗ [1] nothing found",
            "✓ [2] read the best passages" if has_read else "✗ [2] nothing was read",
            f"{'✓' if self._answered else '✗'} [3] answered in quoted sentences",
        )
        parts = [ticks] if ticks else []
        for question, candidates in self._found.items():
            subject = f"On “{join_lines(question.text)}”: " if len(self._found) > 1 else ""
            if question in self._answered:
                parts.append(subject + quote_answer(question, candidates))
            else:
                parts.append(subject + decline_answer([call.query for call in self._searches]))
        for call in self._calls:
            failure = f"({call.tool} failed: {join_lines(call.text)[:FAILURE_CHARACTERS]})"
            if call.text and not call.ok and failure not in parts:
                parts.append(failure)
        return "\n\n".join(parts), ()

    def _tick(self, *lines: str) -> str:
        """Return the lines that tick the steps of the plan, or an empty text without a plan."""
        plans = [call for call in self._calls if call.tool == PLAN and call.ok]
        return "\n".join(lines) if plans else ""


def _call(tool: str, **arguments: models.Json) -> models.ToolCall:
    return models.ToolCall(name=tool, arguments=arguments)


def _widen(lines: re.Match[str]) -> str:
    """Return the lines of a ref with 12 more lines on each side."""
    return f"#L{max(1, int(lines[1]) - LINES_AROUND)}-L{int(lines[2]) + LINES_AROUND}"
