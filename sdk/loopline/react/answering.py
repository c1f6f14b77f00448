"""Answers: what is recorded of one, and what stands in when the model gave none."""

from __future__ import annotations

from typing import Literal

from loopline.timeline import Completion, Timeline, Turn, citations

Flag = Literal["", "unparsed", "forced", "draft", "summary"]


def completion(timeline: Timeline, text: str, *, flag: Flag = "") -> Completion:
    """The answer with the sources it uses; numbers that name no source are set apart."""
    pool = timeline.pool
    sids = citations.cited(text, newest=pool.newest)
    return Completion(
        text=text.strip(),
        sources_used=tuple(sid for sid in sids if sid in pool.sources),
        unknown_sources=tuple(sid for sid in sids if sid not in pool.sources),
        flag=flag,
    )


def fallback(timeline: Timeline, turn: Turn, error: str = "") -> Completion:
    """The held draft, else a summary of what was called and what came of it."""
    if turn.draft is not None:
        return completion(timeline, turn.draft.text, flag="draft")
    because = f"the model could not be asked ({error})" if error else "the round limit was reached"
    lines = [f"There is no answer: {because}."]
    if turn.results:
        lines.append("This is what was done:")
        lines += [f"- {one.tool} ({one.call_id}): {one.status}" for one in turn.results]
    return completion(timeline, "\n".join(lines), flag="summary")
