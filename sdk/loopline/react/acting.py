"""Acting: the calls of a round run by their effects, and each result is recorded as it arrives."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from loopline.clock import Clock
from loopline.errors import LooplineError, StoreError
from loopline.events import Delta, Listen
from loopline.models import Json, JsonObject, dumps, well_formed
from loopline.prompt import View
from loopline.react.approving import approved, digest_of
from loopline.react.limits import PARALLEL_TOOLS, Limits
from loopline.react.outcomes import recorded
from loopline.react.seams import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.reader import Reader
from loopline.timeline import (
    Effect,
    Moment,
    Recorder,
    ResultStatus,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolStarted,
)
from loopline.tools import AskUser, Call, Outcome, Tool, ToolContext, ToolSet

logger: logging.Logger = logging.getLogger("loopline")

INTERRUPTED = (
    "This call was cut off after it had begun, and is not begun again: whether it took effect is "
    "unknown. Check before you call it once more."
)
DENIED = "The user did not approve of this call. Do not make it again; find another way, or ask."
STEERED = "This call was cut off, because the user wants something else now."
TOO_LATE = "This call was cut off, because the time of the turn was over."


@dataclass(frozen=True, slots=True)
class Claim:
    """What a call excludes: calls whose claims conflict keep their order."""

    effect: Effect
    key: str = ""

    def conflicts(self, other: Claim) -> bool:
        """Whether the two must not run at once."""
        match self.effect, other.effect:
            case ("exclusive", _) | (_, "exclusive"):
                return True
            case ("write", "write"):
                return self.key == other.key
            case ("meta", "meta"):
                return True
            case _:
                return False


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A call with the tool that runs it, or with why none does."""

    call: ToolCalled
    tool: Tool | LooplineError
    claim: Claim
    approved: bool = False


