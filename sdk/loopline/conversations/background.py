"""Background calls: a call ends at once, its work continues, and the result arrives in the conversation's inbox."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from loopline import timeline as tl
from loopline.clock import Clock, boot_id
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.files import WorkspaceLimits, file_bodies, sort_changes
from loopline.models import Json, well_formed
from loopline.react import render_result
from loopline.tools import BackgroundCall, Outcome, Work

MOST_AT_ONCE = 16
"""Calls whose work may go on in the background of one harness."""
GRACE = timedelta(minutes=1)
"""How long after its time an owner of another machine may still record a result."""
INTERRUPTED = (
    "The work of {call_id}, {tool} in the background, was cut off, and is not begun again."
)

_logger = logging.getLogger("loopline")
_Make = Callable[[tl.Timeline], Sequence[tl.Body]]


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that does the work, identified by the boot of its machine and the start of the process."""

    machine: str
    process: int
    began: str

    @classmethod
    def here(cls) -> _Owner:
        """Return this process."""
        return cls(_machine(), os.getpid(), _start_of(os.getpid()))

    def __str__(self) -> str:
        return f"{self.machine}:{self.process}:{self.began}"

    @classmethod
    def parse(cls, text: str) -> _Owner | None:
        """Parse the text of an owner, None if it is malformed."""
        machine, _, rest = text.partition(":")
        process, _, began = rest.partition(":")
        return cls(machine, int(process), began) if process.isdigit() else None

    @property
    def is_gone(self) -> bool:
        """Return whether the process ran on this machine and has ended."""
        return self.machine == _machine() and _start_of(self.process) != self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A call in the log whose background work has started and that has no result."""

    call_id: str
    tool: str
    turn: int
    owner: _Owner | None
    until: datetime

    @classmethod
    def of(cls, call_id: str, block: tl.Block, data: Json) -> _Started | None:
        """Parse the event of a started call, None if another author used the same event name."""
        match data:
            case {"owner": str(owner), "until": str(until), "tool": str(tool)}:
                return cls(
                    call_id=call_id,
                    tool=tool,
                    turn=block.turn,
                    owner=_Owner.parse(owner),
                    until=datetime.fromisoformat(until),
                )
            case _:
                return None


class BackgroundCalls:
    """The background calls of one harness. Closing it ends all of them as interrupted."""

    def __init__(self, log: tl.TimelineLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._tasks: dict[tuple[tl.ConversationKey, str], asyncio.Task[None]] = {}
        self._recorders: Mapping[tl.ConversationKey, tl.Recorder] = {}

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
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        until = self._clock.now() + timedelta(seconds=call.seconds)
        data: Json = {"owner": str(_Owner.here()), "until": until.isoformat(), "tool": call.tool}
        return Outcome(
            text=f"{call.call_id} goes on in the background. Its result comes as a message; go on without it.",
            bodies=(tl.CustomEvent(name=tl.BACKGROUND_STARTED, data=data, call_id=call.call_id),),
        )

    async def settle(self, conversation: tl.ConversationKey, timeline: tl.Timeline) -> None:
        """Record a result for each call whose process has gone, and fold it into `timeline`."""
        if tl.parent_name(conversation.name) is not None:
            return
        for started in self._find_started(timeline):
            if (conversation, started.call_id) in self._tasks or not self._is_lost(started):
                continue
            text = INTERRUPTED.format(call_id=started.call_id, tool=started.tool)
            result = tl.BackgroundResult(
                call_id=started.call_id, tool=started.tool, text=text, ok=False
            )
            entry = tl.Entry(body=result, turn=started.turn)
            key = _key(started.call_id)
            appended = self._log.append(conversation, [entry], seen=timeline.seq, key=key)
            timeline.extend(await appended)

    def _find_started(self, timeline: tl.Timeline) -> Sequence[_Started]:
        """Return the calls that have started in the background and have no result."""
        work = timeline.fold(tl.BackgroundWork, "background", tl.BackgroundWork)
        work.extend(timeline.after(work.seq))
        begun = [_Started.of(call_id, *start) for call_id, start in work.calls.items()]
        return [started for started in begun if started is not None]

    def _is_lost(self, started: _Started) -> bool:
        owner = started.owner
        return self._clock.now() > started.until + GRACE or owner is None or owner.is_gone

    async def close(self) -> None:
        """Cancel all work and record for each call a result that says so."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, call: BackgroundCall, work: Work) -> None:
        try:
            outcome = await work()
        except asyncio.CancelledError:
            text = INTERRUPTED.format(call_id=call.call_id, tool=call.tool)
            with suppress(StoreError):  # whoever opens the conversation next says so
                await self._append(call, text)
            raise
        except LooplineError as error:
            outcome = Outcome(text=str(error), failed=True)
        except Exception as error:
            _logger.exception("%s broke in the background", call.tool)
            outcome = Outcome(text=f"{type(error).__name__}: {error}", failed=True)
        try:
            await self._record(call, partial(_bodies, call, outcome))
        except StoreError:
            _logger.exception("the result of %s could not be recorded", call.call_id)

    async def _append(self, call: BackgroundCall, text: str) -> None:
        """Append a result without files. It needs no lease."""
        summary = await self._log.find(call.conversation)
        if summary is None:
            return  # it was forgotten
        result = tl.BackgroundResult(call_id=call.call_id, tool=call.tool, text=text, ok=False)
        entry = tl.Entry(body=result, turn=call.turn)
        await self._log.append(
            call.conversation, [entry], seen=summary.head, key=_key(call.call_id)
        )

    async def _record(self, call: BackgroundCall, make: _Make) -> None:
        """Record the result through the turn that runs here, or under a lease when no turn runs."""
        recorder = self._recorders.get(call.conversation)
        if recorder is not None:
            with suppress(LooplineError):  # the turn has just ended
                await recorder.record_in(call.turn, make, _key(call.call_id))
                return
        async with self._log.lease(call.conversation) as term:
            if await self._log.find(call.conversation) is None:
                return  # it was forgotten
            timeline = await tl.open_timeline(self._log, call.conversation)
            entries = [tl.Entry(body=body, turn=call.turn) for body in make(timeline)]
            await self._log.append(
                call.conversation, entries, seen=timeline.seq, term=term, key=_key(call.call_id)
            )


def _bodies(call: BackgroundCall, outcome: Outcome, timeline: tl.Timeline) -> Sequence[tl.Body]:
    """Build the bodies of a result: its files, its artifact and its text. Leaves the files out if they cannot be recorded."""
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
    return f"background:{call_id}"


def _machine() -> str:
    """Return an id of this machine that changes when it boots."""
    return boot_id() or os.uname().nodename


def _start_of(process: int) -> str:
    """Return the start time of a process on this machine as an opaque text, empty if the process does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if _is_gone(process) else "running"


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
