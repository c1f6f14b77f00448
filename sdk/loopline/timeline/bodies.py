"""What calls give beside their texts, and what they ask: images, events, results that come later, and questions."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import Json, Usage
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


GraphStatus = Literal["pending", "running", "completed", "failed", "skipped"]


class GraphStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a graph, with the steps that it needs; the hints name a tool and a role of the models."""

    id: str
    task: str
    dependencies: tuple[str, ...] = ()
    tool_hint: str = ""
    model_hint: str = ""
    status: GraphStatus = "pending"


class CrewGraph(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The graph of a call at one moment. Each new plan begins the next `attempt`, from 1.

    `inputs` are the seqs of what the user said while it ran, as far as its results are `analysed` with it.
    """

    call_id: str
    goal: str
    attempt: int
    steps: tuple[GraphStep, ...] = ()
    inputs: tuple[int, ...] = ()
    analysed: bool = False
    type: ClassVar[Literal["crew.graph"]] = "crew.graph"


LessonTrigger = Literal["manual", "error", "discrepancy", "low_quality"]
"""Why a lesson is drawn: a hook asks for it, the run failed, verification disagreed, or refining made it worse."""


class ReflectionDue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lesson is to be drawn from a run of an agent, or, without one, from the turn; it is drawn after the answer."""

    lesson_id: str
    trigger: LessonTrigger
    task: str
    attempt: str = ""
    outcome: str = ""
    agent: str = ""
    type: ClassVar[Literal["crew.reflection"]] = "crew.reflection"


class Lesson(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was learnt from a run that went wrong; if nothing was, `skipped` has the reason."""

    lesson_id: str
    trigger: LessonTrigger
    situation: str = ""
    mistake: str = ""
    correction: str = ""
    tags: tuple[str, ...] = ()
    skipped: str = ""
    agent: str = ""
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    type: ClassVar[Literal["crew.lesson"]] = "crew.lesson"

    @property
    def text(self) -> str:
        """Return the lesson as it is searched for and read; empty if there is none."""
        if self.skipped:
            return ""
        lines = {
            "situation": self.situation,
            "mistake": self.mistake,
            "correction": self.correction,
            "tags": ", ".join(self.tags),
        }
        return "\n".join(f"{name}: {line}" for name, line in lines.items() if line)


class AgentSwitched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From here on this agent leads the conversation; with an empty name the bundle's own loop does again."""

    agent: str = ""
    agent_digest: str = ""
    note: str = ""
    call_id: str = ""
    type: ClassVar[Literal["crew.switch"]] = "crew.switch"


class SearchExpanded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search also looked for the keywords of an answer that a model had imagined."""

    call_id: str
    query: str
    hypothesis: str
    keywords: tuple[str, ...] = ()
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    type: ClassVar[Literal["search.expanded"]] = "search.expanded"


CrewBody = CrewGraph | ReflectionDue | Lesson | AgentSwitched | SearchExpanded