@dataclass(slots=True)
class _Running:
    """A call on its way; `cut` is the result it gets when it is cut off."""

    parsed: _Parsed
    task: asyncio.Task[None]
    cut: tuple[ResultStatus, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What calls are run with: whose they are, what they may reach, and who stands around them."""

    tools: Callable[[], ToolSet]
    reader: Reader
    view: View
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    guards: Sequence[Guard] = ()
    limits: Limits = field(default_factory=Limits)


class Actor:
    """Runs calls and records what comes of them."""

    def __init__(self, *, recorder: Recorder, clock: Clock, listen: Listen, hands: Hands) -> None:
        self._recorder = recorder
        self._clock = clock
        self._listen = listen
        self._hands = hands
        self._running: dict[str, _Running] = {}
        self._asking = asyncio.Lock()
        most = hands.limits.get("parallel_tools", PARALLEL_TOOLS)
        self._places = asyncio.Semaphore(most)

    async def settle(self) -> None:
        """Give every open call of the turn its one result, save those that wait for the user.

        A call that is not a read and had begun is not begun again; every other one runs.
        """
        turn = self._recorder.turn
        run = list[ToolCalled]()
        for call in list(turn.open_calls.values()):
            waiting, answer = turn.waiting.get(call.call_id), turn.answers.get(call.call_id)
            if waiting is not None and answer is None:
                continue
            if waiting is not None and answer is not None and waiting.kind == "question":
                await self._record_end(call, _as_text(answer.value), "ok")
            elif call.call_id in turn.started:
                await self._settle_begun(call)
            elif waiting is not None and answer is not None and not approved(answer.value):
                await self._record_end(call, DENIED, "denied")
            else:
                run.append(call)
        await self.act(run)

    async def _settle_begun(self, call: ToolCalled) -> None:
        """The result of a call that had begun when its runner was cut off."""
        parsed = self._parsed(call)
        if isinstance(parsed.tool, LooplineError):
            await self._record_end(call, INTERRUPTED, "interrupted")
            return
        try:
            outcome = await parsed.tool.reconcile(deepcopy(call.arguments), self._call(call))
        except Exception:
            logger.exception("what became of %s cannot be found out", call.tool)
            outcome = None
        if outcome is None:
            await self._record_end(call, INTERRUPTED, "interrupted")
        else:
            await self._record(call, outcome, 0.0)

    async def act(self, calls: Sequence[ToolCalled]) -> None:
        """Run the calls: conflicting ones in order, the rest at once."""
        tasks = list[tuple[_Parsed, asyncio.Task[None]]]()
        for call in calls:
            parsed = self._parsed(call)
            before = [task for other, task in tasks if other.claim.conflicts(parsed.claim)]
            task = asyncio.create_task(self._after(before, parsed))
            self._running[call.call_id] = _Running(parsed, task)
            tasks.append((parsed, task))
        try:
            await asyncio.gather(*(task for _, task in tasks))
        finally:
            unfinished = [task for _, task in tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
            for call in calls:
                self._running.pop(call.call_id, None)

    def cut(self, *, everything: bool) -> None:
        """Cut off the reads that run, or every call; each gets a result that says so."""
        cut: tuple[ResultStatus, str] = (
            ("stopped", TOO_LATE) if everything else ("interrupted", STEERED)
        )
        for one in self._running.values():
            if everything or one.parsed.claim.effect == "read":
                one.cut = cut
                one.task.cancel()

    def _parsed(self, call: ToolCalled) -> _Parsed:
        """The call with its tool, once its arguments are right; what cannot run excludes nothing."""
        turn = self._recorder.turn
        answer = turn.answers.get(call.call_id)
        agreed = answer is not None and approved(answer.value)
        try:
            tool = self._hands.tools().find(call.tool)
            tool.check(call.arguments)
        except LooplineError as error:
            return _Parsed(call, error, Claim("read"))
        try:
            claim = Claim(tool.effect, tool.key(call.arguments))
        except Exception:
            logger.exception("the key of %s cannot be made: it runs alone", call.tool)
            claim = Claim("exclusive")
        return _Parsed(call, tool, claim, agreed)

    async def _after(self, before: Sequence[asyncio.Task[None]], parsed: _Parsed) -> None:
        if before:
            await asyncio.wait(before)
        call = parsed.call
        start = self._clock.elapsed()
        try:
            async with self._places:
                start = self._clock.elapsed()
                await self._run(call, parsed)
        except StoreError:
            raise
        except AskUser as asked:
            await self._wait(call, "question", asked.question)
        except LooplineError as error:
            for note in getattr(error, "__notes__", ()):
                logger.warning("%s", note)  # where in its bundle a tool broke: for its author
            await self._record_end(call, str(error), "error", self._since(start))
        except asyncio.CancelledError:
            await self._record_cancelled(call, self._since(start))
        except Exception as error:
            logger.exception("%s broke", call.tool)
            text = f"{type(error).__name__}: {error}"
            await self._record_end(call, text, "error", self._since(start))

    async def _record_cancelled(self, call: ToolCalled, elapsed_ms: float) -> None:
        """A call that was cut off, or cancelled its own work; else the turn is being stopped."""
        task, running = asyncio.current_task(), self._running.get(call.call_id)
        if task is not None and running is not None and running.cut is not None:
            if task.uncancel():
                raise asyncio.CancelledError
            status, text = running.cut
            await self._record_end(call, text, status, elapsed_ms)
        elif task is None or task.cancelling():
            raise asyncio.CancelledError
        else:
            text = "The tool cancelled its own work."
            await self._record_end(call, text, "error", elapsed_ms)

    def _since(self, start: float) -> float:
        return round((self._clock.elapsed() - start) * 1000, 3)

    async def _run(self, call: ToolCalled, parsed: _Parsed) -> None:
        tool = parsed.tool
        if isinstance(tool, LooplineError):
            raise tool
        guarded = self._guarded(call, tool.effect)
        match await self._verdict(guarded, approved=parsed.approved):
            case Deny(reason=reason):
                await self._record_end(call, reason, "denied")
                return
            case Ask(question=question):
                async with self._asking:
                    await self._wait(call, "approval", question)
                return
            case Allow(arguments=dict() as changed):
                tool.check(changed)
                arguments: JsonObject = changed
            case _:
                arguments = call.arguments
        start = self._clock.elapsed()
        if tool.effect != "read":
            await self._recorder.record(ToolStarted(call_id=call.call_id, effect=tool.effect))
            await self._recorder.check_lease()  # the process may have been stopped since
        # A copy: what a tool does to its arguments must not change what the log says of them.
        outcome = await self._timed(tool, deepcopy(arguments), self._call(call))
        outcome = await self._looked_over(guarded, outcome)
        ran_with = None if arguments is call.arguments else arguments
        await self._record(call, outcome, self._since(start), ran_with)

    async def _timed(self, tool: Tool, arguments: JsonObject, call: Call) -> Outcome:
        """The outcome, unless the time that a call has is over before."""
        seconds = self._hands.limits.get("tool_timeout_seconds")
        if seconds is None:
            return await tool.run(arguments, call)
        task = asyncio.current_task()
        rung = False

        def ring() -> None:
            nonlocal rung
            rung = True
            if task is not None:
                task.cancel()

        alarm = self._clock.alarm(seconds, ring)
        try:
            return await tool.run(arguments, call)
        except asyncio.CancelledError:
            if rung and task is not None and not task.uncancel():
                unknown = "" if tool.effect == "read" else ": whether it took effect is unknown"
                raise LooplineError(f"it was cut off after {seconds:g} s{unknown}") from None
            raise
        finally:
            alarm.cancel()

    def _guarded(self, call: ToolCalled, effect: Effect) -> GuardedCall:
        recorder = self._recorder
        return GuardedCall(
            call_id=call.call_id,
            tool=call.tool,
            effect=effect,
            arguments=call.arguments,
            turn_id=f"turn_{recorder.number}",
            conversation=recorder.conversation.name,
            user=recorder.conversation.user,
            made=dict(Counter(result.tool for result in recorder.turn.results)),
        )

    async def _verdict(self, call: GuardedCall, *, approved: bool) -> Verdict:
        """What the guards make of it, in their order: the first that denies decides, then one that asks."""
        changed: JsonObject | None = None
        asks: Ask | None = None
        for guard in self._hands.guards:
            try:
                verdict = await guard.before(_with(call, changed))
            except Exception:
                logger.exception("a guard broke over %s", call.tool)
                if call.effect == "read":
                    continue
                return Deny("A guard of this bundle broke, so nothing may run that is not a read.")
            match verdict:
                case Deny():
                    return verdict
                case Ask():
                    asks = asks or verdict
                case Allow(arguments=arguments):
                    changed = changed if arguments is None else arguments
        return Allow(changed) if approved or asks is None else asks

    async def _looked_over(self, call: GuardedCall, outcome: Outcome) -> Outcome:
        """The outcome as the guards let the model read it, the last one first."""
        text = outcome.text
        for guard in reversed(self._hands.guards):
            try:
                text = await guard.after(call, text)
            except Exception:
                logger.exception("a guard broke over the result of %s", call.tool)
                text = "A guard of this bundle broke over this result, so it is not shown."
                return Outcome(text=text)
        return outcome if text == outcome.text else replace(outcome, text=text)

    async def _wait(self, call: ToolCalled, kind: str, question: str) -> None:
        """Have the call wait for the user; whoever listens hears of it."""
        pending = ToolPending(
            call_id=call.call_id,
            kind="approval" if kind == "approval" else "question",
            question=well_formed(question),
            digest=digest_of(call),
        )
        await self._recorder.record(pending)
        self._listen(Delta(type="pending", channel="tool", text=pending.question))

    async def _record_end(
        self, call: ToolCalled, text: str, status: ResultStatus, elapsed_ms: float = 0.0
    ) -> None:
        await self._recorder.record(
            ToolResult(
                call_id=call.call_id,
                tool=call.tool,
                text=well_formed(text),
                status=status,
                elapsed_ms=elapsed_ms,
            )
        )

    async def _record(
        self,
        call: ToolCalled,
        outcome: Outcome,
        elapsed_ms: float,
        ran_with: JsonObject | None = None,
    ) -> None:
        number = self._recorder.number
        await self._recorder.record_made(
            lambda timeline: recorded(call, outcome, elapsed_ms, timeline, number, ran_with)
        )

    def _call(self, call: ToolCalled) -> Call:
        recorder, hands = self._recorder, self._hands
        turn_id = f"turn_{recorder.number}"
        loop = asyncio.get_running_loop()

        def progress(text: str) -> None:  # a sync tool calls it from its thread
            delta = Delta(type="progress", channel="tool", text=well_formed(text))
            loop.call_soon_threadsafe(self._listen, delta)

        context = ToolContext(
            call_id=call.call_id,
            idempotency_key=f"{recorder.uid}:{call.call_id}",
            conversation=recorder.conversation.name,
            turn_id=turn_id,
            user=recorder.conversation.user,
            properties=hands.properties,
            scratchpad=hands.scratchpad,
            on_progress=progress,
        )
        return Call(
            context=context,
            timeline=recorder.timeline,
            view=hands.view,
            reader=hands.reader,
            moment=Moment(self._clock.now(), turn_id),
        )


def _with(call: GuardedCall, arguments: JsonObject | None) -> GuardedCall:
    return call if arguments is None else replace(call, arguments=arguments)


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)
