"""Questions that running calls ask the user: they wait in this process for an answer of any process."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopline.models import Json
from loopline.timeline.blocks import (
    Block,
    BodyUnion,
)
from loopline.timeline.bodies import (
    BACKGROUND_STARTED,
    BackgroundResult,
    CustomEvent,
    ProxiedResult,
    ToolQuestion,
    ToolResult,
    UserAnswer,
)

QuestionBody = ToolQuestion | UserAnswer | ToolResult | ProxiedResult
_QUESTIONS = BodyUnion[QuestionBody](QuestionBody)
_ANSWERS = BodyUnion[UserAnswer](UserAnswer)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that was recorded as the block `seq`, and its answer once it is there."""

    seq: int
    answer: asyncio.Future[Json] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class OpenQuestions:
    """The questions of the calls of a turn, at most one a call at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, OpenQuestion] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, call_id: str) -> asyncio.Lock:
        """Return what the call holds from a question to its recorded answer, which names only the call."""
        return self._locks.setdefault(call_id, asyncio.Lock())

    @contextmanager
    def asking(self, call_id: str, seq: int) -> Generator[OpenQuestion]:
        """Provide the question that the call asks now."""
        waiting = self._waiting[call_id] = OpenQuestion(seq)
        try:
            yield waiting
        finally:
            del self._waiting[call_id]

    def asks(self, call_id: str) -> bool:
        """Return whether the call waits for an answer now."""
        waiting = self._waiting.get(call_id)
        return waiting is not None and not waiting.answer.done()

    def answer(self, call_id: str, value: Json) -> bool:
        """Give the user's answer to the call; return whether it asks anything."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.answer.done():
            return False
        waiting.answer.set_result(value)
        return True

    def take(self, blocks: Iterable[Block]) -> None:
        """Give the answers among the blocks to the questions that were asked before them."""
        for block, body in _ANSWERS.among(blocks):
            waiting = self._waiting.get(body.call_id)
            if waiting is not None and waiting.seq < block.seq and not waiting.answer.done():
                waiting.answer.set_result(body.value)


def find_unanswered(blocks: Iterable[Block]) -> dict[str, tuple[Block, ToolQuestion]]:
    """Return the newest question of each call that has neither an answer nor a result, with its block."""
    questions: dict[str, tuple[Block, ToolQuestion]] = {}
    for block, body in _QUESTIONS.among(blocks):
        match body:
            case ToolQuestion(call_id=call_id):
                questions[call_id] = block, body
            case UserAnswer(call_id=call_id) | ToolResult(call_id=call_id):
                questions.pop(call_id, None)
            case ProxiedResult(call_id=call_id):
                questions.pop(call_id, None)
    return questions


def first_answer(blocks: Iterable[Block], call_id: str) -> UserAnswer | None:
    """Return the first answer to the call among the blocks, None if there is none."""
    answers = (answer for _, answer in _ANSWERS.among(blocks) if answer.call_id == call_id)
    return next(answers, None)


BackgroundBody = CustomEvent | BackgroundResult
_BACKGROUND = BodyUnion[BackgroundBody](BackgroundBody)


@dataclass(slots=True)
class BackgroundWork:
    """The fold of the calls that go on in the background: up to `seq`, each with the block and the data of its start."""

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
            case CustomEvent(name=name, data=data, call_id=call_id):
                if name == BACKGROUND_STARTED:
                    self.calls[call_id] = block, data
            case BackgroundResult(call_id=call_id):
                self.calls.pop(call_id, None)
