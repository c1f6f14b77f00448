"""Steps that run agents: `run` and `map` of a workflow, whose child runs a resumed turn finds again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from loopline import crew, react
from loopline import timeline as tl
from loopline import tools as toolbox
from loopline.bundle.steps import STEP_BYTES, StepRunner
from loopline.clock import elapsed_ms
from loopline.errors import StepFailed
from loopline.files import file_bodies
from loopline.models import Usage, dumps
from loopline.prompt import NATIVE, View, protocol_named

MOST_TASKS = 1_000
"""The most tasks of one `map`."""


class StoredResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of an agent's run as it is recorded with the end of its step."""

    answer: str
    turn_id: str
    exit_reason: tl.ExitReason
    ok: bool
    error: str = ""
    rounds: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    sources: tuple[tl.AnswerSource, ...] = ()
    truncated: bool = False

    @classmethod
    def of(cls, outcome: crew.AgentResult) -> StoredResult:
        """Convert the result of an agent's call; if the agent did not run, `turn_id` is empty."""
        result = outcome.result
        if result is None:
            ok = not outcome.problem
            reason: tl.ExitReason = "complete" if ok else "error"
            error = outcome.problem
            return cls(answer=outcome.answer, turn_id="", exit_reason=reason, ok=ok, error=error)
        return cls(
            answer=outcome.answer,
            turn_id=result.turn_id,
            exit_reason=result.exit_reason,
            ok=result.ok,
            error=result.error,
            rounds=result.rounds,
            usage=result.usage,
            cost=result.cost,
            sources=tuple(result.sources),
            truncated=result.truncated,
        )

    @property
    def result(self) -> tl.TurnResult[None]:
        """The result for the workflow."""
        return tl.TurnResult(**structs.asdict(self))


_RESULTS = msgspec.json.Decoder(list[StoredResult])


def _read_results(text: str) -> list[StoredResult] | None:
    """Return the recorded results, or None if only the child runs have them: they were too long, or a number was redacted."""
    try:
        return _RESULTS.decode(text)
    except msgspec.DecodeError:
        return None


