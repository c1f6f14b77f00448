"""Refine and Verify: hooks that have the answer of an agent rewritten, and check it by independent questions."""

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
"""Scripts without spaces between words, or with words that have many endings."""
_HIRAGANA = "\u3040-\u309f"
"""Japanese endings and particles, which separate words as stop words do."""
_WORD = re.compile(rf"[0-9]+|[{_UNSPACED}]+|[^\W0-9_{_UNSPACED}{_HIRAGANA}]+")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")


def content_words(text: str) -> set[str]:
    """Return the words of the text in lower case, without English stop words.

    A run of a script without spaces is split into the pairs of its neighbouring characters.
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
QUOTED_CHARACTERS = 200

_ITEM = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])?\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """A hook that checks an answer by at most `questions` questions, each answered by a run that does not see the answer.

    Discrepancies are added to the notes of the result. With `rewrite` the verifier's corrected answer replaces the answer.
    If the check fails, the note `unverified` has the reason, and the answer stays unchanged. Agents in `excluded` are
    not checked.
    """

    questions: int = QUESTIONS
    rewrite: bool = False
    excluded: tuple[str, ...] = NOT_VERIFIED

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return the result with the findings of the check; None for failed runs, empty answers and excluded agents."""
        draft = result.answer
        if result.problem or not draft.strip() or run.call.agent.lower() in self.excluded:
            return None
        try:
            questions = await self._write_questions(run, draft)
            if not questions:
                return with_notes(result, {"unverified": "the verifier asked nothing"})
            pairs = [(question, await _answer(run, question)) for question in questions]
            answers = {question: answer for question, answer in pairs if answer}
            if not answers:
                return with_notes(result, {"unverified": "no question was answered"})
            verdict = await self._compare(run, draft, answers)
        except LooplineError as error:
            return with_notes(result, {"unverified": str(error)})
        return self._apply_verdict(result, answers, verdict)

    async def _write_questions(self, run: HookedRun, draft: str) -> list[str]:
        """Have the verifier write up to `questions` questions about the draft; raise LooplineError if it failed."""
        task = (
            f"{VERIFY_MARKER} [NUM_QUESTIONS={self.questions}]\nWrite {self.questions} questions about facts that this "
            "answer rests on. Each must be clear to someone who has not read the answer. "
            f"Reply with <questions>, one a line, </questions>.\nTask: {run.call.task}\n\nAnswer:\n{draft}"
        )
        reply = await _run_verifier(run, task)
        return _list_items(tag(reply, "questions"))[: self.questions]

    async def _compare(self, run: HookedRun, draft: str, answers: Mapping[str, str]) -> str:
        """Return the verifier's comparison of the draft with the answers; raise a LooplineError if its run failed."""
        pairs = "\n".join(f"Q: {question}\nA: {answer}" for question, answer in answers.items())
        task = (
            f"{VERIFY_MARKER} [COMPARE]\nThe questions were answered by someone who has not read the answer. If nothing in "
            "them contradicts it, reply with <status>clean</status> and nothing else. Else reply with "
            "<status>discrepancy</status>, <discrepancies>, one a line, with what the answer says and what is right, "
            "</discrepancies> and <final>the corrected answer, whole</final>.\n"
            f"Task: {run.call.task}\n\nAnswer:\n{draft}\n\n{pairs}"
        )
        return await _run_verifier(run, task)

    def _apply_verdict(
        self, result: AgentResult, answers: Mapping[str, str], verdict: str
    ) -> AgentResult:
        """Return the result with the verdict as notes; a discrepancy counts only if it shares words with draft or answers.

        A verdict that cannot be read is the note `unverified`. With `rewrite` a corrected answer replaces the text.
        """
        draft = result.answer
        status = tag(verdict, "status").strip().lower()
        if status.startswith("clean") and "discrepan" not in status:
            return with_notes(result, {"verified_clean": True})
        if not status.startswith("discrepan") or "clean" in status:
            return with_notes(result, {"unverified": "the verifier's reply cannot be read"})
        evidence = "\n".join(answers.values())
        known = content_words(draft) | content_words(evidence)
        discrepancies = _list_items(tag(verdict, "discrepancies"))
        findings = [text for text in discrepancies if known & content_words(text)]
        if not findings:
            quoted = f": {'; '.join(discrepancies)[:QUOTED_CHARACTERS]}" if discrepancies else ""
            return with_notes(result, {"unverified": f"the verifier names no discrepancy{quoted}"})
        flagged = with_notes(
            result,
            {"verified_with_discrepancy": True, "verifier_discrepancies": [*findings]},
        )
        final = tag(verdict, "final").strip()
        if self.rewrite and is_corrected(draft, final, "\n".join([evidence, *findings])):
            return replace(flagged, text=final)
        return flagged


def is_corrected(draft: str, final: str, evidence: str) -> bool:
    """Return whether `final` is a corrected form of the draft, and not a remark such as "(unchanged)".

    More than half of its words are in the draft or in the evidence. It also has a word of the evidence that is not in
    the draft, or at least half of the draft's words.
    """
    before = content_words(draft)
    after = content_words(final)
    right = content_words(evidence)
    is_about = 2 * len(after & (before | right)) > len(after)
    has_new = bool(after & (right - before))
    return is_about and (has_new or 2 * len(after & before) >= len(before))


