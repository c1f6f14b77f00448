"""Questions of running calls, which any process may answer; what answers say; and the fold of background calls."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec import structs

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.timeline import bodies
from loopline.timeline.blocks import Block, BodyUnion

_YES = frozenset({"yes", "y", "true", "ok", "approve", "approved", "allow"})
_NO = frozenset({"no", "n", "false", "deny", "denied", "reject", "rejected"})


def read_approval(value: Json) -> bool | None:
    """Return whether an answer says yes, or None if it says neither yes nor no.

    An answer is a bool, `{"approved": bool}`, or a word such as "yes", "ok", "no" or "deny" in upper or lower case.
    """
    match value:
        case bool(approved) | {"approved": bool(approved)}:
            return approved
        case str():
            word = value.strip().casefold()
            return word in _YES if word in _YES | _NO else None
        case _:
            return None


def is_approval(value: Json) -> bool:
    """Return whether an answer approves a call: True, a text such as "yes", or `{"approved": true}`."""
    return read_approval(value) is True


def edited_arguments(value: Json) -> JsonObject | None:
    """Return the `arguments` of an answer whose `approved` is true; None if it has none or is another answer."""
    match value:
        case {"approved": True, "arguments": dict(arguments)}:
            return arguments
        case _:
            return None


def approvals_of(answers: Iterable[bodies.UserAnswer]) -> list[bodies.UserAnswer]:
    """Return the approvals that count among the answers to a call, oldest first, at most one of each person.

    The first of them has the arguments that were edited last. An approval without arguments approves those. An
    approval with other arguments replaces all earlier approvals, because these people have not approved the new
    arguments.
    """
    approvals = list[bodies.UserAnswer]()
    for answer in answers:
        changed = edited_arguments(answer.value)
        if approvals and changed not in (None, edited_arguments(approvals[0].value)):
            approvals.clear()
        if is_approval(answer.value) and answer.by not in {approval.by for approval in approvals}:
            approvals.append(answer)
    return approvals


def deciding_answer(
    answers: Sequence[bodies.UserAnswer], people: int = 1
) -> bodies.UserAnswer | None:
    """Return the answer that decides about a call, None while it waits for more people.

    `answers` are all answers since the question, oldest first. The first answer decides if one person is enough, and so
    does the first that does not approve. Otherwise the approval of the last of `people` different people decides, with
    the arguments that all of them approve.
    """
    if people <= 1:
        return answers[0] if answers else None
    for number, answer in enumerate(answers, 1):
        if not is_approval(answer.value):
            return answer
        approvals = approvals_of(answers[:number])
        if len(approvals) >= people:
            return structs.replace(answer, value=approvals[0].value)
    return None


QuestionBody = bodies.ToolQuestion | bodies.UserAnswer | bodies.ToolResult | bodies.ProxiedResult
_QUESTIONS = BodyUnion[QuestionBody](QuestionBody)
_ANSWERS = BodyUnion[bodies.UserAnswer](bodies.UserAnswer)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that was recorded at `seq`, the answers of people by seq, and the future of the answer that decides."""

    question: bodies.ToolQuestion
    seq: int
    answers: dict[int, bodies.UserAnswer] = field(default_factory=dict[int, bodies.UserAnswer])
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
    def asking(self, question: bodies.ToolQuestion, seq: int) -> Generator[OpenQuestion]:
        """Register a question of a call until the context is left; give its entry, with the future of the answer."""
        waiting = self._waiting[question.call_id] = OpenQuestion(question, seq)
        try:
            yield waiting
        finally:
            del self._waiting[question.call_id]

    def find(self, call_id: str) -> bodies.ToolQuestion | None:
        """Return the open question of the call, None if it has none."""
        waiting = self._waiting.get(call_id)
        return waiting.question if waiting is not None and not waiting.answer.done() else None

    def asks(self, call_id: str) -> bool:
        """Return whether the call has an open question."""
        return self.find(call_id) is not None

    def answer(self, call_id: str, value: Json) -> bool:
        """Answer the open question of the call; return False if it has none.

        Raises:
            LooplineError: the value approves a call that several people must approve.
        """
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.answer.done():
            return False
        people = waiting.question.people
        if people > 1 and is_approval(value):
            raise LooplineError(
                f"{call_id} needs the approval of {people} people: each answers with "
                "await conversation.interrupts.answer(call_id, value, by=NAME)"
            )
        waiting.answer.set_result(value)
        return True

    def take(self, blocks: Iterable[Block]) -> None:
        """Pass the answers in the blocks to open questions; an answer applies only to a question with a lower seq."""
        for block, body in _ANSWERS.among(blocks):
            waiting = self._waiting.get(body.call_id)
            if waiting is None or block.seq <= waiting.seq or waiting.answer.done():
                continue
            waiting.answers[block.seq] = body
            answers = [waiting.answers[seq] for seq in sorted(waiting.answers)]
            decided = deciding_answer(answers, waiting.question.people)
            if decided is not None:
                waiting.answer.set_result(decided.value)


