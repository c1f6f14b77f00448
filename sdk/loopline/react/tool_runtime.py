"""The tool runtime: what the tools of one run reach, the child runs that they begin, and the events that they send.

Each child is a conversation of its own, linked from its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from msgspec import structs

from loopline.clock import Clock
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.events import Delta, Event, EventSink
from loopline.files import WorkspaceLimits
from loopline.models import Json, OutputType, well_formed
from loopline.react.extensions import Guard
from loopline.react.loop_options import Limits, LoopOptions, check_limits
from loopline.react.quota import Quota
from loopline.react.state import ReactStateV2
from loopline.reader import Reader
from loopline.refs import BlockRef, ConversationRef, parse
from loopline.tasks import compute, finish
from loopline.timeline import (
    Block,
    BodyUnion,
    CustomEvent,
    LimitValue,
    Recorder,
    RunChild,
    Source,
    SourceAdded,
    ToolCalled,
    ToolPending,
    Turn,
    TurnResult,
    child_depth,
    child_name,
    citations,
)
from loopline.tools import AskUser, Background, ChildTask, Emission, NoBackground

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """What the user gave to a child that asked by that block of its own."""

    question: BlockRef
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child run: the name of its conversation, what it is to do, and under which limits.

    Its `quota` stands below its parent's. One that `is_new` has no conversation yet.
    """

    name: str
    task: ChildTask
    limits: Limits
    answer: ChildAnswer | None = None
    quota: Quota = field(default_factory=Quota)
    is_new: bool = False


