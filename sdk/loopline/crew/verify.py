"""Verify: questions about an answer are answered without it, and what disagrees is flagged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loopline.crew.agents import ANSWERER, REFINER, VERIFIER
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import HookedRun, PostOutcome, with_notes
from loopline.errors import LooplineError
from loopline.models import Json
from loopline.search import STOP_WORDS

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u30a0-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts that set no spaces between words, or whose words have many endings."""
_HIRAGANA = "\u3040-\u309f"
"""Japanese endings and particles: they separate words, as stop words do."""
_WORD = re.compile(rf"[0-9]+|[{_UNSPACED}]+|[^\W0-9_{_UNSPACED}{_HIRAGANA}]+")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")


def content_words(text: str) -> set[str]:
    """Return the words of the text in lower case, without English stop words.

    A run of a script without spaces counts as its pairs of neighbouring characters.
    """
    words = set[str]()
    for token in _WORD.findall(text.lower()):
        if len(token) > 2 and _UNSPACED_RUN.fullmatch(token):
            words.update(token[at : at + 2] for at in range(len(token) - 1))
        elif token not in STOP_WORDS:
            words.add(token)
    return words


VERIFY_MARKER = "[VERIFY_ANSWER]"
NOT_VERIFIED = ("formatter", "deps", "refiner", "verifier", "shell")
QUESTIONS = 3
SAID_CHARACTERS = 200

