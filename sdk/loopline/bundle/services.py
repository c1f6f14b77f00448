"""What a turn's workflow is given: values and ports, filled by whoever runs the bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopline.bundle.properties import Properties
from loopline.clock import Clock
from loopline.events import Listen
from loopline.knowledge import KnowledgeSpace
from loopline.models import Model
from loopline.react import Limits
from loopline.reader import Conversed, KnowledgeRead, OtherConversation
from loopline.skills import Skills
from loopline.timeline import ConversationSummary, Recorder
from loopline.tools import ToolSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Ports only. `toolset` and `skills` read a descriptor module once a process, by its name."""

    source: str
    recorder: Recorder
    summary: ConversationSummary | None
    model: Model
    clock: Clock
    listen: Listen
    limits: Limits
    properties: Properties
    knowledge: KnowledgeSpace | None
    read: KnowledgeRead | None
    toolset: Callable[[str], ToolSet]
    skills: Callable[[str], Skills]
    other: OtherConversation

    @property
    def here(self) -> Conversed:
        """The conversation of the turn, as a reader finds it."""
        return Conversed(self.recorder.timeline, self.summary, past=self.recorder.past)
