"""The executor of tool calls: it runs the calls of a round by their effects and records each result as it arrives.

Calls start after the guards have judged all of them, and never after the deadline of the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct, structs

from loopline import timeline as tl
from loopline import tools
from loopline.clock import elapsed_ms
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.files import file_bodies
from loopline.models import Json, JsonObject, dumps, well_formed
from loopline.prompt import View
from loopline.react.approvals import EDITED, denial_text
from loopline.react.context import Context
from loopline.react.extensions import Ask, Deny
from loopline.react.guards import (
    CallChecker,
    CheckedCall,
    Claim,
    claim_for_thread,
    wait_for_threads,
)
from loopline.react.interrupter import InterruptCause, Interrupted, Interrupter
from loopline.react.proxied_calls import ProxiedCalls
from loopline.react.replies import answer_text
from loopline.react.result_text import render_result, truncate_outcome
from loopline.react.tool_runtime import Children, ToolRuntime
from loopline.refs import parse
from loopline.tasks import cancel_all, compute, run_together

logger: logging.Logger = logging.getLogger("loopline")

NO_OUTPUT = "(it succeeded, and gave no output)"
"""The text of a result that has no text of its own."""
OUTCOME_UNKNOWN = (
    "This call was cut off after it had begun, and is not begun again: whether it took effect is "
    "unknown. Check before you call it once more."
)
NO_QUESTION = "A tool in the background cannot ask the user, because its call has ended."
BACKGROUND_SECONDS = 3_600.0
"""The seconds that a tool may run in the background if `tool_timeout_seconds` is not set."""
DENIED = "Do not make it again; find another way, or ask."
CAUSE_TEXTS: Mapping[InterruptCause, str] = {
    "steer": "because the user wants something else now",
    "deadline": "because the time of the turn was over",
    "budget": "because the budget of the turn was spent",
}
EFFECT_UNKNOWN = " Whether it took effect is unknown."


class _RunningCall(Struct):
    """A running call; `entered` is False until its task starts, and `cause` is the reason of its interruption, if any."""

    parsed: CheckedCall
    task: asyncio.Task[None]
    children: Children
    entered: bool = False
    cause: InterruptCause | None = None


_guarded_of = attrgetter("guarded")
"""A function in C, since one of ours would be called for each call of each round."""


class _CallOrder:
    """The tasks of a reply's calls that a further call has to wait for.

    A call waits for the last conflicting ones only, which wait for those before them: with all of them, a thousand
    calls of one claim would wait for each other half a million times.
    """

    def __init__(self) -> None:
        self._exclusive: list[asyncio.Task[None]] = []
        self._since: list[asyncio.Task[None]] = []
        self._latest: dict[Claim, asyncio.Task[None]] = {}

    def find_before(self, claim: Claim) -> Sequence[asyncio.Task[None]]:
        """Return the tasks that a call with this claim must wait for."""
        if claim.effect == "exclusive":
            return self._since or self._exclusive
        return [self._latest[claim]] if claim in self._latest else self._exclusive

    def add(self, claim: Claim, task: asyncio.Task[None]) -> None:
        """Add the task of the next call."""
        if claim.effect == "exclusive":
            self._exclusive = [task]
            self._since = []
            self._latest = {}
            return
        self._since.append(task)
        if claim.effect != "read":
            self._latest[claim] = task


class ToolExecutor:
    """Runs calls and records their results."""

    def __init__(self, runtime: ToolRuntime, context: Context, interrupter: Interrupter) -> None:
        self._recorder = runtime.recorder
        self._clock = runtime.clock
        self._runtime = runtime
        self._context = context
        self._interrupter = interrupter
        self._checker = CallChecker(runtime, lambda: context.tools)
        self._running: dict[str, _RunningCall] = {}
        self._program_checker = CallChecker(runtime, lambda: context.all_tools)
        self._slots = asyncio.Semaphore(runtime.options.parallel_tools)
        self._pulled: dict[str, tl.Block] = {}

    async def settle(self) -> None:
        """Record a result for every open call of the turn, except calls that wait for the user.

        A call that had started is started again only if it only begins child runs, which are resumed; otherwise its
        tool is asked for the outcome. An answer to a question, or from the client, is recorded as the result, and a
        denied call as denied. Calls that had not started, and calls that only read, run now.

        Raises:
            WrongBundle: a call must start, and another version of the bundle has removed or changed its tool.
        """
        turn = self._recorder.turn
        self._checker.check_offers()
        await self._begin_lost_again()
        await self._settle_proxied()
        run: list[tl.ToolCalled] = []
        for call in list(turn.open_calls.values()):
            pending, answer = turn.pending.get(call.call_id), turn.answers.get(call.call_id)
            if pending is not None and answer is None:
                continue
            is_question = pending is not None and pending.kind == "question" and not pending.child
            if answer is not None and pending is not None and pending.client:
                await self._record_client_result(call, pending, answer.value)
            elif answer is not None and is_question:  # the answer is the result of the call
                value = answer.value
                await self._record_end(
                    call, value if isinstance(value, str) else dumps(value), "ok"
                )
            elif self._has_children(call) or self._starts_again(call):
                run.append(call)
            elif (started := turn.started.get(call.call_id)) is not None:
                await self._settle_started(call, started)
            elif pending is not None and answer is not None and not tl.is_approval(answer.value):
                text = f"{denial_text(answer.value)} {DENIED}"
                await self._record_end(call, text, "denied")
            else:
                run.append(call)
        if run:
            await self.run_calls(run)

    async def _record_client_result(
        self, call: tl.ToolCalled, pending: tl.ToolPending, value: Json
    ) -> None:
        """Record the result that the client sent for a call, as the guards change it.

        A value that does not fit the schema of the result is recorded as a failed result with the reason.
        """
        parsed = self._checker.parse(call)
        try:
            outcome = await compute(partial(tools.read_client_result, value, pending.form))
        except LooplineError as error:
            text = f"The client sent a result that does not fit the tool: {error}"
            outcome = tools.Outcome(text=text, failed=True)
        outcome = await self._checker.filter_result(parsed.guarded, outcome)
        turn = self._recorder.turn
        earlier = turn.earlier_answers.get(call.call_id)
        if earlier is not None and (edited := tl.edited_arguments(earlier.value)) is not None:
            note = EDITED.format(arguments=dumps(edited))
            outcome = structs.replace(outcome, text=note + outcome.text)
        started = turn.started.get(call.call_id)
        await self._record_outcome(call, outcome, 0.0, started.ran_with if started else None)

    async def _settle_proxied(self) -> None:
        """Record a result for every interrupted call of a program; such calls are not started again."""
        results = self._recorder.turn.ends_of_proxied(OUTCOME_UNKNOWN, "interrupted")
        if results:
            await self._recorder.record(*results)

    def _has_children(self, call: tl.ToolCalled) -> bool:
        """Return whether the call has begun child runs of this conversation; child runs before a fork are not continued."""
        recorder = self._recorder
        children = recorder.turn.children.values()
        names = [child.conversation for child in children if child.call_id == call.call_id]
        parent = recorder.conversation.name
        return bool(names) and all(tl.parent_name(name) == parent for name in names)

    def _starts_again(self, call: tl.ToolCalled) -> bool:
        """Return whether the call had started and may start again, because its tool only begins child runs."""
        tool = self._checker.parse(call).tool
        started = call.call_id in self._recorder.turn.started
        return started and isinstance(tool, tools.RerunnableTool) and tool.begins_children

    async def _settle_started(self, call: tl.ToolCalled, started: tl.ToolStarted) -> None:
        """Record the result of a call that had started when its runner stopped, by asking the tool for its outcome.

        A question of the tool is recorded as pending. If the outcome stays unknown, the status is "interrupted".

        Raises:
            StoreError: the log failed.
        """
        parsed = self._checker.parse(call)
        if isinstance(parsed.tool, LooplineError):
            await self._record_end(call, OUTCOME_UNKNOWN, "interrupted")
            return
        arguments = call.arguments if started.ran_with is None else started.ran_with
        try:
            children = Children(call.call_id, self._runtime, spawn=None)
            pulled = await self._read_pulled_files()
            invocation = self._make_invocation(parsed, parsed.tool.effect, children, pulled)
            check = partial(parsed.tool.reconcile, copy_arguments(arguments), invocation)
            outcome = await self._interrupter.run(lambda: children.run(check()), steerable=False)
        except Interrupted:
            outcome = None
        except StoreError:
            raise
        except tools.AskUser as question:
            await self._runtime.record_pending(call, question)
            return
        except ToolError as error:
            await self._record_failure(parsed, str(error))
            return
        except Exception:
            logger.exception("the outcome of %s cannot be reconciled", call.tool)
            outcome = None
        if outcome is None:
            await self._record_end(call, OUTCOME_UNKNOWN, "interrupted")
            return
        outcome = await self._checker.filter_result(parsed.guarded, outcome)
        try:
            await self._record_outcome(call, outcome, 0.0, started.ran_with)
        except ToolError as error:  # a file that it wrote is not allowed
            await self._record_failure(parsed, str(error))

    async def _begin_lost_again(self) -> None:
        """Begin again the background calls of the conversation whose process has gone, and that may begin again."""
        recorder = self._recorder
        background = self._runtime.background
        for lost in background.find_lost(recorder.conversation, recorder.timeline):
            call = tl.ToolCalled(
                call_id=lost.call_id, tool=lost.tool, arguments=dict(lost.again or {})
            )
            parsed = self._program_checker.parse(call)
            work = partial(self._finish_lost, parsed)
            begun = background.begin(lost, partial(self._run_later, parsed, lost, work)).bodies
            await recorder.record_in(lost.turn, partial(_return_bodies, begun))

    async def _finish_lost(self, parsed: CheckedCall) -> tools.Outcome:
        """Run a lost background call again if it only reads; otherwise ask its tool for the outcome.

        Raises:
            ToolError: the bundle does not have the tool any more, or its outcome is unknown.
        """
        tool = parsed.tool
        if isinstance(tool, LooplineError):
            raise ToolError(OUTCOME_UNKNOWN)
        children = Children(parsed.call.call_id, self._runtime, spawn=None)
        made = self._make_invocation(parsed, tool.effect, children)
        invocation = structs.replace(made, is_background=True)
        finish = tool.run if tool.effect == "read" else tool.reconcile
        outcome = await finish(copy_arguments(parsed.arguments), invocation)
        if outcome is None:
            raise ToolError(OUTCOME_UNKNOWN)
        return outcome

    async def _run_later(
        self, parsed: CheckedCall, call: tools.BackgroundCall, work: tools.Work
    ) -> tools.Outcome:
        """Run the work of a background call for at most its seconds, and return its outcome as the guards change it.

        An error, a timeout and a question to the user become a failed outcome.
        """
        try:
            outcome = await self._limit_time(call.seconds, work(), parsed.claim.effect)
        except tools.AskUser:
            outcome = tools.Outcome(text=NO_QUESTION, failed=True)
        except LooplineError as error:
            for note in getattr(error, "__notes__", ()):
                logger.warning("%s", note)
            outcome = tools.Outcome(text=str(error), failed=True)
        except Exception as error:
            logger.exception("%s broke in the background", call.tool)
            outcome = tools.Outcome(text=f"{type(error).__name__}: {error}", failed=True)
        return await self._checker.filter_result(parsed.guarded, outcome)

    async def run_calls(self, calls: Sequence[tl.ToolCalled]) -> None:
        """Run the calls and record their results: conflicting calls in order, other calls at once.

        The guards judge all calls first. After the deadline, or if judging is interrupted, no call starts, and each
        gets a result with the reason. At most `parallel_tools` calls run at the same time.
        """
        if self._interrupter.is_late:
            await self.skip(calls, "deadline")
            return
        judged = [self._checker.parse(call) for call in calls]
        # Judging may be interrupted, so it ends before the first call starts.
        if any(map(_guarded_of, judged)):
            try:
                judged = await self._interrupter.run(lambda: self._judge(judged))
            except Interrupted as interruption:  # none of them has started
                await self.skip(calls, interruption.cause)
                return
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        order = _CallOrder()
        for parsed in judged:
            before = order.find_before(parsed.claim)
            children = Children(parsed.call.call_id, self._runtime, spawn=self._runtime.spawn)
            work = self._run_in_order(before, parsed, children)
            # Without a name asyncio formats one, which costs more than the rest of the task's creation.
            task = loop.create_task(work, name=parsed.call.call_id)
            self._running[parsed.call.call_id] = _RunningCall(parsed, task, children)
            tasks.append(task)
            order.add(parsed.claim, task)
        try:
            # Calls that do not wait end in this tick, so `run_together` returns at once.
            await asyncio.sleep(0)
            await run_together(tasks)
        except BaseException:
            await cancel_all(*tasks)
            raise
        finally:
            self._running.clear()

    async def _judge(self, calls: Sequence[CheckedCall]) -> list[CheckedCall]:
        """Return the calls with the verdicts of the guards, which judge them one after the other."""
        return [
            parsed if parsed.guarded is None else await self._checker.check(parsed, parsed.guarded)
            for parsed in calls
        ]

    async def skip(self, calls: Sequence[tl.ToolCalled], why: InterruptCause) -> None:
        """Record for each call a result that says that it was not started, and why."""
        for call in calls:
            await self._record_interruption(call, why, is_started=False)

    def interrupt(self, why: InterruptCause) -> None:
        """Interrupt the running calls: all at the deadline, otherwise those that a steer may interrupt.

        Each interrupted call records a result with the reason.
        """
        for running in self._running.values():
            if running.cause is None and (why == "deadline" or self._is_steerable(running)):
                running.cause = why
                if running.entered:  # otherwise the task reads the cause when it starts
                    running.task.cancel()

    def _is_steerable(self, running: _RunningCall) -> bool:
        """Return whether a steer may interrupt the call: it reads, its child runs are running, or it has not started."""
        is_started = running.parsed.call.call_id in self._recorder.turn.started
        return running.parsed.reads or running.children.running or not is_started

    async def _run_in_order(
        self, before: Sequence[asyncio.Task[None]], parsed: CheckedCall, children: Children
    ) -> None:
        """Wait for the calls in `before`, and then run the call in a free slot and record its end.

        A question for approval is recorded at once, without that wait. A call that was interrupted before its start
        gets a result that says so. A call that a waiting call blocks stays open.

        Raises:
            CancelledError: the turn is being stopped.
        """
        start = self._clock.elapsed()
        running = self._running[parsed.call.call_id]
        if running.cause is not None:
            await self._record_interruption(parsed.call, running.cause, is_started=False)
            return
        running.entered = True
        try:
            if before and not isinstance(parsed.verdict, Ask):
                await asyncio.wait(before)
                parsed = await self._checker.check_again(parsed)
                before = ()
            if isinstance(parsed.verdict, Ask):  # the user sees all questions of a round at once
                verdict = parsed.verdict
                approval = tools.AskUser(verdict.question, kind="approval", people=verdict.people)
                after = tuple(task.get_name() for task in before)
                await self._runtime.record_pending(parsed.call, approval, after)
                return
            if not self._recorder.turn.pending or not self._is_blocked(parsed):
                if len(self._running) == 1:  # then a slot is free
                    await self._run_to_end(parsed, children, start)
                    return
                async with self._slots:
                    start = self._clock.elapsed()
                    await self._run_to_end(parsed, children, start)
        except asyncio.CancelledError:
            await self._record_cancelled(parsed, elapsed_ms(self._clock, start))

    async def _run_to_end(self, parsed: CheckedCall, children: Children, start: float) -> None:
        """Run the call; record a question as pending, and an exception of the tool as its failed result.

        `start` is the time of the start, in seconds of a clock that only goes forward.

        Raises:
            StoreError: the log failed.
        """
        call = parsed.call
        try:
            await self._run(parsed, children)
        except StoreError:
            raise
        except tools.AskUser as question:
            await self._runtime.record_pending(call, question)
        except LooplineError as error:
            for note in getattr(error, "__notes__", ()):
                logger.warning("%s", note)  # the line in the bundle, for its author
            await self._record_failure(parsed, str(error), elapsed_ms(self._clock, start))
        except Exception as error:
            logger.exception("%s broke", call.tool)
            text = f"{type(error).__name__}: {error}"
            await self._record_failure(parsed, text, elapsed_ms(self._clock, start))

    def _is_blocked(self, parsed: CheckedCall) -> bool:
        """Return whether an earlier conflicting call waits for approval or for the client, or for a call that waits so."""
        turn = self._recorder.turn
        questions = {
            call_id
            for call_id, pending in turn.pending.items()
            if pending.kind == "question" and not pending.client
        }
        if turn.pending.keys() <= questions | turn.answers.keys():
            return False
        # Several calls may wait for the client at once, which knows their order; the calls of other tools wait for it.
        if tools.runs_on_client(parsed.tool):
            questions |= {call_id for call_id, pending in turn.pending.items() if pending.client}
        for call in turn.open_calls.values():
            if call.call_id == parsed.call.call_id:
                break
            if call.call_id not in questions and self._checker.parse(call).claim.conflicts(
                parsed.claim
            ):
                return True
        return False

    async def _record_cancelled(self, parsed: CheckedCall, elapsed_ms: float) -> None:
        """Record a call that was interrupted or cancelled its own work; raise CancelledError if the turn is stopped."""
        call = parsed.call
        task = asyncio.current_task()
        why = self._running[call.call_id].cause
        is_cancelled = task is None or (task.uncancel() if why else task.cancelling())
        if is_cancelled or self._recorder.turn.stopped:
            raise asyncio.CancelledError
        if why is not None:
            is_started = call.call_id in self._recorder.turn.started or parsed.reads
            await self._record_interruption(call, why, is_started=is_started, elapsed_ms=elapsed_ms)
        else:
            text = "The tool cancelled its own work."
            await self._record_end(call, text, "error", elapsed_ms)

    async def _run(self, parsed: CheckedCall, children: Children) -> None:
        """Run the tool of a call, and record its start, if it does not only read, and its outcome.

        A denied call is recorded with the reason and does not run. Errors of the tool are raised.

        Raises:
            LooplineError: the call cannot run, or a thread of an earlier conflicting call still runs.
            AskUser: the tool asks the user.
            CancelledError: the turn was stopped before the tool started.
        """
        call = parsed.call
        tool = parsed.tool
        if isinstance(tool, LooplineError):
            raise tool
        is_started = call.call_id in self._recorder.turn.started
        arguments = parsed.arguments
        ran_with = None if arguments is call.arguments else arguments
        if isinstance(parsed.verdict, Deny):
            await self._record_end(call, parsed.verdict.reason, "denied")
            return
        start = self._clock.elapsed()
        effect = tool.effect
        if effect != "read":
            await wait_for_threads(
                self._recorder.uid,
                parsed.claim,
                self._clock,
                self._runtime.options.tool_timeout_seconds,
            )
            if not is_started:
                running = self._running[call.call_id]
                started = tl.ToolStarted(
                    call_id=call.call_id, effect=effect, ran_with=ran_with, rule=parsed.rule
                )
                # The call may be interrupted while the recorder finishes earlier appends.
                await self._recorder.record_from(lambda _: () if running.cause else (started,))
            # The process may have been suspended since its last append.
            await self._recorder.check_lease()
            if self._recorder.turn.stopped:  # the stop was appended before the start of the call
                raise asyncio.CancelledError
        pulled = await self._read_pulled_files()
        programs: list[ProxiedCalls] = []

        def make_proxy() -> ProxiedCalls:
            """Return a new proxy through which a program makes calls; it is closed when the call ends."""
            proxied = ProxiedCalls(
                self._runtime,
                self._program_checker,
                self._invoke_proxied,
                call,
                effect,
                self._context.all_tools,
                children.outbox,
            )
            programs.append(proxied)
            return proxied

        invocation = self._make_invocation(parsed, effect, children, pulled, make_proxy)
        # The arguments are copied because a tool may change them, and the log must not change.
        step = self._run_within_timeout(tool, copy_arguments(arguments), invocation)
        outcome = await children.run(_close_after(programs, step))
        if parsed.guarded is not None:
            outcome = await self._checker.filter_result(parsed.guarded, outcome)
        if parsed.note:
            outcome = structs.replace(outcome, text=parsed.note + outcome.text)
        await self._record_outcome(call, outcome, elapsed_ms(self._clock, start), ran_with)

    async def _invoke_proxied(self, parsed: CheckedCall, children: Children) -> tools.Outcome:
        """Run the tool of a program's call; its view is empty, since a program has not seen the conversation."""
        tool = parsed.tool
        if isinstance(tool, LooplineError):
            raise tool
        if tool.effect != "read":
            seconds = self._runtime.options.tool_timeout_seconds
            await wait_for_threads(self._recorder.uid, parsed.claim, self._clock, seconds)
            await self._recorder.check_lease()
        pulled = await self._read_pulled_files()
        invocation = self._make_invocation(parsed, tool.effect, children, pulled)
        unseen = structs.replace(invocation, view=View(invocation.view.protocol))
        arguments = copy_arguments(parsed.arguments)
        return await children.run(self._run_within_timeout(tool, arguments, unseen))

    def _run_within_timeout(
        self, tool: tools.Tool, arguments: JsonObject, call: tools.ToolInvocation
    ) -> Coroutine[Any, Any, tools.Outcome]:
        """Return a coroutine that runs the tool, for at most `tool_timeout_seconds` if that is set."""
        seconds = self._runtime.options.tool_timeout_seconds
        step = tool.run(arguments, call)
        return step if seconds is None else self._limit_time(seconds, step, tool.effect)

    async def _limit_time(
        self, seconds: float, step: Awaitable[tools.Outcome], effect: tl.Effect
    ) -> tools.Outcome:
        """Return the outcome of the step.

        Raises:
            LooplineError: the step took longer than `seconds` and was cancelled.
        """
        task = asyncio.current_task()
        timed_out = False

        def cancel() -> None:
            nonlocal timed_out
            timed_out = True
            if task is not None:
                task.cancel()

        alarm = self._clock.alarm(seconds, cancel)
        try:
            return await step
        except asyncio.CancelledError:
            if timed_out and task is not None and not task.uncancel():
                unknown = "" if effect == "read" else ": whether it took effect is unknown"
                raise LooplineError(f"it was cut off after {seconds:g} s{unknown}") from None
            raise
        finally:
            alarm.cancel()

    async def _record_interruption(
        self, call: tl.ToolCalled, why: InterruptCause, *, is_started: bool, elapsed_ms: float = 0.0
    ) -> None:
        """Record the result of a call that was interrupted, or was not started.

        The status is "interrupted" for a steer and "stopped" otherwise. The text says if the effect is unknown.
        """
        text = f"This call was {'cut off' if is_started else 'not begun'}, {CAUSE_TEXTS[why]}."
        unknown = EFFECT_UNKNOWN if call.call_id in self._recorder.turn.started else ""
        status: tl.ResultStatus = "interrupted" if why == "steer" else "stopped"
        await self._record_end(call, text + unknown, status, elapsed_ms)

    async def _record_failure(
        self, parsed: CheckedCall, text: str, elapsed_ms: float = 0.0
    ) -> None:
        """Record an error as the result, with the text that the guards make of it."""
        outcome = await self._checker.filter_result(parsed.guarded, tools.Outcome(text=text))
        await self._record_end(parsed.call, parsed.note + outcome.text, "error", elapsed_ms)

    async def _record_end(
        self, call: tl.ToolCalled, text: str, status: tl.ResultStatus, elapsed_ms: float = 0.0
    ) -> None:
        """Record a result with this text and status, if the call does not have a result yet."""
        result = tl.ToolResult(
            call_id=call.call_id,
            tool=call.tool,
            text=well_formed(text),
            status=status,
            elapsed_ms=elapsed_ms,
        )
        # It may be interrupted after its result is recorded.
        if call.call_id in self._recorder.turn.open_calls:
            await self._recorder.record(result)

    async def _record_outcome(
        self,
        call: tl.ToolCalled,
        outcome: tools.Outcome,
        elapsed_ms: float,
        ran_with: JsonObject | None = None,
    ) -> None:
        """Record the result of a call with its sources, artifacts, files, and the answer of the turn if it gives one.

        Raises:
            ToolError: a file is not allowed, or the answer does not fit the output type of the turn.
        """
        turn = self._recorder.number
        answer = answer_text(outcome.answer, self._runtime.output)
        shown = truncate_outcome(outcome, self._runtime.options.result_bytes)

        def bodies(timeline: tl.Timeline) -> list[tl.Body]:
            """Return the result and the bodies recorded with it; raise ToolError if a file is not allowed."""
            limits = outcome.file_limits or self._runtime.workspace_limits
            files: list[tl.FileBody] = []
            if outcome.files:
                files = file_bodies(timeline, turn, outcome.files, call.call_id, limits=limits)
            rendered = render_result(shown, timeline, turn, call.call_id, files)
            result = tl.ToolResult(
                call_id=call.call_id,
                tool=call.tool,
                text=rendered.text or NO_OUTPUT,
                status="error" if outcome.failed else "ok",
                elapsed_ms=elapsed_ms,
                found=shown.match_count,
                shows=rendered.shows,
                images=shown.images,
                artifact=rendered.artifact,
                ran_with=ran_with,
                answer=answer,
                source_spans=rendered.source_spans,
            )
            return [result, *rendered.bodies]

        await self._recorder.record_from(bodies)

    async def _read_pulled_files(self) -> Sequence[tl.Block]:
        """Return the blocks of the files that the turn has pulled from earlier turns; each ref is read once a run.

        Refs that are not found are left out.
        """
        refs = list(self._recorder.timeline.files.pulled.get(self._recorder.number, ()))
        if not refs:
            return ()
        for ref in refs:
            if ref not in self._pulled:
                block = await self._runtime.reader.find(parse(ref))
                if block is not None:
                    self._pulled[ref] = block
        return [self._pulled[ref] for ref in refs if ref in self._pulled]

    def _make_invocation(
        self,
        parsed: CheckedCall,
        effect: tl.Effect,
        children: Children,
        pulled: Sequence[tl.Block] = (),
        make_proxy: Callable[[], tools.ToolProxy] = tools.NoProxy,
    ) -> tools.ToolInvocation:
        """Return the invocation for a call: its context, view, child runs, questions, proxy and background work."""
        recorder = self._recorder
        runtime = self._runtime
        call = parsed.call

        def spawn(task: tools.ChildTask) -> Awaitable[tl.TurnResult]:
            """Start a child run of the call; raise ToolError if the effect of its tool is not "meta"."""
            if effect != "meta":
                raise ToolError(
                    f"{call.tool} has the effect {effect!r}: only one with the effect 'meta' may begin "
                    "a child run"
                )
            return children.spawn(task)

        async def ask(question: str, schema: Json) -> Json:
            if not recorder.has_user:
                return None
            return await runtime.ask(call.call_id, question, schema)

        def begin_later(work: tools.Work, seconds: float | None, may_repeat: bool) -> tools.Outcome:
            """Start `work` in the background, and return the outcome with which the call ends at once.

            The time limit is `seconds`, otherwise the timeout of tools, otherwise 3,600 s. With `may_repeat` the
            arguments are recorded, and the call begins again after a crash.
            """
            later = tools.BackgroundCall(
                conversation=recorder.conversation,
                turn=recorder.number,
                call_id=call.call_id,
                tool=call.tool,
                seconds=seconds or runtime.options.tool_timeout_seconds or BACKGROUND_SECONDS,
                again=parsed.arguments if may_repeat else None,
            )
            return runtime.background.begin(later, partial(self._run_later, parsed, later, work))

        return tools.ToolInvocation(
            make_context=partial(
                runtime.make_context, call.call_id, children.outbox, spawn, pulled
            ),
            timeline=recorder.timeline,
            view=self._context.view,
            reader=runtime.reader,
            moment=tl.Moment(self._clock.now(), f"turn_{recorder.number}"),
            on_outlived=partial(claim_for_thread, recorder.uid, parsed.claim),
            on_question=ask,
            make_proxy=make_proxy,
            begin_later=begin_later,
        )


def _return_bodies(bodies: Sequence[tl.Body], timeline: tl.Timeline) -> Sequence[tl.Body]:
    del timeline
    return bodies


async def _close_after(
    programs: Sequence[ProxiedCalls], step: Awaitable[tools.Outcome]
) -> tools.Outcome:
    """Return the outcome of the step after the calls of its programs are closed."""
    try:
        return await step
    finally:
        for proxied in programs:
            await proxied.close()


def copy_arguments(arguments: JsonObject) -> JsonObject:
    """Return a deep copy of the arguments."""
    return {name: _copy(value) for name, value in arguments.items()}


def _copy(value: Json) -> Json:
    """Return the value with its lists and objects copied recursively; scalars are returned as they are."""
    match value:
        case list():
            return [_copy(item) for item in value]
        case dict():
            return copy_arguments(value)
        case _:
            return value
