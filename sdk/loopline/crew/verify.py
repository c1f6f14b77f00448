"""Verify: questions about an answer are answered without it, and what disagrees is flagged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loopline.crew.content_words import content_words
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import HookedRun, PostOutcome, with_notes
from loopline.crew.servants import ANSWERER, VERIFIER
from loopline.errors import LooplineError

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
