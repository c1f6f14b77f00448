"""The writer of lessons: requests for lessons are blocks of the log, and so are lessons, so a crash loses neither."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import structs

from loopline.clock import Clock, done_within
from loopline.crew.reflexion import Reflexion, lesson_prompt, parse_lesson
from loopline.errors import LooplineError, ModelError
from loopline.models import ModelRegistry, complete_reply
from loopline.timeline import (
    Block,
    BodyUnion,
    ConversationKey,
    Imported,
    Lesson,
    ReflectionDue,
    TimelineLog,
    TurnHeader,
)

logger: logging.Logger = logging.getLogger("loopline")

REQUEST_SECONDS = 120.0
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 300.0
JITTER = 0.2
MOST_HEADS = 1_000
"""Conversations whose last read position is kept in memory, so that only newer blocks are read."""
_ReadBody = ReflectionDue | Lesson | TurnHeader | Imported
_READ = BodyUnion[_ReadBody](_ReadBody)
_TYPES = ("crew.reflection", "crew.lesson", "turn.header", "conv.imported")


RecordLesson = Callable[[ConversationKey, int, Lesson], Awaitable[None]]
"""Appends a lesson to a turn that is over, once no runner has the conversation.

Raises:
    StoreError: the lesson cannot be stored.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class LessonWriter:
    """Writes the lessons that are requested in turns of a bundle, in the background.

    Imported requests are ignored, since their author is unknown. `models` opens the models for a conversation.
    """

    bundle: str
    log: TimelineLog
    record: RecordLesson
    models: Callable[[ConversationKey], AbstractAsyncContextManager[ModelRegistry]]
    clock: Clock
    options: Reflexion
    _working: dict[tuple[ConversationKey, str], asyncio.Task[None]] = field(
        default_factory=dict[tuple[ConversationKey, str], "asyncio.Task[None]"], init=False
    )
    _following: set[asyncio.Task[None]] = field(
        default_factory=set["asyncio.Task[None]"], init=False
    )
    _heads: dict[ConversationKey, int] = field(
        default_factory=dict[ConversationKey, int], init=False
    )
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.options.workers)

    def follow(self, conversation: ConversationKey) -> None:
        """Begin to write the requested lessons of a conversation, in the background."""
        self._start(self._follow(conversation))

    def catch_up(self) -> None:
        """Begin to write the requested lessons of all conversations that were active in the last `stale_days` days."""
        self._start(self._catch_up())

    async def idle(self) -> None:
        """Wait until all lessons are written."""
        while tasks := [*self._following, *self._working.values()]:
            await asyncio.wait(tasks)

    async def drain(self, seconds: float) -> bool:
        """Wait at most `seconds` until all lessons are written; return whether they are."""
        return await done_within(self.clock, seconds, self.idle()) and not self._working

    async def close(self) -> None:
        """Stop writing; lessons that are not written stay requested."""
        tasks = [*self._following, *self._working.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._following.add(task)
        task.add_done_callback(self._end_following)

    def _end_following(self, task: asyncio.Task[None]) -> None:
        self._following.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the requests for lessons could not be read: %s", error)

    async def _catch_up(self) -> None:
        since = self.clock.now() - timedelta(days=self.options.stale_days)
        for summary in await self.log.conversations(after=since):
            await self._follow(summary.conversation)

    async def _follow(self, conversation: ConversationKey) -> None:
        head = self._heads.pop(conversation, 0)
        blocks = await self.log.read(conversation, after=head, types=_TYPES)
        # The newest turn is read again next time, because blocks may still be added to it.
        headers = [block.seq for block in blocks if isinstance(block.body, TurnHeader)]
        self._heads[conversation] = headers[-1] - 1 if headers else head
        while len(self._heads) > MOST_HEADS:
            del self._heads[next(iter(self._heads))]
        since = self.clock.now() - timedelta(days=self.options.stale_days)
        for block, due in due_lessons(blocks, self.bundle):
            key = conversation, due.lesson_id
            if block.ts < since or key in self._working:
                continue
            writing = asyncio.ensure_future(self._write(conversation, block.turn, due))
            self._working[key] = writing
            writing.add_done_callback(partial(self._end_writing, key))

    def _end_writing(self, key: tuple[ConversationKey, str], task: asyncio.Task[None]) -> None:
        del self._working[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._heads.pop(key[0], None)
            logger.error("a lesson could not be written: %r", error)

    async def _write(self, conversation: ConversationKey, turn: int, due: ReflectionDue) -> None:
        async with self._slots:
            try:
                await self.record(conversation, turn, await self._request(conversation, due))
            except LooplineError as error:  # it stays requested, and is written after a later turn
                self._heads.pop(conversation, None)
                logger.warning("the lesson %s could not be written: %s", due.lesson_id, error)

    async def _request(self, conversation: ConversationKey, due: ReflectionDue) -> Lesson:
        """Request the lesson from a model; after the last failed attempt return a lesson with the reason in `skipped`."""
        problem = ""
        async with self.models(conversation) as registry:
            model = registry.chain(self.options.model)[0]
            for attempt in range(self.options.attempts):
                if attempt:
                    await self.clock.sleep(_delay(attempt))
                try:
                    reply = await complete_reply(model, lesson_prompt(due), REQUEST_SECONDS)
                except ModelError as error:
                    problem = str(error)
                    continue
                lesson = parse_lesson(due, reply)
                cost = model.capabilities.cost(reply.usage)
                return structs.replace(lesson, model=model.name, cost=cost)
        return Lesson(
            lesson_id=due.lesson_id,
            trigger=due.trigger,
            agent=due.agent,
            skipped=f"no lesson after {self.options.attempts} attempts: {problem}",
        )


def due_lessons(blocks: Sequence[Block], bundle: str) -> list[tuple[Block, ReflectionDue]]:
    """Return the requests without a lesson in a conversation's turns of that bundle, each with its block."""
    due: dict[str, tuple[Block, ReflectionDue]] = {}
    written: set[str] = set()
    bundles: dict[int, str] = {}
    for block, body in _READ.among(blocks):
        match body:
            case ReflectionDue(lesson_id=lesson_id):
                due.setdefault(lesson_id, (block, body))
            case Lesson(lesson_id=lesson_id):
                written.add(lesson_id)
            case TurnHeader(bundle=name):
                bundles[block.turn] = name
            case Imported():
                due.clear()
                written.clear()
                bundles.clear()
    return [
        (block, body)
        for lesson_id, (block, body) in due.items()
        if lesson_id not in written and {block.turn: "", **bundles}[block.turn] == bundle
    ]


def _delay(attempt: int) -> float:
    # The jitter keeps lessons that failed together from being requested together again.
    seconds = min(FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1), LONGEST_WAIT_SECONDS)
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)