class AgentSteps:
    """Runs the agents of one run of a workflow. All runs share a budget, which is that of the turn."""

    def __init__(self, steps: StepRunner, recorder: tl.Recorder) -> None:
        self._steps = steps
        self._recorder = recorder
        self._quota = react.Quota()
        self._counts: Counter[str] = Counter()

    async def run(
        self,
        runtime: react.ToolRuntime,
        own_crew: crew.Crew,
        calls: Sequence[crew.AgentCall],
        limit: int,
        name: str,
    ) -> list[tl.TurnResult[None]]:
        """Run the calls, at most `limit` at once, and return their results in the order of the calls.

        The start and the end of the step are recorded. Results that are recorded already are returned without new
        runs. If `name` is empty, the name is the first agent and a digest of the tasks, with a number if it repeats.

        Raises:
            BundleError: the name is not valid, or used already.
            AskUser: an agent asks the user; the turn waits for the answer.
            StepFailed: the recorded end of the step is not "ok", for example because it was cancelled.
        """
        name = name or self._name(calls)
        self._steps.claim(name)
        ended = self._recorder.turn.ended_steps.get(name)
        if ended is not None and ended.status != "ok":
            raise StepFailed(name, ended.error)
        recorded = None if ended is None else _read_results(ended.value)
        if recorded is not None:
            return [stored.result for stored in recorded]
        started = self._recorder.turn.steps.get(name) or await self._start(name)
        await self._ask_again(name, started.call_id)
        begun = runtime.clock.elapsed()
        with self._steps.running(name):
            try:
                outcomes, files = await self._dispatch(runtime, own_crew, calls, limit, started)
            except toolbox.AskUser as question:
                asked = self._recorder.turn.waiting_call(started.call_id)
                await runtime.record_pending(asked, question)
                await self._steps.pause(name, question)
                raise
            except asyncio.CancelledError:
                await self._steps.record_stop(name)
                raise
        await self._end(runtime, started, outcomes, files, elapsed_ms(runtime.clock, begun))
        return [outcome.result for outcome in outcomes]

    def _name(self, calls: Sequence[crew.AgentCall]) -> str:
        """Return the name of a step without one: the agent, a digest of the tasks, and a number if it is repeated."""
        tasks = dumps([[call.task, call.context] for call in calls])
        name = f"{calls[0].agent} {sha256(tasks.encode()).hexdigest()[:12]}"
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name} ({self._counts[name]})"

    async def _start(self, name: str) -> tl.StepStarted:
        """Record the start of a step, and return it; its `call_id` names the child runs."""
        turn = self._recorder.turn

        def start(_: tl.Timeline) -> list[tl.Body]:
            number = sum(bool(step.call_id) for step in turn.steps.values()) + 1
            call_id = f"c0.{turn.number}.{number}"
            return [tl.StepStarted(name=name, effect="meta", call_id=call_id)]

        await self._recorder.record_from(start)
        return turn.open_steps[name]

    async def _ask_again(self, name: str, call_id: str) -> None:
        """Raise the question of the step as AskUser again if it has no answer yet."""
        pending = self._recorder.turn.unanswered.get(call_id)
        if pending is not None:
            question = toolbox.AskUser(pending.question, kind=pending.kind, child=pending.child)
            await self._steps.pause(name, question)
            raise question

    async def _dispatch(
        self,
        runtime: react.ToolRuntime,
        own_crew: crew.Crew,
        calls: Sequence[crew.AgentCall],
        limit: int,
        started: tl.StepStarted,
    ) -> tuple[list[StoredResult], crew.SharedFiles]:
        """Run the calls, at most `limit` at once, on the turn's quota; return the results in order, and the files.

        If no agent of another step runs, the quota is computed again from the usage in the log.
        """
        recorder = self._recorder
        if not self._quota.children:
            self._quota = react.Quota()
            self._quota.open(recorder.turn, runtime.options, recorder)
            if self._quota.is_limited:
                await react.recount(
                    self._quota, recorder.turn, recorder.conversation.name, recorder
                )
        runtime = replace(runtime, quota=self._quota)
        children = react.Children(started.call_id, runtime, spawn=runtime.spawn)
        invocation = _invocation(runtime, children, started.call_id)
        shared = crew.SharedFiles.of(invocation)
        limited = replace(
            own_crew, options=replace(own_crew.options, max_workers=limit), hands_back=False
        )
        dispatcher = limited.dispatcher(invocation, shared)
        outcomes = await children.run(dispatcher.dispatch(calls))
        return [StoredResult.of(outcome) for outcome in outcomes], shared

    async def _end(
        self,
        runtime: react.ToolRuntime,
        started: tl.StepStarted,
        outcomes: Sequence[StoredResult],
        shared: crew.SharedFiles,
        elapsed: float,
    ) -> None:
        """Record the end of a step that took `elapsed` milliseconds, and its file changes; do nothing if it has ended.

        Results with more than `STEP_BYTES` characters of JSON are not stored.
        """
        recorder = self._recorder
        value = msgspec.json.encode(outcomes).decode()
        # Longer results are read from the child runs again.
        stored = value if len(value) <= STEP_BYTES else ""
        ended = tl.StepEnded(name=started.name, value=stored, elapsed_ms=elapsed)

        def bodies(timeline: tl.Timeline) -> list[tl.Body]:
            limits = runtime.workspace_limits
            changes = shared.merged.changes
            files = file_bodies(timeline, recorder.number, changes, started.call_id, limits=limits)
            return [*files, ended]

        if started.name in recorder.turn.open_steps:
            await recorder.record_from(bodies)


def _invocation(
    runtime: react.ToolRuntime, children: react.Children, call_id: str
) -> toolbox.ToolInvocation:
    """Return the tool invocation with which the agents of a step run, as if the step were the call `call_id`."""
    recorder = runtime.recorder

    return toolbox.ToolInvocation(
        make_context=partial(runtime.make_context, call_id, children.outbox, children.spawn),
        timeline=recorder.timeline,
        view=View(protocol_named(NATIVE)),
        reader=runtime.reader,
        moment=tl.Moment(runtime.clock.now(), tl.turn_id(recorder.number)),
    )
