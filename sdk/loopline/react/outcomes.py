"""What is recorded: of a call that has come to its end, of thinking, of notices, of marks of a plan's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from loopline.models import (
    ADDRESS_CHARACTERS,
    Echo,
    JsonObject,
    Reply,
    dumps,
    one_line,
    well_formed,
    well_formed_object,
)
from loopline.timeline import (
    ArtifactKept,
    Body,
    Moment,
    Notice,
    Plan,
    PlanAck,
    StepStatus,
    Thinking,
    Timeline,
    ToolCalled,
    ToolResult,
    plan,
)
from loopline.timeline.waiting import computed
from loopline.tools import Outcome, Section

NO_OUTPUT = "(it succeeded, and gave no output)"
"""What the model reads of a result without a text."""


RESULT_BYTES = 2_000_000
"""Bytes of UTF-8 of a result that are kept where nothing else is said."""


def bounded(outcome: Outcome, most: int) -> Outcome:
    """Return the outcome with at most so many bytes of text, and a line where some are left out.

    The call has happened, whatever it gave: what is too long is cut, and is no error.
    """
    text, left = _bounded(outcome.text, most)
    sections = list[Section]()
    for section in outcome.sections:
        shown, left = _bounded(section.text, left)
        sections.append(replace(section, text=shown))
    return replace(outcome, text=text, sections=tuple(sections))


def _bounded(text: str, most: int) -> tuple[str, int]:
    """Return the text in so many bytes, and how many are left then."""
    stored = text.encode("utf-8", "surrogatepass")
    if len(stored) <= most:
        return text, most - len(stored)
    said = f"[CUT] {len(stored):,} bytes came, and {most:,} are kept: ask for less at once"
    return f"{stored[:most].decode('utf-8', 'ignore')}\n{said}", 0


def recorded(
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
    sids, added = timeline.pool.number([*cited, *outcome.sources])
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
        text=rendered(outcome, sids, artifact) or NO_OUTPUT,
        elapsed_ms=elapsed_ms,
        found=outcome.found,
        shows=outcome.shows,
        artifact=artifact,
        ran_with=ran_with,
        answer=answer,
    )
    return [result, *added, *outcome.bodies, *kept]


def rendered(outcome: Outcome, sids: Sequence[int], artifact: str) -> str:
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


async def acknowledged(timeline: Timeline, notes: str, moment: Moment) -> list[Body]:
    """Find what the marks in notes change of the current plan's steps."""
    current, snapshot = timeline.plans.current, None
    if current and notes:
        found = partial(plan.acknowledge, current, notes, moment)
        snapshot = await computed(found, characters=len(notes))
    if current is None or snapshot is None:
        return []
    changes: dict[str, StepStatus] = {
        number: status
        for number, status in snapshot.step_status.items()
        if current.step_status.get(number) != status
    }
    return [PlanAck(plan_id=current.plan_id, changes=changes), Plan(snapshot=snapshot)]


def sound(echo: Echo | None) -> Echo | None:
    """The echo, as a log can hold it."""
    return echo and replace(echo, parts=tuple(map(well_formed_object, echo.parts)))


def thoughts(reply: Reply) -> list[Thinking]:
    """What the model has thought, for people."""
    return [Thinking(text=well_formed(reply.thinking))] if reply.thinking else []


def noticed(code: str, text: str) -> list[Notice]:
    """What a nudge says, as the log keeps it."""
    return [Notice(code=code, text=well_formed(text))] if text else []
