"""Background calls: a call ends at once, its work continues, and the result arrives in the conversation's inbox."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import uuid4

from loopline import timeline as tl
from loopline.clock import Clock, boot_id, done_within
from loopline.conversations.submission import RESULT_KEY
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.files import WorkspaceLimits, file_bodies, sort_changes
from loopline.models import JsonObject, well_formed
from loopline.react import render_result
from loopline.tasks import cancel_all
from loopline.tools import BackgroundCall, Outcome, Work

MOST_AT_ONCE = 16
"""Calls whose work may go on in the background of one harness."""
GRACE = timedelta(minutes=1)
"""How long after its time an owner of another machine may still record a result."""
LOOK_SECONDS = 0.5
"""How often a harness whose calls run in the background looks for stops of other processes."""
CLOSE_SECONDS = 10.0
"""How long a harness that closes waits until the results of finished work are recorded."""
INTERRUPTED = (
    "The work of {call_id}, {tool} in the background, was cut off, and is not begun again: whether it took effect is "
    "unknown, unless it only reads."
)
STOPPED = (
    "{call_id}, {tool} in the background, was stopped: whether it took effect is unknown, unless it only "
    "reads."
)

_logger = logging.getLogger("loopline")
_STOPS = tl.BodyUnion[tl.BackgroundStop](tl.BackgroundStop)
_Make = Callable[[tl.Timeline], Sequence[tl.Body]]


_open: set[str] = set()
"""The ids of the open harnesses of this process that may run calls in the background."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that does the work, identified by the boot of its machine and the start of the process, and its harness."""

    machine: str
    process: int
    began: str
    harness: str = ""

    @classmethod
    def here(cls, harness: str) -> _Owner:
        """Return this process, with the id of one of its harnesses."""
        return cls(_machine(), os.getpid(), _start_of(os.getpid()), harness)

    def __str__(self) -> str:
        return f"{self.machine}:{self.process}:{self.began}:{self.harness}"

    @classmethod
    def parse(cls, text: str) -> _Owner | None:
        """Parse the text of an owner, None if it is malformed."""
        machine, _, rest = text.partition(":")
        process, _, rest = rest.partition(":")
        began, _, harness = rest.partition(":")
        return cls(machine, int(process), began, harness) if process.isdigit() else None

    @property
    def is_here(self) -> bool:
        """Return whether this process does the work, in a harness that is open."""
        is_this = self.machine == _machine() and self.process == os.getpid()
        return is_this and self.harness in _open

    @property
    def is_gone(self) -> bool:
        """Return whether the process ran on this machine and has ended, or it is this process and has closed the harness."""
        if self.machine != _machine():
            return False
        if _start_of(self.process) != self.began:
            return True
        return self.process == os.getpid() and bool(self.harness) and self.harness not in _open


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A call in the log whose background work has started and that has no result; `again` is that of `BackgroundCall`.

    `conversation` is the one that it was begun in, of which this one may be a fork.
    """

    call_id: str
    tool: str
    turn: int
    owner: _Owner | None
    since: datetime
    until: datetime
    again: JsonObject | None
    conversation: str
    is_stopping: bool

    @classmethod
    def of(cls, call_id: str, work: tl.BackgroundWork) -> _Started | None:
        """Parse the event that recorded the start of a call; return None if its data has another form.

        An imported call has no owner and does not begin again, because its data may be forged.
        """
        block, data = work.calls[call_id]
        fields: JsonObject = {"again": None, "conversation": ""}
        fields |= data if isinstance(data, dict) else {}
        if call_id in work.imported:
            fields |= {"owner": "", "until": block.ts.isoformat(), "again": None}
        match fields:
            case {
                "owner": str(owner),
                "until": str(until),
                "tool": str(tool),
                "again": dict() | None as again,
                "conversation": str(conversation),
            }:
                return cls(
                    call_id=call_id,
                    tool=tool,
                    turn=block.turn,
                    owner=_Owner.parse(owner),
                    since=block.ts,
                    until=datetime.fromisoformat(until),
                    again=again,
                    conversation=conversation,
                    is_stopping=call_id in work.stops,
                )
            case _:
                return None


def _find_started(timeline: tl.Timeline) -> Sequence[_Started]:
    """Return the calls that have started in the background and have no result."""
    begun = (_Started.of(call_id, timeline.background) for call_id in timeline.background.calls)
    return [started for started in begun if started is not None]


def _is_lost(started: _Started, conversation: tl.ConversationKey, now: datetime) -> bool:
    """Return whether no process will record a result of the call in this conversation.

    This is so if its owner is unknown or has gone, if its time ended more than `GRACE` ago, or if a fork inherited it.
    """
    owner = started.owner
    is_forked = started.conversation not in ("", conversation.name)
    return is_forked or now > started.until + GRACE or owner is None or owner.is_gone


class BackgroundCalls:
    """The background calls of one harness. Closing it ends all of them; those that may begin again do so with the next turn.

    Work that has finished is not stopped any more: its result is recorded when no other process runs a turn.
    """

    def __init__(self, log: tl.TimelineLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._tasks: dict[tuple[tl.ConversationKey, str], asyncio.Task[None]] = {}
        self._recorders: Mapping[tl.ConversationKey, tl.Recorder] = {}
        self._stopping: set[tuple[tl.ConversationKey, str]] = set()
        self._finished: set[tuple[tl.ConversationKey, str]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._id: str = uuid4().hex
        _open.add(self._id)

    def follow(self, recorders: Mapping[tl.ConversationKey, tl.Recorder]) -> None:
        """Remember the recorders of the running turns, through which results are recorded while a turn runs."""
        self._recorders = recorders

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Start the work in the background and return the immediate result of the call.

        Raises:
            ToolError: too many calls run in the background, or the call belongs to a child run, which ends with its turn.
        """
        if tl.parent_name(call.conversation.name) is not None:
            raise ToolError("a child run ends with its turn: call it without background")
        if len(self._tasks) >= MOST_AT_ONCE:
            raise ToolError(f"{MOST_AT_ONCE} calls go on in the background already: wait for one")
        key = call.conversation, call.call_id
        task = self._tasks[key] = asyncio.create_task(self._run(call, work))
        task.add_done_callback(lambda _: self._remove(key))
        until = self._clock.now() + timedelta(seconds=call.seconds)
        data: JsonObject = {
            "owner": str(_Owner.here(self._id)),
            "until": until.isoformat(),
            "tool": call.tool,
            "conversation": call.conversation.name,
        }
        if call.again is not None:
            data["again"] = call.again
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_for_stops())
        return Outcome(
            text=f"{call.call_id} goes on in the background. Its result comes as a message; go on without it.",
            bodies=(tl.CustomEvent(name=tl.BACKGROUND_STARTED, data=data, call_id=call.call_id),),
        )

    def _remove(self, key: tuple[tl.ConversationKey, str]) -> None:
        self._tasks.pop(key, None)
        self._stopping.discard(key)
        self._finished.discard(key)

    async def settle(self, conversation: tl.ConversationKey, timeline: tl.Timeline) -> None:
        """Record a failed result for each lost call, and add it to `timeline`.

        A lost call that can begin again gets a result only if it was stopped; `find_lost` returns the rest.
        """
        for started in self._find_lost(conversation, timeline):
            if started.again is None or started.is_stopping:
                result = _end_of(started)
                entry = tl.Entry(body=result, turn=started.turn)
                key = _key(started.call_id)
                appended = self._log.append(conversation, [entry], seen=timeline.seq, key=key)
                timeline.extend(await appended)

    def find_lost(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline
    ) -> Sequence[BackgroundCall]:
        """Return the lost calls that can begin again, without stopped calls; none for a child run."""
        return [
            BackgroundCall(
                conversation=conversation,
                turn=started.turn,
                call_id=started.call_id,
                tool=started.tool,
                seconds=(started.until - started.since).total_seconds(),
                again=started.again,
            )
            for started in self._find_lost(conversation, timeline)
            if started.again is not None and not started.is_stopping
        ]

    def _find_lost(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline
    ) -> Sequence[_Started]:
        """Return the unfinished calls that run neither here nor in another process; none for a child run."""
        if not timeline.background.calls or tl.parent_name(conversation.name) is not None:
            return ()
        now = self._clock.now()
        return [
            started
            for started in _find_started(timeline)
            if (conversation, started.call_id) not in self._tasks
            and _is_lost(started, conversation, now)
        ]

    async def wait(self, conversation: tl.ConversationKey, call_id: str, seconds: float) -> bool:
        """Wait at most `seconds` for the end of a call; return whether it has ended, True if it does not run here."""
        task = self._tasks.get((conversation, call_id))
        if task is None:
            return True
        return await done_within(self._clock, seconds, asyncio.wait([task]))

    async def _look_for_stops(self) -> None:
        """Poll the log; cancel the calls of this process that were stopped, or have a forgotten conversation.

        This ends with the last call.
        """
        seen: dict[tl.ConversationKey, int] = {}
        while self._tasks:
            # Not by the port's clock: other processes live in the time of this machine.
            await asyncio.sleep(LOOK_SECONDS)
            for conversation in {conversation for conversation, _ in self._tasks}:
                try:
                    if await self._log.forgotten(conversation) is not None:
                        for key in [key for key in self._tasks if key[0] == conversation]:
                            self._stop(key)
                    blocks = await self._log.read(
                        conversation,
                        types=[tl.BackgroundStop.type],
                        after=seen.get(conversation, 0),
                    )
                    for block, body in _STOPS.among(blocks):
                        seen[conversation] = block.seq
                        self._stop((conversation, body.call_id))
                except StoreError:
                    continue  # the next look tries again
                except Exception:  # no caller awaits this task, and the next look may succeed
                    _logger.exception("stops of calls in the background were not found")

    def _stop(self, key: tuple[tl.ConversationKey, str]) -> None:
        task = self._tasks.get(key)
        if task is not None and key not in self._stopping | self._finished:
            self._stopping.add(key)
            task.cancel()

    async def close(self) -> None:
        """Cancel all work, and record for each call that does not begin again a result that says so.

        The results of finished work are recorded. If another process runs a turn for more than `CLOSE_SECONDS`, they are
        lost: the next turn says that these calls were cut off, or begins them again.
        """
        _open.discard(self._id)
        if self._watch is not None:
            self._watch.cancel()
        recording = [task for key, task in self._tasks.items() if key in self._finished]
        await cancel_all(*(task for key, task in self._tasks.items() if key not in self._finished))
        if recording:
            await asyncio.wait(recording, timeout=CLOSE_SECONDS)
            await cancel_all(*recording)

    async def _run(self, call: BackgroundCall, work: Work) -> None:
        """Do the work, and record its result; an error of the store is logged.

        Cancelled work is recorded as stopped or interrupted, except an interrupted call that may begin again.
        """
        key = call.conversation, call.call_id
        try:
            outcome = await work()
        except asyncio.CancelledError:
            text = STOPPED if key in self._stopping else INTERRUPTED
            if key in self._stopping or call.again is None:
                with suppress(StoreError):  # whoever opens the conversation next says so
                    await self._append(call, text.format(call_id=call.call_id, tool=call.tool))
            raise
        self._finished.add(key)
        try:
            await self._record(call, partial(_bodies, call, outcome))
        except StoreError:
            _logger.exception("the result of %s could not be recorded", call.call_id)

    async def _append(self, call: BackgroundCall, text: str) -> None:
        """Append a failed result with this text, without a lease; not if the conversation was forgotten."""
        summary = await self._log.find(call.conversation)
        if summary is None:
            return  # it was forgotten
        result = tl.BackgroundResult(call_id=call.call_id, tool=call.tool, text=text, ok=False)
        entry = tl.Entry(body=result, turn=call.turn)
        await self._log.append(
            call.conversation, [entry], seen=summary.head, key=_key(call.call_id)
        )

    async def _record(self, call: BackgroundCall, make: _Make) -> None:
        """Record the bodies that `make` returns, in the turn that runs here or after a wait for the lease.

        Nothing is recorded if the conversation was forgotten.
        """
        recorder = self._recorders.get(call.conversation)
        if recorder is not None:
            with suppress(LooplineError):  # the turn has just ended
                await recorder.record_in(call.turn, make, _key(call.call_id))
                return
        if await self._log.find(call.conversation) is None:
            return  # it was forgotten
        async with self._log.lease(call.conversation) as term:
            timeline = await tl.open_timeline(self._log, call.conversation)
            entries = [tl.Entry(body=body, turn=call.turn) for body in make(timeline)]
            await self._log.append(
                call.conversation, entries, seen=timeline.seq, term=term, key=_key(call.call_id)
            )


