"""Verify: questions about an answer are answered without it, and what disagrees is flagged."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import HookedRun, PostOutcome, with_notes
from loopline.crew.servants import ANSWERER, VERIFIER
from loopline.errors import LooplineError
from loopline.models import Json

MARKER = "[VERIFY_ANSWER]"
EXCLUDED = ("formatter", "deps", "refiner", "verifier", "shell")
QUESTIONS = 3

_ITEM = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])?\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """A hook that checks an answer by questions, each answered by a run that does not see the answer.

    What disagrees is noted, and with `rewrite` the verifier's corrected answer takes the place of the answer. A reply
    that cannot be read verifies nothing, and is noted as that.
    """

    questions: int = QUESTIONS
    rewrite: bool = False
    excluded: tuple[str, ...] = EXCLUDED

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return the result with what the check found."""
        draft = result.answer
        if result.problem or not draft.strip() or run.call.agent.lower() in self.excluded:
            return None
        try:
            questions = await self._questions(run, draft)
            answers = [
                (await run.dispatch(AgentCall(agent=ANSWERER, task=question))).answer.strip()
                for question in questions
            ]
            verdict = await self._verdict(run, draft, questions, answers)
        except LooplineError as error:
            return with_notes(result, {"unverified": str(error)})
        if not questions:
            return with_notes(result, {"unverified": "the verifier asked nothing"})
        return self._judged(result, verdict)

    async def _questions(self, run: HookedRun, draft: str) -> list[str]:
        """Return the questions whose answers would show that the draft is wrong."""
        task = (
            f"{MARKER} [NUM_QUESTIONS={self.questions}]\nWrite {self.questions} questions about facts that this "
            "answer rests on. Each must be clear to someone who has not read the answer. "
            f"Reply with <questions>, one a line, </questions>.\nTask: {run.call.task}\n\nAnswer:\n{draft}"
        )
        reply = await run.dispatch(AgentCall(agent=VERIFIER, task=task))
        lines = (_ITEM.fullmatch(line) for line in tag(reply.answer, "questions").splitlines())
        return [line[1].strip() for line in lines if line][: self.questions]

    async def _verdict(
        self, run: HookedRun, draft: str, questions: list[str], answers: list[str]
    ) -> str:
        """Return the reply that compares the draft with the answers."""
        if not questions:
            return ""
        pairs = "\n".join(
            f"Q: {question}\nA: {answer}"
            for question, answer in zip(questions, answers, strict=True)
        )
        task = (
            f"{MARKER} [COMPARE]\nThe questions were answered by someone who has not read the answer. Where they "
            "disagree with it, say so. Reply with <status>clean or discrepancy</status>, <discrepancies>, one "
            "a line, </discrepancies> and <final>the corrected answer, whole</final>.\n"
            f"Task: {run.call.task}\n\nAnswer:\n{draft}\n\n{pairs}"
        )
        return (await run.dispatch(AgentCall(agent=VERIFIER, task=task))).answer

    def _judged(self, result: AgentResult, verdict: str) -> AgentResult:
        status = tag(verdict, "status").strip().lower()
        lines = (_ITEM.fullmatch(line) for line in tag(verdict, "discrepancies").splitlines())
        findings: list[Json] = [line[1].strip() for line in lines if line]
        if status.startswith("clean") and not findings:
            return with_notes(result, {"verified_clean": True})
        if not status.startswith("discrepan") and not findings:
            return with_notes(result, {"unverified": "the verifier's reply cannot be read"})
        flagged = with_notes(
            result, {"verified_with_discrepancy": True, "verifier_discrepancies": findings}
        )
        final = tag(verdict, "final").strip()
        return replace(flagged, text=final) if self.rewrite and final else flagged


def tag(text: str, name: str) -> str:
    """Return what stands in the last tag of that name; to the end of the text if it is not closed."""
    _, opening, body = text.rpartition(f"<{name}>")
    return body.partition(f"</{name}>")[0] if opening else ""
