"""The loop: prepare, decide, route, act, until there is an answer.

Every step is recorded before the next begins, so an interrupted turn is resumed by running the same loop over its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic

from msgspec import Struct, structs
from typing_extensions import TypeVar

from loopline.errors import ModelError
from loopline.models import Model, Reply, ToolCall
from loopline.prompt import Answer, Calls, DecodedReply, Malformed
from loopline.react.answers import (
    NEW_INPUT,
    AnswerWriter,
    Journal,
    LoopEnd,
    ModelChain,
    find_end,
    notice_bodies,
)
from loopline.react.context import Context
from loopline.react.executor import ToolExecutor
from loopline.react.extensions import (
    CHECKLIST,
    Extensions,
    Hold,
    Reminder,
    RoundHook,
    Stop,
    completion_check,
    cycle_warning,
    failure_reflection,
    self_check,
    stagnation,
    wrap,
)
from loopline.react.interrupter import InterruptCause, Interrupted, Interrupter
from loopline.react.loop_options import LoopOptions
from loopline.react.model_requests import RequestSkipped
from loopline.react.replies import ChannelTexts, join_notes
from loopline.react.state import ReactStateV2 as ReactStateV2
from loopline.react.state import TurnPayload, result
from loopline.react.tool_runtime import ToolRuntime
from loopline.timeline import AnswerFlag, Draft, ToolCalled, TurnResult, UserSteer
from loopline.timeline.codec import MAX_DEPTH, is_too_deep

T_co = TypeVar("T_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True)
class Refused:
    """The model refuses to answer."""


@dataclass(frozen=True, slots=True)
class Continue:
    """The reply was cut off by its output limit; the model must continue it with a higher limit."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The reply cannot be read, so the model must write it again."""

    raw: str
    problem: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """The reply is malformed and may not be written again; `error` is the message for the user."""

    raw: str
    problem: str
    error: str


class Act(Struct, frozen=True):
    """The calls must run."""

    notes: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The answer is not accepted yet and becomes a draft; `reminder` is the message for the model, if any."""

    notes: str
    text: str
    reason: str
    reminder: Hold | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer is accepted as the answer of the turn."""

    notes: str
    text: str
    flag: AnswerFlag = ""


@dataclass(frozen=True, slots=True)
class End:
    """A round hook ends the turn with this answer."""

    notes: str
    text: str
    stop: Stop


Route = Refused | Continue | Repair | Unusable | Act | Held | Accept | End


class Table(Struct, frozen=True, kw_only=True):
    """The input of `route` besides the reply; `waiting` is True if user input is pending."""

    state: ReactStateV2
    waiting: bool
    options: LoopOptions
    round_hooks: Sequence[RoundHook] = ()


def route(reply: Reply, decided: DecodedReply, table: Table) -> Route:
    """Choose the next step for a decoded reply; the first matching case decides."""
    state = table.state
    if reply.stop_reason == "refusal":
        return Refused()
    match decided:
        case Calls(notes=notes, calls=calls):
            return _route_calls(notes, calls, table)
        case Answer() | Malformed() if _is_cut_off(reply, table) and reply.text.strip():
            return Continue()
        case Malformed(raw=raw, problem=problem) if _may_repair(table):
            return Repair(raw, problem)
        case Malformed(raw=raw, is_text=True) if raw.strip():
            return Accept("", raw, "unparsed")
        case Malformed(raw=raw, problem=problem):
            return _unusable(raw, problem, table)
        case Answer(notes=notes, text=text):
            return _route_answer(
                notes,
                text,
                reply,
                structs.replace(table, state=structs.replace(state, answer=text)),
            )