class Spawn(Protocol):
    """Runs child runs. A child of one name is started once, however often it is requested."""

    async def __call__(self, child: Child, listen: EventSink) -> TurnResult:
        """Begin the child, carry it on, or say what came of it; it may be paused again.

        The listener hears every block of it, those of earlier runs first. Cancelling this stops the child.

        Raises:
            LooplineError: its code failed, or the name stands for a child with another task.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRuntime:
    """What one run works with: its log, clock, event sink, options and budget, and all that its tools use."""

    recorder: Recorder
    clock: Clock
    listen: EventSink
    reader: Reader
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    guards: Sequence[Guard] = ()
    options: LoopOptions = field(default_factory=LoopOptions)
    output: OutputType[Any] | None = None
    spawn: Spawn | None = None
    quota: Quota = field(default_factory=Quota)
    deps: object = field(default=None, repr=False)
    background: Background = field(default_factory=NoBackground)
    workspace_limits: WorkspaceLimits = field(default_factory=WorkspaceLimits)

    @property
    def state(self) -> ReactStateV2:
        """Return where the turn stands, folded from its blocks."""
        recorder = self.recorder
        return ReactStateV2.fold(recorder.turn, self.options, recorder.elapsed_seconds)

    @property
    def asks_again(self) -> bool:
        """Return whether a later request can show what the user says now."""
        return self.options.forces_answer or not self.state.exhausted


MIN_SECONDS = 0.001
MIN_COST = 0.000_001
"""What a child has left at least, in seconds and US dollars: a limit cannot be 0."""


HeardBody = ToolCalled | CustomEvent | ToolPending | SourceAdded
"""What concerns the parent of a child run."""
_HEARD = BodyUnion[HeardBody](HeardBody)


@dataclass(slots=True)
class _ChildListener:
    """The listener to a child run: folds its blocks and passes on to its parent what concerns it."""

    name: str
    outbox: Outbox
    on_event: Callable[[Event], None] | None = None
    turn: Turn = field(default_factory=lambda: Turn(1))
    questions: dict[str, Block] = field(default_factory=dict[str, Block])
    sources: dict[int, Source] = field(default_factory=dict[int, Source])

    def __call__(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)
        match event:
            case Delta(type="progress", text=text):
                self.outbox.progress(f"{self.name}: {text}")
            case Delta(type="custom", name=name, data=data):
                self.outbox.relay(CustomEvent(name=name, data=data))
            case Delta():
                pass
            case Block(body=body):
                self.turn.take(event)
                if _HEARD.has(body):
                    self._take(event, body)

    def _take(self, block: Block, body: HeardBody) -> None:
        match body:
            case ToolCalled(tool=tool):
                self.outbox.progress(f"{self.name}: {tool}")
            case CustomEvent():
                self.outbox.relay(body)
            case ToolPending(call_id=call_id):
                self.questions[call_id] = block
            case SourceAdded(sid=sid, source=source):
                self.sources[sid] = source

    def asking(self, result: TurnResult) -> AskUser:
        """Return the question that the parent asks for a paused child: the first of its open ones."""
        first = result.pending[0]
        block = self.questions[first.call_id]
        ref = ConversationRef(conversation=self.name, ref=block.name)
        kind = block.body.kind if isinstance(block.body, ToolPending) else "question"
        return AskUser(first.question, kind=kind, child=str(ref))

    async def resolved(self, result: TurnResult) -> TurnResult:
        """Return the result with citations that need no pool: `[1]` is the first of its sources."""
        newest = max(self.sources, default=0)
        answer, marks = result.answer, citations.Marks(self.sources)
        resolve = partial(citations.resolve, answer, marks, newest=newest)
        return replace(result, answer=await compute(resolve, characters=len(answer)))


class Children:
    """The child runs of one call, and its outbox. None is left running, nor anything unsent, when `over` is."""

    def __init__(self, call_id: str, runtime: ToolRuntime, *, spawn: Spawn | None) -> None:
        self._call_id = call_id
        self._recorder = runtime.recorder
        self._spawn = spawn
        self._options = runtime.options
        self._quota = runtime.quota
        self.outbox: Outbox = Outbox(call_id, runtime.recorder, runtime.listen)
        self._tasks: list[asyncio.Task[TurnResult]] = []
        self._resting: dict[str, asyncio.Event] = {}
        self._questions: dict[str, AskUser] = {}

    @property
    def running(self) -> bool:
        """Return whether a child runs now."""
        return any(not task.done() for task in self._tasks)

    def spawn(self, task: ChildTask) -> Awaitable[TurnResult]:
        """Begin the next child, or come back to it.

        Raises:
            ToolError: there can be no child here.
        """
        run, parent = self._spawn, self._recorder.conversation.name
        limit = self._options.max_depth
        if run is None:
            raise ToolError("no child run can be begun here: nothing runs them")
        if child_depth(parent) >= limit:
            raise ToolError(
                f"{parent!r} may begin no child run: it is {child_depth(parent)} below a conversation, "
                f"and max_depth is {limit}"
            )
        deadline = self._options.deadline_seconds
        if deadline is not None and self._recorder.elapsed_seconds >= deadline:
            raise ToolError("no child run can be begun or carried on: the time of the turn is over")
        if not task.text.strip():
            raise ToolError("a child run needs a task: say what it is to do")
        name = child_name(parent, self._call_id, task.number or len(self._tasks) + 1)
        if name in self._resting:
            raise ToolError(f"{name} is begun already: give each child run a number of its own")
        calm, quota = asyncio.Event(), self._quota.child(name)
        self._resting[name] = calm
        began = asyncio.ensure_future(self._run_child(run, name, task, quota))
        began.add_done_callback(lambda _: calm.set())
        began.add_done_callback(lambda _: self._quota.close(name))
        self._tasks.append(began)
        return began

    async def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step of the call and return its outcome once none of its children runs.

        Raises:
            AskUser: a child asks the user, whatever the tool made of that.
        """
        try:
            outcome = await step
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._first_question is not None:
                raise self._first_question from None
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.outbox.close()
        if self._questions and self._first_question is not None:
            raise self._first_question
        return outcome

    @property
    def _first_question(self) -> AskUser | None:
        """Return the question of the first child that asks one."""
        return next(
            (self._questions[name] for name in self._resting if name in self._questions), None
        )

    async def _run_child(self, run: Spawn, name: str, task: ChildTask, quota: Quota) -> TurnResult:
        recorder = self._recorder
        child = Child(
            name=name,
            task=task,
            limits=self._limits(task.limits),
            answer=self._answer(name),
            quota=quota,
            is_new=name not in recorder.turn.children,
        )
        if child.is_new:
            began = RunChild(
                call_id=self._call_id,
                conversation=name,
                agent=task.agent,
                agent_digest=task.agent_digest,
            )
            await self._record(began, task)
            await recorder.check_lease()
        listener = _ChildListener(name, self.outbox, task.on_event)
        try:
            result = await run(child, listener)
        except StoreError:
            raise
        except LooplineError as error:
            raise ToolError(f"{name} failed: {error}") from error
        finally:
            await self._record_end(listener, quota, task)
        if result.exit_reason == "paused":
            self._questions[name] = asking = listener.asking(result)
            self._resting[name].set()
            for resting in list(self._resting.values()):  # the others come to an end or a question
                await resting.wait()
            raise asking
        return await listener.resolved(result)

    async def _record(self, link: RunChild, task: ChildTask) -> None:
        """Record the beginning or the end of a child, with what its task records then."""
        if task.bodies is None:
            await self._recorder.record(link)
            return
        bodies = task.bodies
        await self._recorder.record_from(lambda timeline: [link, *bodies(timeline, link)])

    async def _record_end(self, listener: _ChildListener, quota: Quota, task: ChildTask) -> None:
        turn, link = listener.turn, self._recorder.turn.children[listener.name]
        if turn.exit is None or link.reason:
            return
        estimated, cost = quota.take_unrecorded()
        end = structs.replace(
            link,
            reason=turn.exit.reason,
            usage=turn.usage,
            cost=None if turn.cost is None and not cost else (turn.cost or 0.0) + cost,
            estimated=turn.estimated + estimated,
        )
        await self._record(end, task)
        self.outbox.progress(f"{listener.name}: {end.reason}")

    def _answer(self, name: str) -> ChildAnswer | None:
        turn = self._recorder.turn
        pending, answer = turn.pending.get(self._call_id), turn.answers.get(self._call_id)
        if pending is None or answer is None or not pending.child:
            return None
        child = parse(pending.child)
        if not isinstance(child, ConversationRef) or child.conversation != name:
            return None
        return ChildAnswer(child.ref, answer.value) if isinstance(child.ref, BlockRef) else None

    def _limits(self, requested: Mapping[str, LimitValue]) -> Limits:
        """Return the child's limits, never beyond what its parent has left."""
        limits = cast("Limits", dict(requested))
        check_limits(limits)
        own = self._options
        limits["max_depth"] = own.max_depth
        deadline = own.deadline_seconds
        if deadline is not None:
            remaining = deadline - self._recorder.elapsed_seconds
            seconds = limits.get("deadline_seconds") or remaining
            limits["deadline_seconds"] = max(min(seconds, remaining), MIN_SECONDS)
        unspent = self._quota.unspent
        if unspent.tokens is not None:
            tokens = limits.get("max_tokens") or unspent.tokens
            limits["max_tokens"] = max(min(tokens, unspent.tokens), 1)
        if unspent.cost is not None:
            cost = limits.get("max_cost") or unspent.cost
            limits["max_cost"] = max(min(cost, unspent.cost), MIN_COST)
        return limits


