"""The tool runtime: the ports and values for the tools of one run, their child runs, and their events.

Each child run has a separate conversation, which is linked from its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

from msgspec import structs

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.events import Delta, Event, EventSink
from loopline.files import Workspace, WorkspaceLimits
from loopline.models import Json, OutputType, well_formed, well_formed_json
from loopline.react.approvals import RuleBook, approval_digest
from loopline.react.extensions import Guard
from loopline.react.loop_options import Limits, LoopOptions, check_limits
from loopline.react.model_requests import Quota
from loopline.react.state import ReactStateV2
from loopline.reader import Reader
from loopline.refs import BlockRef, ConversationRef, parse
from loopline.tasks import cancel_all, compute, finish
from loopline.tools import AskUser, Background, ChildTask, Emission, ToolContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The answer to a question of a child run; `question` is the ref of the question in the child's conversation.

    `people` are those who have approved the call, if several must.
    """

    question: BlockRef
    value: Json
    people: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child run: the name of its conversation, its task and its limits.

    Its `quota` is a child of its parent's quota. If it `is_new`, its conversation does not exist yet.
    """

    name: str
    task: ChildTask
    limits: Limits
    answer: ChildAnswer | None = None
    quota: Quota = field(default_factory=Quota)
    is_new: bool = False


Spawn = Callable[[Child, EventSink], Awaitable[tl.TurnResult]]
"""Starts or resumes a child run, and returns its result, also if it has ended before; it may be paused.

A child run of one name is started once, however often it is requested. The listener receives every block of the child
run, those of earlier runs first. Cancelling this stops the child.

Raises:
    LooplineError: the code of the child failed, or a child run with another task has this name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRuntime:
    """The environment of one run: its log, clock, event sink, options, budget, guards, and the values for its tools."""

    recorder: tl.Recorder
    clock: Clock
    listen: EventSink
    reader: Reader
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    guards: Sequence[Guard]
    options: LoopOptions
    output: OutputType[Any] | None
    spawn: Spawn
    quota: Quota
    deps: object = field(repr=False)
    background: Background
    workspace_limits: WorkspaceLimits
    rules: RuleBook

    @property
    def state(self) -> ReactStateV2:
        """The state of the turn, folded from its blocks."""
        recorder = self.recorder
        return ReactStateV2.fold(recorder.turn, self.options, recorder.elapsed_seconds)

    @property
    def asks_again(self) -> bool:
        """Whether a later request can still show new input of the user."""
        return self.options.forces_answer or not self.state.exhausted

    async def record_pending(
        self, call: tl.ToolCalled, question: AskUser, after: tuple[str, ...] = ()
    ) -> None:
        """Record that the call waits for the user, and send the question to listeners.

        `after` are the ids of the calls after which the call runs when it is approved.
        """
        pending = tl.ToolPending(
            call_id=call.call_id,
            kind="approval" if question.kind == "approval" else "question",
            question=well_formed(question.question),
            digest=approval_digest(call),
            child=question.child,
            elapsed_ms=self.recorder.elapsed_ms,
            people=question.people,
            client=question.kind == "client",
            form=question.form,
            after=after,
        )
        await self.recorder.record(pending)
        event = Delta(type="pending", channel="tool", text=pending.question, call_id=call.call_id)
        self.listen(event)

    async def ask(
        self,
        call_id: str,
        question: str,
        form: Json = None,
        *,
        kind: Literal["question", "approval"] = "question",
        people: int = 1,
    ) -> Json:
        """Ask the user while a call runs, and return the answer; None if the user declines.

        The question is recorded and sent to listeners. `form` is the JSON Schema of the answer; without it the
        question asks for yes or no.
        """
        body = tl.ToolQuestion(
            call_id=call_id,
            question=well_formed(question),
            form=well_formed_json(form),
            kind=kind,
            people=people,
        )
        event = Delta(
            type="pending", channel="tool", text=body.question, call_id=call_id, data=body.form
        )
        return await self.recorder.ask(body, partial(self.listen, event))

    def make_context(
        self,
        call_id: str,
        outbox: Outbox,
        spawn: Callable[[ChildTask], Awaitable[tl.TurnResult]],
        pulled: Sequence[tl.Block] = (),
    ) -> ToolContext[object]:
        """Return the context of a call; `pulled` are the files of earlier turns in its workspace."""
        recorder = self.recorder
        return ToolContext(
            call_id=call_id,
            idempotency_key=f"{recorder.uid}:{call_id}",
            conversation=recorder.conversation.name,
            turn_id=tl.turn_id(recorder.number),
            user=recorder.conversation.user,
            properties=self.properties,
            scratchpad=self.scratchpad,
            on_progress=outbox.progress,
            on_spawn=spawn,
            on_emit=outbox.emit,
            workspace=Workspace(
                recorder.timeline, recorder.number, beside=pulled, limits=self.workspace_limits
            ),
            deps=self.deps,
        )


