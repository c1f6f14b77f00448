"""The body of a graph: the steps of a call with what they need, and their status."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

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
