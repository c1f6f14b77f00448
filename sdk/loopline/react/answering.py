"""Answers: what is recorded of one, and what stands in when the model gave none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from loopline.models import OutputType, well_formed
from loopline.refs import CallRef
from loopline.timeline import (
    AnswerFlag,
    Completion,
    ExitReason,
    Timeline,
    ToolResult,
    Turn,
    citations,
    turn_id,
)
from loopline.timeline.waiting import computed


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the loop is over, or that it pauses."""

    reason: ExitReason
    error: str = ""


def answered(turn: Turn, answers: int) -> Ended | None:
    """How the loop ended before the turn was cut off; None when it has not come to so many answers."""
    if len(turn.completions) < answers:
        return None
    answer = turn.completions[answers - 1]
    return Ended(answer.reason, answer.error)


async def completion(
    timeline: Timeline,
    text: str,
    *,
    flag: AnswerFlag = "",
    reason: ExitReason = "complete",
    error: str = "",
    output: OutputType[Any] | None = None,
) -> Completion:
    """The answer with the sources it uses; numbers that name no source are set apart.

    One that is a value of the `output` type has the digest of its schema.
    """
    pool = timeline.pool
    found = partial(citations.cited, text, newest=pool.newest)
    sids = await computed(found, characters=len(text))
    is_value = output is not None and await computed(
        partial(output.reads, text.strip()), characters=len(text)
    )
    return Completion(
        text=text.strip(),
        sources_used=tuple(sid for sid in sids if sid in pool.sources),
        unknown_sources=tuple(sid for sid in sids if sid not in pool.sources),
        flag=flag,
        reason=reason,
        error=well_formed(error),
        schema_sha256=output.sha256 if output is not None and is_value else "",
    )


EMPTY_REPLY = "(nothing)"
"""What stands for a reply without a word."""

Collected = Literal["summary", "partial"]
PARTIAL_CHARACTERS = 30_000
"""What an answer of collected results holds at most, beside a line for each call."""
LISTED_CALLS = 200
"""So many calls have a line each, the newest."""

_BECAUSE: Mapping[ExitReason, str] = {
    "max_iterations": "the round limit was reached",
    "deadline": "the time of the turn was over",
    "budget": "the budget of the turn was spent",
    "stagnation": "the same calls were made again and again",
}


async def fallback(
    timeline: Timeline,
    turn: Turn,
    reason: ExitReason,
    error: str = "",
    *,
    way: Collected = "summary",
    output: OutputType[Any] | None = None,
) -> Completion:
    """The held draft, else what was collected: a line for each call, or all that the calls gave."""
    if turn.draft is not None:
        text = turn.draft.text
        return await completion(
            timeline, text, flag="draft", reason=reason, error=error, output=output
        )
    because = f"the model could not be asked ({error})" if error else _BECAUSE.get(reason, reason)
    listed = turn.results[-LISTED_CALLS:]
    lines = [f"There is no answer: {because}."]
    if listed:
        lines.append("This is what was done:")
    if len(listed) < len(turn.results):
        lines.append(f"({len(turn.results) - len(listed)} earlier calls are not listed.)")
    for one, excerpt in zip(listed, _excerpts(listed, turn.number), strict=True):
        outcome = "OK" if one.status == "ok" else f"ERROR ({one.status})"
        lines.append(f"- {one.tool} ({one.call_id}): {outcome}")
        if way == "partial":
            lines.append(excerpt)
    text = "\n".join(lines)
    return await completion(timeline, text, flag=way, reason=reason, error=error)


def continued(turn: Turn) -> str:
    """Return what was written of a reply that was cut off, so far."""
    texts = list[str]()
    for decision in reversed(turn.decisions):
        if decision.stop_reason != "length" or decision.raw in ("", EMPTY_REPLY):
            break
        texts.insert(0, decision.raw)
    return "".join(texts)


def _excerpts(results: Sequence[ToolResult], turn: int) -> Iterator[str]:
    """Yield the text of each result; where they are too long together, the longest are cut and name their ref."""
    share = _share([len(one.text) for one in results], PARTIAL_CHARACTERS)
    for one in results:
        rest = len(one.text) - share
        if rest <= 0:
            yield one.text
        else:
            ref = CallRef(turn_id=turn_id(turn), call_id=one.call_id, part="result")
            yield f"{one.text[:share]}\n[… {rest} more characters: {ref}]"


def _share(lengths: Sequence[int], room: int) -> int:
    """Return the length to which texts are cut, the longest first, so that they fit into the room together."""
    left = len(lengths)
    for length in sorted(lengths):
        if length * left > room:
            return room // left
        room, left = room - length, left - 1
    return max(lengths, default=0)
