"""The calls that a program makes while a call of the loop runs it; they are guarded, limited and recorded like that call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from msgspec import structs

from loopline import timeline as tl
from loopline.clock import elapsed_ms
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.files import file_bodies
from loopline.models import Json, JsonObject, well_formed
from loopline.react.approvals import denial_text
from loopline.react.extensions import Ask, Deny
from loopline.react.guards import CallChecker, CheckedCall, Claim
from loopline.react.result_text import RenderedResult, render_result, truncate_outcome
from loopline.react.tool_runtime import Children, Outbox, ToolRuntime
from loopline.tasks import cancel_all
from loopline.tools import ApprovalRequired, AskUser, Outcome, ProxiedAnswer, ToolSet

logger: logging.Logger = logging.getLogger("loopline")

CUT_OFF = "This call was cut off, because the program that made it has ended. Whether it took effect is unknown."
RESULT_CHARACTERS = 2_000_000
"""The most characters of a result that a program receives; a longer result is an error of its call."""

Invoke = Callable[[CheckedCall, Children], Awaitable[Outcome]]
"""Runs the tool of a checked call, within the timeout of tools."""


class ProxiedCalls:
    """The calls of one program, which end when this is closed.

    If the call that runs the program is exclusive, the program may call all tools except those with the effect "meta" and
    the tools that run programs. Otherwise it may call only tools that read.
    """

    def __init__(
        self,
        runtime: ToolRuntime,
        checker: CallChecker,
        invoke: Invoke,
        parent: tl.ToolCalled,
        effect: tl.Effect,
        tools: ToolSet,
        outbox: Outbox,
    ) -> None:
        self._runtime = runtime
        self._recorder = runtime.recorder
        self._clock = runtime.clock
        self._checker = checker
        self._invoke = invoke
        self._parent = parent
        self._effect = effect
        self._tools = tools
        self._outbox = outbox
        self._running: dict[asyncio.Task[ProxiedAnswer], Claim] = {}
        self._count = 0
        self._slots = asyncio.Semaphore(runtime.options.parallel_tools)
        self._closed = False
        self._edited: dict[str, JsonObject] = {}
        """The arguments that the user changed, by call id."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools that the program may call."""
        alias = self._parent.tool.partition(".")[0]
        is_exclusive = self._effect == "exclusive"
        return tuple(
            name
            for name, tool in self._tools.items()
            if tool.effect == "read" or (is_exclusive and tool.effect != "meta")
            if name.partition(".")[0] != alias
        )

    async def call(
        self, tool: str, arguments: JsonObject, *, approval_seconds: float
    ) -> ProxiedAnswer:
        """Run a call for the program and return its result, or its error.

        Raises:
            ApprovalRequired: the call needs approval, and the user did not answer in `approval_seconds` seconds.
            LooplineError: the program has ended.
        """
        if self._closed:
            raise LooplineError(f"{tool} was not begun: the program has ended")
        turn = self._recorder.turn
        if not self._count:
            self._count = sum(call.parent == self._parent.call_id for call in turn.proxied.values())
        self._count += 1
        call_id = f"{self._parent.call_id}-{self._count}"
        called = tl.ToolCalled(call_id=call_id, tool=tool, arguments=arguments)
        parsed = self._checker.parse(called)
        before = [task for task, claim in self._running.items() if claim.conflicts(parsed.claim)]
        task = asyncio.ensure_future(self._run_in_order(parsed, before, approval_seconds))
        self._running[task] = parsed.claim
        try:
            answer = await task
            return replace(answer, ran_with=self._edited.pop(call_id, None))
        finally:
            del self._running[task]

    async def close(self) -> None:
        """Begin no further call, and cancel the running calls; their results are recorded before this returns."""
        self._closed = True
        await cancel_all(*self._running)

    async def _run_in_order(
        self,
        parsed: CheckedCall,
        before: Sequence[asyncio.Task[ProxiedAnswer]],
        approval_seconds: float,
    ) -> ProxiedAnswer:
        """Wait for the conflicting calls in `before` and for a free slot, and then run the call."""
        if before:
            await asyncio.wait(before)
        async with self._slots:
            return await self._run(parsed, approval_seconds)

    async def _run(self, parsed: CheckedCall, approval_seconds: float) -> ProxiedAnswer:
        """Record the call, run it, record its result and return it; an error of the call becomes a failed answer.

        A cancelled call is recorded as interrupted, and the cancellation is raised.

        Raises:
            ApprovalRequired: the user did not answer in time; the call is recorded as denied.
            StoreError: the log failed.
        """
        call = parsed.call
        start = self._clock.elapsed()
        await self._recorder.record(
            tl.ProxiedCall(
                call_id=call.call_id,
                parent=self._parent.call_id,
                tool=call.tool,
                arguments=call.arguments,
            )
        )
        try:
            # Checked again, because guards count the recorded calls of the turn, and this call is recorded now.
            return await self._run_recorded(self._checker.parse(call), approval_seconds)
        except asyncio.CancelledError:
            await self._record_end(parsed, CUT_OFF, "interrupted", start)
            raise
        except ApprovalRequired as error:
            await self._record_end(parsed, str(error), "denied", start)
            raise
        except (StoreError, AssertionError):
            raise
        except AskUser:
            text = f"{call.tool} asks the user, which it cannot do for a program"
            return await self._record_end(parsed, text, "error", start)
        except LooplineError as error:
            text = str(error)
        except Exception as error:
            logger.exception("%s broke", call.tool)
            text = f"{type(error).__name__}: {error}"
        failed = await self._checker.filter_result(parsed.guarded, Outcome(text=text))
        return await self._record_end(parsed, failed.text, "error", start)

    async def _run_recorded(self, parsed: CheckedCall, approval_seconds: float) -> ProxiedAnswer:
        """Judge and run the recorded call, record its result and return it; a denied call is not run.

        Raises:
            ToolError: the program may not call the tool.
            ApprovalRequired: the user did not answer in time.
            LooplineError: the call cannot run, or its tool failed.
        """
        call = parsed.call
        start = self._clock.elapsed()
        if call.tool not in self.names:
            raise ToolError(f"a program cannot call {call.tool!r} here: {self._offer}")
        parsed = await self._judge(parsed, approval_seconds)
        if isinstance(parsed.verdict, Deny):
            return await self._record_end(parsed, parsed.verdict.reason, "denied", start)
        if isinstance(parsed.tool, LooplineError):
            raise parsed.tool
        self._outbox.progress(call.tool)
        children = Children(call.call_id, self._runtime, spawn=None)
        outcome = await self._invoke(parsed, children)
        outcome = await self._checker.filter_result(parsed.guarded, outcome)
        return await self._record_outcome(parsed, outcome, start)

    @property
    def _offer(self) -> str:
        return f"only {', '.join(self.names)}" if self.names else "it can call no tool"

    async def _judge(self, parsed: CheckedCall, approval_seconds: float) -> CheckedCall:
        """Return the call with the verdict of the guards, after the user's answer if a guard asks for approval.

        A call that the user does not approve is denied. Arguments that the user edited are stored for the answer to
        the program.

        Raises:
            ApprovalRequired: the user did not answer in time.
        """
        guarded = parsed.guarded
        if guarded is None:
            return parsed
        judged = await self._checker.check(parsed, guarded)
        if not isinstance(judged.verdict, Ask):
            return judged
        answer = await self._ask_user(parsed.call.call_id, judged.verdict, approval_seconds)
        if answer is None:
            raise ApprovalRequired(parsed.call.tool, judged.verdict.question)
        if not tl.is_approval(answer):
            return structs.replace(parsed, verdict=Deny(denial_text(answer)))
        edited = tl.edited_arguments(answer)
        if edited is not None:
            self._edited[parsed.call.call_id] = edited
        return await self._checker.check(parsed, guarded, approval=answer)

    async def _ask_user(self, call_id: str, ask: Ask, seconds: float) -> Json:
        """Record a question for the approval of a call, and return the user's answer; None after `seconds` seconds.

        If the turn does not have a user, or `seconds` is not above 0, the question is not recorded and None is
        returned.
        """
        recorder = self._recorder
        if not recorder.has_user or seconds <= 0:
            return None
        waiting = asyncio.ensure_future(
            self._runtime.ask(call_id, ask.question, kind="approval", people=ask.people)
        )

        def time_out() -> None:
            waiting.cancel()

        alarm = self._clock.alarm(seconds, time_out)
        try:
            await asyncio.wait([waiting])
        finally:
            alarm.cancel()
            waiting.cancel()
        return None if waiting.cancelled() else waiting.result()

    async def _record_end(
        self, parsed: CheckedCall, text: str, status: tl.ResultStatus, start: float
    ) -> ProxiedAnswer:
        """Record the failed result if the call is still open, and return it with `status` as its code."""
        call = parsed.call
        result = tl.ProxiedResult(
            call_id=call.call_id,
            parent=self._parent.call_id,
            tool=call.tool,
            text=well_formed(text),
            status=status,
            elapsed_ms=elapsed_ms(self._clock, start),
        )
        if call.call_id in self._recorder.turn.open_proxied:
            await self._recorder.record(result)
        return ProxiedAnswer(ok=False, text=result.text, code=status)

    async def _record_outcome(
        self, parsed: CheckedCall, outcome: Outcome, start: float
    ) -> ProxiedAnswer:
        """Record the result with its sources, artifacts and files, and return it for the program; the model does not see it.

        Only the recorded text is truncated. If the tool failed, a ref cannot be read, or the result is too long for a
        program, the program gets the reason instead.
        """
        call = parsed.call
        turn = self._recorder.number
        stored = truncate_outcome(outcome, self._runtime.options.result_bytes)
        ran_with = None if parsed.arguments is call.arguments else parsed.arguments
        status: tl.ResultStatus = "error" if outcome.failed or outcome.missing else "ok"
        whole: list[RenderedResult] = []

        def bodies(timeline: tl.Timeline) -> list[tl.Body]:
            """Return the result and its bodies, truncated for the log; put the full rendering into `whole`."""
            limits = self._runtime.workspace_limits
            files = file_bodies(timeline, turn, outcome.files, call.call_id, limits=limits)
            rendered = render_result(outcome, timeline, turn, call.call_id, files)
            whole[:] = [rendered]
            if stored is not outcome:
                rendered = render_result(stored, timeline, turn, call.call_id, files)
            result = tl.ProxiedResult(
                call_id=call.call_id,
                parent=self._parent.call_id,
                tool=call.tool,
                text=rendered.text,
                status=status,
                elapsed_ms=elapsed_ms(self._clock, start),
                artifact=rendered.artifact,
                ran_with=ran_with,
                source_spans=rendered.source_spans,
            )
            return [result, *rendered.bodies]

        await self._recorder.record_from(bodies)
        [given] = whole
        if status == "error":
            reason = "; ".join(outcome.missing) or given.text
            return ProxiedAnswer(ok=False, text=reason, code=status)
        if len(given.text) > RESULT_CHARACTERS:
            reason = f"the result has {len(given.text):,} characters, and a program may receive {RESULT_CHARACTERS:,}: ask for less at once"
            return ProxiedAnswer(ok=False, text=reason, code="too_large")
        return ProxiedAnswer(ok=True, text=given.text, sections=tuple(given.sections))
