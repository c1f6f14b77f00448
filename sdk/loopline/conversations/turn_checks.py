"""Checks of turns: which one is resumed, and which may not be run here."""

from __future__ import annotations

from loopline.errors import LooplineError, StoreVersion
from loopline.timeline import Timeline, turn_id


class StoppedInQueue(LooplineError):
    """The turn was stopped before it started; its message can still be recalled."""


class HandedOver(LooplineError):
    """This process ends, and leaves the turn unfinished: the next process that serves the store resumes it."""

    def __init__(self) -> None:
        super().__init__("this process ends: the next one resumes the turn, or begins it")


def turn_to_resume(timeline: Timeline) -> int:
    """Return the oldest turn that was cut off, else the oldest that never started.

    Raises:
        LooplineError: there is none.
    """
    if not timeline.turns:
        raise LooplineError("there is nothing to carry on: the conversation has not begun")
    next_turn = timeline.next_turn
    if next_turn is None:
        for turn in timeline.unfinished:
            check_confirmed(timeline, turn.number)
        raise LooplineError("there is nothing to carry on: every turn has ended; say something")
    return next_turn.number


def check_known(timeline: Timeline) -> None:
    """Refuse a conversation with blocks of a newer Loopline.

    Raises:
        StoreVersion: it has one.
    """
    if (block := timeline.unknown) is not None:
        raise StoreVersion(
            f"block {block.seq} is a {block.type!r} of a newer loopline, which alone may run "
            "this conversation: upgrade, or only read it"
        )


def check_confirmed(timeline: Timeline, number: int) -> None:
    """Refuse a turn that was imported unfinished and that nobody has confirmed.

    Raises:
        LooplineError: it is one.
    """
    if timeline.turn(number).inert:
        raise LooplineError(
            f"{turn_id(number)} was imported and nobody confirmed it, so it is not run: import the "
            f"document under another name and confirm {turn_id(number)}, or say something new"
        )
