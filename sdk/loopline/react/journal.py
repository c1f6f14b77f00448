"""What the loop records: of tool results, thinking, notices, marks of a plan, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from loopline.models import (
    OutputType,
    Reply,
    well_formed,
)
from loopline.react.context import Context
from loopline.react.replies import ChannelTexts
from loopline.react.tool_runtime import ToolRuntime
from loopline.refs import CallRef
from loopline.timeline import (
    AnswerFlag,
    Body,
    Completion,
    ExitReason,
    Moment,
    Notes,
    Notice,
    Plan,
    PlanAck,
    StepStatus,
    Thinking,
    Timeline,
    ToolResult,
    Turn,
    citations,
    plan,
    turn_id,
)
from loopline.timeline.tasks import compute, finish, is_long


async def plan_acknowledgements(timeline: Timeline, notes: str, moment: Moment) -> list[Body]:
    """Find what the marks in notes change of the current plan's steps."""
    current, snapshot = timeline.plans.current, None
    if current and notes:
        acknowledge = partial(plan.acknowledge, current, notes, moment)
        snapshot = await compute(acknowledge, characters=len(notes))
    if current is None or snapshot is None:
        return []
    changes: dict[str, StepStatus] = {
        number: status
        for number, status in snapshot.step_status.items()
        if current.step_status.get(number) != status
    }
    return [PlanAck(plan_id=current.plan_id, changes=changes), Plan(snapshot=snapshot)]


def thinking_bodies(reply: Reply) -> list[Thinking]:
    """Return what the model has thought, for people to read."""
    return [Thinking(text=well_formed(reply.thinking))] if reply.thinking else []


def notice_bodies(code: str, text: str) -> list[Notice]:
    """Return the notice of a text for the model; none for an empty text."""
    return [Notice(code=code, text=well_formed(text))] if text else []


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """Why the loop is over, or that it pauses."""

    reason: ExitReason
    error: str = ""


def recorded_end(turn: Turn, answers: int) -> LoopEnd | None:
    """Return how the loop ended before the turn was cut off, or None if it had not."""
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
    """Return the answer with the sources it cites; unknown numbers are listed apart.

    One that is a value of the `output` type has the digest of its schema.
    """
    pool = timeline.pool
    find_sids = partial(citations.cited_sids, text, newest=pool.newest)
    sids = await compute(find_sids, characters=len(text))
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


CONTINUE = "Your reply was cut off by the limit of its length. Write on exactly where it ended."
EMPTY_REPLY = "(nothing)"
"""The stored text of an empty reply."""

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
    """Return the draft as the answer, else what was collected: a line for each call, or all results."""
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
    for result, excerpt in zip(listed, _excerpts(listed, turn.number), strict=True):
        outcome = "OK" if result.status == "ok" else f"ERROR ({result.status})"
        lines.append(f"- {result.tool} ({result.call_id}): {outcome}")
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
    share = _share([len(result.text) for result in results], PARTIAL_CHARACTERS)
    for result in results:
        surplus = len(result.text) - share
        if surplus <= 0:
            yield result.text
        else:
            ref = CallRef(turn_id=turn_id(turn), call_id=result.call_id, part="result")
            yield f"{result.text[:share]}\n[… {surplus} more characters: {ref}]"


def _share(lengths: Sequence[int], room: int) -> int:
    """Return the length to which texts are cut, the longest first, so that they fit into the room together."""
    texts_left = len(lengths)
    for length in sorted(lengths):
        if length * texts_left > room:
            return room // texts_left
        room, texts_left = room - length, texts_left - 1
    return max(lengths, default=0)


class Journal:
    """Records what comes of the replies of a run; listeners hold the same texts by then."""

    def __init__(self, runtime: ToolRuntime, context: Context, texts: ChannelTexts) -> None:
        self._recorder = runtime.recorder
        self._clock = runtime.clock
        self._output = runtime.output
        self._context = context
        self._texts = texts

    async def record(self, *bodies: Body) -> None:
        """Record bodies after listeners have been given their texts.

        A cancellation that arrives meanwhile is raised once they are recorded.
        """
        if any(isinstance(body, Completion) and is_long(body.text) for body in bodies):
            await finish(asyncio.ensure_future(self._settle(bodies)))
        else:
            await self._settle(bodies)

    async def _settle(self, bodies: Sequence[Body]) -> None:
        await self._texts.settle(bodies, self._recorder.timeline.pool)
        await self._recorder.record(*bodies)

    async def record_decision(
        self,
        reply: Reply,
        notes: str,
        *bodies: Body,
        calls: int = 0,
        is_answer: bool = False,
        acknowledges: bool = True,
    ) -> None:
        """Record a reply as a decision with its thinking, notes and plan acknowledgements, then the bodies."""
        acknowledgements = await self._acknowledgements(notes) if acknowledges else []
        decision = self._context.decision(reply, calls=calls)
        if is_answer:
            decision = replace(decision, purpose="answer")
        noted = [Notes(text=notes)] if notes else []
        await self.record(decision, *thinking_bodies(reply), *noted, *acknowledgements, *bodies)

    async def record_malformed(
        self, reply: Reply, raw: str, problem: str, notes: str = "", *, is_answer: bool = False
    ) -> None:
        """Record a reply that could not be read, and the notice that says why."""
        acknowledgements = await self._acknowledgements(notes)
        decision = self._context.decision(reply, raw=raw if raw.strip() else EMPTY_REPLY)
        if is_answer:
            decision = replace(decision, purpose="answer")
        notice = Notice(code="malformed_reply", text=problem)
        await self.record(decision, *thinking_bodies(reply), *acknowledgements, notice)

    async def record_cut_off(self, reply: Reply) -> None:
        """Record the beginning of a reply that was cut off, and tell the model to continue it."""
        decision = self._context.decision(reply, raw=well_formed(reply.text))
        notice = Notice(code="reply_cut_off", text=CONTINUE)
        bodies: list[Body] = [decision, *thinking_bodies(reply), notice]
        await self._texts.settle_partial(bodies, self._recorder.timeline.pool)
        await self._recorder.record(*bodies)

    async def remind(self, code: str, text: str) -> None:
        """Record a notice for the model, once between two decisions."""
        notices = notice_bodies(code, text)
        if notices and code not in self._recorder.turn.notice_codes:
            await self._recorder.record(*notices)

    async def close(
        self,
        reply: Reply,
        answer: Completion,
        notes: str,
        *notices: Notice,
        is_answer: bool = False,
    ) -> LoopEnd:
        """Record a reply together with the answer that ends the loop."""
        await self.record_decision(reply, notes, *notices, answer, is_answer=is_answer)
        return LoopEnd(answer.reason, answer.error)

    async def completion(self, text: str, flag: AnswerFlag, reason: ExitReason) -> Completion:
        """Return the answer of this text as it is recorded."""
        timeline = self._recorder.timeline
        return await make_completion(timeline, text, flag=flag, reason=reason, output=self._output)

    async def fallback(
        self, reason: ExitReason, error: str = "", *, style: FallbackStyle = "summary"
    ) -> Completion:
        """Return the answer that stands in where the model gave none."""
        recorder = self._recorder
        return await make_fallback(
            recorder.timeline, recorder.turn, reason, error, way=style, output=self._output
        )

    async def _acknowledgements(self, notes: str) -> list[Body]:
        recorder = self._recorder
        moment = Moment(self._clock.now(), f"turn_{recorder.number}")
        return await plan_acknowledgements(recorder.timeline, notes, moment)
