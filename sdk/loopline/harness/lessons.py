"""The lessons of a harness: what is due after its turns is written in the background, if the bundle has it written."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from loopline.bundle import Services
from loopline.conversations import Turns
from loopline.crew import LessonWriter
from loopline.timeline import ConversationKey, Entry, Lesson, TimelineLog


def open_lessons(
    services: Services, turns: Turns, log: TimelineLog, stack: AsyncExitStack
) -> LessonWriter | None:
    """Return the writer of lessons, which follows the turns until the stack closes it; None if no lessons are drawn."""
    reflexion = services.quality.reflexion
    if reflexion is None:
        return None
    writer = LessonWriter(
        bundle=services.bundle_id,
        log=log,
        record=partial(record_lesson, log),
        models=services.models,
        clock=services.clock,
        options=reflexion,
    )
    turns.on_turn_end = writer.follow
    stack.push_async_callback(writer.close)
    writer.catch_up()
    return writer


async def record_lesson(
    log: TimelineLog, conversation: ConversationKey, turn: int, lesson: Lesson, /
) -> None:
    """Append a lesson to a turn that is over, once nobody runs the conversation; if another process has, do nothing.

    Raises:
        StoreError: it cannot be stored.
    """
    async with log.lease(conversation) as term:
        summary = await log.find(conversation)
        head = 0 if summary is None else summary.head
        entries, key = [Entry(body=lesson, turn=turn)], f"lesson:{lesson.lesson_id}"
        await log.append(conversation, entries, seen=head, term=term, key=key)