def _route_calls(notes: str, calls: tuple[ToolCall, ...], table: Table) -> Route:
    """Run the calls, or none of them if the reply must be repaired or is unusable.

    It is if it has more than `max_calls_per_reply` calls, or arguments that are nested too deeply to be stored.
    """
    limit = table.options.max_calls_per_reply
    if len(calls) > limit:
        problem = (
            f"The reply made {len(calls)} calls and none was run: a reply may make {limit} at most "
            "(max_calls_per_reply). Make fewer calls, and the rest after their results."
        )
    elif deep := [call.name for call in calls if is_too_deep(call.arguments)]:
        problem = (
            f"The arguments of {deep[0]} are nested too deeply, and none of the calls was run: a value may have "
            f"{MAX_DEPTH - 1} levels at most. Call again with flatter arguments."
        )
    else:
        return Act(notes, calls)
    raw = f"{notes}\n({len(calls)} calls)".strip()
    return Repair(raw, problem) if _may_repair(table) else _unusable(raw, problem, table)


def _unusable(raw: str, problem: str, table: Table) -> Route:
    """Return `Unusable` for a malformed reply that may not be repaired; in the last round `Repair`."""
    if table.state.last:  # the turn ends after this round in any case, with a fallback
        return Repair(raw, problem)
    replies = table.state.malformed + 1
    error = f"none of {replies} replies in a row could be used; of the last one: {problem}"
    return Unusable(raw, problem, error)


def _route_answer(notes: str, text: str, reply: Reply, table: Table) -> Route:
    """Accept an answer if neither pending input, `min_rounds` nor a round hook holds it; the last answer is not held.

    A hook that stops the turn ends it with this answer. An answer that was cut off by its limit has the flag "cut".
    """
    state = table.state
    if table.waiting and not state.last:
        return Held(notes, text, NEW_INPUT)
    if not state.last and state.iteration + 1 < state.min_rounds:
        message = (
            f"Your answer is kept as a draft: this was round {state.iteration + 1} of at least "
            f"{state.min_rounds}. Check it or look further, then answer again; the last answer counts."
        )
        reason = f"there are to be {state.min_rounds} rounds"
        return Held(notes, text, reason, Hold("answer_held", message))
    for hook in table.round_hooks:
        match hook(state):
            case Hold() as hold if not state.last:
                return Held(notes, text, hold.code, hold)
            case Stop() as stop:
                return End(notes, text, stop)
            case Hold() | Reminder() | None:
                pass
    return Accept(notes, text, "cut" if reply.stop_reason == "length" else "")


def _is_cut_off(reply: Reply, table: Table) -> bool:
    may_continue = table.state.cut_off < table.options.output_escalations and not table.state.last
    return reply.stop_reason == "length" and may_continue


def _may_repair(table: Table) -> bool:
    repairs = table.options.repairs
    may_repair = repairs is None or table.state.malformed < repairs
    return may_repair and not table.state.last


def make_hooks(options: LoopOptions) -> Iterator[RoundHook]:
    """Yield the hooks that the options switch on, in the order in which they are called."""
    if options.stagnation_rounds:
        yield stagnation(options.stagnation_rounds)
    if options.cycle_warning_rounds:
        yield cycle_warning(options.cycle_warning_rounds)
    if options.failure_reflection:
        yield failure_reflection()
    if options.self_check_rounds:
        yield self_check(options.self_check_rounds)
    if options.completion_check:
        yield completion_check(CHECKLIST)


