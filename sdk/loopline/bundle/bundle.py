"""A bundle: an id, the parts of its loop, and the workflow that runs its turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, cast

from typing_extensions import TypeForm, TypeVar

from loopline.bundle.workflow import BaseWorkflow
from loopline.crew import Agent, GraphOptions, Quality
from loopline.models import Json, JsonObject
from loopline.names import caller_module, checks_keywords

T_co = TypeVar("T_co", covariant=True, default=None)


@checks_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Generic[T_co]):
    """A bundle, as its module exposes it under the name `bundle`.

    `tools` are functions, decorated with `@tool` or plain; their ids are `<id>.<function>`. `skills` are folders,
    relative to the bundle's folder, each with a `SKILL.md` or with skills below it. `knowledge` is the section
    `knowledge` of the configuration, and gives the bundle a knowledge space. These are added to those of the workflow
    class and its descriptors; `instructions` replace those of the class.

    `agents` are those that its loop may have work; the `.md` files in the folder `agents` are added to them.
    `quality` has the hooks around their runs. With `graph` the model may have a goal planned and run as a graph of steps.

    `configuration` holds the defaults of the bundle's properties, nested. `deps` makes the dependencies if
    `Harness.open` gets none: a function without parameters, sync or async, that returns them or an async context
    manager of them. The answer of each turn is a value of `output_type`, unless the turn or its workflow asks for
    another type. `version` names this release of the bundle, and the store orders the versions by when it first met each;
    without one it is a digest of the bundle's files. `module` is the name of the module that made the bundle.
    """

    id: str
    workflow: type[BaseWorkflow[object]] = BaseWorkflow
    instructions: str = ""
    tools: Sequence[Callable[..., Any]] = ()
    skills: Sequence[str | Path] = ()
    knowledge: Mapping[str, Json] | None = None
    agents: Sequence[Agent] = ()
    quality: Quality | None = None
    graph: GraphOptions | None = None
    configuration: Mapping[str, Json] = field(default_factory=dict[str, Json])
    deps: Callable[[], object] | None = field(default=None, repr=False)
    output_type: TypeForm[T_co] = field(default=cast("TypeForm[T_co]", None))
    version: str = ""
    module: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", caller_module())

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Return the configuration with the knowledge section of the workflow class and of the bundle."""
        sections = (self.workflow.knowledge_config, self.knowledge)
        written = [section for section in sections if section is not None]
        if not written:
            return self.configuration
        configured = self.configuration.get("knowledge")
        merged: JsonObject = dict(configured) if isinstance(configured, dict) else {}
        for section in written:
            merged |= section
        return {**self.configuration, "knowledge": merged}
