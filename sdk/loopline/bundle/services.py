"""What a turn's workflow is given: values and ports, filled by whoever runs the bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from loopline.bundle.properties import Properties
from loopline.bundle.settings import LoopSettings
from loopline.clock import Clock
from loopline.events import Listen
from loopline.knowledge import KnowledgeSpace
from loopline.models import ModelRegistry
from loopline.react import Child, Limits, TurnPayload, TurnResult
from loopline.reader import Conversed, KnowledgeRead, OtherConversation
from loopline.skills import Skills
from loopline.timeline import ConversationSummary, Recorder, TurnHeader
from loopline.tools import ToolSet


class RunServed(Protocol):
    """Runs a turn with the services it is given."""

    async def __call__(self, services: Services, payload: TurnPayload, /) -> TurnResult:
        """What comes of it."""
        ...


class SpawnServed(Protocol):
    """Runs a child of the turn; `run` is called with the services of the child's own turn."""

    async def __call__(self, child: Child, listen: Listen, run: RunServed, /) -> TurnResult:
        """What comes of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Ports only. `toolset` and `skills` read a descriptor module once a process, by its name.

    `instructions` are the bundle's own, which take the place of its workflow class's. `header` is what the
    turn began with; `environment` are the variables that presets know.
    """

    source: str
    recorder: Recorder
    summary: ConversationSummary | None
    models: ModelRegistry
    clock: Clock
    listen: Listen
    limits: Limits
    header: TurnHeader
    environment: Mapping[str, str]
    properties: Properties
    settings: LoopSettings
    knowledge: KnowledgeSpace | None
    read: KnowledgeRead | None
    instructions: str
    toolset: Callable[[str], ToolSet]
    skills: Callable[[str], Skills]
    other: OtherConversation
    spawn: SpawnServed
    deps: object = field(default=None, repr=False)

    @property
    def here(self) -> Conversed:
        """The conversation of the turn, as a reader finds it."""
        return Conversed(self.recorder.timeline, self.summary, past=self.recorder.past)