class Outbox:
    """Sends at once what passes by, unless a durable event is being recorded: then it goes after that."""

    def __init__(self, call_id: str, recorder: Recorder, listen: EventSink) -> None:
        self._call_id = call_id
        self._recorder = recorder
        self._listen = listen
        self._loop = asyncio.get_running_loop()
        self._last: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def progress(self, text: str) -> None:
        """Tell how far the call has come; from any thread."""
        progress_text = well_formed(text)
        self._deliver_from_any_thread(
            Delta(type="progress", channel="tool", text=progress_text, call_id=self._call_id)
        )

    def relay(self, event: CustomEvent) -> None:
        """Tell of an event of a child run, as one of the call that began it."""
        delta = Delta(
            type="custom", channel="tool", name=event.name, data=event.data, call_id=self._call_id
        )
        self._deliver_from_any_thread(delta)

    def emit(self, event: CustomEvent, durable: bool) -> Emission:
        """Tell of an event of the call; from any thread, where a durable one is recorded on return.

        Raises:
            LooplineError: the call has ended; in a thread also: it could not be recorded.
        """
        self._check_open(event)
        if not durable:
            self.relay(event)
            return Emission()
        if self._in_loop_thread:
            return Emission(self._send(event))
        asyncio.run_coroutine_threadsafe(self._record_in_loop(event), self._loop).result()
        return Emission()

    async def close(self) -> None:
        """Take nothing more, and wait until all of it is sent.

        Raises:
            LooplineError: an event could not be recorded.
        """
        self._closed = True
        if self._last is not None:
            await finish(asyncio.gather(self._last, return_exceptions=True))
        if self._failure is not None:
            raise self._failure

    @property
    def _in_loop_thread(self) -> bool:
        """Return whether this is the thread of the turn's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _check_open(self, event: CustomEvent) -> None:
        if self._closed:
            raise LooplineError(
                f"the event {event.name!r} comes too late: the call {self._call_id} has ended"
            )

    def _deliver_from_any_thread(self, delta: Delta) -> None:
        if self._in_loop_thread:
            self._deliver(delta)
        else:
            self._loop.call_soon_threadsafe(self._deliver, delta)

    def _deliver(self, delta: Delta) -> None:
        if self._closed:  # a thread that was not stopped told it after its call had ended
            return
        if self._last is None or self._last.done():
            self._listen(delta)
        else:
            self._send(delta)

    async def _record_in_loop(self, event: CustomEvent) -> None:
        self._check_open(event)
        await self._send(event)

    def _send(self, event: Delta | CustomEvent) -> asyncio.Task[None]:
        self._last = asyncio.create_task(self._send_after(self._last, event))
        self._last.add_done_callback(self._note_failure)
        return self._last

    async def _send_after(
        self, before: asyncio.Task[None] | None, event: Delta | CustomEvent
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        match event:
            case Delta():
                self._listen(event)
            case CustomEvent():
                await self._recorder.record(event)

    def _note_failure(self, sent: asyncio.Task[None]) -> None:
        if not sent.cancelled() and self._failure is None:
            self._failure = sent.exception()
