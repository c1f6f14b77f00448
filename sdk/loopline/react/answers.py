"""Requests for decisions and answers: the chain of models, the records of their replies, and the answer of a turn.

An answer is that of a decision, or is written by a separate request, forced at a limit, or put together as a fallback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from msgspec import structs

from loopline import timeline as tl
from loopline.errors import ModelAccessError, ModelError, ModelOverflow, ModelRequestError
from loopline.models import Model, OutputType, Reply, Usage, well_formed, well_formed_object
from loopline.prompt import NATIVE, Answer, DecodedReply, Malformed, protocol
from loopline.react import replies
from loopline.react.context import Context, Iteration, RoundPurpose
from loopline.react.interrupter import Interrupted, Interrupter
from loopline.react.model_requests import (
    OutOfBudget,
    Quota,
    RequestSkipped,
    RetryPolicy,
    check_prices,
    request_reply,
)
from loopline.react.state import decision_limit
from loopline.react.tool_runtime import ToolRuntime
from loopline.refs import CallRef
from loopline.tasks import LONG_TEXT, compute, finish


def thinking_bodies(reply: Reply) -> list[tl.Thinking]:
    """Return the readable thinking of a reply as bodies; empty without thinking."""
    return [tl.Thinking(text=well_formed(reply.thinking))] if reply.thinking else []


def notice_bodies(code: str, text: str) -> list[tl.Notice]:
    """Return a notice with this text for the model; an empty list for an empty text."""
    return [tl.Notice(code=code, text=well_formed(text))] if text else []


def decision_of(
    reply: Reply,
    model: Model,
    quota: Quota,
    *,
    calls: int = 0,
    raw: str = "",
    purpose: RoundPurpose = "decision",
) -> tl.Decision:
    """Return the body that records a reply, with its cost and the estimated usage of abandoned attempts.

    The estimated usage is removed from the quota, so the body must be recorded. The cost includes that of the estimated
    usage; it is None if the price of the model is unknown. `calls` is the number of calls in the reply, and `raw` the
    stored text of a malformed reply.
    """
    estimated, estimated_cost = quota.take_unrecorded()
    cost = model.capabilities.cost(reply.usage)
    echo = reply.echo
    return tl.Decision(
        model=model.name,
        stop_reason=reply.stop_reason,
        calls=calls,
        raw=raw,
        usage=reply.usage,
        cost=None if cost is None else cost + estimated_cost,
        purpose=purpose,
        attempt=reply.attempt,
        discarded=reply.discarded,
        echo=echo and structs.replace(echo, parts=tuple(map(well_formed_object, echo.parts))),
        estimated=estimated,
    )


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """The reason why the loop ends or pauses, and the error if there was one."""

    reason: tl.ExitReason
    error: str = ""


def find_end(turn: tl.Turn, answers: int) -> LoopEnd | None:
    """Return the end of the loop if the turn already has its `answers`-th completion, or None."""
    if len(turn.completions) < answers:
        return None
    answer = turn.completions[answers - 1]
    return LoopEnd(answer.reason, answer.error)


async def make_completion(
    timeline: tl.Timeline,
    text: str,
    *,
    flag: tl.AnswerFlag = "",
    reason: tl.ExitReason = "complete",
    error: str = "",
    output: OutputType[Any] | None = None,
) -> tl.Completion:
    """Return the body of an answer with the numbers of the sources that it cites, known and unknown ones.

    The text is stripped, and a long text is searched in a thread. If the text is a value of the `output` type, the body
    has the sha256 of the schema.
    """
    pool = timeline.pool
    find_sids = partial(tl.citations.cited_sids, text, newest=pool.newest)
    sids = await compute(find_sids, characters=len(text))
    is_value = output is not None and await compute(
        partial(output.reads, text.strip()), characters=len(text)
    )
    return tl.Completion(
        text=text.strip(),
        sources_used=tuple(sid for sid in sids if sid in pool.sources),
        unknown_sources=tuple(sid for sid in sids if sid not in pool.sources),
        flag=flag,
        reason=reason,
        error=well_formed(error),
        schema_sha256=output.sha256 if output is not None and is_value else "",
    )


CONTINUE = "Your reply was cut off by the limit of its length. Write on exactly where it ended."

FallbackStyle = Literal["summary", "partial"]
PARTIAL_CHARACTERS = 30_000
"""The most characters of results in a fallback answer, without the line for each call."""
LISTED_CALLS = 200
"""The most calls that a fallback answer lists; earlier calls are only counted."""

_REASON_TEXTS: Mapping[tl.ExitReason, str] = {
    "max_iterations": "the round limit was reached",
    "deadline": "the time of the turn was over",
    "budget": "the budget of the turn was spent",
    "stagnation": "the same calls were made again and again",
}


def render_fallback(turn: tl.Turn, reason: tl.ExitReason, error: str, style: FallbackStyle) -> str:
    """Render a fallback answer: the reason, and a line for each call; with style "partial" also its result.

    An `error` takes the place of the reason. Only the newest `LISTED_CALLS` calls are listed.
    """
    because = f"the model gave no answer ({error})" if error else _REASON_TEXTS.get(reason, reason)
    listed = turn.results[-LISTED_CALLS:]
    lines = [f"There is no answer: {because}."]
    if listed:
        lines.append("This is what was done:")
    if len(listed) < len(turn.results):
        lines.append(f"({len(turn.results) - len(listed)} earlier calls are not listed.)")
    for result, excerpt in zip(listed, _excerpts(listed, turn.number), strict=True):
        outcome = "OK" if result.status == "ok" else f"ERROR ({result.status})"
        lines.append(f"- {result.tool} ({result.call_id}): {outcome}")
        if style == "partial":
            lines.append(excerpt)
    return "\n".join(lines)


def _excerpts(results: Sequence[tl.ToolResult], turn: int) -> Iterator[str]:
    """Yield the text of each result; if all are longer than the limit, the longest are truncated and show their ref."""
    share = _fair_share([len(result.text) for result in results], PARTIAL_CHARACTERS)
    for result in results:
        surplus = len(result.text) - share
        if surplus <= 0:
            yield result.text
        else:
            ref = CallRef(turn_id=tl.turn_id(turn), call_id=result.call_id, part="result")
            yield f"{result.text[:share]}\n[… {surplus} more characters: {ref}]"


def _fair_share(lengths: Sequence[int], limit: int) -> int:
    """Return the length to which longer texts must be truncated for all texts to have `limit` characters together.

    If all texts fit, this is the length of the longest text; 0 without texts.
    """
    remaining = limit
    for index, length in enumerate(sorted(lengths)):
        texts = len(lengths) - index
        if length * texts > remaining:
            return remaining // texts
        remaining -= length
    return max(lengths, default=0)


@dataclass(frozen=True, slots=True)
class Journal:
    """Records replies, after subscribers have received the same texts."""

    runtime: ToolRuntime
    context: Context
    texts: replies.ChannelTexts

    async def record(self, *bodies: tl.Body) -> None:
        """Record bodies after subscribers have received their texts; a completion must be the last body.

        If this is cancelled while a long text is processed, the cancellation is raised after the bodies are recorded.
        """
        size = len(bodies[-1].text) if isinstance(bodies[-1], tl.Completion) else 0
        if size >= LONG_TEXT:
            # Resolving citations of a long text runs in a thread, where a cancellation could lose the answer.
            await finish(asyncio.ensure_future(self._settle(bodies, size)))
        else:
            await self._settle(bodies, size)

    async def _settle(self, bodies: Sequence[tl.Body], size: int) -> None:
        """Align the streamed texts with the bodies, or without subscribers forget the texts; then record the bodies."""
        recorder = self.runtime.recorder
        if recorder.is_heard:
            resolve = partial(replies.resolve_texts, bodies, recorder.timeline.pool)
            self.texts.settle(await compute(resolve, characters=size))
        else:
            self.texts.clear()
        await recorder.record(*bodies)

    async def record_decision(
        self,
        reply: Reply,
        notes: str,
        *bodies: tl.Body,
        calls: int = 0,
        purpose: RoundPurpose = "decision",
        acknowledges: bool = True,
    ) -> None:
        """Record a reply as a decision with its thinking, notes and plan acknowledgements, then the bodies.

        `calls` is the number of its calls. With `acknowledges` False the plan is not changed.
        """
        acknowledgements = await self._acknowledgements(notes) if acknowledges else []
        model = self.context.model
        decision = decision_of(reply, model, self.runtime.quota, calls=calls, purpose=purpose)
        noted = [tl.Notes(text=notes)] if notes else []
        await self.record(decision, *thinking_bodies(reply), *noted, *acknowledgements, *bodies)

    async def record_malformed(
        self,
        reply: Reply,
        raw: str,
        problem: str,
        notes: str = "",
        *,
        purpose: RoundPurpose = "decision",
    ) -> None:
        """Record a reply that could not be read, its plan acknowledgements, and a notice with the problem.

        `raw` is the stored text; the text of an empty reply is `EMPTY_REPLY`.
        """
        acknowledgements = await self._acknowledgements(notes)
        raw = raw if raw.strip() else replies.EMPTY_REPLY
        model = self.context.model
        decision = decision_of(reply, model, self.runtime.quota, raw=raw, purpose=purpose)
        notice = tl.Notice(code="malformed_reply", text=problem)
        await self.record(decision, *thinking_bodies(reply), *acknowledgements, notice)

    async def record_cut_off(self, reply: Reply) -> None:
        """Record a reply that was cut off, and a notice that tells the model to continue it.

        Subscribers keep the streamed texts, except for the thinking, which is complete.
        """
        quota = self.runtime.quota
        decision = decision_of(reply, self.context.model, quota, raw=well_formed(reply.text))
        notice = tl.Notice(code="reply_cut_off", text=CONTINUE)
        thinking = thinking_bodies(reply)
        for block in thinking:
            self.texts.settle_thinking(block.text)
        await self.runtime.recorder.record(decision, *thinking, notice)

    async def remind(self, code: str, text: str) -> None:
        """Record a notice for the model if none with this code was recorded since the last decision."""
        recorder = self.runtime.recorder
        notices = notice_bodies(code, text)
        if notices and code not in recorder.turn.notice_codes:
            await recorder.record(*notices)

    async def end(self, answer: tl.Completion, *before: tl.Body) -> LoopEnd:
        """Record the bodies in `before` and the answer that ends the loop."""
        await self.record(*before, answer)
        return LoopEnd(answer.reason, answer.error)

    async def close(
        self,
        reply: Reply,
        answer: tl.Completion,
        notes: str,
        *notices: tl.Notice,
        purpose: RoundPurpose = "decision",
    ) -> LoopEnd:
        """Record a reply together with the answer that ends the loop, and return the end."""
        await self.record_decision(reply, notes, *notices, answer, purpose=purpose)
        return LoopEnd(answer.reason, answer.error)

    async def completion(
        self, text: str, flag: tl.AnswerFlag, reason: tl.ExitReason, error: str = ""
    ) -> tl.Completion:
        """Return the body of an answer of this turn; it is not recorded yet."""
        timeline = self.runtime.recorder.timeline
        output = self.runtime.output
        return await make_completion(
            timeline, text, flag=flag, reason=reason, error=error, output=output
        )

    async def fallback(
        self, reason: tl.ExitReason, error: str = "", *, style: FallbackStyle = "summary"
    ) -> tl.Completion:
        """Return the draft as the answer, or without a draft a fallback answer that lists the calls.

        The answer has the flag "draft" or the `style`. It is not recorded yet.
        """
        recorder = self.runtime.recorder
        if recorder.turn.draft is not None:
            return await self.completion(recorder.turn.draft.text, "draft", reason, error)
        text = render_fallback(recorder.turn, reason, error, style)
        return await make_completion(
            recorder.timeline, text, flag=style, reason=reason, error=error
        )

    async def _acknowledgements(self, notes: str) -> list[tl.Body]:
        """Return the bodies by which the marks in the notes change the steps of the current plan; empty if none changes."""
        recorder = self.runtime.recorder
        current = recorder.timeline.plans.current
        if current is None or not notes:
            return []
        moment = tl.Moment(self.runtime.clock.now(), tl.turn_id(recorder.number))
        acknowledge = partial(tl.plan.acknowledge, current, notes, moment)
        snapshot = await compute(acknowledge, characters=len(notes))
        if snapshot is None:
            return []
        changes: dict[str, tl.StepStatus] = {
            number: status
            for number, status in snapshot.step_status.items()
            if current.step_status.get(number) != status
        }
        return [tl.PlanAck(plan_id=current.plan_id, changes=changes), tl.Plan(snapshot=snapshot)]


NEW_INPUT = "the user has said more"
"""The reason of a draft that is held because the user has added input."""

MAX_REFUSALS = 3
"""How often a request that is too long is sent again: with a shorter reply, and the last time with less content."""


class ModelChain:
    """Requests decisions and answers from the models of a run, in their order, and decodes the replies."""

    def __init__(
        self,
        runtime: ToolRuntime,
        models: Sequence[Model],
        context: Context,
        texts: replies.ChannelTexts,
    ) -> None:
        self._runtime = runtime
        self._recorder = runtime.recorder
        self._models = models if runtime.options.chain == "next" else models[:1]
        self._context = context
        self._texts = texts
        self._reading: replies.ReplyFormat | None = None
        check_prices(runtime.options, context.list_models(self._models))

    async def request(self, purpose: RoundPurpose, *, traces: bool = False) -> Reply:
        """Return the reply of the first model that answers, beginning with the model that the turn uses now.

        With `traces` the request shows the trace of the turn and no tools. A model that fails or refuses is replaced
        by the next model, and the switch is recorded. A request that is too long is first shortened and sent again,
        at most `MAX_REFUSALS` times. The reply of the last model may be a refusal.

        Raises:
            RequestSkipped: the prompt of the turn was recalled, or the remaining budget is too small.
            ModelError: the last model failed, or a model rejected the request or the key.
        """
        context = self._context
        position = min(self._recorder.turn.model_index, len(self._models) - 1)
        refusals = 0
        while True:
            context.use(self._models[position])
            turn = self._recorder.turn
            is_needed = await context.begin(
                Iteration(
                    decisions=turn.rounds,
                    limit=decision_limit(turn, self._runtime.options) or 0,
                    purpose=purpose,
                    traces=traces,
                )
            )
            if purpose == "decision" and not is_needed:
                raise RequestSkipped("recalled")
            is_last = position + 1 == len(self._models)
            try:
                reply = await self._stream(purpose, traces=traces, has_fallback=not is_last)
            except OutOfBudget as error:
                raise RequestSkipped("budget") from error
            except ModelError as error:
                # A shorter request may fit the same model, so this comes before the next model.
                if isinstance(error, ModelOverflow) and refusals < MAX_REFUSALS:
                    drops_content = await context.overflow(error)
                    refusals = MAX_REFUSALS if drops_content else refusals + 1
                    continue
                # A person must correct the request or the key; another model would hide the mistake.
                if is_last or isinstance(error, ModelRequestError | ModelAccessError):
                    raise
                position, refusals = position + 1, 0
                await self._hand_over(position, "unavailable", str(error), Usage())
            else:
                if is_last or reply.stop_reason != "refusal":
                    return reply
                position, refusals = position + 1, 0
                await self._hand_over(position, "refusal", reply.text, reply.usage)

    async def read(self, reply: Reply, *, traces: bool = False) -> tuple[Reply, DecodedReply, str]:
        """Decode the reply of the last request: return it with its thinking, the decision, and the plan marks of the answer."""
        reading = self._reading or self._format(traces=traces)
        size = len(reading.before) + len(reply.text)
        if size < LONG_TEXT:  # most replies; a coroutine less per round
            return reading.read(reply)
        return await compute(partial(reading.read, reply))

    async def _hand_over(self, position: int, why: tl.SwitchCause, text: str, usage: Usage) -> None:
        """Retract the streamed texts, and record the switch to the model at `position`, its cause and the usage."""
        self._texts.retract()
        switched = tl.ModelSwitched(
            model=self._context.model.name,
            to=self._models[position].name,
            why=why,
            place=position,
            text=well_formed(text),
            usage=usage,
            cost=self._context.model.capabilities.cost(usage),
        )
        await self._recorder.record(switched)

    async def _stream(self, purpose: RoundPurpose, *, traces: bool, has_fallback: bool) -> Reply:
        """Request the reply, and send its pieces to subscribers as they arrive.

        Raises:
            OutOfBudget: the remaining budget is too small, or the time is over.
            ModelError: the prompt is too long, or the request failed.
        """
        prompt = self._context.make_prompt(purpose, longer=self._recorder.turn.cut_off)
        self._reading = reading = self._format(traces=traces)
        stream = replies.ReplyStream(self._texts, reading)
        retries = RetryPolicy(
            clock=self._runtime.clock,
            retries=self._runtime.options.model_retries,
            has_fallback=has_fallback,
            on_retry=stream.retry,
        )
        await stream.open(1)
        reply = await request_reply(self._context.metered, prompt, stream, retries)
        stream.close()
        return reply

    def _format(self, *, traces: bool) -> replies.ReplyFormat:
        """Return the format in which the reply is decoded; an answer from the trace does not continue an earlier reply."""
        timeline = self._recorder.timeline
        synthesizes = self._runtime.options.synthesizes
        current = timeline.plans.current
        return replies.ReplyFormat(
            protocol=protocol(NATIVE) if traces else self._context.protocol,
            pool=timeline.pool,
            in_prose=traces,
            steps=0 if current is None or (traces and synthesizes) else len(current.steps),
            before="" if traces else replies.cut_off_text(self._recorder.turn),
            is_draft=synthesizes and not traces,
            answer=self._context.answer(traces=traces),
        )


MAX_REPAIRS = 3
"""How often a malformed answer is requested again if `repairs` is None; such a request does not count as a round."""


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """Ends a turn with an answer, also when its rounds, time or budget are used up."""

    runtime: ToolRuntime
    context: Context
    chain: ModelChain
    journal: Journal
    interrupter: Interrupter

    async def from_tool(self) -> LoopEnd | None:
        """End the turn with the answer of a tool, and return its end; None if no tool has given an answer.

        If the user has added input that a later request can show, the answer is recorded as a draft, and None is
        returned.
        """
        recorder = self.runtime.recorder
        text = recorder.turn.tool_answer
        if text is None:
            return None
        await recorder.catch_up()
        if recorder.timeline.inputs_for(recorder.number) and self.runtime.asks_again:
            await self.journal.record(tl.Draft(text=text, reason=NEW_INPUT))
            return None
        return await self.journal.end(await self.journal.completion(text, "", "complete"))

    async def save_partial(self, reason: tl.ExitReason = "stopped") -> LoopEnd | None:
        """End the turn with the streamed text of an unfinished answer, flagged "partial", and return its end.

        Returns None if no text was streamed, or if the turn has an answer already.
        """
        text = well_formed("".join(self.journal.texts.written)).strip()
        if not text or self.runtime.recorder.turn.completion:
            return None
        return await self.journal.end(await self.journal.completion(text, "partial", reason))

    async def end_interrupted(self, interruption: Interrupted) -> LoopEnd | None:
        """End the turn with the streamed text of an answer that the deadline cut off, if the turn has no draft.

        Otherwise, and after a steer, the text is retracted and None is returned: the next step finds the cause in the log.
        """
        if interruption.cause == "deadline" and self.runtime.recorder.turn.draft is None:
            end = await self.save_partial("deadline")
            if end is not None:
                return end
        self.journal.texts.retract()
        return None

    async def accept(
        self, reply: Reply, notes: str, text: str, flag: tl.AnswerFlag
    ) -> LoopEnd | None:
        """End the turn with the answer of a decision.

        With `answer_mode` "synthesize" it is recorded as a draft, and the answer is requested separately. Then None is
        returned if a decision must follow because the user has added input, or if the request was interrupted.
        """
        if flag == "unparsed":
            text = replies.cut_off_text(self.runtime.recorder.turn) + text
        if not self.runtime.options.synthesizes:
            completion = await self.journal.completion(text, flag, "complete")
            return await self.journal.close(reply, completion, notes)
        await self.journal.record_decision(reply, notes, tl.Draft(text=text, reason="synthesis"))
        recorder = self.runtime.recorder
        await recorder.catch_up()
        if recorder.timeline.inputs_for(recorder.number) and not self.runtime.state.exhausted:
            return None
        return await self._synthesize("complete")

    async def end_exhausted(self, reason: tl.ExitReason) -> LoopEnd | None:
        """End the turn because its rounds, time or budget are used up, with an answer as `on_exhausted` chooses.

        An answer is requested with "force", or with `answer_mode` "synthesize", but not after the deadline and not
        without the budget for it. Otherwise the draft or a fallback answer is recorded. Returns None if the request
        was interrupted before any text to record.
        """
        may_ask = reason in ("max_iterations", "stagnation") or (
            reason == "budget" and self.context.can_afford_answer
        )
        if may_ask and self.runtime.options.synthesizes:
            return await self._synthesize(reason)
        if may_ask and self.runtime.options.on_exhausted == "force":
            return await self._force(reason)
        return await self._collect(reason)

    async def end_refused(self, reply: Reply, *, purpose: RoundPurpose = "decision") -> LoopEnd:
        """End the turn with the model's refusal."""
        text = well_formed(reply.text).strip() or "The model refused to answer."
        completion = await self.journal.completion(text, "", "refused")
        return await self.journal.close(reply, completion, "", purpose=purpose)

    async def end_without_model(self, error: ModelError) -> LoopEnd:
        """End the turn with a fallback answer, because no model answers."""
        text = well_formed(str(error))
        notice = tl.Notice(code="model_error", text=text)
        return await self.journal.end(await self.journal.fallback("error", text), notice)

    async def _synthesize(self, reason: tl.ExitReason) -> LoopEnd | None:
        """Request the answer separately, and again while it does not fit its type, `repairs` or `MAX_REPAIRS` times.

        After that the turn ends with a fallback answer. Returns None if the request was interrupted before any text
        to record.
        """
        repairs = self.runtime.options.repairs
        attempts_left = MAX_REPAIRS if repairs is None else repairs
        outcome = await self._write(reason)
        while isinstance(outcome, Malformed) and attempts_left:
            attempts_left -= 1
            outcome = await self._write(reason)
        if isinstance(outcome, Malformed):
            return await self.end_without_model(ModelError(outcome.problem))
        return outcome

    async def _write(self, reason: tl.ExitReason) -> LoopEnd | Malformed | None:
        """Request an answer with the trace of the turn, record it and return the end.

        A malformed answer is recorded and returned. If the request fails, is refused or gives an empty text, the
        draft or a fallback answer is used, or the refusal without a draft. Returns None if it was interrupted before
        any text to record.
        """
        try:
            reply = await self.interrupter.run(partial(self.chain.request, "answer", traces=True))
        except RequestSkipped:
            return await self._collect("budget")
        except ModelError as error:
            if self.runtime.recorder.turn.draft is None:
                return await self.end_without_model(error)
            notice = tl.Notice(code="model_error", text=well_formed(str(error)))
            return await self.journal.end(await self.journal.fallback(reason), notice)
        except Interrupted as interruption:
            return await self.end_interrupted(interruption)
        draft = self.runtime.recorder.turn.draft
        is_refusal = reply.stop_reason == "refusal"
        if is_refusal and draft is None:
            return await self.end_refused(reply, purpose="answer")
        text = well_formed(reply.text).strip() or (draft.text if draft else "")
        if is_refusal or not text:
            completion = await self.journal.fallback(reason)
            return await self.journal.close(reply, completion, "", purpose="answer")
        typed = self.context.answer(traces=True)
        answer = typed.read_text(text) if typed else Answer("", text)
        if isinstance(answer, Malformed):
            await self.journal.record_malformed(reply, text, answer.problem, purpose="answer")
            return answer
        completion = await self.journal.completion(answer.text, "", reason)
        reply = structs.replace(reply, discarded=answer.discarded)
        return await self.journal.close(reply, completion, "", purpose="answer")

    async def _force(self, reason: tl.ExitReason) -> LoopEnd | None:
        """Request an answer without calls, and end the turn with it, or with its refusal.

        If the request fails or the reply is empty, the turn ends with a draft or a fallback answer.

        With the reason "budget" the request shows only the trace of the turn. Returns None if it was interrupted
        before any text to record.
        """
        traces = reason == "budget"  # the trace can be cut to the remaining budget
        request = partial(self.chain.request, "answer", traces=traces)
        try:
            reply = await self.interrupter.run(request, steerable=reason != "budget")
        except RequestSkipped:
            return await (self._collect("budget") if traces else self.end_exhausted("budget"))
        except ModelError as error:
            return await self.end_without_model(error)
        except Interrupted as interruption:
            return await self.end_interrupted(interruption)
        if reply.stop_reason == "refusal":
            return await self.end_refused(reply, purpose="answer")
        reply, decided, marks = await self.chain.read(reply, traces=traces)
        text = replies.decision_text(decided)
        if not text.strip() or (marks and isinstance(decided, Malformed)):
            completion = await self.journal.fallback(reason)
        else:
            completion = await self.journal.completion(text, "forced", reason)
        return await self.journal.close(reply, completion, marks, purpose="answer")

    async def _collect(self, reason: tl.ExitReason) -> LoopEnd:
        """End the turn with the draft, or with a fallback answer that lists the calls."""
        style: FallbackStyle = (
            "partial" if self.runtime.options.on_exhausted == "partial" else "summary"
        )
        return await self.journal.end(await self.journal.fallback(reason, style=style))
