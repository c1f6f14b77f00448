"""The loop: prepare, decide, route, act, until there is an answer.

Every step is in the log before the next begins, so a turn that was cut off is carried on by running
the same loop over what the log holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic

from typing_extensions import TypeVar

from loopline.errors import ModelError
from loopline.models import Model, Reply, ToolCall
from loopline.prompt import Calls
from loopline.react.answers import AnswerWriter, Journal, LoopEnd, notice_bodies, recorded_end
from loopline.react.context import Context
from loopline.react.executor import ToolExecutor
from loopline.react.extensions import (
    Extensions,
    Hold,
    Reminder,
    RoundHook,
    Stop,
    configured_hooks,
    wrap,
)
from loopline.react.interrupter import InterruptCause, Interrupted, Interrupter
from loopline.react.model_chain import ModelChain
from loopline.react.model_requests import RequestSkipped
from loopline.react.replies import ChannelTexts, join_notes
from loopline.react.router import (
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
from loopline.react.state import TurnPayload, result
from loopline.react.tool_runtime import ToolRuntime
from loopline.timeline import Draft, ToolCalled, TurnResult, UserSteer

T_co = TypeVar("T_co", covariant=True, default=None)


class React(Generic[T_co]):
    """A loop that is wired and ready: what `build_react` returns."""

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        models: Sequence[Model],
        context: Context,
        extensions: Extensions | None = None,
        successor: Callable[[], Awaitable[React[T_co] | None]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._successor = successor
        self._recorder = runtime.recorder
        self._options = runtime.options
        self._context = context
        self._interrupter = Interrupter(runtime.recorder, runtime.clock)
        self._executor = ToolExecutor(runtime, context, self._interrupter)
        self._texts = texts = ChannelTexts(runtime.listen)
        self._chain = ModelChain(runtime, models, context, texts)
        self._journal = Journal(runtime, context, texts)
        self._answers = AnswerWriter(
            runtime, context, self._chain, self._journal, self._interrupter
        )
        self._extensions = extensions or Extensions()
        self._round_hooks: Sequence[RoundHook] = (
            *configured_hooks(runtime.options),
            *self._extensions.round_hooks,
        )
        self._result: TurnResult[T_co] | None = None

    @property
    def state(self) -> ReactStateV2:
        """Return where the turn stands."""
        return self._runtime.state

    async def run(self, payload: TurnPayload) -> TurnResult[T_co]:
        """Carry the turn on until it has an answer, or waits for the user.

        Raises:
            LeaseLost: another runner has taken the conversation over.
        """
        run = wrap(self._run, self._extensions.middleware)
        deadline = self._options.deadline_seconds
        async with self._interrupter.watch(deadline, self._interrupt_calls):
            try:
                return await self._interrupter.run(partial(run, payload), steerable=False)
            except Interrupted:  # the middleware took too long
                return self._result or await self._run(payload)
            except asyncio.CancelledError:
                await self._answers.save_partial()
                raise

    async def _run(self, payload: TurnPayload) -> TurnResult[T_co]:
        recorder = self._recorder  # the log holds what the user said
        recorder.round = recorder.turn.rounds
        with self._interrupter.shielded():
            await self._context.open_quota()
            await self._executor.settle()
            recorder.answers += 1
            end = await self._pause() or recorded_end(recorder.turn, recorder.answers)
            if end is None and recorder.turn.tool_answer is None:
                with suppress(
                    Interrupted
                ):  # a choice of tools shows nothing that the user says now
                    await self._interrupter.run(self._context.select_tools, steerable=False)
            while end is None:
                end = await self._answers.from_tool() or await self._step()
                successor = None if self._successor is None or end else await self._successor()
                if successor is not None:  # another agent leads from here on
                    recorder.answers -= 1
                    return await successor.run(payload)
        recorder.round = 0
        self._result = result(
            recorder.timeline, recorder.number, end.reason, end.error, self._runtime.output
        )
        return self._result

    async def _step(self) -> LoopEnd | None:
        """Make one decision and carry it out; None when another one follows."""
        state = self.state
        if self._interrupter.is_late:
            return await self._answers.exhausted("deadline")
        if state.exhausted:
            return await self._answers.exhausted("max_iterations")
        stop = await self._apply_round_hooks(state)
        if stop is not None:
            return await self._answers.exhausted(stop.reason)
        try:
            reply = await self._interrupter.run(partial(self._chain.request, "decision"))
        except RequestSkipped as skipped:
            if skipped.reason == "budget":
                return await self._answers.exhausted("budget")
            return LoopEnd("stopped", "what the turn was to answer was recalled")
        except ModelError as error:
            return await self._answers.without_model(error)
        except Interrupted:  # the next step sees why
            self._texts.retract()
            return None
        return await self._route(state, reply)

    async def _route(self, state: ReactStateV2, written: Reply) -> LoopEnd | None:
        """Carry out what the router makes of a reply."""
        recorder, journal = self._recorder, self._journal
        reply, decided, marks = await self._chain.read(written)
        if not isinstance(decided, Calls):  # before an answer, see what the user has said meanwhile
            await recorder.catch_up()
        waiting = bool(recorder.timeline.inputs_for(recorder.number))
        table = Table(
            state=state, waiting=waiting, options=self._options, round_hooks=self._round_hooks
        )
        match route(reply, decided, table):
            case Refused():
                return await self._answers.refused(reply)
            case Act(notes=notes, calls=calls):
                return await self._act(reply, notes, calls)
            case Repair(raw=raw, problem=problem, notes=notes):
                await journal.record_malformed(reply, raw, problem, join_notes(notes, marks))
            case Unusable(raw=raw, problem=problem, error=error):
                await journal.record_malformed(reply, raw, problem, marks)
                return await self._answers.without_model(ModelError(error))
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
        await asyncio.sleep(0)  # no call has let others run in this round
        return None

    async def _act(self, reply: Reply, notes: str, calls: tuple[ToolCall, ...]) -> LoopEnd | None:
        """Record the calls under numbers of their own, and run them."""
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
        """Give the model the reminders of the round hooks; return the stop that ends the turn, if any."""
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
        """Return the pause of a turn whose calls wait for the user; calls that have been answered meanwhile run first."""
        turn = self._recorder.turn
        while turn.pending and turn.new_answers:
            await self._executor.settle()
        return LoopEnd("paused") if turn.pending else None

    def _skip_cause(self) -> InterruptCause | None:
        """Return why no call starts: the budget is spent, or the user has just steered elsewhere."""
        recorder, options = self._recorder, self._options
        usage, cost = recorder.turn.usage, recorder.turn.cost or 0.0
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
        """Cut off the calls that run; for a steer only where a request can still show it."""
        if cause == "deadline" or self._runtime.asks_again:
            self._executor.interrupt(cause)
