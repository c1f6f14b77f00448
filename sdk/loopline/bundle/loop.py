"""What `build_react` was given, and what a loop goes by because of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from loopline.bundle.services import Services
from loopline.knowledge import Passage
from loopline.models import Chain, ModelRegistry, OutputType
from loopline.react import Child, Limits, LoopOptions, Preset, choose_protocol
from loopline.timeline import TurnHeader
from loopline.tools import KnowledgeSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What `build_react` was given, and what was configured.

    A tool is offered that each list of `allowed` patterns allows; `child_tools` are what a child run may
    have of these.
    """

    tools_module: str
    skills_module: str
    search: KnowledgeSearch | None
    read: Callable[[str], Awaitable[Passage]] | None
    instructions: str
    models: Chain
    allowed: tuple[tuple[str, ...], ...]
    preset: Preset
    limits: Limits
    output: OutputType[Any] | None = None
    child_tools: tuple[str, ...] | None = None

    def options(self, services: Services) -> LoopOptions:
        """What is in force: the preset, the environment, the code and the configuration, the turn.

        Raises:
            LooplineError: an option is out of its range, they do not go together, or a variable of the
                environment holds junk.
        """
        environment = self.preset.environment(services.environment)
        return self.preset.options.with_limits(
            environment, self.limits, services.limits
        ).validated()

    def header(self, services: Services, options: LoopOptions) -> TurnHeader:
        """What the turn says of the loop."""
        first, *others = self.models
        return replace(
            services.header,
            model=first.name,
            then=tuple(one.name for one in others),
            protocol=choose_protocol(options, first).name,
            preset=self.preset.name,
            limits=options.differences(LoopOptions()),
            output=self.output.schema if self.output else None,
        )

    def of_child(self, child: Child, models: ModelRegistry) -> Loop:
        """The same for a child run, with what its task has otherwise.

        Raises:
            ModelError: its task wants a model by a string that names no role.
        """
        task = child.task
        return replace(
            self,
            instructions=self.instructions if task.instructions is None else task.instructions,
            models=self.models if task.model is None else models.chain(task.model),
            output=None,
            child_tools=self.child_tools if task.tools is None else task.tools,
        )