MIN_SECONDS = 0.001
"""The least `deadline_seconds` of a child run, since a limit cannot be 0."""
MIN_COST = 0.000_001
"""The least `max_cost` of a child run, in US dollars."""


ReportedBody = tl.ToolCalled | tl.CustomEvent | tl.ToolPending | tl.SourceAdded
"""The bodies of a child run that its parent needs."""
_REPORTED = tl.BodyUnion[ReportedBody](ReportedBody)


@dataclass(slots=True)
class _ChildListener:
    """The listener to a child run: it folds the blocks, and sends tool calls and custom events to the parent's listeners."""

    name: str
    outbox: Outbox
    on_event: Callable[[Event], None] | None = None
    turn: tl.Turn = field(default_factory=lambda: tl.Turn(1))
    questions: dict[str, tl.Block] = field(default_factory=dict[str, tl.Block])
    sources: dict[int, tl.Source] = field(default_factory=dict[int, tl.Source])

    def __call__(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)
        match event:
            case Delta(type="progress", text=text):
                self.outbox.progress(f"{self.name}: {text}")
            case Delta(type="custom", name=name, data=data):
                self.outbox.relay(tl.CustomEvent(name=name, data=data))
            case Delta():
                pass
            case tl.Block(body=body):
                self.turn.take(event)
                if _REPORTED.has(body):
                    self._take(event, body)

    def _take(self, block: tl.Block, body: ReportedBody) -> None:
        """Report a tool call as progress, relay a custom event, and store a question or a source by its id."""
        match body:
            case tl.ToolCalled(tool=tool):
                self.outbox.progress(f"{self.name}: {tool}")
            case tl.CustomEvent():
                self.outbox.relay(body)
            case tl.ToolPending(call_id=call_id):
                self.questions[call_id] = block
            case tl.SourceAdded(sid=sid, source=source):
                self.sources[sid] = source

    def first_question(self, result: tl.TurnResult) -> AskUser:
        """Return the first open question of a paused child run, for the parent to ask."""
        first = result.pending[0]
        block = self.questions[first.call_id]
        ref = ConversationRef(conversation=self.name, ref=block.name)
        kind = block.body.kind if isinstance(block.body, tl.ToolPending) else "question"
        return AskUser(first.question, kind=kind, child=str(ref), people=first.people)

    async def resolve_citations(self, result: tl.TurnResult) -> tl.TurnResult:
        """Replace the citations in the answer of the result by their positions in `result.sources`, and return the new result.

        The mark `[1]` is the first source. A citation of a source that the child run did not add becomes `[?]`.
        """
        answer = result.answer
        marks = tl.citations.Marks(self.sources)
        newest = max(self.sources, default=0)
        resolve = partial(tl.citations.resolve, answer, marks, newest=newest)
        return replace(result, answer=await compute(resolve, characters=len(answer)))


