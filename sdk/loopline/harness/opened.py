"""What a harness holds while it is open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from loopline.bundle import (
    LoadedBundle,
    LoopSettings,
    Properties,
    descriptor_modules,
    load_skills,
    load_tools,
)
from loopline.conversations import Turns, check_name
from loopline.knowledge import KnowledgeSpace
from loopline.models import OutputType
from loopline.reader import ConversationLookup, ConversationView
from loopline.skills import Skills
from loopline.timeline import ConversationKey, Timeline, TimelineLog
from loopline.tools import ToolSet


@dataclass(slots=True)
class Opened:
    """A bundle in use; its descriptors are read once."""

    source: str
    loaded: LoadedBundle
    properties: Properties
    settings: LoopSettings
    log: TimelineLog
    space: KnowledgeSpace | None
    turns: Turns
    output: OutputType[Any] | None
    deps: object = field(default=None, repr=False)
    _toolsets: dict[str, ToolSet] = field(default_factory=dict[str, ToolSet])
    _skills: dict[str, Skills] = field(default_factory=dict[str, Skills])
    _readable: Skills | None = None

    def toolset(self, module: str) -> ToolSet:
        """The tools that a descriptor module names."""
        if module not in self._toolsets:
            self._toolsets[module] = load_tools(module, self.loaded)
        return self._toolsets[module]

    def skills(self, module: str) -> Skills:
        """The skills that a descriptor module names."""
        if module not in self._skills:
            self._skills[module] = load_skills(module, self.loaded)
        return self._skills[module]

    def readable_skills(self) -> Skills:
        """The skills that a reader outside any turn finds."""
        if self._readable is None:
            found = [
                self.skills(module) for module in descriptor_modules(self.loaded, "skills") or [""]
            ]
            self._readable = Skills(tuple(skill for skills in found for skill in skills))
        return self._readable


def conversation_key(name: str, *, user: str, tenant: str, project: str) -> ConversationKey:
    """A conversation by its name and its owner's.

    Raises:
        LooplineError: a name is empty, or is no text that can be stored.
    """
    names = (("conversation", name), ("user", user), ("tenant", tenant), ("project", project))
    for kind, given in names:
        check_name(kind, given)
    return ConversationKey(name=name, user=user, tenant=tenant, project=project)


async def conversation_view(
    log: TimelineLog, conversation: ConversationKey, timeline: Timeline
) -> ConversationView:
    """A conversation as a reader finds it."""
    summary = await log.find(conversation)
    forgotten = None if summary else await log.forgotten(conversation)
    return ConversationView(timeline, summary, forgotten)


def conversation_finder(log: TimelineLog, conversation: ConversationKey) -> ConversationLookup:
    """The other conversations of the same user, by name."""

    async def other(name: str) -> ConversationView | None:
        wanted = replace(conversation, name=name)
        found = await conversation_view(log, wanted, Timeline(await log.read(wanted)))
        return found if found.summary or found.forgotten else None

    return other