async def _answer(run: HookedRun, question: str) -> str:
    """Run an agent that answers the question; return an empty text if its run failed."""
    reply = await run.dispatch(AgentCall(agent=ANSWERER, task=question))
    return reply.answer.strip() if reply.ok else ""


async def _run_verifier(run: HookedRun, task: str) -> str:
    """Return the reply of the verifier.

    Raises:
        LooplineError: its run failed.
    """
    reply = await run.dispatch(AgentCall(agent=VERIFIER, task=task))
    if not reply.ok:
        raise LooplineError(f"the verifier failed: {reply.error or reply.exit_reason}")
    return reply.answer


def tag(text: str, name: str) -> str:
    """Return the content of the last tag of that name; empty without one. A tag that is not closed ends with the text."""
    # The last tag counts, since a model may quote the form of the reply before it.
    _, opening, body = text.rpartition(f"<{name}>")
    return body.partition(f"</{name}>")[0] if opening else ""


def _list_items(text: str) -> list[str]:
    """Return the lines of the text without bullets and numbers; empty lines are left out."""
    lines = (_ITEM.fullmatch(line) for line in text.splitlines())
    return [line[1].strip() for line in lines if line]


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
"""The least number of words that a rewritten text shares with the original."""

_REVISED = re.compile(r"<revised>(.*?)(?:</revised>|\Z)", re.DOTALL | re.IGNORECASE)
_CRITIQUE = "<critique>"
"""A reply that has this tag but no `<revised>` criticises the draft and does not rewrite it."""
_ANY_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """A hook that has the draft of an agent rewritten, at most `max_passes` times.

    It stops after a pass that changes at most `epsilon` characters. With `convergence` it also stops when the draft and
    the rewritten text have 99 % of the characters or 95 % of the words in common, or, with `embeddings`, a cosine of 0.92
    by the bundle's embedder. With `strict` the words are not compared. A pass is rolled back if its text is not
    about the original, or is much less similar to it than the text of the pass before. Drafts below `min_bytes`, failed
    runs and agents in `excluded` are skipped.
    """

    max_passes: int = 1
    min_bytes: int = MIN_BYTES
    excluded: tuple[str, ...] = NOT_REFINED
    epsilon: int = EPSILON_CHARACTERS
    convergence: bool = True
    embeddings: bool = False
    strict: bool = False

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return the result with the text of the last pass that was not rolled back; None if no text was rewritten."""
        original = result.answer
        is_short = len(original.encode()) < self.min_bytes
        if result.problem or is_short or run.call.agent.lower() in self.excluded:
            return None
        best = original
        closeness = 0.0
        passes = 0
        for _ in range(self.max_passes):
            revised = await self._revise(run, best)
            if not revised:
                break
            passes += 1
            now = similarity(original, revised)
            regressed = passes > 1 and now < closeness * (1 - REGRESSION)
            if regressed or is_lost(original, revised):
                return _replace_text(result, best, passes, rolled_back=True)
            converged = await self._has_converged(run, best, revised)
            best = revised
            closeness = max(closeness, now)
            if converged:
                break
        return _replace_text(result, best, passes) if passes else None

    async def _has_converged(self, run: HookedRun, before: str, after: str) -> bool:
        """Return whether a pass changed so little that further passes are not worth their cost.

        It is true for at most `epsilon` changed characters, and with `convergence` for texts that are nearly the same
        by characters, by words (not if `strict`), or by meaning (only with `embeddings`).
        """
        characters = count_changed(before, after)
        if characters <= self.epsilon:
            return True
        share = 1 - characters / max(len(before), len(after), 1)
        if not self.convergence or share < OTHER:
            return False
        if share >= SAME or (not self.strict and similarity(before, after) >= SAME_WORDS):
            return True
        nearness = await run.nearness(before, after) if self.embeddings else None
        return nearness is not None and nearness >= SAME_MEANING

    async def _revise(self, run: HookedRun, draft: str) -> str:
        """Run the refiner and return the rewritten text; empty if the run failed or the refiner keeps the draft."""
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


def _replace_text(
    result: AgentResult, text: str, passes: int, *, rolled_back: bool = False
) -> AgentResult:
    """Return the result with this text and notes: the passes, and low quality if a pass was rolled back."""
    notes: dict[str, Json] = {"refine_passes": passes}
    if rolled_back:
        notes |= {"refine_rolled_back": True, "refine_low_quality": True}
    return with_notes(replace(result, text=text), notes)


def is_lost(original: str, revised: str) -> bool:
    """Return whether `revised` is not a rewritten form of the original, such as a remark that the draft is fine.

    Only different content words count, without English stop words. A rewritten form shares at least three of them with the
    original, and at least half of the content words of the text that has fewer. So a text of fewer than three content words
    is never a rewritten form.
    """
    first = content_words(original)
    second = content_words(revised)
    shared = len(first & second)
    return shared < LEAST_SHARED or 2 * shared < min(len(first), len(second))


def count_changed(before: str, after: str) -> int:
    """Return the length of the longer text minus the common prefix and the common suffix."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    unmatched = shorter - start
    end = next((i for i in range(unmatched) if before[-1 - i] != after[-1 - i]), unmatched)
    return max(len(before), len(after)) - start - end


def similarity(before: str, after: str) -> float:
    """Return the number of words in both texts, divided by the number of words in either; 1 if both are empty."""
    first = set(_ANY_WORD.findall(before.lower()))
    second = set(_ANY_WORD.findall(after.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0
