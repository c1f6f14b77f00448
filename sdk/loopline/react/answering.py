"""Answers: what is recorded of one, and what stands in when the model gave none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from loopline.models import well_formed
from loopline.timeline import AnswerFlag, Completion, ExitReason, Timeline, Turn, citations


def completion(
    timeline: Timeline,
    text: str,
    *,
    flag: AnswerFlag = "",
    reason: ExitReason = "complete",
    error: str = "",
) -> Completion:
    """The answer with the sources it uses; numbers that name no source are set apart."""
    pool = timeline.pool
    sids = citations.cited(text, newest=pool.newest)
    return Completion(
        text=text.strip(),
        sources_used=tuple(sid for sid in sids if sid in pool.sources),
        unknown_sources=tuple(sid for sid in sids if sid not in pool.sources),
        flag=flag,
        reason=reason,
        error=well_formed(error),
    )


NOTHING = "(nothing)"
"""What stands for a reply without a word."""

Collected = Literal["summary", "partial"]

_BECAUSE: Mapping[ExitReason, str] = {
    "max_iterations": "the round limit was reached",
    "deadline": "the time of the turn was over",
    "budget": "the budget of the turn was spent",
    "stagnation": "the same calls were made again and again",
}


def fallback(
    timeline: Timeline,
    turn: Turn,
    reason: ExitReason,
    error: str = "",
    *,
    way: Collected = "summary",
) -> Completion:
    """The held draft, else what was collected: a line for each call, or all that the calls gave."""
    if turn.draft is not None:
        text = turn.draft.text
        return completion(timeline, text, flag="draft", reason=reason, error=error)
    because = f"the model could not be asked ({error})" if error else _BECAUSE.get(reason, reason)
    lines = [f"There is no answer: {because}."]
    if turn.results:
        lines.append("This is what was done:")
    for one in turn.results:
        outcome = "OK" if one.status == "ok" else f"ERROR ({one.status})"
        lines.append(f"- {one.tool} ({one.call_id}): {outcome}")
        if way == "partial":
            lines.append(one.text)
    text = "\n".join(lines)
    return completion(timeline, text, flag=way, reason=reason, error=error)


def continued(turn: Turn) -> str:
    """Return what was written of a reply that was cut off, so far."""
    texts = list[str]()
    for decision in reversed(turn.decisions):
        if decision.stop_reason != "length" or decision.raw in ("", NOTHING):
            break
        texts.insert(0, decision.raw)
    return "".join(texts)
