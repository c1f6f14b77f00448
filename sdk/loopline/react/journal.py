"""What the loop records: of tool results, thinking, notices, marks of a plan, and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from loopline.models import (
    ADDRESS_CHARACTERS,
    JsonObject,
    OutputType,
    ReasoningReplay,
    Reply,
    dumps,
    one_line,
    well_formed,
    well_formed_object,
)
from loopline.refs import CallRef
from loopline.timeline import (
    AnswerFlag,
    ArtifactKept,
    Body,
    Completion,
    ExitReason,
    Moment,
    Notice,
    Plan,
    PlanAck,
    StepStatus,
    Thinking,
    Timeline,
    ToolCalled,
    ToolResult,
    Turn,
    citations,
    plan,
    turn_id,
)
from loopline.timeline.tasks import compute
from loopline.tools import Outcome, ResultSection

NO_OUTPUT = "(it succeeded, and gave no output)"
"""What the model reads of a result without a text."""


RESULT_BYTES = 2_000_000
"""Bytes of UTF-8 of a result that are kept where nothing else is said."""


def truncate_outcome(outcome: Outcome, most: int) -> Outcome:
    """Return the outcome with at most so many bytes of text, and a line where some are left out.

    The call has happened, whatever it gave: what is too long is cut, and is no error.
    """
    text, left = _truncate(outcome.text, most)
    sections = list[ResultSection]()
    for section in outcome.sections:
        shown, left = _truncate(section.text, left)
        sections.append(replace(section, text=shown))
    return replace(outcome, text=text, sections=tuple(sections))


def _truncate(text: str, most: int) -> tuple[str, int]:
    """Return the text in so many bytes, and how many are left then."""
    stored = text.encode("utf-8", "surrogatepass")
    if len(stored) <= most:
        return text, most - len(stored)
    said = f"[CUT] {len(stored):,} bytes came, and {most:,} are kept: ask for less at once"
    return f"{stored[:most].decode('utf-8', 'ignore')}\n{said}", 0


def result_bodies(
    call: ToolCalled,
    outcome: Outcome,
    elapsed_ms: float,
    timeline: Timeline,
    turn: int,
    ran_with: JsonObject | None = None,
    answer: str | None = None,
) -> list[Body]:
    """The result of a call with the sources it adds, numbered, what it keeps, and the answer it gives."""
    cited = [section.source for section in outcome.sections if section.source]
    sids, added = timeline.pool.assign_numbers([*cited, *outcome.sources])
    kept: list[Body] = []
    artifact = ""
    if outcome.artifact is not None:
        version = timeline.artifacts.get((turn, call.call_id), 0) + 1
        text, mime = dumps(outcome.artifact), "application/json"
        kept = [ArtifactKept(name=call.call_id, version=version, text=text, mime=mime)]
        artifact = f"ar:turn_{turn}.artifacts.{call.call_id}@{version}"
    result = ToolResult(
        call_id=call.call_id,
        tool=call.tool,
        text=render_outcome(outcome, sids, artifact) or NO_OUTPUT,
        elapsed_ms=elapsed_ms,
        found=outcome.match_count,
        shows=outcome.shows,
        artifact=artifact,
        ran_with=ran_with,
        answer=answer,
    )
    return [result, *added, *outcome.bodies, *kept]


def render_outcome(outcome: Outcome, sids: Sequence[int], artifact: str) -> str:
    """The text that the model reads: the lead, the sections, the sources with their numbers."""
    numbers = iter(sids)
    parts = [outcome.text]
    for section in outcome.sections:
        mark = f"[[S:{next(numbers)}]] " if section.source else ""
        heading = one_line(section.heading, ADDRESS_CHARACTERS)
        parts.append(f"{mark}{heading}\n{section.text}")
    listed = [
        f"[[S:{sid}]] {one_line(source.title or source.url)} — {one_line(source.url, ADDRESS_CHARACTERS)}"
        for sid, source in zip(numbers, outcome.sources, strict=True)
    ]
    if listed:
        parts.append("\n".join(["sources:", *listed]))
    if artifact:
        parts.append(f"the whole is kept: {artifact}")
    return "\n\n".join(part for part in parts if part)


async def plan_acknowledgements(timeline: Timeline, notes: str, moment: Moment) -> list[Body]:
    """Find what the marks in notes change of the current plan's steps."""
    current, snapshot = timeline.plans.current, None
    if current and notes:
        found = partial(plan.acknowledge, current, notes, moment)
        snapshot = await compute(found, characters=len(notes))
    if current is None or snapshot is None:
        return []
    changes: dict[str, StepStatus] = {
        number: status
        for number, status in snapshot.step_status.items()
        if current.step_status.get(number) != status
    }
    return [PlanAck(plan_id=current.plan_id, changes=changes), Plan(snapshot=snapshot)]


def well_formed_echo(echo: ReasoningReplay | None) -> ReasoningReplay | None:
    """The echo, as a log can hold it."""
    return echo and replace(echo, parts=tuple(map(well_formed_object, echo.parts)))


def thinking_bodies(reply: Reply) -> list[Thinking]:
    """What the model has thought, for people."""
    return [Thinking(text=well_formed(reply.thinking))] if reply.thinking else []


def notice_bodies(code: str, text: str) -> list[Notice]:
    """What a hook says, as the log keeps it."""
    return [Notice(code=code, text=well_formed(text))] if text else []


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """Why the loop is over, or that it pauses."""

    reason: ExitReason
    error: str = ""


def recorded_end(turn: Turn, answers: int) -> LoopEnd | None:
    """How the loop ended before the turn was cut off; None when it has not come to so many answers."""
    if len(turn.completions) < answers:
        return None
    answer = turn.completions[answers - 1]
    return LoopEnd(answer.reason, answer.error)


async def make_completion(
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
    found = partial(citations.cited_sids, text, newest=pool.newest)
    sids = await compute(found, characters=len(text))
    is_value = output is not None and await compute(
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

FallbackStyle = Literal["summary", "partial"]
PARTIAL_CHARACTERS = 30_000
"""What an answer of collected results holds at most, beside a line for each call."""
LISTED_CALLS = 200
"""So many calls have a line each, the newest."""

_REASON_TEXTS: Mapping[ExitReason, str] = {
    "max_iterations": "the round limit was reached",
    "deadline": "the time of the turn was over",
    "budget": "the budget of the turn was spent",
    "stagnation": "the same calls were made again and again",
}


async def make_fallback(
    timeline: Timeline,
    turn: Turn,
    reason: ExitReason,
    error: str = "",
    *,
    way: FallbackStyle = "summary",
    output: OutputType[Any] | None = None,
) -> Completion:
    """The held draft, else what was collected: a line for each call, or all that the calls gave."""
    if turn.draft is not None:
        text = turn.draft.text
        return await make_completion(
            timeline, text, flag="draft", reason=reason, error=error, output=output
        )
    because = (
        f"the model could not be asked ({error})" if error else _REASON_TEXTS.get(reason, reason)
    )
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
    return await make_completion(timeline, text, flag=way, reason=reason, error=error)


def cut_off_text(turn: Turn) -> str:
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