_ITEM = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])?\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """A hook that checks an answer by questions, each answered by a run that does not see the answer.

    What disagrees is noted, and with `rewrite` the verifier's corrected answer takes the place of the answer. A reply
    that cannot be read, or a question that nobody answered, verifies nothing, and the answer stays as it is.
    """

    questions: int = QUESTIONS
    rewrite: bool = False
    excluded: tuple[str, ...] = NOT_VERIFIED

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return the result with what the check found."""
        draft = result.answer
        if result.problem or not draft.strip() or run.call.agent.lower() in self.excluded:
            return None
        try:
            questions = await self._questions(run, draft)
            if not questions:
                return with_notes(result, {"unverified": "the verifier asked nothing"})
            pairs = [(question, await _answer(run, question)) for question in questions]
            answered = {question: answer for question, answer in pairs if answer}
            if not answered:
                return with_notes(result, {"unverified": "no question was answered"})
            verdict = await self._verdict(run, draft, answered)
        except LooplineError as error:
            return with_notes(result, {"unverified": str(error)})
        return self._judged(result, answered, verdict)

    async def _questions(self, run: HookedRun, draft: str) -> list[str]:
        """Return the questions whose answers would show that the draft is wrong."""
        task = (
            f"{VERIFY_MARKER} [NUM_QUESTIONS={self.questions}]\nWrite {self.questions} questions about facts that this "
            "answer rests on. Each must be clear to someone who has not read the answer. "
            f"Reply with <questions>, one a line, </questions>.\nTask: {run.call.task}\n\nAnswer:\n{draft}"
        )
        reply = await _checked_reply(run, task)
        lines = (_ITEM.fullmatch(line) for line in tag(reply, "questions").splitlines())
        return [line[1].strip() for line in lines if line][: self.questions]

    async def _verdict(self, run: HookedRun, draft: str, answered: Mapping[str, str]) -> str:
        """Return the reply that compares the draft with the answers to the questions."""
        pairs = "\n".join(f"Q: {question}\nA: {answer}" for question, answer in answered.items())
        task = (
            f"{VERIFY_MARKER} [COMPARE]\nThe questions were answered by someone who has not read the answer. If nothing in "
            "them contradicts it, reply with <status>clean</status> and nothing else. Else reply with "
            "<status>discrepancy</status>, <discrepancies>, one a line, with what the answer says and what is right, "
            "</discrepancies> and <final>the corrected answer, whole</final>.\n"
            f"Task: {run.call.task}\n\nAnswer:\n{draft}\n\n{pairs}"
        )
        return await _checked_reply(run, task)

    def _judged(
        self, result: AgentResult, answered: Mapping[str, str], verdict: str
    ) -> AgentResult:
        """Return the result with the verdict: the status decides, and a discrepancy must name what it is about."""
        draft = result.answer
        status = tag(verdict, "status").strip().lower()
        is_clean, disagrees = "clean" in status, "discrepan" in status
        if status.startswith("clean") and not disagrees:
            return with_notes(result, {"verified_clean": True})
        if not status.startswith("discrepan") or is_clean:
            return with_notes(result, {"unverified": "the verifier's reply cannot be read"})
        evidence = "\n".join(answered.values())
        known = content_words(draft) | content_words(evidence)
        lines = (_ITEM.fullmatch(line) for line in tag(verdict, "discrepancies").splitlines())
        written = [line[1].strip() for line in lines if line]
        findings = [text for text in written if known & content_words(text)]
        if not findings:
            said = f": {'; '.join(written)[:SAID_CHARACTERS]}" if written else ""
            return with_notes(result, {"unverified": f"the verifier names no discrepancy{said}"})
        flagged = with_notes(
            result,
            {"verified_with_discrepancy": True, "verifier_discrepancies": [*findings]},
        )
        final = tag(verdict, "final").strip()
        rests_on = "\n".join([evidence, *findings])
        if self.rewrite and is_corrected(draft, final, rests_on):
            return replace(flagged, text=final)
        return flagged


def is_corrected(draft: str, final: str, rests_on: str) -> bool:
    """Return whether a text is a corrected form of the draft, and not a remark such as "(unchanged)".

    Most of its words are those of the draft or of what the correction rests on. It has one that is new, or at least half of
    the draft's.
    """
    before, after, right = map(content_words, (draft, final, rests_on))
    is_about = 2 * len(after & (before | right)) > len(after)
    has_new = bool(after & (right - before))
    return is_about and (has_new or 2 * len(after & before) >= len(before))


async def _answer(run: HookedRun, question: str) -> str:
    """Return the answer to a question; an empty one if the run for it failed."""
    reply = await run.dispatch(AgentCall(agent=ANSWERER, task=question))
    return reply.answer.strip() if reply.ok else ""


async def _checked_reply(run: HookedRun, task: str) -> str:
    """Return the reply of the verifier.

    Raises:
        LooplineError: its run failed.
    """
    reply = await run.dispatch(AgentCall(agent=VERIFIER, task=task))
    if not reply.ok:
        raise LooplineError(f"the verifier failed: {reply.error or reply.exit_reason}")
    return reply.answer


def tag(text: str, name: str) -> str:
    """Return what stands in the last tag of that name; to the end of the text if it is not closed."""
    _, opening, body = text.rpartition(f"<{name}>")
    return body.partition(f"</{name}>")[0] if opening else ""


REFINE_MARKER = "[REFINE_DRAFT]"
NOT_REFINED = ("formatter", "deps", "refiner", "verifier")
MIN_BYTES = 200
EPSILON_CHARACTERS = 50
SAME = 0.99
OTHER = 0.3
SAME_WORDS = 0.95
SAME_MEANING = 0.92
REGRESSION = 0.15
LEAST_SHARED = 3
"""Words that a rewritten text has in common with the original at least."""

_REVISED = re.compile(r"<revised>(.*?)(?:</revised>|\Z)", re.DOTALL | re.IGNORECASE)
_CRITIQUE = "<critique>"
"""A reply that criticises and rewrites nothing has this tag alone."""
_ANY_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """A hook that has the draft of an agent rewritten, at most `max_passes` times.

    It stops when a pass changes at most `epsilon` characters or, with `convergence`, next to nothing: by characters, else
    by words, else, with `embeddings`, by the vectors of the bundle's embedder. If it is `strict`, words alone never say
    so. A pass that loses the original, or leaves it much further behind than the one before it, is rolled back: its text
    is never the answer. Drafts that are short, failed or by an agent of `excluded` stay as they are.
    """

    max_passes: int = 1
    min_bytes: int = MIN_BYTES
    excluded: tuple[str, ...] = NOT_REFINED
    epsilon: int = EPSILON_CHARACTERS
    convergence: bool = True
    embeddings: bool = False
    strict: bool = False

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return the result with the best text."""
        original = result.answer
        is_short = len(original.encode()) < self.min_bytes
        if result.problem or is_short or run.call.agent.lower() in self.excluded:
            return None
        best, closeness, passes = original, 0.0, 0
        for _ in range(self.max_passes):
            revised = await self._revised(run, best)
            if not revised:
                break
            passes += 1
            now = similarity(original, revised)
            regressed = passes > 1 and now < closeness * (1 - REGRESSION)
            if regressed or is_lost(original, revised):
                return with_text(result, best, passes, rolled_back=True)
            converged = await self._has_converged(run, best, revised)
            best, closeness = revised, max(closeness, now)
            if converged:
                break
        return with_text(result, best, passes) if passes else None

    async def _has_converged(self, run: HookedRun, before: str, after: str) -> bool:
        """Return whether a pass changed next to nothing."""
        characters = differing(before, after)
        if characters <= self.epsilon:
            return True
        share = 1 - characters / max(len(before), len(after), 1)
        if not self.convergence or share < OTHER:
            return False
        if share >= SAME or (not self.strict and similarity(before, after) >= SAME_WORDS):
            return True
        nearness = await run.nearness(before, after) if self.embeddings else None
        return nearness is not None and nearness >= SAME_MEANING

    async def _revised(self, run: HookedRun, draft: str) -> str:
        """Return the rewritten text; an empty one if there is none, or nothing is to change."""
        task = f"{REFINE_MARKER}\nTask: {run.call.task}\n\nDraft:\n{draft}"
        try:
            reply = await run.dispatch(AgentCall(agent=REFINER, task=task))
        except LooplineError:
            return ""
        if not reply.ok:
            return ""
        revised = _REVISED.search(reply.answer)
        if revised is not None:
            return revised[1].strip()
        return "" if _CRITIQUE in reply.answer.lower() else reply.answer.strip()


def with_text(
    result: AgentResult, text: str, passes: int, *, rolled_back: bool = False
) -> AgentResult:
    """Return the result with another text, and notes of how it came about."""
    notes: dict[str, Json] = {"refine_passes": passes}
    if rolled_back:
        notes |= {"refine_rolled_back": True, "refine_low_quality": True}
    return with_notes(replace(result, text=text), notes)


def is_lost(original: str, revised: str) -> bool:
    """Return whether a text is no rewritten form of the original, such as a remark that nothing was changed.

    A rewritten form has at least three words of the original, and half of the words of the shorter text.
    """
    first, second = content_words(original), content_words(revised)
    shared = len(first & second)
    return shared < LEAST_SHARED or 2 * shared < min(len(first), len(second))


def differing(before: str, after: str) -> int:
    """Return how many characters lie between what both texts begin and end with."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    unmatched = shorter - start
    end = next((i for i in range(unmatched) if before[-1 - i] != after[-1 - i]), unmatched)
    return max(len(before), len(after)) - start - end


def similarity(before: str, after: str) -> float:
    """Return the share of words that both texts have, of those that either has."""
    first, second = set(_ANY_WORD.findall(before.lower())), set(_ANY_WORD.findall(after.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0
