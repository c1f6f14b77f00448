"""The interface between an MCP server and the bundle that it serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.models import Json, JsonObject
from loopline.skills import Skill
from loopline.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file of a result: the address to read it again, its media type and its bytes."""

    uri: str
    mime: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQuestion:
    """A question of a call that waits for the answer of the user.

    `is_open` means that the call is still running. Then `form` is the schema of the answer, and the answer None declines.
    """

    call_id: str
    text: str
    form: Json = None
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCaller:
    """A client of the server: it receives progress, and `can_ask` says whether it can ask its user questions."""

    on_progress: Callable[[str], None]
    can_ask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResult:
    """The result of a call or a question; `conversation` continues it, and answers its `questions`."""

    text: str
    ok: bool = True
    conversation: str = ""
    files: tuple[ServedFile, ...] = ()
    questions: tuple[ServedQuestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """A readable resource: its address, its name and its media type."""

    uri: str
    name: str
    mime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """The address of a served bundle: host, port, other host names, and the sha256 of the key, if a key is required."""

    host: str
    port: int
    names: tuple[str, ...] = ()
    key_sha256: bytes = field(default=b"", repr=False)


class BundleService(Protocol):
    """A bundle that a server makes available. All methods raise only LooplineErrors."""

    @property
    def name(self) -> str:
        """The id of the bundle."""
        ...

    @property
    def has_knowledge(self) -> bool:
        """Whether refs of a knowledge space can be read."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return the bundle's own tools."""
        ...

    async def skills(self) -> Sequence[Skill]:
        """Return the skills of the bundle."""
        ...

    async def resources(self) -> Sequence[ServedResource]:
        """Return the timelines that the client may read."""
        ...

    async def read(self, uri: str) -> ServedFile:
        """Read a timeline, a ref in a timeline, or a ref of the knowledge space."""
        ...

    async def complete(self, variable: str, beginning: str) -> Sequence[str]:
        """Return the values of an address variable that begin with this text."""
        ...

    async def call(self, name: str, arguments: JsonObject, caller: ServedCaller) -> ServedResult:
        """Call a tool with the guards of the bundle. Cancelling this method stops the call."""
        ...

    async def ask(self, text: str, conversation: str, caller: ServedCaller) -> ServedResult:
        """Run a turn in a conversation, or in a new one if the name is empty. Cancelling this method stops the turn."""
        ...

    async def answer(
        self, conversation: str, answers: Mapping[str, Json], caller: ServedCaller
    ) -> ServedResult:
        """Continue a call or a turn with the answers of the user. Cancelling this method stops the turn."""
        ...
