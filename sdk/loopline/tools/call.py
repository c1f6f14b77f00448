"""A call on its way: what a tool is given besides its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn

from loopline.models import Json
from loopline.prompt import View
from loopline.reader import Reader
from loopline.timeline import Moment, Timeline


class AskUser(BaseException):
    """A tool has asked the user something: its call ends as pending, and the answer is its result.

    It is no `Exception`, so that no tool takes it for a failure of its own.
    """

    def __init__(self, question: str) -> None:
        super().__init__(question)
        self.question = question


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool function that asks for one is given.

    `idempotency_key` is the same when the same call is run again after a crash. `scratchpad` holds the
    turn's unsaved values, shared with the workflow and its hooks. `properties` are the bundle's, by
    dotted name.
    """

    call_id: str
    idempotency_key: str
    conversation: str
    turn_id: str
    user: str
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    on_progress: Callable[[str], None]

    def progress(self, text: str) -> None:
        """Tell whoever watches how far the call has come; nothing is recorded."""
        self.on_progress(text)

    def ask_user(self, question: str) -> NoReturn:
        """Ask the user, and end the call as pending: it never returns.

        What the user gives to `resume` is the call's result; the tool is not run again for it.
        """
        raise AskUser(question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the loop hands it to a tool: the context of a function, and what the loop knows."""

    context: ToolContext
    timeline: Timeline
    view: View
    reader: Reader
    moment: Moment
