"""Messages and their submissions: the receipt of a message, and its turn in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from loopline import timeline as tl
from loopline.conversations.interrupts import Receipt
from loopline.errors import LooplineError, StoreVersion
from loopline.events import EventSink
from loopline.models import Json, ModelRegistry, OutputType
from loopline.react import Limits, pending_calls


class StoppedInQueue(LooplineError):
    """The turn was stopped before it started; its message can still be recalled."""


class HandedOver(LooplineError):
    """This process is ending and leaves the turn unfinished. The next process that serves the store resumes it."""

    def __init__(self) -> None:
        super().__init__("this process ends: the next one resumes the turn, or begins it")


def check_known(timeline: tl.Timeline) -> None:
    """Refuse a conversation with blocks of a newer Loopline.

    Raises:
        StoreVersion: the conversation has such a block.
    """
    if (block := timeline.unknown) is not None:
        raise StoreVersion(
            f"block {block.seq} is a {block.type!r} of a newer loopline, which alone may run "
            "this conversation: upgrade, or only read it"
        )


def check_confirmed(timeline: tl.Timeline, number: int) -> None:
    """Refuse a turn that was imported unfinished and was not confirmed.

    Raises:
        LooplineError: the turn is unconfirmed.
    """
    if timeline.turn(number).inert:
        raise LooplineError(
            f"{tl.turn_id(number)} was imported and nobody confirmed it, so it is not run: import the "
            f"document under another name and confirm {tl.turn_id(number)}, or say something new"
        )


WhenBusy = Literal["queue", "followup", "steer", "reject"]
QUEUED = "~queued"
"""The end of the key under which a followup that came too late is stored as a prompt."""
RESULT_KEY = "background:"
"""The beginning of the key of the result of a background call."""
LESSON_KEY = "lesson:"
"""The beginning of the key of a lesson."""
INTERNAL_KEYS = (RESULT_KEY, LESSON_KEY)
"""The beginnings of keys that no message may have, because they are in the same namespace as those of messages."""


def check_key(key: str) -> None:
    """Refuse the key of a message if Loopline may use the same key for blocks of its own.

    Such a block would be taken for a repetition of the message, and would not be stored.

    Raises:
        LooplineError: the key has the beginning or the end of an internal key.
    """
    if key.startswith(INTERNAL_KEYS) or key.endswith(QUEUED):
        raise LooplineError(
            f"the key {key!r} may be an internal one: choose a key that does not begin with "
            f"{' or '.join(INTERNAL_KEYS)}, and does not end with {QUEUED}"
        )


class Message(Struct, frozen=True, kw_only=True):
    """A message to send. `on_receipt` is called once it is stored, and `sink` receives the events of its turn."""

    text: str
    files: Sequence[tl.UserAttachment]
    when_busy: WhenBusy
    limits: Limits
    output: OutputType[Any] | None
    sink: EventSink | None = None
    key: str = ""
    on_receipt: Callable[[Receipt], None] | None = None
    tools: tuple[tl.ClientTool, ...] = ()


class Variation(Struct, frozen=True, kw_only=True):
    """How a turn that is continued differs from its bundle: other models, or other instructions of its loop.

    It lasts until the turn ends or pauses, and is not stored: the rounds record the models and instructions that they used.
    """

    models: Callable[[tl.ConversationKey], AbstractAsyncContextManager[ModelRegistry]] | None = None
    instructions: str = ""


AS_IT_IS = Variation()


class Resumption(Struct, frozen=True):
    """A turn to continue: the user's answers by call id, and the other arguments of `Conversation.resume`."""

    values: Mapping[str, Json] | None
    output: OutputType[Any] | None
    limits: Limits
    any_bundle: bool = False
    sink: EventSink | None = None
    variation: Variation = AS_IT_IS
    by: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A stored message and its turn, which runs in the background."""

    receipt: Receipt
    _turn: asyncio.Task[tl.TurnResult[Any]]

    @property
    def has_ended(self) -> bool:
        """Return whether the turn has ended, is paused, or failed."""
        return self._turn.done()

    async def result(self) -> tl.TurnResult[Any]:
        """Return the result of the turn; if the wait for it is cancelled, the turn keeps running.

        Raises:
            BundleError: the bundle's code failed; the turn is closed as an error.
        """
        return await asyncio.shield(self._turn)


def turn_to_continue(timeline: tl.Timeline) -> int:
    """Return the number of the turn that `resume` continues: the oldest interrupted turn, or the oldest that never started.

    Raises:
        LooplineError: such a turn does not exist, it waits for answers, or it was imported and not confirmed.
    """
    if not timeline.turns:
        raise LooplineError("there is nothing to carry on: the conversation has not begun")
    turn = timeline.next_turn
    if turn is None:
        for unfinished_turn in timeline.unfinished:
            check_confirmed(timeline, unfinished_turn.number)
        due = timeline.schedule.due
        if due is not None:
            raise LooplineError(
                f"there is nothing to carry on: a scheduled message begins at {tl.iso_time(due)} in a worker or server of its bundle"
            )
        raise LooplineError("there is nothing to carry on: every turn has ended; say something")
    if turn.pending and not turn.answers:
        questions = [f"{call.call_id} ({call.question})" for call in pending_calls(turn)]
        first = pending_calls(turn)[0].call_id
        raise LooplineError(
            f"{tl.turn_id(turn.number)} waits for {', '.join(questions)}: give values, such as resume({{{first!r}: True}}) or "
            f"--answer {first}=yes"
        )
    return turn.number
