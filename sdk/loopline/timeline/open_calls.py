"""Questions that running calls ask the user, which any process may answer, and the fold of background calls."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopline.models import Json
from loopline.timeline import bodies
from loopline.timeline.blocks import Block, BodyUnion

QuestionBody = bodies.ToolQuestion | bodies.UserAnswer | bodies.ToolResult | bodies.ProxiedResult
_QUESTIONS = BodyUnion[QuestionBody](QuestionBody)
_ANSWERS = BodyUnion[bodies.UserAnswer](bodies.UserAnswer)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that was recorded at `seq`, and the future of its answer."""

    seq: int
    answer: asyncio.Future[Json] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class OpenQuestions:
    """The open questions of a turn, at most one for each call at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, OpenQuestion] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, call_id: str) -> asyncio.Lock:
        """Return the lock that a call holds from a question until the answer is recorded.

        An answer names only the call, so a second question must wait.
        """
        return self._locks.setdefault(call_id, asyncio.Lock())

    @contextmanager
    def asking(self, call_id: str, seq: int) -> Generator[OpenQuestion]:
        """Register a question of the call until the context is left."""
        waiting = self._waiting[call_id] = OpenQuestion(seq)
        try:
            yield waiting
        finally:
            del self._waiting[call_id]

    def asks(self, call_id: str) -> bool:
        """Return whether the call has an open question."""
        waiting = self._waiting.get(call_id)
        return waiting is not None and not waiting.answer.done()

    def answer(self, call_id: str, value: Json) -> bool:
        """Answer the open question of the call; return False if it has none."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.answer.done():
            return False
        waiting.answer.set_result(value)
        return True

    def take(self, blocks: Iterable[Block]) -> None:
        """Answer open questions from the blocks; an answer applies only to a question with a lower seq."""
        for block, body in _ANSWERS.among(blocks):
            waiting = self._waiting.get(body.call_id)
            if waiting is not None and waiting.seq < block.seq and not waiting.answer.done():
                waiting.answer.set_result(body.value)


def find_unanswered(blocks: Iterable[Block]) -> dict[str, tuple[Block, bodies.ToolQuestion]]:
    """Return the newest question of each call without an answer or a result, with its block, by call id."""
    questions: dict[str, tuple[Block, bodies.ToolQuestion]] = {}
    for block, body in _QUESTIONS.among(blocks):
        match body:
            case bodies.ToolQuestion(call_id=call_id):
                questions[call_id] = block, body
            case bodies.UserAnswer(call_id=call_id) | bodies.ToolResult(call_id=call_id):
                questions.pop(call_id, None)
            case bodies.ProxiedResult(call_id=call_id):
                questions.pop(call_id, None)
    return questions


def first_answer(blocks: Iterable[Block], call_id: str) -> bodies.UserAnswer | None:
    """Return the first answer to the call in the blocks, or None."""
    answers = (answer for _, answer in _ANSWERS.among(blocks) if answer.call_id == call_id)
    return next(answers, None)


BackgroundBody = bodies.CustomEvent | bodies.BackgroundResult
_BACKGROUND = BodyUnion[BackgroundBody](BackgroundBody)


@dataclass(slots=True)
class BackgroundWork:
    """The fold of background calls without a result, up to `seq`: each with the block and the data of its start."""

    seq: int = 0
    calls: dict[str, tuple[Block, Json]] = field(default_factory=dict[str, tuple[Block, Json]])

    def extend(self, blocks: Iterable[Block]) -> None:
        """Fold further blocks."""
        for block in blocks:
            self.seq = block.seq
            if _BACKGROUND.has(block.body):
                self.take(block, block.body)

    def take(self, block: Block, body: BackgroundBody) -> None:
        """Fold one block with its body."""
        match body:
            case bodies.CustomEvent(name=name, data=data, call_id=call_id):
                if name == bodies.BACKGROUND_STARTED:
                    self.calls[call_id] = block, data
            case bodies.BackgroundResult(call_id=call_id):
                self.calls.pop(call_id, None)
