"""What a bundle offers to callers from outside, as a server sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.models import JsonObject
from loopline.skills import Skill
from loopline.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResult:
    """The text that a call or a question gives; `conversation` is where a question can go on."""

    text: str
    ok: bool = True
    conversation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """Something that can be read: its address, its name and its media type."""

    uri: str
    name: str
    mime: str


class BundleService(Protocol):
    """A bundle that is called from outside. Its errors are LooplineErrors."""

    @property
    def name(self) -> str:
        """Return the id of the bundle."""
        ...

    @property
    def has_knowledge(self) -> bool:
        """Return whether refs of a knowledge space can be read."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return the bundle's own tools."""
        ...

    async def skills(self) -> Sequence[Skill]:
        """Return its skills."""
        ...

    async def resources(self) -> Sequence[ServedResource]:
        """Return the timelines that can be read."""
        ...

    async def read(self, uri: str) -> ServedResult:
        """Return the text of a timeline, or of a ref of the knowledge space."""
        ...

    async def call(
        self, name: str, arguments: JsonObject, on_progress: Callable[[str], None]
    ) -> ServedResult:
        """Call a tool behind the guards of the bundle. Cancelling this stops the call."""
        ...

    async def ask(
        self, text: str, conversation: str, on_progress: Callable[[str], None]
    ) -> ServedResult:
        """Run a turn; without the name of a conversation in a new one. Cancelling this stops the turn."""
        ...
