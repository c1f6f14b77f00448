"""The bodies of agents: graphs of steps, lessons, switches of the agent that leads, and expanded searches."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import Usage

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
