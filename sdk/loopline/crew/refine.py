"""Refine: a draft is criticised and rewritten, as long as that improves it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from loopline.crew.content_words import content_words
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import HookedRun, PostOutcome, with_notes
from loopline.crew.servants import REFINER
from loopline.errors import LooplineError
from loopline.models import Json

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
