"""The three extensions: a Guard around a call, a RoundHook between rounds, a Middleware around a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopline.models import JsonObject
from loopline.react.state import ReactStateV2, TurnPayload
from loopline.timeline import Effect, ExitReason, TurnResult


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A call that is about to run: its tool exists, and its arguments are valid.

    `earlier_calls` counts the calls that the turn made before this one, by tool; `failures` is how often the same call,
    with the same arguments, has failed. `deps` is the object that `Harness.open` was given.
    """

    call_id: str
    tool: str
    effect: Effect
    arguments: JsonObject
    turn_id: str
    conversation: str
    user: str
    earlier_calls: dict[str, int]
    failures: int = 0
    deps: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may run; with these arguments in place of its own, if any are given."""

    arguments: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run; the model reads why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The call waits until the user has approved of it."""

    question: str


Verdict = Allow | Deny | Ask


class Guard(Protocol):
    """Checks every call. A guard that raises denies the call, unless it is a read."""

    async def before(self, call: GuardedCall) -> Verdict:
        """Return whether the call may run."""
        ...

    async def after(self, call: GuardedCall, text: str) -> str:
        """Return what the model reads of the call's result."""
        ...


@dataclass(frozen=True, slots=True)
class Reminder:
    """A notice that the model reads before its next decision; `code` is its kind."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer on the table is not accepted yet, and the model reads why."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the turn. The text is recorded as a notice, and the model reads it if it is asked for a last answer."""

    reason: ExitReason
    text: str = ""


RoundHookResult = Reminder | Hold | Stop | None
RoundHook = Callable[[ReactStateV2], RoundHookResult]
"""A pure function of the state, asked before each decision and, with `answer` set, about each answer."""

Run = Callable[[TurnPayload], Awaitable[TurnResult[Any]]]


class Middleware(Protocol):
    """Wraps a whole run; middleware that does not call `run` replaces it."""

    async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Run the turn, or not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """What a bundle adds to the loop: hooks between rounds and middleware around the whole run."""

    round_hooks: Sequence[RoundHook] = ()
    middleware: Sequence[Middleware] = ()