def find_unanswered(blocks: Iterable[Block]) -> dict[str, tuple[Block, bodies.ToolQuestion]]:
    """Return the newest question of each call that is not decided and has no result, with its block, by call id."""
    questions: dict[str, tuple[Block, bodies.ToolQuestion]] = {}
    answers: dict[str, list[bodies.UserAnswer]] = {}
    for block, body in _QUESTIONS.among(blocks):
        match body:
            case bodies.ToolQuestion(call_id=call_id):
                questions[call_id] = block, body
                answers[call_id] = []
            case bodies.UserAnswer(call_id=call_id):
                if call_id in questions:
                    answers[call_id].append(body)
                    people = questions[call_id][1].people
                    if deciding_answer(answers[call_id], people) is not None:
                        del questions[call_id]
            case bodies.ToolResult(call_id=call_id) | bodies.ProxiedResult(call_id=call_id):
                questions.pop(call_id, None)
    return questions


def answers_to(blocks: Iterable[Block], call_id: str) -> Sequence[bodies.UserAnswer]:
    """Return the answers to the call in the blocks."""
    return [answer for _, answer in _ANSWERS.among(blocks) if answer.call_id == call_id]


def find_answer(
    blocks: Iterable[Block], question: bodies.ToolQuestion | bodies.ToolPending
) -> bodies.UserAnswer | None:
    """Return the answer in the blocks after a question that decides about its call, or None."""
    return deciding_answer(answers_to(blocks, question.call_id), question.people)


BackgroundBody = (
    bodies.CustomEvent | bodies.BackgroundResult | bodies.BackgroundStop | bodies.Imported
)


@dataclass(slots=True)
class BackgroundWork:
    """The fold of background calls without a result: each with the block and the data of its start.

    `stops` are the seqs of the blocks that told calls to stop, by call id, and `imported` the ids of calls that began in an
    imported document, so that no process here does their work.
    """

    calls: dict[str, tuple[Block, Json]] = field(default_factory=dict[str, tuple[Block, Json]])
    stops: dict[str, int] = field(default_factory=dict[str, int])
    imported: set[str] = field(default_factory=set[str])

    def take(self, block: Block, body: BackgroundBody) -> None:
        """Fold the start, the result or the stop of a background call, or an import.

        An import adds all calls without a result to `imported`. Other events are ignored.
        """
        match body:
            case bodies.CustomEvent(name=name, data=data, call_id=call_id):
                if name == bodies.BACKGROUND_STARTED:
                    self.calls[call_id] = block, data
                    self.imported.discard(call_id)
            case bodies.BackgroundResult(call_id=call_id):
                self.calls.pop(call_id, None)
                self.stops.pop(call_id, None)
            case bodies.BackgroundStop(call_id=call_id):
                self.stops.setdefault(call_id, block.seq)
            case bodies.Imported():
                self.imported |= self.calls.keys()
