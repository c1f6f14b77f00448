"""The commands that are printed after a run: lines to paste, which work in the current folder."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline.cli.options import Choices
from loopline.knowledge import KnowledgeState
from loopline.timeline import Block, ToolResult

PROGRAM = "loopline"
REPO = "knowledge.repo"
GO_ON = "go on"
"""What to say to a turn that was stopped."""

DULL = ("react.plan",)
"""Tools whose results are no example of what can be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How this program was started, as far as it must be started again so."""

    script: str
    interpreter: str
    environment: Mapping[str, str]
    prefix: str
    folder: Path

    @classmethod
    def now(cls) -> Started:
        """As it is."""
        return cls(
            script=sys.argv[0],
            interpreter=sys.executable,
            environment=os.environ,
            prefix=sys.prefix,
            folder=Path.cwd(),
        )

    @property
    def program(self) -> list[str]:
        """The words that start it again: `loopline`, `uv run loopline`, or the script's path."""
        return [*self._uv, PROGRAM] if self._uv else [self._named(Path(self.script), PROGRAM)]

    @property
    def python(self) -> list[str]:
        """The words that start its Python."""
        if self._uv:
            return [*self._uv, "--with", "pytest", "python"]
        return [self._named(Path(self.interpreter), "python")]

    @property
    def _uv(self) -> list[str]:
        uv, ours = self.environment.get("UV", ""), self.environment.get("VIRTUAL_ENV", "")
        if not uv or not ours or Path(ours).resolve() != Path(self.prefix).resolve():
            return []
        return [self._named(Path(uv), "uv"), "run"]

    def _named(self, program: Path, name: str) -> str:
        """The bare name where that finds it, else the path, from here if it is inside."""
        path = self.environment.get("PATH", "")
        if self.environment.get("UV"):  # it puts our own scripts on the path, for us alone
            scripts = Path(self.prefix).resolve()
            kept = (
                part
                for part in path.split(os.pathsep)
                if not Path(part).resolve().is_relative_to(scripts)
            )
            path = os.pathsep.join(kept)
        found = shutil.which(name, path=path)
        if found is not None and Path(found).resolve() == program.resolve():
            return name
        whole = self.folder / program
        inside = whole.is_relative_to(self.folder)
        return str(whole.relative_to(self.folder) if inside else whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over: what was asked of which bundle, in which conversation."""

    bundle: str
    text: str
    conversation: str
    choices: Choices
    knowledge: KnowledgeState | None
    stopped: bool = False
    waits: tuple[str, ...] = ()


def commands(ran: Ran, blocks: Sequence[Block], started: Started) -> list[str]:
    """Three commands: read something of this run again, see its timeline, ask again elsewhere."""
    chosen = ran.choices
    kept = [*_option("--store", chosen.store), *_option("--user", chosen.user)]
    lines = [
        ["read", _example(blocks), "-c", ran.conversation, *kept],
        ["timeline", ran.conversation, *kept],
        _again(ran, started.folder, kept),
    ]
    return [shlex.join([*started.program, *line]) for line in lines]


def _again(ran: Ran, folder: Path, kept: Sequence[str]) -> list[str]:
    """Ask again of another repository; without a knowledge space, or when stopped or waiting, go on."""
    model = _option("--model", ran.choices.model)
    if ran.waits:
        answers = [word for call_id in ran.waits for word in ("--answer", f"{call_id}=yes")]
        end = ["-c", ran.conversation, *kept, *model, *_props(ran.choices.props)]
        return ["run", ran.bundle, *answers, *end]
    repository = elsewhere(ran.knowledge, folder) if ran.knowledge else None
    if repository is None or ran.stopped or not ran.text:
        end = ["-c", ran.conversation, *kept, *model, *_props(ran.choices.props)]
        return ["run", ran.bundle, GO_ON, *end] if ran.stopped else ["chat", ran.bundle, *end]
    others = [prop for prop in ran.choices.props if prop.partition("=")[0].strip() != REPO]
    return [
        *("run", ran.bundle, ran.text),
        *_props([*others, f"{REPO}={repository}"]),
        *kept,
        *model,
    ]


def _props(props: Sequence[str]) -> list[str]:
    return [word for prop in props for word in ("--prop", prop)]


def elsewhere(state: KnowledgeState, folder: Path) -> str | None:
    """A repository to ask: the one around the folder, else the one that was asked, if it is here."""
    if any((place / ".git").exists() for place in (folder, *folder.parents)):
        return "."
    location = Path(state.location)
    if not location.is_dir():
        return None
    return str(location.relative_to(folder)) if location.is_relative_to(folder) else str(location)


def _example(blocks: Sequence[Block]) -> str:
    """The ref of a result of the run that is worth reading, else of its last block."""
    results = [block for block in blocks if isinstance(block.body, ToolResult)]
    telling = [
        block.ref
        for block in results
        if isinstance(block.body, ToolResult) and block.body.tool not in DULL
    ]
    last = blocks[-1].ref if blocks else "artifact:conv.timeline.v1"
    return telling[-1] if telling else last


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]
