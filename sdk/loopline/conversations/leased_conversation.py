"""The conversations that a process has read, and those whose lease it holds. Only the owner of a lease starts and ends turns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, structs

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.conversations.subscriptions import Subscriber, Subscriptions
from loopline.events import EventSink
from loopline.models import well_formed

KEPT_TIMELINES = 64
CHILD_SECONDS = 10.0
"""How long the end of a turn waits for the runner of a child run; the child run is then left without an end."""

_CUT_OFF: dict[tl.ResultStatus, str] = {
    "stopped": "Stopped by the user before there was a result.",
    "interrupted": "The turn was cut off before there was a result.",
}


async def finish(step: Coroutine[Any, Any, None]) -> None:
    """Await `step` to its end. A cancellation that arrives during that time is raised afterwards.

    If `step` fails, its error is raised and not the cancellation.
    """
    task, cancelled = asyncio.ensure_future(step), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


@dataclass(slots=True)
class CachedConversation:
    """A timeline that was read here, and its summary if a turn of the conversation has run here."""

    timeline: tl.Timeline
    summary: tl.ConversationSummary | None = None


class ConversationCache:
    """The last `KEPT_TIMELINES` conversations that this process has read, so that only their new blocks are read again."""

    def __init__(self, log: tl.TimelineLog) -> None:
        self._log = log
        self.cached: dict[tl.ConversationKey, CachedConversation] = {}

    async def read(
        self, conversation: tl.ConversationKey, began: Sequence[tl.Block] | None = None
    ) -> CachedConversation:
        """Return the conversation with its newest blocks. `began` has all its blocks, and saves a read.

        During the read it is not in the cache, so that a second reader does not extend the same timeline.
        """
        cached = self.cached.pop(conversation, None)
        if cached is None and began is not None:
            cached = CachedConversation(tl.Timeline(began))
        elif cached is None:
            cached = CachedConversation(await tl.open_timeline(self._log, conversation))
        else:
            cached.timeline.extend(await self._log.read(conversation, after=cached.timeline.seq))
            cached.timeline = tl.trimmed(cached.timeline)
        self.cached[conversation] = cached
        while len(self.cached) > KEPT_TIMELINES:
            self.cached.pop(next(iter(self.cached)))
        return cached


class LeasedConversation(Struct, frozen=True, kw_only=True):
    """A conversation, its current timeline, and the term of the lease that this process holds."""

    log: tl.TimelineLog
    clock: Clock
    subscriptions: Subscriptions
    conversation: tl.ConversationKey
    summary: tl.ConversationSummary | None
    timeline: tl.Timeline
    term: int

    def recorder(
        self, number: int, sender: Subscriber | None = None
    ) -> tuple[tl.Recorder, EventSink]:
        """Return a recorder for the turn, which measures its time from now on, and the sink of its events."""
        uid = self.summary.uid if self.summary else ""
        turn = self.subscriptions.observed(self.conversation, uid, number)
        audience = self.subscriptions.audience(turn, self.timeline, sender)
        sink = audience.receive
        recorder = tl.Recorder(
            self.log,
            self.timeline,
            conversation=self.conversation,
            uid=uid,
            turn=number,
            term=self.term,
            clock=self.clock,
            listener=sink,
            is_heard=audience.is_there,
            has_user=audience.has_user,
        )
        return recorder, sink

    async def interrupt(self, number: int) -> None:
        """End a turn of a process that has gone: as stopped if its user stopped it, otherwise as interrupted.

        A cancellation is raised after the end was recorded.
        """
        recorder, _ = self.recorder(number)
        if recorder.turn.stopped:
            await self.stop(recorder)
        else:
            await finish(self.end(recorder, "interrupted"))

    async def stop(self, recorder: tl.Recorder) -> None:
        """End a turn as stopped by its user; a cancellation is raised after the end was recorded."""
        await finish(self.end(recorder, "stopped", status="stopped"))

    async def end(
        self,
        recorder: tl.Recorder,
        reason: tl.ExitReason,
        error: str = "",
        *,
        status: tl.ResultStatus = "interrupted",
        by_bundle: bool = False,
    ) -> None:
        """End a turn. Each open call and each open step gets a result with `status`, which says why it did not end.

        Its unfinished child runs end first. The rest is one append, because a turn that had the results without its end
        would be continued after a crash. `by_bundle` is True if the bundle's code failed.
        """
        recorder.round = recorder.turn.rounds
        await self._end_children(recorder, status)
        results: list[tl.Body] = [
            tl.ToolResult(
                call_id=call.call_id, tool=call.tool, text=_CUT_OFF[status], status=status
            )
            for call in recorder.turn.open_calls.values()
        ]
        proxied = recorder.turn.ends_of_proxied(_CUT_OFF[status], status)
        outside: list[tl.Body] = []
        if recorder.turn.open_steps:
            step_status: tl.StepOutcome = "stopped" if status == "stopped" else "interrupted"
            outside += recorder.turn.ends_of_steps(step_status)
        end = tl.Exit(
            reason=reason,
            error=well_formed(error),
            by_bundle=by_bundle,
            rounds=recorder.turn.rounds,
            elapsed_ms=recorder.elapsed_ms,
        )
        ended = [*proxied, *results] if results else []
        await recorder.record_from(lambda _: ended, outside=[*outside, end])

    async def _end_children(self, recorder: tl.Recorder, status: tl.ResultStatus) -> None:
        """End the unfinished child runs of a turn, and record their usage in the turn.

        A child run that another runner leases for longer than `CHILD_SECONDS` is left as it is.
        """
        children = [
            child
            for child in recorder.turn.children.values()
            if not child.reason and tl.parent_name(child.conversation) == self.conversation.name
        ]
        if not children:
            return
        running = self.subscriptions.running
        running[self.conversation] = recorder  # an observer asks who began the child
        try:
            for child in children:
                # A runner that has lost the turn may still be ending the child run; it cannot record that here.
                with suppress(TimeoutError):
                    await self._end_child(child, recorder, status)
        finally:
            running.pop(self.conversation, None)

    async def _end_child(
        self, child: tl.RunChild, recorder: tl.Recorder, status: tl.ResultStatus
    ) -> None:
        """Lease the child run, end its open turns, and record its end and its usage in the parent's turn.

        Raises:
            TimeoutError: the lease is not free after `CHILD_SECONDS`.
        """
        conversation = structs.replace(self.conversation, name=child.conversation)
        reason: tl.ExitReason = "stopped" if status == "stopped" else "interrupted"
        async with AsyncExitStack() as held:
            async with asyncio.timeout(CHILD_SECONDS):
                term = await held.enter_async_context(self.log.lease(conversation))
            timeline = await tl.open_timeline(self.log, conversation)
            lease = structs.replace(
                self,
                conversation=conversation,
                summary=await self.log.find(conversation),
                timeline=timeline,
                term=term,
            )
            for turn in [*timeline.unfinished, *timeline.queued]:
                of_child, _ = lease.recorder(turn.number)
                await lease.end(of_child, reason, status=status)
        if not timeline.turns:  # it was cut off before its first block
            await recorder.record(structs.replace(child, reason=reason))
        for turn in timeline.turns.values():
            if turn.exit is not None:
                run_child = structs.replace(
                    child,
                    reason=turn.exit.reason,
                    usage=turn.usage,
                    cost=turn.cost,
                    estimated=turn.estimated,
                )
                await recorder.record(run_child)