class Children:
    """The child runs of one call, and its outbox; when `run` returns, all child runs have ended and all events are sent."""

    def __init__(self, call_id: str, runtime: ToolRuntime, *, spawn: Spawn | None) -> None:
        self._call_id = call_id
        self._recorder = runtime.recorder
        self._spawn = spawn
        self._options = runtime.options
        self._quota = runtime.quota
        self.outbox: Outbox = Outbox(call_id, runtime.recorder, runtime.listen)
        self._tasks: list[asyncio.Task[tl.TurnResult]] = []
        self._inactive: dict[str, asyncio.Event] = {}  # set when a child has ended or asks the user
        self._questions: dict[str, AskUser] = {}

    @property
    def running(self) -> bool:
        """Whether a child is running now."""
        return any(not task.done() for task in self._tasks)

    def spawn(self, task: ChildTask) -> Awaitable[tl.TurnResult]:
        """Start the next child run, or resume it; the result is awaited separately.

        Raises:
            ToolError: a child run is not possible here, or the task is not valid.
        """
        run = self._spawn
        parent = self._recorder.conversation.name
        limit = self._options.max_depth
        if run is None:
            raise ToolError("a child run cannot be begun here")
        if tl.child_depth(parent) >= limit:
            raise ToolError(
                f"{parent!r} may not begin a child run: its depth is {tl.child_depth(parent)}, and max_depth "
                f"is {limit}"
            )
        deadline = self._options.deadline_seconds
        if deadline is not None and self._recorder.elapsed_seconds >= deadline:
            raise ToolError("a child run cannot be begun or resumed: the time of the turn is over")
        if not task.text.strip():
            raise ToolError("a child run needs a task: its text is empty")
        name = tl.child_name(parent, self._call_id, task.number or len(self._tasks) + 1)
        if name in self._inactive:
            raise ToolError(f"{name} is already begun: give each child run another number")
        inactive = asyncio.Event()
        quota = self._quota.child(name)
        self._inactive[name] = inactive
        running = asyncio.ensure_future(self._run_child(run, name, task, quota))
        running.add_done_callback(lambda _: inactive.set())
        running.add_done_callback(lambda _: self._quota.close(name))
        self._tasks.append(running)
        return running

    async def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step of the call and return its outcome; at its end cancel running child runs and close the outbox.

        Raises:
            AskUser: a child asks the user; this takes precedence over the outcome and over other errors.
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
            # The outbox is closed last, because child runs send events until they have ended.
            if self._tasks:
                await cancel_all(*self._tasks)
            await self.outbox.close()
        if self._questions and self._first_question is not None:
            raise self._first_question
        return outcome

    @property
    def _first_question(self) -> AskUser | None:
        """The question of the first child that asks the user, or None."""
        return next(
            (self._questions[name] for name in self._inactive if name in self._questions), None
        )

    async def _run_child(
        self, run: Spawn, name: str, task: ChildTask, quota: Quota
    ) -> tl.TurnResult:
        """Record the start of a child run, run it, record its end, and return its result with resolved citations.

        A paused child run waits until every other child run has ended or is paused.

        Raises:
            ToolError: the child run failed.
            AskUser: the child run is paused, and asks the user.
        """
        recorder = self._recorder
        child = Child(
            name=name,
            task=task,
            limits=self._limits(task.limits),
            answer=self._find_answer(name),
            quota=quota,
            is_new=name not in recorder.turn.children,
        )
        if child.is_new:
            # Recorded before the run begins, so that a crash in between does not lose the link to it.
            start = tl.RunChild(
                call_id=self._call_id,
                conversation=name,
                agent=task.agent,
                agent_digest=task.agent_digest,
            )
            await self._record(start, task)
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
            question = self._questions[name] = listener.first_question(result)
            self._inactive[name].set()
            # The other children may run to their ends.
            for inactive in list(self._inactive.values()):
                await inactive.wait()
            raise question
        return await listener.resolve_citations(result)

    async def _record(self, link: tl.RunChild, task: ChildTask) -> None:
        """Record the start or the end of a child run, in one append with the bodies that its task adds."""
        if task.bodies is None:
            await self._recorder.record(link)
            return
        bodies = task.bodies
        await self._recorder.record_from(lambda timeline: [link, *bodies(timeline, link)])

    async def _record_end(self, listener: _ChildListener, quota: Quota, task: ChildTask) -> None:
        """Record the end of a child run with its usage and cost, if it has ended and its end is not recorded yet."""
        turn = listener.turn
        link = self._recorder.turn.children[listener.name]
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

    def _find_answer(self, name: str) -> ChildAnswer | None:
        """Return the user's answer to the question of the child run of that name, or None."""
        turn = self._recorder.turn
        pending = turn.pending.get(self._call_id)
        answer = turn.answers.get(self._call_id)
        if pending is None or answer is None or not pending.child:
            return None
        child = parse(pending.child)
        if not isinstance(child, ConversationRef) or child.conversation != name:
            return None
        if not isinstance(child.ref, BlockRef):
            return None
        approvals = tl.approvals_of(turn.shared_answers.get(self._call_id, []))
        return ChildAnswer(child.ref, answer.value, tuple(approval.by for approval in approvals))

    def _limits(self, requested: Mapping[str, tl.LimitValue]) -> Limits:
        """Return the requested limits of a child run, lowered to the remaining time and budget of its parent.

        `max_depth` is that of the parent.

        Raises:
            LooplineError: a requested limit is unknown or out of its range.
        """
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
    """Sends the events of a call in their order; while a durable event is being recorded, later events wait."""

    def __init__(self, call_id: str, recorder: tl.Recorder, listen: EventSink) -> None:
        self._call_id = call_id
        self._recorder = recorder
        self._listen = listen
        self._loop = asyncio.get_running_loop()
        self._last: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def progress(self, text: str) -> None:
        """Send the progress of the call to listeners; from any thread."""
        progress_text = well_formed(text)
        self._deliver_from_any_thread(
            Delta(type="progress", channel="tool", text=progress_text, call_id=self._call_id)
        )

    def relay(self, event: tl.CustomEvent) -> None:
        """Send an event of a child run to listeners, as an event of the call that began it."""
        delta = Delta(
            type="custom", channel="tool", name=event.name, data=event.data, call_id=self._call_id
        )
        self._deliver_from_any_thread(delta)

    def emit(self, event: tl.CustomEvent, durable: bool) -> Emission:
        """Send an event of the call to listeners, and record it if it is durable; from any thread.

        In the event loop a durable event is recorded when the returned emission is awaited; in another thread, on return.

        Raises:
            LooplineError: the call has ended; or, in another thread, the event could not be recorded.
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
        """Accept no further events, and wait until all earlier ones are sent.

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
        """Whether the current thread is that of the turn's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _check_open(self, event: tl.CustomEvent) -> None:
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
        """Send the event to listeners, or after the events that still wait; drop it if the outbox is closed."""
        if self._closed:  # a thread may outlive its call, and report progress after it
            return
        if self._last is None or self._last.done():
            self._listen(delta)
        else:
            self._send(delta)

    async def _record_in_loop(self, event: tl.CustomEvent) -> None:
        self._check_open(event)
        await self._send(event)

    def _send(self, event: Delta | tl.CustomEvent) -> asyncio.Task[None]:
        self._last = asyncio.create_task(self._send_after(self._last, event))
        self._last.add_done_callback(self._note_failure)
        return self._last

    async def _send_after(
        self, before: asyncio.Task[None] | None, event: Delta | tl.CustomEvent
    ) -> None:
        """Wait for the task `before`; then send a delta to listeners, or record a custom event."""
        if before is not None:
            await asyncio.wait([before])
        match event:
            case Delta():
                self._listen(event)
            case tl.CustomEvent():
                await self._recorder.record(event)

    def _note_failure(self, sent: asyncio.Task[None]) -> None:
        if not sent.cancelled() and self._failure is None:
            self._failure = sent.exception()
