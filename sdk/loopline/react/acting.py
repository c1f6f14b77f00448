"""Acting: the calls of a round run by their effects, and each result is recorded as it arrives."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loopline.clock import Clock
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.events import Delta, Listen
from loopline.models import Json, JsonObject, dumps, well_formed
from loopline.prompt import View
from loopline.react.approving import approved, digest_of
from loopline.react.guards import Guards
from loopline.react.outcomes import recorded
from loopline.react.policies import Policies
from loopline.react.quota import Quota
from loopline.react.seams import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.react.spawning import Children, Spawn
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
    TurnResult,
    parent_name,
)
from loopline.tools import AskUser, BoundTool, Call, ChildTask, Outcome, Tool, ToolContext, ToolSet

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
            case ("write", "write") | ("meta", "meta"):
                return self.key == other.key
            case _:
                return False


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A call with the tool that runs it, or with why none does, and what the guards make of it."""

    call: ToolCalled
    tool: Tool | LooplineError
    claim: Claim
    arguments: JsonObject
    guarded: GuardedCall | None = None
    verdict: Verdict = field(default_factory=Allow)


@dataclass(slots=True)
class _Running:
    """A call on its way; `cut` is the result it gets when it is cut off."""

    parsed: _Parsed
    task: asyncio.Task[None]
    children: Children
    cut: tuple[ResultStatus, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What calls are run with: whose they are, what they may reach, and who stands around them."""

    tools: Callable[[], ToolSet]
    reader: Reader
    view: Callable[[], View]
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    guards: Sequence[Guard] = ()
    policies: Policies = field(default_factory=Policies)
    spawn: Spawn | None = None
    quota: Quota = field(default_factory=Quota)


class Actor:
    """Runs calls and records what comes of them."""

    def __init__(self, *, recorder: Recorder, clock: Clock, listen: Listen, hands: Hands) -> None:
        self._recorder = recorder
        self._clock = clock
        self._listen = listen
        self._hands = hands
        self._running: dict[str, _Running] = {}
        most = hands.policies.parallel_tools
        self._places = asyncio.Semaphore(most)

    async def settle(self) -> None:
        """Give every open call of the turn its one result, save those that wait for the user.

        A call that is not a read and had begun is not begun again, unless all that it did is the runs of
        its children, which are carried on; every other one runs.
        """
        turn = self._recorder.turn
        run = list[ToolCalled]()
        for call in list(turn.open_calls.values()):
            waiting, answer = turn.waiting.get(call.call_id), turn.answers.get(call.call_id)
            if waiting is not None and answer is None:
                continue
            if answer is not None and _asks_itself(waiting):
                await self._record_end(call, _as_text(answer.value), "ok")
            elif self._has_children(call):
                run.append(call)
            elif (begun := turn.started.get(call.call_id)) is not None:
                await self._settle_begun(call, begun)
            elif waiting is not None and answer is not None and not approved(answer.value):
                await self._record_end(call, DENIED, "denied")
            else:
                run.append(call)
        await self.act(run)

    def _has_children(self, call: ToolCalled) -> bool:
        """Whether the call began runs that are this conversation's: a fork carries on none."""
        recorder = self._recorder
        children = recorder.turn.children.values()
        names = [child.conversation for child in children if child.call_id == call.call_id]
        own = recorder.conversation.name
        return bool(names) and all(parent_name(name) == own for name in names)

    async def _settle_begun(self, call: ToolCalled, begun: ToolStarted) -> None:
        """The result of a call that had begun when its runner was cut off, with what it ran with."""
        parsed = self._parsed(call)
        if isinstance(parsed.tool, LooplineError):
            await self._record_end(call, INTERRUPTED, "interrupted")
            return
        arguments = call.arguments if begun.ran_with is None else begun.ran_with
        try:
            made = self._call(call, parsed.tool.effect, self._children(call, None))
            outcome = await parsed.tool.reconcile(deepcopy(arguments), made)
        except StoreError:
            raise
        except AskUser as asked:
            await self._wait(call, asked.kind, asked.question, asked.child)
            return
        except ToolError as error:
            await self._record_end(call, str(error), "error")
            return
        except Exception:
            logger.exception("what became of %s cannot be found out", call.tool)
            outcome = None
        if outcome is None:
            await self._record_end(call, INTERRUPTED, "interrupted")
        else:
            await self._record(call, outcome, 0.0, begun.ran_with)

    async def act(self, calls: Sequence[ToolCalled]) -> None:
        """Run the calls: conflicting ones in order, the rest at once."""
        if len(calls) == 1:
            await self._act_alone(calls[0])
            return
        tasks = list[tuple[_Parsed, asyncio.Task[None]]]()
        for call in calls:
            parsed = await self._judged(self._parsed(call))
            before = [task for other, task in tasks if other.claim.conflicts(parsed.claim)]
            children = self._children(call, self._hands.spawn)
            task = asyncio.create_task(self._after(before, parsed, children))
            self._running[call.call_id] = _Running(parsed, task, children)
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

    async def _act_alone(self, call: ToolCalled) -> None:
        """Run one call, in the task that asks for it."""
        parsed, task = await self._judged(self._parsed(call)), asyncio.current_task()
        children = self._children(call, self._hands.spawn)
        if task is not None:
            self._running[call.call_id] = _Running(parsed, task, children)
        try:
            await self._after((), parsed, children)
        finally:
            self._running.pop(call.call_id, None)

    def cut(self, *, everything: bool) -> None:
        """Cut off reads and what has others work, or every call; each gets a result that says so."""
        cut: tuple[ResultStatus, str] = (
            ("stopped", TOO_LATE) if everything else ("interrupted", STEERED)
        )
        for one in self._running.values():
            if everything or self._yields(one):
                one.cut = cut
                one.task.cancel()

    def _yields(self, one: _Running) -> bool:
        """Whether a call gives way to a steer: it reads, its children run, or are not begun yet."""
        if isinstance(one.parsed.tool, LooplineError):
            return True
        match one.parsed.tool.effect:
            case "read":
                return True
            case "meta":
                begun = one.parsed.call.call_id in self._recorder.turn.started
                return one.children.running or not begun
            case "write" | "exclusive":
                return False

    def _parsed(self, call: ToolCalled) -> _Parsed:
        """The call with its tool, once its arguments are right; what cannot run excludes nothing."""
        try:
            tool = self._hands.tools().find(call.tool)
            tool.check(call.arguments)
        except LooplineError as error:
            return _Parsed(call, error, Claim("read"), call.arguments)
        return _Parsed(call, tool, self._claim(tool, call.arguments), call.arguments)

    def _claim(self, tool: Tool, arguments: JsonObject) -> Claim:
        """What the call excludes. Beside what a tool runs that declares nothing is a policy."""
        if isinstance(tool, BoundTool) and not tool.function.declared:
            return Claim(self._hands.policies.unknown_effect)
        try:
            return Claim(tool.effect, tool.key(arguments))
        except Exception:
            logger.exception("the key of %s cannot be made: it runs alone", tool.spec.name)
            return Claim("exclusive")

    async def _judged(self, parsed: _Parsed) -> _Parsed:
        """The call as the guards leave it, one call after the other, before any of the round runs."""
        tool, call = parsed.tool, parsed.call
        if isinstance(tool, LooplineError) or not self._hands.guards:
            return parsed
        guards, guarded = Guards(tuple(self._hands.guards)), self._guarded(call, tool.effect)
        turn = self._recorder.turn
        answer, waiting = turn.answers.get(call.call_id), turn.waiting.get(call.call_id)
        same = waiting is not None and waiting.digest == digest_of(call)
        agreed = same and answer is not None and approved(answer.value)
        agreed = agreed or call.call_id in turn.started  # what its children do is carried on
        verdict = await (guards.granted(guarded) if agreed else guards.before(guarded))
        parsed = replace(parsed, guarded=guarded, verdict=verdict)
        match verdict:
            case Allow(arguments=dict() as changed):
                try:
                    tool.check(changed)
                except LooplineError as error:
                    return replace(parsed, tool=error, claim=Claim("read"))
                return replace(parsed, claim=self._claim(tool, changed), arguments=changed)
            case _:
                return parsed

    async def _after(
        self, before: Sequence[asyncio.Task[None]], parsed: _Parsed, children: Children
    ) -> None:
        call = parsed.call
        start = self._clock.elapsed()
        try:
            if before:
                await asyncio.wait(before)
            if self._is_held_up(parsed):
                return
            async with self._places:
                start = self._clock.elapsed()
                await self._run(call, parsed, children)
        except StoreError:
            raise
        except AskUser as asked:
            await self._wait(call, asked.kind, asked.question, asked.child)
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

    def _is_held_up(self, parsed: _Parsed) -> bool:
        """Whether an earlier call that conflicts waits for leave, or for one that does."""
        turn = self._recorder.turn
        asked = {call_id for call_id, one in turn.waiting.items() if one.kind == "question"}
        if turn.waiting.keys() <= asked | turn.answers.keys():
            return False
        for call in turn.open_calls.values():
            if call.call_id == parsed.call.call_id:
                break
            if call.call_id not in asked and self._parsed(call).claim.conflicts(parsed.claim):
                return True
        return False

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

    async def _run(self, call: ToolCalled, parsed: _Parsed, children: Children) -> None:
        tool = parsed.tool
        if isinstance(tool, LooplineError):
            raise tool
        begun = call.call_id in self._recorder.turn.started
        arguments = parsed.arguments
        ran_with = None if arguments is call.arguments else arguments
        match parsed.verdict:
            case Deny(reason=reason):
                await self._record_end(call, reason, "denied")
                return
            case Ask(question=question):
                await self._wait(call, "approval", question)
                return
            case Allow():
                pass
        start = self._clock.elapsed()
        if tool.effect != "read":
            if not begun:
                await self._recorder.record(
                    ToolStarted(call_id=call.call_id, effect=tool.effect, ran_with=ran_with)
                )
            await self._recorder.check_lease()  # the process may have been stopped since
        # A copy: what a tool does to its arguments must not change what the log says of them.
        made = self._call(call, tool.effect, children)
        outcome = await children.over(self._timed(tool, deepcopy(arguments), made))
        if parsed.guarded is not None:
            outcome = await self._looked_over(parsed.guarded, outcome)
        await self._record(call, outcome, self._since(start), ran_with)

    async def _timed(self, tool: Tool, arguments: JsonObject, call: Call) -> Outcome:
        """The outcome, unless the time that a call has is over before."""
        seconds = self._hands.policies.tool_timeout_seconds
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
            made=dict(Counter(self._made_before(call))),
        )

    def _made_before(self, call: ToolCalled) -> Iterator[str]:
        """The tools of the turn's calls before this one, in their order."""
        for batch in self._recorder.turn.batches:
            for one in batch.calls:
                if one.call_id == call.call_id:
                    return
                yield one.tool

    async def _looked_over(self, call: GuardedCall, outcome: Outcome) -> Outcome:
        """The outcome as the guards let the model read it: its text, and that of each section."""
        guards = Guards(tuple(self._hands.guards))
        try:
            text = await guards.after(call, outcome.text)
            sections = [
                replace(section, text=await guards.after(call, section.text))
                for section in outcome.sections
            ]
        except Exception:
            logger.exception("a guard broke over the result of %s", call.tool)
            return Outcome(text="A guard of this bundle broke over this result: it is not shown.")
        return replace(outcome, text=text, sections=tuple(sections))

    async def _wait(
        self,
        call: ToolCalled,
        kind: Literal["question", "approval"],
        question: str,
        child: str = "",
    ) -> None:
        """Have the call wait for the user; whoever listens hears of it."""
        pending = ToolPending(
            call_id=call.call_id,
            kind=kind,
            question=well_formed(question),
            digest=digest_of(call),
            child=child,
            elapsed_ms=self._recorder.elapsed_ms,
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

    def _progress(self, text: str) -> None:
        self._listen(Delta(type="progress", channel="tool", text=well_formed(text)))

    def _children(self, call: ToolCalled, spawn: Spawn | None) -> Children:
        return Children(
            call.call_id,
            recorder=self._recorder,
            spawn=spawn,
            policies=self._hands.policies,
            quota=self._hands.quota,
            tell=self._progress,
        )

    def _call(self, call: ToolCalled, effect: Effect, children: Children) -> Call:
        recorder, hands = self._recorder, self._hands
        turn_id = f"turn_{recorder.number}"
        loop = asyncio.get_running_loop()

        def progress(text: str) -> None:  # a sync tool calls it from its thread
            loop.call_soon_threadsafe(self._progress, text)

        def spawn(task: ChildTask) -> Awaitable[TurnResult]:
            if effect != "meta":
                raise ToolError(
                    f"{call.tool} has the effect {effect!r}: only one with the effect 'meta' may begin "
                    "a child run"
                )
            return children.spawn(task)

        context = ToolContext(
            call_id=call.call_id,
            idempotency_key=f"{recorder.uid}:{call.call_id}",
            conversation=recorder.conversation.name,
            turn_id=turn_id,
            user=recorder.conversation.user,
            properties=hands.properties,
            scratchpad=hands.scratchpad,
            on_progress=progress,
            on_spawn=spawn,
        )
        return Call(
            context=context,
            timeline=recorder.timeline,
            view=hands.view(),
            reader=hands.reader,
            moment=Moment(self._clock.now(), turn_id),
        )


def _asks_itself(waiting: ToolPending | None) -> bool:
    """Whether a tool has asked the user; not one of its children, nor a guard."""
    return waiting is not None and waiting.kind == "question" and not waiting.child


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)
