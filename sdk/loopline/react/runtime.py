"""The loop: prepare, decide, route, act, until there is an answer.

Every step is in the log before the next begins, so a turn that was cut off is carried on by running
the same loop over what the log holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Generic

from typing_extensions import TypeVar

from loopline.errors import ModelAccessError, ModelError, ModelOverflow, ModelRequestError
from loopline.models import (
    Model,
    Prompt,
    Reply,
    ToolCall,
    Usage,
    well_formed,
)
from loopline.prompt import Answer, Calls, DecodedReply, Malformed, protocol
from loopline.react.context import Context, Iteration, RoundPurpose
from loopline.react.executor import ToolExecutor
from loopline.react.extensions import Extensions, Reminder, RoundHook, Stop
from loopline.react.interrupter import InterruptCause, Interrupted, Interrupter
from loopline.react.journal import (
    EMPTY_REPLY,
    FallbackStyle,
    LoopEnd,
    cut_off_text,
    make_completion,
    make_fallback,
    notice_bodies,
    plan_acknowledgements,
    recorded_end,
    thinking_bodies,
)
from loopline.react.middleware import wrap
from loopline.react.model_requests import RequestSkipped, RetryPolicy, request_reply
from loopline.react.quota import OutOfBudget, check_prices
from loopline.react.replies import (
    ChannelTexts,
    ReplyFormat,
    ReplyReader,
    ReplyStream,
    decision_text,
    join_notes,
)
from loopline.react.round_hooks import configured_hooks
from loopline.react.router import (
    NEW_INPUT,
    Accept,
    Act,
    Continue,
    End,
    Held,
    Refused,
    Repair,
    Table,
    Unusable,
    route,
)
from loopline.react.state import ReactStateV2 as ReactStateV2
from loopline.react.tool_runtime import ToolRuntime
from loopline.react.turn import TurnPayload, result
from loopline.timeline import (
    AnswerFlag,
    Body,
    Completion,
    Draft,
    ExitReason,
    ModelSwitched,
    Moment,
    Notes,
    Notice,
    SwitchCause,
    ToolCalled,
    TurnResult,
    UserSteer,
)
from loopline.timeline.tasks import finish, is_long

T_co = TypeVar("T_co", covariant=True, default=None)

MAX_REPAIRS = 3
"""So often an answer is written anew where repairs have no limit but that of rounds, which it is none of."""
CONTINUE = "Your reply was cut off by the limit of its length. Write on exactly where it ended."

GivenUp = tuple[SwitchCause, str, Usage]
"""Why a model gave no answer, what it or its error said, and what the attempt used."""


class React(Generic[T_co]):
    """A loop that is wired and ready: what `build_react` returns."""

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        models: Sequence[Model],
        context: Context,
        extensions: Extensions | None = None,
    ) -> None:
        self._recorder = runtime.recorder
        self._clock = runtime.clock
        self._options = options = runtime.options
        self._models = models if options.chain == "next" else models[:1]
        self._context = context
        self._interrupter = Interrupter(self._recorder, self._clock, self._cut)
        self._executor = ToolExecutor(runtime, context, self._interrupter)
        self._texts = ChannelTexts(runtime.listen)
        self._extensions = extensions or Extensions()
        self._round_hooks: Sequence[RoundHook] = (
            *configured_hooks(options),
            *self._extensions.round_hooks,
        )
        check_prices(options, context.priced(self._models))
        self._result: TurnResult[T_co] | None = None

    @property
    def state(self) -> ReactStateV2:
        """Where the turn stands."""
        recorder = self._recorder
        return ReactStateV2.fold(recorder.turn, self._options, recorder.elapsed_seconds)

    async def run(self, payload: TurnPayload) -> TurnResult[T_co]:
        """Carry the turn on until it has an answer, or waits for the user.

        Raises:
            LeaseLost: another runner has taken the conversation over.
        """
        run = wrap(self._run, self._extensions.middleware)
        async with self._interrupter.watch(self._options.deadline_seconds):
            try:
                return await self._interrupter.run(lambda: run(payload), steerable=False)
            except Interrupted:  # what stands about the run took too long
                return self._result or await self._run(payload)
            except asyncio.CancelledError:
                await self._keep_answer()
                raise

    async def _run(self, payload: TurnPayload) -> TurnResult[T_co]:
        del payload  # the log holds what the user said, as it is rendered
        recorder = self._recorder
        recorder.round = recorder.turn.rounds
        with self._interrupter.shielded():
            await self._context.open_quota()
            await self._executor.settle()
            recorder.answers += 1
            ended = self._paused() or recorded_end(recorder.turn, recorder.answers)
            if ended is None and recorder.turn.tool_answer is None:
                await self._select_tools()
            while ended is None:
                ended = await self._given() or await self._step()
        recorder.round = 0
        output = self._context.output
        self._result = result(recorder.timeline, recorder.number, ended.reason, ended.error, output)
        return self._result

    async def _keep_answer(self) -> None:
        """Let what was written of an answer be the answer of a turn that is stopped."""
        text = well_formed("".join(self._texts.written)).strip()
        if text and not self._recorder.turn.completion:
            await self._record(await self._completion(text, "partial", "stopped"))

    async def _select_tools(self) -> None:
        with suppress(Interrupted):
            await self._interrupter.run(self._context.select_tools, steerable=False)

    def _cut(self, why: InterruptCause) -> None:
        """Cut off the calls that run; for a steer only where a request can still show it."""
        if why == "deadline" or self._asks_again:
            self._executor.interrupt(why)

    @property
    def _asks_again(self) -> bool:
        """Whether a request is to come that can show what the user says now."""
        forces = self._options.on_exhausted == "force" or self._options.synthesizes
        return forces or not self.state.exhausted

    def _paused(self) -> LoopEnd | None:
        turn = self._recorder.turn
        return LoopEnd("paused") if any(one not in turn.answers for one in turn.pending) else None

    async def _given(self) -> LoopEnd | None:
        recorder, text = self._recorder, self._recorder.turn.tool_answer
        if text is None:
            return None
        await recorder.catch_up()
        if recorder.timeline.inputs_for(recorder.number) and self._asks_again:
            await self._record(Draft(text=text, reason=NEW_INPUT))
            return None
        body = await self._completion(text, "", "complete")
        await self._record(body)
        return LoopEnd(body.reason)

    async def _step(self) -> LoopEnd | None:
        state = self.state
        if self._interrupter.is_late:
            return await self._exhausted("deadline")
        if state.exhausted:
            return await self._exhausted("max_iterations")
        stop = await self._apply_round_hooks(state)
        if stop is not None:
            return await self._exhausted(stop.reason)
        try:
            reply = await self._interrupter.run(partial(self._replied, "decision"))
        except RequestSkipped as skipped:
            if skipped.reason == "budget":
                return await self._exhausted("budget")
            return LoopEnd("stopped", "what the turn was to answer was recalled")
        except ModelError as error:
            return await self._without_model(error)
        except Interrupted:  # the next step sees why
            self._texts.retract()
            return None
        return await self._route(state, reply)

    async def _apply_round_hooks(self, state: ReactStateV2) -> Stop | None:
        """Give the model the reminders of the round hooks; return the stop that ends the turn, if any."""
        for hook in self._round_hooks:
            match hook(state):
                case Stop(reason=reason, text=text) as stop:
                    await self._tell(reason, text)
                    return stop
                case Reminder(code=code, text=text):
                    await self._tell(code, text)
                case _:
                    pass
        return None

    async def _tell(self, code: str, text: str) -> None:
        told = notice_bodies(code, text)
        if told and code not in self._recorder.turn.notice_codes:
            await self._recorder.record(*told)

    async def _route(self, state: ReactStateV2, reply: Reply) -> LoopEnd | None:
        recorder = self._recorder
        written = reply
        reply, decided, marks = await self._read(reply)
        if not isinstance(decided, Calls):  # an answer hears first what was said meanwhile
            await recorder.catch_up()
        waiting = bool(recorder.timeline.inputs_for(recorder.number))
        table = Table(
            state=state, waiting=waiting, options=self._options, round_hooks=self._round_hooks
        )
        match route(reply, decided, table):
            case Refused():
                return await self._refused(reply)
            case Act(notes=notes, calls=calls):
                return await self._act(reply, notes, calls)
            case Repair(raw=raw, problem=problem, notes=notes):
                await self._record_malformed(reply, raw, problem, join_notes(notes, marks))
            case Unusable(raw=raw, problem=problem, error=error):
                await self._record_malformed(reply, raw, problem, marks)
                return await self._without_model(ModelError(error))
            case Continue():
                await self._record_cut(written)
            case Held(notes=notes, text=text, reason=reason, reminder=say):
                told = notice_bodies(say.code, say.text) if say else []
                await self._hold(
                    reply, join_notes(notes, marks), Draft(text=text, reason=reason), told
                )
            case Accept(notes=notes, text=text, flag=flag):
                return await self._accept(reply, join_notes(notes, marks), text, flag)
            case End(notes=notes, text=text, stop=stop):
                body = await self._completion(text, "", stop.reason)
                told = notice_bodies(stop.reason, stop.text)
                return await self._close(reply, body, join_notes(notes, marks), told=told)
        return None

    async def _read(self, reply: Reply, *, traces: bool = False) -> tuple[Reply, DecodedReply, str]:
        """Read a reply: with its thinking, what it decides, and the marks that led its answer."""
        current = self._recorder.timeline.plans.current
        reading = ReplyReader(
            protocol=None if traces else self._context.protocol,
            before=cut_off_text(self._recorder.turn),
            steps=len(current.steps) if current else 0,
            answer=self._context.answer(traces=traces),
        )
        return await reading.read(reply)

    async def _replied(self, purpose: RoundPurpose, *, traces: bool = False) -> Reply:
        """The reply of the first model of the chain that gives one.

        Raises:
            RequestSkipped: there is nothing to decide, or too little left to ask.
            ModelError: no model of the chain can be asked.
        """
        place, shrunk = min(self._recorder.turn.model_index, len(self._models) - 1), False
        while True:
            self._context.use(self._models[place])
            state = self.state
            limit = state.max_iterations or 0
            iteration = Iteration(
                decisions=state.iteration, limit=limit, purpose=purpose, traces=traces
            )
            is_wanted = await self._context.begin(iteration)
            if purpose == "decision" and not is_wanted:
                raise RequestSkipped("recalled")
            is_last = place + 1 == len(self._models)
            try:
                reply = await self._ask(purpose, traces=traces, falls_back=not is_last)
            except OutOfBudget as error:
                raise RequestSkipped("budget") from error
            except ModelError as error:
                if isinstance(error, ModelOverflow) and not shrunk:
                    await self._context.overflow(error)
                    shrunk = True
                    continue
                if is_last or isinstance(error, ModelRequestError | ModelAccessError):
                    raise
                given_up: GivenUp = ("unavailable", str(error), Usage())
            else:
                if is_last or reply.stop_reason != "refusal":
                    return reply
                given_up = ("refusal", reply.text, reply.usage)
            place, shrunk = place + 1, False
            await self._hand_over(place, *given_up)

    async def _hand_over(self, place: int, why: SwitchCause, said: str, usage: Usage) -> None:
        self._texts.retract()
        switched = ModelSwitched(
            model=self._context.model.name,
            to=self._models[place].name,
            why=why,
            place=place,
            text=well_formed(said),
            usage=usage,
            cost=self._context.cost(usage),
        )
        await self._recorder.record(switched)

    async def _ask(self, purpose: RoundPurpose, *, traces: bool, falls_back: bool) -> Reply:
        prompt = self._context.prompt(purpose, longer=self.state.cut_off)
        hear = ReplyStream(self._texts, self._reading(prompt, traces=traces))
        patience = RetryPolicy(
            clock=self._clock,
            retries=self._options.model_retries,
            has_fallback=falls_back,
            on_retry=hear.retry,
        )
        await hear.begin()
        reply = await request_reply(self._context.metered, prompt, hear, patience)
        hear.close()
        return reply

    def _reading(self, prompt: Prompt, *, traces: bool) -> ReplyFormat:
        """How the reply is read; an answer from the trace goes on with nothing that was cut off."""
        timeline, synthesizes = self._recorder.timeline, self._options.synthesizes
        current = None if traces and synthesizes else timeline.plans.current
        return ReplyFormat(
            protocol=protocol(prompt.options.protocol, values=self._context.output is not None),
            pool=timeline.pool,
            steps=len(current.steps) if current else 0,
            before="" if traces else cut_off_text(self._recorder.turn),
            is_draft=synthesizes and not traces,
            answer=self._context.answer(traces=traces),
        )

    async def _record(self, *bodies: Body) -> None:
        """Record what came of a reply, once listeners have it like this.

        A cancellation that arrives meanwhile is raised once it is recorded.
        """
        if any(isinstance(body, Completion) and is_long(body.text) for body in bodies):
            await finish(asyncio.ensure_future(self._settle(bodies)))
        else:
            await self._settle(bodies)

    async def _settle(self, bodies: Sequence[Body]) -> None:
        await self._texts.settle(bodies, self._recorder.timeline.pool)
        await self._recorder.record(*bodies)

    async def _act(self, reply: Reply, notes: str, calls: tuple[ToolCall, ...]) -> LoopEnd | None:
        recorder = self._recorder
        first = recorder.timeline.calls + 1
        numbered = [
            ToolCalled(
                call_id=f"c{number}",
                tool=call.name,
                arguments=call.arguments,
                provider_id=call.provider_id,
            )
            for number, call in enumerate(calls, start=first)
        ]
        plans = any(call.name == "react.plan" for call in calls)
        acks = [] if plans else await self._acks(notes)
        await self._record(*self._decided(reply, notes, len(calls)), *acks, *numbered)
        why = self._why_not()
        if why is None:
            await self._executor.run_calls(numbered)
        else:
            await self._executor.skip(numbered, why)
        return self._paused()

    def _why_not(self) -> InterruptCause | None:
        """Why no call is begun: there is nothing left for it, or the user has just steered elsewhere."""
        recorder, most, dear = self._recorder, self._options.max_tokens, self._options.max_cost
        used, cost = recorder.turn.usage, recorder.turn.cost or 0.0
        if most is not None and used.input_tokens + used.output_tokens > most:
            return "budget"
        if dear is not None and cost > dear:
            return "budget"
        said = recorder.timeline.inputs_for(recorder.number)
        steered = any(isinstance(one.body, UserSteer) for one in said)
        return "steer" if steered and self._asks_again else None

    async def _hold(self, reply: Reply, notes: str, draft: Draft, told: list[Notice]) -> None:
        acks = await self._acks(notes)
        await self._record(*self._decided(reply, notes, 0), *acks, draft, *told)

    async def _accept(
        self,
        reply: Reply,
        notes: str,
        text: str,
        flag: AnswerFlag,
    ) -> LoopEnd | None:
        if flag == "unparsed":
            text = cut_off_text(self._recorder.turn) + text
        if not self._options.synthesizes:
            return await self._close(reply, await self._completion(text, flag, "complete"), notes)
        await self._hold(reply, notes, Draft(text=text, reason="synthesis"), [])
        return await self._synthesized("complete")

    async def _synthesized(self, reason: ExitReason) -> LoopEnd | None:
        """The answer, written by a request of its own; one that is no value of its type is repaired."""
        repairs = self._options.repairs
        left = MAX_REPAIRS if repairs is None else repairs
        written = await self._write_answer(reason)
        while isinstance(written, Malformed) and left:
            left -= 1
            written = await self._write_answer(reason)
        if isinstance(written, Malformed):
            return await self._without_model(ModelError(written.problem))
        return written

    async def _write_answer(self, reason: ExitReason) -> LoopEnd | Malformed | None:
        recorder = self._recorder
        try:
            reply = await self._interrupter.run(partial(self._replied, "answer", traces=True))
        except RequestSkipped:
            return await self._drafted("budget") or await self._collected("budget")
        except ModelError as error:
            told = Notice(code="model_error", text=well_formed(str(error)))
            return await self._drafted(reason, told) or await self._without_model(error)
        except Interrupted:
            self._texts.retract()
            return None
        if reply.stop_reason == "refusal":
            decided = self._decided(reply, "", 0, answer=True)
            return await self._drafted(reason, *decided) or await self._refused(reply, answer=True)
        text = well_formed(reply.text).strip()
        if not text:
            brief = recorder.turn.draft
            text = brief.text if brief else ""
        if not text:
            return await self._close(reply, await self._fallback(reason), "", answer=True)
        typed = self._context.answer(traces=True)
        written = typed.read_text(text) if typed else Answer("", text)
        if isinstance(written, Malformed):
            decision = replace(self._context.decision(reply, raw=text), purpose="answer")
            told = Notice(code="malformed_reply", text=written.problem)
            await self._record(decision, *thinking_bodies(reply), told)
            return written
        reply, text = replace(reply, discarded=written.discarded), written.text
        return await self._close(reply, await self._completion(text, "", reason), "", answer=True)

    async def _drafted(self, reason: ExitReason, *before: Body) -> LoopEnd | None:
        draft = self._recorder.turn.draft
        if draft is None:
            return None
        body = await self._completion(draft.text, "draft", reason)
        await self._record(*before, body)
        return LoopEnd(body.reason, body.error)

    async def _completion(self, text: str, flag: AnswerFlag, reason: ExitReason) -> Completion:
        output = self._context.output
        return await make_completion(
            self._recorder.timeline, text, flag=flag, reason=reason, output=output
        )

    async def _fallback(
        self, reason: ExitReason, error: str = "", *, way: FallbackStyle = "summary"
    ) -> Completion:
        recorder, output = self._recorder, self._context.output
        return await make_fallback(
            recorder.timeline, recorder.turn, reason, error, way=way, output=output
        )

    async def _close(
        self,
        reply: Reply,
        body: Completion,
        notes: str,
        *,
        answer: bool = False,
        told: Sequence[Notice] = (),
    ) -> LoopEnd:
        acks = await self._acks(notes)
        decided = self._decided(reply, notes, 0, answer=answer)
        await self._record(*decided, *acks, *told, body)
        return LoopEnd(body.reason, body.error)

    async def _record_malformed(
        self, reply: Reply, raw: str, problem: str, notes: str = ""
    ) -> None:
        acks = await self._acks(notes)
        decision = self._context.decision(reply, raw=raw if raw.strip() else EMPTY_REPLY)
        notice = Notice(code="malformed_reply", text=problem)
        await self._record(decision, *thinking_bodies(reply), *acks, notice)

    async def _record_cut(self, reply: Reply) -> None:
        decision = self._context.decision(reply, raw=well_formed(reply.text))
        told = Notice(code="reply_cut_off", text=CONTINUE)
        bodies: list[Body] = [decision, *thinking_bodies(reply), told]
        await self._texts.settle_partial(bodies, self._recorder.timeline.pool)
        await self._recorder.record(*bodies)

    def _decided(self, reply: Reply, notes: str, calls: int, *, answer: bool = False) -> list[Body]:
        decision = self._context.decision(reply, calls=calls)
        if answer:
            decision = replace(decision, purpose="answer")
        return [decision, *thinking_bodies(reply), *([Notes(text=notes)] if notes else [])]

    async def _acks(self, notes: str) -> list[Body]:
        recorder = self._recorder
        moment = Moment(self._clock.now(), f"turn_{recorder.number}")
        return await plan_acknowledgements(recorder.timeline, notes, moment)

    async def _exhausted(self, reason: ExitReason) -> LoopEnd | None:
        may_ask = reason in ("max_iterations", "stagnation") or (
            reason == "budget" and self._context.can_afford_answer
        )
        if may_ask and self._options.synthesizes:
            return await self._synthesized(reason)
        if may_ask and self._options.on_exhausted == "force":
            return await self._forced(reason)
        return await self._collected(reason)

    async def _collected(self, reason: ExitReason) -> LoopEnd:
        way = self._options.on_exhausted
        body = await self._fallback(reason, way="partial" if way == "partial" else "summary")
        await self._record(body)
        return LoopEnd(body.reason, body.error)

    async def _forced(self, reason: ExitReason) -> LoopEnd | None:
        """An answer that is asked for without calls, else what there is."""
        traces = reason == "budget"  # what the trace costs can be chosen
        try:
            ask = partial(self._replied, "answer", traces=traces)
            reply = await self._interrupter.run(ask, steerable=reason != "budget")
        except RequestSkipped:
            return await (self._collected("budget") if traces else self._exhausted("budget"))
        except ModelError as error:
            return await self._without_model(error)
        except Interrupted:  # the next step sees why, and asks anew where there is time
            self._texts.retract()
            return None
        if reply.stop_reason == "refusal":
            return await self._refused(reply, answer=True)
        reply, decided, marks = await self._read(reply, traces=traces)
        answer = decision_text(decided)
        if not answer.strip() or (marks and isinstance(decided, Malformed)):
            return await self._close(reply, await self._fallback(reason), marks, answer=True)
        body = await self._completion(answer, "forced", reason)
        return await self._close(reply, body, marks, answer=True)

    async def _refused(self, reply: Reply, *, answer: bool = False) -> LoopEnd:
        text = well_formed(reply.text).strip() or "The model refused to answer."
        return await self._close(
            reply, await self._completion(text, "", "refused"), "", answer=answer
        )

    async def _without_model(self, error: ModelError) -> LoopEnd:
        said = well_formed(str(error))
        notice = Notice(code="model_error", text=said)
        await self._record(notice, await self._fallback("error", said))
        return LoopEnd("error", said)
