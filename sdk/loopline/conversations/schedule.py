"""Scheduled messages: they wait in the log, and begin a turn when their time has come, once for each time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import structs

from loopline import timeline as tl
from loopline.conversations.interrupts import append_at_head, check_own
from loopline.errors import LooplineError

_logger = logging.getLogger("loopline")

MOST_MESSAGES = 100
"""The most scheduled messages of a conversation."""
FURTHEST = timedelta(days=10 * 366)
"""How far in the future a message may be scheduled."""


def next_time(every: str, zone: str, after: datetime) -> datetime:
    """Return the first time after `after` of a line of cron with five fields, such as `30 9 * * 1-5`, in UTC.

    The line is read in the time zone `zone`, such as `Europe/Berlin`, or in UTC without one.

    Raises:
        LooplineError: the line or the time zone is not valid, or the line has no further time.
    """
    try:
        local = after.astimezone(ZoneInfo(zone) if zone else UTC)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise LooplineError(f"no time zone {zone!r}: write one such as Europe/Berlin") from error
    if len(every.split()) != 5:
        raise LooplineError(
            f"{every!r} is not a line of cron with five fields, such as '30 9 * * 1-5'"
        )
    try:
        # When clocks go back, the library begins anew with the first of two equal hours.
        times = (time.astimezone(UTC) for time in CronSim(every, local))
        return next(time for time in times if time > after)
    except (CronSimError, StopIteration) as error:
        raise LooplineError(f"{every!r} is not a line of cron with a further time") from error


def first_time(
    now: datetime, *, at: datetime | None, delay: timedelta | None, every: str, zone: str
) -> datetime:
    """Return the time of the first turn of a message: `at`, or `delay` after now, or the next time of `every`.

    A time without a time zone is in UTC. A time in the past is due at once.

    Raises:
        LooplineError: both `at` and `delay` are given, or no time at all, or a zone without `every`; a value is not
            valid; or the time is more than ten years from now.
    """
    _check_time(at)
    if at is not None and delay is not None:
        raise LooplineError("a scheduled message has one time: give at or delay, not both")
    if at is None and delay is None and not every:
        raise LooplineError("a scheduled message needs a time: give at, delay, or every")
    if zone and not every:
        raise LooplineError("a time zone belongs to a line of cron: give every, or at with its own")
    repeated = next_time(every, zone, now) if every else now
    if delay is not None and not timedelta() <= delay <= FURTHEST:
        raise LooplineError(f"a delay is 0 seconds to {FURTHEST.days} days")
    try:
        first = now + delay if delay is not None else tl.to_utc(at) if at is not None else repeated
    except OverflowError as error:
        raise LooplineError(f"{at} is not a time of the calendar in UTC") from error
    if first > now + FURTHEST:
        raise LooplineError(f"a message is scheduled for the next {FURTHEST.days} days at most")
    return first


def _check_time(at: object) -> None:
    if at is not None and not isinstance(at, datetime):
        raise LooplineError(f"at is a datetime, not {at!r}")


class MessageSchedule:
    """The scheduled messages of one conversation."""

    def __init__(self, log: tl.TimelineLog, conversation: tl.ConversationKey) -> None:
        self._log = log
        self._conversation = conversation

    async def messages(self) -> Sequence[tl.ScheduledMessage]:
        """Return the messages that wait, the first to begin first."""
        timeline = await tl.open_timeline(self._log, self._conversation)
        waiting = await self._waiting(timeline)
        return sorted(waiting, key=lambda message: message.at)

    async def add(
        self,
        prompt: tl.UserPrompt,
        at: datetime,
        *,
        every: str = "",
        zone: str = "",
        mode: tl.ModeChanged | None = None,
    ) -> tl.ScheduledMessage:
        """Store a message that begins a turn at `at`, and return it with its id. The `mode` is appended with it.

        Any process of the bundle begins the turn, so the message is sent by none in particular.

        Raises:
            LooplineError: this is a child run, or the conversation has too many scheduled messages.
        """
        check_own(self._conversation)
        if prompt.sender is not None:
            prompt = structs.replace(prompt, sender=structs.replace(prompt.sender, harness=0))
        added = tl.ScheduledMessage(id="", at=at, prompt=prompt, every=every, zone=zone)

        async def entries(timeline: tl.Timeline) -> Sequence[tl.Entry]:
            """Return entries with the message in the schedule and the mode; raise a LooplineError if it is full."""
            nonlocal added
            waiting = await self._waiting(timeline)
            if len(waiting) >= MOST_MESSAGES:
                raise LooplineError(
                    f"{MOST_MESSAGES} messages are scheduled in {self._conversation.name!r}: remove one first"
                )
            added = structs.replace(added, id=f"s{timeline.seq + 1}")
            entry = await self._entry(tl.Schedule(messages=(*waiting, added)))
            return [entry] if mode is None else [entry, tl.Entry(body=mode, turn=entry.turn)]

        await append_at_head(self._log, self._conversation, entries)
        return added

    async def remove(self, message_id: str) -> bool:
        """Remove a message, "" removes all; return whether there was one. A turn that has begun goes on."""

        async def entries(timeline: tl.Timeline) -> Sequence[tl.Entry]:
            """Return the schedule without the message, as one entry; no entry if the message does not exist."""
            waiting = await self._waiting(timeline)
            remaining = tuple(
                message for message in waiting if message_id and message.id != message_id
            )
            if len(remaining) == len(waiting):
                return []
            return [await self._entry(tl.Schedule(messages=remaining))]

        return await append_at_head(self._log, self._conversation, entries)

    async def begin_due(
        self, now: datetime, may_begin: Callable[[tl.Sender | None], Awaitable[bool]]
    ) -> datetime | None:
        """Append the prompt of each message that is due, and return the time of the next one, None without one.

        Messages whose sender may not begin here are left for a process of their bundle, which begins those that were
        missed together.

        A prompt and what remains of the schedule are stored together, and only if no process has stored anything meanwhile,
        so that each time begins one turn. Times of a repeated message that were missed begin one turn together.

        A message whose next time cannot be computed, such as without its time zone on this machine, is left with a warning
        for another process; the other messages begin.
        """
        following: datetime | None = None
        left: set[str] = set()

        async def entries(timeline: tl.Timeline) -> Sequence[tl.Entry]:
            """Return the earliest due prompt and the schedule without it or with its next time; none if none is due.

            The prompt opens a new turn, or is the prompt of turn 1 if that is the only turn and has none.
            """
            nonlocal following
            waiting = await self._waiting(timeline)
            own = [
                message
                for message in waiting
                if message.id not in left and await may_begin(message.prompt.sender)
            ]
            following = tl.Schedule(messages=tuple(own)).due
            if following is None or following > now:
                return []
            due = min(own, key=lambda message: message.at)
            try:
                remaining = tuple(
                    message if message is not due else _repeat(due, now)
                    for message in waiting
                    if message is not due or due.every
                )
            except LooplineError as error:
                name = self._conversation.name
                _logger.warning("%r: scheduled message %s was not begun: %s", name, due.id, error)
                left.add(due.id)
                return await entries(timeline)
            is_first = not timeline.base.covers and timeline.turns.keys() == {1}
            turn = 1 if is_first and timeline.turn(1).prompt is None else tl.NEW_TURN
            bodies = (due.prompt, tl.Schedule(messages=remaining))
            return [tl.Entry(body=body, turn=turn) for body in bodies]

        while await append_at_head(self._log, self._conversation, entries):
            pass
        return following

    async def _entry(self, schedule: tl.Schedule) -> tl.Entry:
        """Return an entry of the schedule in the newest turn, or in a new turn if the conversation has not begun."""
        summary = await self._log.find(self._conversation)
        return tl.Entry(body=schedule, turn=summary.turns if summary else tl.NEW_TURN)

    async def _waiting(self, timeline: tl.Timeline) -> Sequence[tl.ScheduledMessage]:
        """Return the scheduled messages of the timeline; none if a fork inherited the schedule."""
        if not timeline.schedule.messages:
            return ()
        summary = await self._log.find(self._conversation)
        is_own = summary is not None and timeline.schedule_seq > summary.inherited
        return timeline.schedule.messages if is_own else ()


def _repeat(message: tl.ScheduledMessage, now: datetime) -> tl.ScheduledMessage:
    return structs.replace(message, at=next_time(message.every, message.zone, now))