def _end_of(started: _Started) -> tl.BackgroundResult:
    """Build the failed result of a lost call: stopped if a stop was requested, otherwise interrupted."""
    text = STOPPED if started.is_stopping else INTERRUPTED
    return tl.BackgroundResult(
        call_id=started.call_id,
        tool=started.tool,
        text=text.format(call_id=started.call_id, tool=started.tool),
        ok=False,
    )


BackgroundStatus = Literal["running", "stopping", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundState:
    """A call that runs in the background: since when, and until when at most.

    A call is "lost" if its process has gone; the next turn says so, or begins it again if it `begins_again`. It `is_here` if
    this process does the work.
    """

    call_id: str
    tool: str
    turn_id: str
    status: BackgroundStatus
    since: datetime
    until: datetime
    begins_again: bool
    is_here: bool = False


class BackgroundList:
    """The calls of one conversation that run in the background of any process."""

    def __init__(self, log: tl.TimelineLog, conversation: tl.ConversationKey, clock: Clock) -> None:
        self._log = log
        self._conversation = conversation
        self._clock = clock

    async def calls(self) -> list[BackgroundState]:
        """Return the calls that have no result yet, in the order in which they began."""
        return [self._state(started) for started in await self._started()]

    async def wait(
        self, call_id: str = "", *, seconds: float | None = None
    ) -> list[BackgroundState]:
        """Wait until a call has its result, or without a `call_id` until all have; at most `seconds` if given.

        Returns the calls without a result. Lost calls are included, but not waited for.

        Raises:
            LooplineError: no call of that id runs in the background.
        """
        if call_id:
            self._find(await self._started(), call_id)
        waited = 0.0
        while True:
            states = [state for state in await self.calls() if call_id in ("", state.call_id)]
            is_over = seconds is not None and waited >= seconds
            if is_over or all(state.status == "lost" for state in states):
                return states
            # Not by the port's clock: the call may run in another process, in the time of this machine.
            pause = LOOK_SECONDS / 5 if seconds is None else min(LOOK_SECONDS / 5, seconds - waited)
            await asyncio.sleep(pause)
            waited += pause

    async def stop(self, call_id: str) -> None:
        """Stop a call, in any process; its result then says so. A call whose process has gone gets this result at once.

        Raises:
            LooplineError: no call of that id runs in the background.
        """
        started = self._find(await self._started(), call_id)
        stop = tl.Entry(body=tl.BackgroundStop(call_id=call_id), turn=started.turn)
        summary = await self._log.find(self._conversation)
        head = summary.head if summary else 0
        await self._log.append(self._conversation, [stop], seen=head)
        if _is_lost(started, self._conversation, self._clock.now()):
            end = tl.Entry(body=_end_of(replace(started, is_stopping=True)), turn=started.turn)
            await self._log.append(self._conversation, [end], seen=head, key=_key(call_id))

    async def _started(self) -> Sequence[_Started]:
        return _find_started(await tl.open_timeline(self._log, self._conversation))

    def _find(self, calls: Sequence[_Started], call_id: str) -> _Started:
        for started in calls:
            if started.call_id == call_id:
                return started
        names = ", ".join(started.call_id for started in calls) or "none does"
        raise LooplineError(f"no call {call_id!r} runs in the background: {names}")

    def _state(self, started: _Started) -> BackgroundState:
        """Return the state of a call: lost if its process has gone, stopping after a stop, otherwise running."""
        is_lost = _is_lost(started, self._conversation, self._clock.now())
        running: BackgroundStatus = "stopping" if started.is_stopping else "running"
        return BackgroundState(
            call_id=started.call_id,
            tool=started.tool,
            turn_id=tl.turn_id(started.turn),
            status="lost" if is_lost else running,
            since=started.since,
            until=started.until,
            begins_again=started.again is not None,
            is_here=not is_lost and started.owner is not None and started.owner.is_here,
        )


def _bodies(call: BackgroundCall, outcome: Outcome, timeline: tl.Timeline) -> Sequence[tl.Body]:
    """Build the bodies of a result: its files, its artifact and its text.

    Files that cannot be recorded are left out; the result is then failed, and its text says why.
    """
    files: list[tl.FileBody] = []
    limits = outcome.file_limits or WorkspaceLimits()
    changes, refused = sort_changes(timeline, call.turn, outcome.files, limits=limits)
    failed = outcome.failed or bool(refused)
    problem = "".join(f"\nNot recorded: {line}" for line in refused)
    try:
        files = file_bodies(timeline, call.turn, changes, call.call_id, limits=limits)
    except ToolError as error:
        failed, problem = True, f"{problem}\nNo file was recorded: {error}"
    lead = f"{call.call_id}, {call.tool} in the background, has ended."
    rendered = render_result(
        outcome,
        timeline,
        call.turn,
        call.call_id,
        files,
        before=f"{lead}\n",
        after=well_formed(problem),
    )
    result = tl.BackgroundResult(
        call_id=call.call_id,
        tool=call.tool,
        text=rendered.text,
        ok=not failed,
        source_spans=rendered.source_spans,
    )
    return [*rendered.bodies, result]


def _key(call_id: str) -> str:
    return f"{RESULT_KEY}{call_id}"


def _machine() -> str:
    """Return an id of the boot of this machine and, on Linux, of the namespace that assigns the ids of processes."""
    with suppress(OSError):
        return f"{boot_id()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return boot_id() or os.uname().nodename


def _start_of(process: int) -> str:
    """Return the start of a process as an opaque text: "" if it does not exist, "running" if its start is unknown."""
    try:
        # The name of the process, which the line contains in parentheses, can have any bytes.
        stat = Path(f"/proc/{process}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[19].decode()
    except OSError:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return ""
        except OSError:  # it is the process of another user
            return "running"
        return "running"
