"""What a turn's workflow is given: values and ports, filled by whoever runs the bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopline.bundle.properties import LoopSettings, Properties
from loopline.clock import Clock
from loopline.events import EventSink
from loopline.knowledge import KnowledgeSpace
from loopline.models import ModelRegistry, OutputType
from loopline.react import Child, Limits, TurnPayload, TurnResult
from loopline.reader import ConversationLookup, ConversationView, KnowledgeRead
from loopline.skills import Skills
from loopline.timeline import ConversationSummary, Recorder, TurnHeader
from loopline.tools import ToolSet


class RunLoop(Protocol):
    """Runs a turn with the services it is given."""

    async def __call__(self, services: Services, payload: TurnPayload, /) -> TurnResult[Any]:
        """What comes of it."""
        ...


class SpawnRun(Protocol):
    """Runs a child of the turn; `run` is called with the services of the child's own turn."""

    async def __call__(self, child: Child, listen: EventSink, run: RunLoop, /) -> TurnResult[Any]:
        """What comes of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Ports only. `toolset` and `skills` read a descriptor module once a process, by its name.

    `instructions` are the bundle's own, which take the place of its workflow class's. `output` is what its
    answers are to be, where a turn asks for nothing else. `header` is what the
    turn began with; `environment` are the variables that presets know.
    """

    source: str
    recorder: Recorder
    summary: ConversationSummary | None
    models: ModelRegistry
    clock: Clock
    listen: EventSink
    limits: Limits
    header: TurnHeader
    environment: Mapping[str, str]
    properties: Properties
    settings: LoopSettings
    knowledge: KnowledgeSpace | None
    read: KnowledgeRead | None
    instructions: str
    output: OutputType[Any] | None
    toolset: Callable[[str], ToolSet]
    skills: Callable[[str], Skills]
    other: ConversationLookup
    spawn: SpawnRun
    deps: object = field(default=None, repr=False)

    @property
    def here(self) -> ConversationView:
        """The conversation of the turn, as a reader finds it."""
        return ConversationView(self.recorder.timeline, self.summary, past=self.recorder.history)

    def output_of(self, own: OutputType[Any] | None) -> OutputType[Any] | None:
        """Return what the answer is to be: what the turn was asked for, else `own`, else the bundle's.

        A turn that is carried on where none of them is at hand goes on with what it was begun with.
        """
        default, asked = own or self.output, self.recorder.output
        if asked is not None:
            is_same = default is not None and default.sha256 == asked.sha256
            return default if is_same and not asked.is_typed else asked
        begun = self.recorder.turn.header
        if default is None and begun is not None and begun.output is not None:
            return OutputType.of_schema(begun.output)
        return default