class React(Generic[T_co]):
    """A loop that is ready to run, as `build_react` returns it.

    `successor` returns the loop of the agent that leads the conversation now, or None if this loop still leads.
    """

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        models: Sequence[Model],
        context: Context,
        extensions: Extensions,
        successor: Callable[[], Awaitable[React[T_co] | None]] | None,
    ) -> None:
        self._runtime = runtime
        self._successor = successor
        self._recorder = runtime.recorder
        self._options = runtime.options
        self._context = context
        self._interrupter = Interrupter(runtime.recorder, runtime.clock)
        self._executor = ToolExecutor(runtime, context, self._interrupter)
        texts = ChannelTexts(runtime.listen)
        self._chain = ModelChain(runtime, models, context, texts)
        self._journal = Journal(runtime, context, texts)
        self._answers = AnswerWriter(
            runtime, context, self._chain, self._journal, self._interrupter
        )
        self._middleware = extensions.middleware
        self._round_hooks: Sequence[RoundHook] = (
            *make_hooks(runtime.options),
            *extensions.round_hooks,
        )
        self._result: TurnResult[T_co] | None = None

    @property
    def state(self) -> ReactStateV2:
        """The state of the turn, folded from its blocks."""
        return self._runtime.state

    @property
    def runtime(self) -> ToolRuntime:
        """The environment of the loop, in which the workflow runs agents, too."""
        return self._runtime

    async def run(self, payload: TurnPayload) -> TurnResult[T_co]:
        """Run or resume the turn until it has an answer or waits for the user.

        When it is cancelled, the text of an answer that was being written is recorded as a partial answer.

        Raises:
            LeaseLost: another runner has taken the conversation over.
        """
        deadline = self._options.deadline_seconds
        async with self._interrupter.watch(deadline, self._interrupt_calls):
            try:
                if not self._middleware:
                    return await self._run(payload)
                run = wrap(self._run, self._middleware)
                return await self._interrupter.run(partial(run, payload), steerable=False)
            except Interrupted:  # the middleware took too long
                return self._result or await self._run(payload)
            except asyncio.CancelledError:
                await self._answers.save_partial()
                raise

    async def _run(self, payload: TurnPayload) -> TurnResult[T_co]:
        """Settle open calls, and make decisions until there is an answer or a pause; return the result.

        If another agent leads from then on, its loop runs the rest of the turn. The payload is only passed on to that
        loop.
        """
        recorder = self._recorder  # the input of the user is in its log, so the payload is not read
        recorder.round = recorder.turn.rounds
        with self._interrupter.shield():
            await self._context.open_quota()
            await self._executor.settle()
            recorder.answers += 1
            end = await self._pause() or find_end(recorder.turn, recorder.answers)
            if end is None and recorder.turn.tool_answer is None:
                with suppress(Interrupted):
                    # A steer does not interrupt it, since its request would not show the steer.
                    await self._interrupter.run(self._context.select_tools, steerable=False)
            while end is None:
                end = await self._answers.from_tool() or await self._step()
                successor = None if self._successor is None or end else await self._successor()
                if successor is not None:  # another agent leads from now on
                    recorder.answers -= 1
                    return await successor.run(payload)
        recorder.round = 0
        self._result = result(
            recorder.timeline, recorder.number, end.reason, end.error, self._runtime.output
        )
        return self._result

    async def _step(self) -> LoopEnd | None:
        """Make one decision and carry it out; return None if another decision follows."""
        state = self.state
        if self._interrupter.is_late:
            return await self._answers.end_exhausted("deadline")
        if state.exhausted:
            return await self._answers.end_exhausted("max_iterations")
        stop = await self._apply_round_hooks(state)
        if stop is not None:
            return await self._answers.end_exhausted(stop.reason)
        try:
            reply = await self._interrupter.run(partial(self._chain.request, "decision"))
        except RequestSkipped as skipped:
            if skipped.reason == "budget":
                return await self._answers.end_exhausted("budget")
            return LoopEnd("stopped", "the user has recalled the prompt of the turn")
        except ModelError as error:
            return await self._answers.end_without_model(error)
        except Interrupted as interruption:
            return await self._answers.end_interrupted(interruption)
        return await self._route(state, reply)

    async def _route(self, state: ReactStateV2, written: Reply) -> LoopEnd | None:
        """Decode the reply, record it and carry out its route; return the end of the loop, or None to decide anew."""
        recorder = self._recorder
        journal = self._journal
        reply, decided, marks = await self._chain.read(written)
        # An answer is held if the user has added input meanwhile.
        if not isinstance(decided, Calls):
            await recorder.catch_up()
        waiting = bool(recorder.timeline.inputs_for(recorder.number))
        table = Table(
            state=state, waiting=waiting, options=self._options, round_hooks=self._round_hooks
        )
        match route(reply, decided, table):
            case Refused():
                return await self._answers.end_refused(reply)
            case Act(notes=notes, calls=calls):
                return await self._act(reply, notes, calls)
            case Repair(raw=raw, problem=problem):
                await journal.record_malformed(reply, raw, problem, marks)
            case Unusable(raw=raw, problem=problem, error=error):
                await journal.record_malformed(reply, raw, problem, marks)
                return await self._answers.end_without_model(ModelError(error))
            case Continue():
                await journal.record_cut_off(written)
            case Held(notes=notes, text=text, reason=reason, reminder=reminder):
                notices = notice_bodies(reminder.code, reminder.text) if reminder else []
                draft = Draft(text=text, reason=reason)
                await journal.record_decision(reply, join_notes(notes, marks), draft, *notices)
            case Accept(notes=notes, text=text, flag=flag):
                return await self._answers.accept(reply, join_notes(notes, marks), text, flag)
            case End(notes=notes, text=text, stop=stop):
                completion = await journal.completion(text, "", stop.reason)
                notices = notice_bodies(stop.reason, stop.text)
                return await journal.close(reply, completion, join_notes(notes, marks), *notices)
        await asyncio.sleep(0)  # without calls this round has not yet let other tasks run
        return None

    async def _act(self, reply: Reply, notes: str, calls: tuple[ToolCall, ...]) -> LoopEnd | None:
        """Record the calls with new call ids, run them, and return the end if the turn is paused.

        If the budget is used up or the user has steered the turn, the calls get results that say so and do not run.
        """
        first = self._recorder.timeline.calls + 1
        numbered = [
            ToolCalled(
                call_id=f"c{number}",
                tool=call.name,
                arguments=call.arguments,
                provider_id=call.provider_id,
            )
            for number, call in enumerate(calls, start=first)
        ]
        plans = "react.plan" in [call.name for call in calls]
        await self._journal.record_decision(
            reply, notes, *numbered, calls=len(calls), acknowledges=not plans
        )
        cause = self._skip_cause()
        if cause is None:
            await self._executor.run_calls(numbered)
        else:
            await self._executor.skip(numbered, cause)
        return await self._pause()

    async def _apply_round_hooks(self, state: ReactStateV2) -> Stop | None:
        """Record the reminders of the round hooks for the model; return the stop of a hook that ends the turn, if any."""
        for hook in self._round_hooks:
            match hook(state):
                case Stop(reason=reason, text=text) as stop:
                    await self._journal.remind(reason, text)
                    return stop
                case Reminder(code=code, text=text):
                    await self._journal.remind(code, text)
                case Hold() | None:
                    pass
        return None

    async def _pause(self) -> LoopEnd | None:
        """Run the calls that the user has answered meanwhile; return a pause if other calls still wait for the user."""
        turn = self._recorder.turn
        timeline = self._recorder.timeline
        while turn.pending and turn.new_answers and turn.open_calls.keys() & turn.answers:
            before = timeline.seq
            await self._executor.settle()
            # Older versions did not record after which calls an approved call runs, so it may wait for an earlier one.
            if timeline.seq == before:
                break
        # Agents that the workflow runs may wait too, and are resumed by the workflow.
        is_paused = turn.pending and turn.open_calls.keys() & turn.pending
        return LoopEnd("paused") if is_paused else None

    def _skip_cause(self) -> InterruptCause | None:
        """Return the reason why no call may start: the budget is used up or the user has just steered the turn. None if calls may start."""
        recorder = self._recorder
        options = self._options
        usage = recorder.turn.usage
        cost = recorder.turn.cost or 0.0
        if (
            options.max_tokens is not None
            and usage.input_tokens + usage.output_tokens > options.max_tokens
        ):
            return "budget"
        if options.max_cost is not None and cost > options.max_cost:
            return "budget"
        inputs = recorder.timeline.inputs_for(recorder.number)
        steered = inputs and any(isinstance(block.body, UserSteer) for block in inputs)
        return "steer" if steered and self._runtime.asks_again else None

    def _interrupt_calls(self, cause: InterruptCause) -> None:
        """Interrupt the running calls; for a steer only if a later request can show it."""
        if cause == "deadline" or self._runtime.asks_again:
            self._executor.interrupt(cause)
