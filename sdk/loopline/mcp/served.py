"""What a bundle offers to callers from outside, as a server sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.models import Json, JsonObject
from loopline.skills import Skill
from loopline.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file that a call made, or that is read: where it can be read again, its media type and its bytes."""

    uri: str
    mime: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQuestion:
    """A question of a call, which waits for the answer of its user.

    The call `is_open` if it runs meanwhile; then `form` is the schema of the answer, and None declines.
    """

    call_id: str
    text: str
    form: Json = None
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCaller:
    """A caller from outside: it is told of progress, and can ask its user what a call wants to know, or not."""

    on_progress: Callable[[str], None]
    can_ask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResult:
    """What a call or a question gives; `conversation` is where it goes on, and where `questions` are answered."""

    text: str
    ok: bool = True
    conversation: str = ""
    files: tuple[ServedFile, ...] = ()
    questions: tuple[ServedQuestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """Something that can be read: its address, its name and its media type."""

    uri: str
    name: str
    mime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Where a bundle is served over HTTP, by which other `names` it is reached there, and the sha256 of its key, if any."""

    host: str
    port: int
    names: tuple[str, ...] = ()
    key_sha256: bytes = field(default=b"", repr=False)


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

    async def read(self, uri: str) -> ServedFile:
        """Return a timeline, what a ref in one names, or a ref of the knowledge space."""
        ...

    async def complete(self, variable: str, beginning: str) -> Sequence[str]:
        """Return values of a variable of the addresses that can be read, those that begin so."""
        ...

    async def call(self, name: str, arguments: JsonObject, caller: ServedCaller) -> ServedResult:
        """Call a tool behind the guards of the bundle. Cancelling this stops the call."""
        ...

    async def ask(self, text: str, conversation: str, caller: ServedCaller) -> ServedResult:
        """Run a turn; without the name of a conversation in a new one. Cancelling this stops the turn."""
        ...

    async def answer(
        self, conversation: str, answers: Mapping[str, Json], caller: ServedCaller
    ) -> ServedResult:
        """Go on with a call or a question that waits for its user. Cancelling this stops the turn."""
        ...
