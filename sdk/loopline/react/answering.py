"""Answers: what is recorded of one, and what stands in when the model gave none."""

from __future__ import annotations

from typing import Literal

from loopline.models import well_formed
from loopline.timeline import Completion, ExitReason, Timeline, Turn, citations

Flag = Literal["", "unparsed", "forced", "draft", "summary"]


def completion(
    timeline: Timeline,
    text: str,
    *,
    flag: Flag = "",
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


def fallback(timeline: Timeline, turn: Turn, error: str = "") -> Completion:
    """The held draft, else a summary of what was called and what came of it."""
    reason: ExitReason = "error" if error else "max_iterations"
    if turn.draft is not None:
        text = turn.draft.text
        return completion(timeline, text, flag="draft", reason=reason, error=error)
    because = f"the model could not be asked ({error})" if error else "the round limit was reached"
    lines = [f"There is no answer: {because}."]
    if turn.results:
        lines.append("This is what was done:")
        lines += [f"- {one.tool} ({one.call_id}): {one.status}" for one in turn.results]
    text = "\n".join(lines)
    return completion(timeline, text, flag="summary", reason=reason, error=error)
