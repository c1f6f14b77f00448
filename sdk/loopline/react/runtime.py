"""The loop: prepare, decide, route, act, until there is an answer.

Every step is in the log before the next begins, so a turn that was cut off is carried on by running
the same loop over what the log holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopline.clock import Clock
from loopline.errors import ModelError
from loopline.events import Delta, Listen
from loopline.models import Model, Reply, TextDelta, ToolCall, well_formed
from loopline.prompt import Answer, Calls, Decided, Malformed
from loopline.react.acting import Actor
from loopline.react.answering import completion, fallback
from loopline.react.asking import ask
from loopline.react.context import Context, Iteration, RoundPurpose
from loopline.react.limits import MAX_ITERATIONS, Limits, checked
from loopline.react.streaming import Resolved
from loopline.react.turn import TurnPayload, TurnResult, result
from loopline.timeline import (
    Body,
    Completion,
    Decision,
    Draft,
    ExitReason,
    Moment,
    Notes,
    Notice,
    Plan,
    PlanAck,
    Recorder,
    StepStatus,
    Thinking,
    ToolCalled,
    Turn,
    plan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactStateV2:
    """Where the running turn stands: a fold of its blocks, never kept beside them."""

    iteration: int
    max_iterations: int
    malformed: bool

    @classmethod
    def fold(cls, turn: Turn, max_iterations: int) -> ReactStateV2:
        """The state that the turn's blocks make."""
        last = turn.decisions[-1] if turn.decisions else None
        return cls(
            iteration=turn.rounds,
            max_iterations=max_iterations,
            malformed=last is not None and bool(last.raw),
        )

    @property
    def exhausted(self) -> bool:
        """Whether no further decision may be made."""
        return self.iteration >= self.max_iterations

    @property
    def next_is_last(self) -> bool:
        """Whether the decision after the next one would be the last, or one too many."""
        return self.iteration + 2 >= self.max_iterations

    @property
    def last(self) -> bool:
        """Whether the next decision is the last one."""
        return self.iteration + 1 >= self.max_iterations


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the loop is over."""

    reason: ExitReason
    error: str = ""


class React:
    """A loop that is wired and ready: what `build_react` returns."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        model: Model,
        context: Context,
        actor: Actor,
        clock: Clock,
        listen: Listen,
        limits: Limits,
    ) -> None:
        self._recorder = recorder
        self._model = model
        self._actor = actor
        self._clock = clock
        self._listen = listen
        self._limit = checked(limits).get("max_iterations", MAX_ITERATIONS)
        self._context = context
        self._protocol = context.protocol
        self._native = self._protocol.name == "native"

    @property
    def state(self) -> ReactStateV2:
        """Where the turn stands."""
        return ReactStateV2.fold(self._recorder.turn, self._limit)

    async def run(self, payload: TurnPayload) -> TurnResult:
        """Carry the turn on until it has an answer.

        Raises:
            LeaseLost: another runner has taken the conversation over.
        """
        # What the user said is in the log, where it cannot differ from what is rendered.
        del payload
        recorder = self._recorder
        recorder.round = recorder.turn.rounds
        await self._actor.settle()
        recorder.answers += 1
        ended = answered(recorder.turn, recorder.answers)
        while ended is None:
            ended = await self._step()
        recorder.round = 0
        return result(recorder.timeline, recorder.number, ended.reason, ended.error)

    async def _step(self) -> Ended | None:
        state = self.state
        if state.exhausted:
            return await self._forced()
        try:
            if not await self._begin(state, "decision"):
                return Ended("stopped", "what the turn was to answer was recalled")
            reply = await self._ask("decision")
        except ModelError as error:
            return await self._without_model(error)
        return await self._route(state, reply)

    async def _route(self, state: ReactStateV2, reply: Reply) -> Ended | None:
        if reply.stop_reason == "refusal":
            return await self._refused(reply)
        match self._protocol.decode(reply):
            case Calls(notes=notes, calls=calls):
                await self._act(reply, notes, calls)
            case Answer(notes=notes, text=text):
                marks, answer = self._split(text)
                if not answer.strip():  # it only acknowledged: what it is to say is still to come
                    problem = "The reply held only plan marks: call a tool or answer."
                    await self._record_malformed(reply, text, problem, marks)
                    return None
                both = "\n".join(part for part in (notes, marks) if part)
                return await self._answer(state, reply, both, answer)
            case Malformed(raw=raw) if state.malformed or state.last:
                body = completion(self._recorder.timeline, raw, flag="unparsed")
                if raw.strip():
                    return await self._close(reply, body, "")
                await self._record_malformed(reply, raw, "The reply was empty.")
            case Malformed(raw=raw, problem=problem):
                await self._record_malformed(reply, raw, problem)
        return None

    async def _begin(self, state: ReactStateV2, purpose: RoundPurpose) -> bool:
        limit = self._limit
        return await self._context.begin(
            Iteration(made=state.iteration, limit=limit, purpose=purpose)
        )

    async def _ask(self, purpose: RoundPurpose) -> Reply:
        listen = Resolved(self._listen, self._recorder.timeline.pool)

        def hear(piece: TextDelta) -> None:
            if self._native:  # half a JSON object is nothing to show
                listen(Delta(type="delta", channel=piece.channel, text=piece.text))

        reply = await ask(self._model, self._context.prompt(purpose), hear)
        listen.close()
        return reply

    async def _act(self, reply: Reply, notes: str, calls: tuple[ToolCall, ...]) -> None:
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
        acks = [] if plans else self._acks(notes)
        self._listen(Delta(type="reset", channel="answer"))
        await recorder.record(*self._decided(reply, notes, len(calls)), *acks, *numbered)
        await self._actor.act(numbered)

    async def _answer(
        self, state: ReactStateV2, reply: Reply, notes: str, text: str
    ) -> Ended | None:
        recorder = self._recorder
        await recorder.catch_up()
        waiting = recorder.timeline.inputs_for(recorder.number)
        if waiting and not state.next_is_last:
            draft = Draft(text=text, reason="the user has said more")
            self._listen(Delta(type="reset", channel="answer"))
            await recorder.record(*self._decided(reply, notes, 0), *self._acks(notes), draft)
            return None
        return await self._close(reply, completion(recorder.timeline, text), notes)

    async def _close(self, reply: Reply, body: Completion, notes: str) -> Ended:
        """Record the decision together with the answer that ends the loop."""
        await self._recorder.record(*self._decided(reply, notes, 0), *self._acks(notes), body)
        return Ended(body.reason, body.error)

    def _split(self, text: str) -> tuple[str, str]:
        """The marks of the current plan's steps that lead an answer, and the answer."""
        current = self._recorder.timeline.plans.current
        return plan.split_marks(text) if current is not None else ("", text)

    async def _record_malformed(
        self, reply: Reply, raw: str, problem: str, notes: str = ""
    ) -> None:
        decision = Decision(
            model=self._model.name,
            stop_reason=reply.stop_reason,
            raw=raw or "(nothing)",
            usage=reply.usage,
        )
        notice = Notice(code="malformed_reply", text=problem)
        await self._recorder.record(decision, *self._acks(notes), notice)

    def _decided(self, reply: Reply, notes: str, calls: int) -> list[Body]:
        decision = Decision(
            model=self._model.name,
            stop_reason=reply.stop_reason,
            calls=calls,
            usage=reply.usage,
        )
        thinking = [Thinking(text=reply.thinking)] if reply.thinking else []
        return [decision, *thinking, *([Notes(text=notes)] if notes else [])]

    def _acks(self, notes: str) -> list[Body]:
        recorder = self._recorder
        current = recorder.timeline.plans.current
        if current is None or not notes:
            return []
        moment = Moment(self._clock.now(), f"turn_{recorder.number}")
        snapshot = plan.acknowledge(current, notes, moment)
        if snapshot is None:
            return []
        changes: dict[str, StepStatus] = {
            number: status
            for number, status in snapshot.step_status.items()
            if current.step_status.get(number) != status
        }
        ack = PlanAck(plan_id=current.plan_id, changes=changes)
        return [ack, Plan(snapshot=snapshot)]

    async def _forced(self) -> Ended:
        """An answer although the limit is reached: asked for without calls, else what there is."""
        timeline = self._recorder.timeline
        try:
            await self._begin(self.state, "answer")
            reply = await self._ask("answer")
        except ModelError as error:
            return await self._without_model(error)
        if reply.stop_reason == "refusal":
            return await self._refused(reply)
        marks, answer = self._split(_said(self._protocol.decode(reply)))
        if not answer.strip():
            return await self._close(reply, fallback(timeline, self._recorder.turn), marks)
        body = completion(timeline, answer, flag="forced", reason="max_iterations")
        return await self._close(reply, body, marks)

    async def _refused(self, reply: Reply) -> Ended:
        text = well_formed(reply.text).strip() or "The model refused to answer."
        body = completion(self._recorder.timeline, text, reason="refused")
        return await self._close(reply, body, "")

    async def _without_model(self, error: ModelError) -> Ended:
        """The model cannot be asked: say so, with what was found."""
        recorder = self._recorder
        self._listen(Delta(type="reset", channel="answer"))
        said = well_formed(str(error))
        notice = Notice(code="model_error", text=said)
        await recorder.record(notice, fallback(recorder.timeline, recorder.turn, said))
        return Ended("error", said)


def answered(turn: Turn, answers: int) -> Ended | None:
    """How the loop ended before the turn was cut off; None when it has not come to so many answers."""
    if len(turn.completions) < answers:
        return None
    answer = turn.completions[answers - 1]
    return Ended(answer.reason, answer.error)


def _said(decided: Decided) -> str:
    """The words of a decision, whatever it is."""
    match decided:
        case Answer(text=text) | Calls(notes=text) | Malformed(raw=text):
            return text
