"""What calls give beside their texts, and what they ask: images, events, results that come later, and questions."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import Json
from loopline.timeline.sources import SourceSpan


class ShownImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image with the pinned ref that reads it again; `data` are its bytes in base64, `width` and `height` its pixels.

    An animation `moves`.
    """

    ref: str
    mime: str
    size: int
    sha256: str
    data: str
    width: int
    height: int
    moves: bool = False


class CustomEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool or a workflow emitted an event of its own; `call_id` is empty for a workflow. No prompt shows it."""

    name: str
    data: Json = None
    call_id: str = ""
    type: ClassVar[Literal["event.custom"]] = "event.custom"


BACKGROUND_STARTED = "background.started"
"""The name of the event of a call that goes on in the background; its data are its `owner`, and `until` when at most."""


class BackgroundResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a call that went on in the background; it waits for a round as a message of the user does.

    `source_spans` are as in `ToolResult`.
    """

    call_id: str
    tool: str
    text: str
    ok: bool = True
    source_spans: tuple[SourceSpan, ...] = ()
    type: ClassVar[Literal["react.background.result"]] = "react.background.result"


class ToolPending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call waits for the user: for an answer to its tool's question, or for approval.

    `digest` is the sha256, in hexadecimal, of the tool's name and the arguments: what is approved. If a child run
    of the call asks, `child` is the `cv:` ref of the block in which it does. `elapsed_ms` is how long the turn had
    run until then, 0 if unknown.
    """

    call_id: str
    kind: Literal["question", "approval"]
    question: str
    digest: str
    child: str = ""
    elapsed_ms: float = 0.0
    type: ClassVar[Literal["react.tool.pending"]] = "react.tool.pending"


class ToolQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running call asks the user, and stays open for the answer; a crash interrupts it like any other call.

    `form` is the schema of the answer; without one the answer is yes or no. A program whose call awaits approval asks
    for an "approval".
    """

    call_id: str
    question: str
    form: Json = None
    kind: Literal["question", "approval"] = "question"
    type: ClassVar[Literal["react.tool.question"]] = "react.tool.question"
