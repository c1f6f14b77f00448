"""Open a bundle with the options of a command, and suggest the next commands after a run."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loopline import harness as harnesses
from loopline.bundle import Setting, parse_setting
from loopline.cli.options import Choices, UsageError, misuse, stop_on_signal
from loopline.cli.terminal import QUIET, Screen, escape
from loopline.errors import CassetteError, ModelError, PropertyError, StoreError
from loopline.knowledge import KnowledgeState, Progress
from loopline.models import dumps
from loopline.models.safe_text import hide_password
from loopline.models.schema_samples import sample_value
from loopline.timeline import Block, PendingCall, ToolResult

BAR_WIDTH = 32


@asynccontextmanager
async def open_bundle(
    bundle: str, choices: Choices, screen: Screen, *, model: harnesses.ModelChoice = None
) -> AsyncGenerator[harnesses.Harness]:
    """Open a bundle, and show a progress bar on a terminal while its knowledge space is built.

    `model` replaces the option `--model`. Ctrl-C ends the process while the bundle is opened. After that, the garbage
    collector no longer examines the objects that exist.

    Raises:
        UsageError: an option has an invalid model, store, cassette or property, or both `--record` and `--replay` are
            given.
        LooplineError: the bundle cannot be opened.
    """
    with misuse(ModelError, PropertyError, StoreError):
        harness = harnesses.Harness.open(
            bundle,
            store=choices.store,
            model=choices.model if model is None else model,
            properties=parse_properties(choices),
            on_build=progress_bar(screen),
            cassette=_cassette(choices),
        )
    async with AsyncExitStack() as stack:
        try:
            with (
                stop_on_signal(screen),
                misuse(CassetteError, ModelError),
                misused_properties(choices),
            ):
                await stack.enter_async_context(harness)
        finally:
            screen.stop_animation()
        # All modules stay loaded: a garbage collection over them would stop the screen for a tenth of a second.
        gc.freeze()
        yield harness


def progress_bar(screen: Screen) -> Progress | None:
    """Return a callback that shows progress on the screen, for calls from another thread; None without a terminal."""
    if not screen.is_live:
        return None
    loop = asyncio.get_running_loop()

    def move(done: int, total: int, activity: str) -> None:
        """Show the activity, a bar and `done of total` as the animation; a total of 0 makes the bar pulse."""
        table = Table.grid(padding=(0, 1))
        table.add_row(
            Text(escape(activity), style=QUIET),
            ProgressBar(
                total=total or 1,
                completed=done,
                width=BAR_WIDTH,
                complete_style="cyan",
                pulse=not total,
            ),
            Text(f"{done:,} of {total:,}", style=QUIET),
        )
        loop.call_soon_threadsafe(screen.animate, table)

    return move


def parse_properties(choices: Choices) -> dict[str, Setting]:
    """Return the properties that `--prop` sets, by dotted name.

    Raises:
        UsageError: a `--prop` is not `NAME=VALUE`.
    """
    with misuse(PropertyError):
        return dict(map(parse_setting, choices.props))


def misused_properties(choices: Choices) -> AbstractContextManager[None]:
    """Raise a PropertyError in the context as a UsageError if `--prop` is given, because its value may be wrong."""
    return misuse(PropertyError) if choices.props else nullcontext()


def _cassette(choices: Choices) -> harnesses.Cassette | None:
    if choices.record is not None and choices.replay is not None:
        raise UsageError("--record writes a file and --replay reads one: choose one")
    if choices.record is not None:
        return harnesses.Cassette(choices.record, mode="record")
    return None if choices.replay is None else harnesses.Cassette(choices.replay)


PROGRAM = "loopline"
REPO = "knowledge.repo"
CONTINUE_TEXT = "go on"
"""The message to a turn that was stopped."""
TOOLS_WITHOUT_EXAMPLE = ("react.plan",)
"""Tools that are not suggested as an example for `loopline read`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The script, interpreter and environment of this process, to print commands that work in the user's shell."""

    script: str
    interpreter: str
    environment: Mapping[str, str]
    prefix: str
    folder: Path

    @classmethod
    def now(cls) -> Invocation:
        """Return the invocation of this process."""
        return cls(
            script=sys.argv[0],
            interpreter=sys.executable,
            environment=os.environ,
            prefix=sys.prefix,
            folder=Path.cwd(),
        )

    @property
    def program(self) -> list[str]:
        """The words that start this program: `loopline`, `uv run loopline`, or the path of the script."""
        return [*self._uv, PROGRAM] if self._uv else [self._short(Path(self.script), PROGRAM)]

    @property
    def python(self) -> list[str]:
        """The words that start the Python interpreter of this program."""
        if self._uv:
            return [*self._uv, "--with", "pytest", "python"]
        return [self._short(Path(self.interpreter), "python")]

    @property
    def _uv(self) -> list[str]:
        uv = self.environment.get("UV", "")
        ours = self.environment.get("VIRTUAL_ENV", "")
        if not uv or not ours or Path(ours).resolve() != Path(self.prefix).resolve():
            return []
        return [self._short(Path(uv), "uv"), "run"]

    def _short(self, program: Path, name: str) -> str:
        """Return `name` if `PATH` finds `program` under it, otherwise the path, relative if it is in `folder`.

        If uv started this process, scripts of its environment do not count.
        """
        path = self.environment.get("PATH", "")
        if self.environment.get("UV"):  # uv puts our own scripts on the path, for us alone
            scripts = Path(self.prefix).resolve()
            path = os.pathsep.join(
                part
                for part in path.split(os.pathsep)
                if not Path(part).resolve().is_relative_to(scripts)
            )
        match = shutil.which(name, path=path)
        if match is not None and Path(match).resolve() == program.resolve():
            return name
        full = self.folder / program
        return str(full.relative_to(self.folder) if full.is_relative_to(self.folder) else full)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A turn that has ended, or is paused until its `pending` calls are answered."""

    bundle: str
    text: str
    conversation: str
    choices: Choices
    knowledge: KnowledgeState | None
    stopped: bool = False
    pending: tuple[PendingCall, ...] = ()


def next_commands(run: FinishedRun, blocks: Sequence[Block], invocation: Invocation) -> list[str]:
    """Return three shell commands: read a ref of `blocks`, show the timeline, and answer, continue, repeat or chat.

    If approvals are pending, a fourth command approves them with their arguments as JSON, which the user can edit.
    """
    stored = store_options(run.choices)
    lines = [
        ["read", _example_ref(blocks), "-c", run.conversation, *stored],
        ["timeline", run.conversation, *stored],
        _next_run(run, invocation.folder, stored),
    ]
    approvals = [call for call in run.pending if call.kind == "approval"]
    if approvals:
        values = [f"{call.call_id}=yes {dumps(call.arguments)}" for call in approvals]
        lines.append(_answer_run(run, stored, values))
    return [shlex.join([*invocation.program, *line]) for line in lines]


def store_options(choices: Choices) -> list[str]:
    """Return `--store` without its password and `--user` as words; an option that was not given is left out."""
    store = choices.store and harnesses.parse_store_url(choices.store).shown_url
    return [*_option("--store", store), *_option("--user", choices.user)]


def _next_run(run: FinishedRun, folder: Path, stored: Sequence[str]) -> list[str]:
    """Return the words of a command that answers the pending calls, continues a stopped turn, or asks the text again.

    The text is asked again with `knowledge.repo` set to `repository_to_ask`. Without a repository or a text, the command
    is `chat`.
    """
    if run.pending:
        return _answer_run(run, stored, [_example_answer(call) for call in run.pending])
    conversation_options = _conversation_options(run.conversation, run.choices, stored)
    if run.stopped:
        return ["run", run.bundle, CONTINUE_TEXT, *conversation_options]
    repository = repository_to_ask(run.knowledge, folder) if run.knowledge else None
    if repository is None or not run.text:
        return ["chat", run.bundle, *conversation_options]
    props = map(hide_password, run.choices.props)
    others = [prop for prop in props if prop.partition("=")[0].strip() != REPO]
    options = _repeated("--prop", [*others, f"{REPO}={repository}"])
    model = _option("--model", run.choices.model)
    return ["run", run.bundle, run.text, *options, *stored, *model]


def _conversation_options(conversation: str, choices: Choices, stored: Sequence[str]) -> list[str]:
    """Return the options of a command that is printed, or sent to a client: without the passwords of URLs."""
    return ["-c", conversation, *stored, *map(hide_password, run_options(choices))]


def _answer_run(run: FinishedRun, stored: Sequence[str], values: Sequence[str]) -> list[str]:
    """Return the words of a command that gives answers such as `c1=yes`; with `--by NAME` if a call was approved."""
    by = ["--by", "NAME"] if any(call.approved_by for call in run.pending) else []
    options = _conversation_options(run.conversation, run.choices, stored)
    return ["run", run.bundle, *_repeated("--answer", values), *by, *options]


def _example_answer(call: PendingCall) -> str:
    """Return `c1=yes`; for a call that the client runs, `c1=` and a sample result (`RESULT` without a schema)."""
    if call.kind != "client":
        return f"{call.call_id}=yes"
    result = sample_value(call.form) if isinstance(call.form, dict) else "RESULT"
    return f"{call.call_id}={result if isinstance(result, str) else dumps(result)}"


def answer_command(bundle: str, choices: Choices, conversation: str, pending: Sequence[str]) -> str:
    """Return a shell command for any folder that approves the calls `pending` (ids); "" for a store in memory."""
    place = harnesses.parse_store_url(choices.store)
    if place.is_in_memory:
        return ""
    store = place.shown_url if place.file is None else f"sqlite:///{place.file.resolve()}"
    path = Path(bundle)
    place_options = ["--store", store, *_option("--user", choices.user)]
    words = [
        *Invocation.now().program,
        *("run", str(path.resolve()) if path.exists() else bundle),
        *_repeated("--answer", [f"{call_id}=yes" for call_id in pending]),
        *_conversation_options(conversation, choices, place_options),
    ]
    return shlex.join(words)


def run_options(choices: Choices) -> list[str]:
    """Return `--model` and `--prop` as words for another command; an option that was not given is left out."""
    return [*_option("--model", choices.model), *_repeated("--prop", choices.props)]


def _repeated(name: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (name, value)]


def repository_to_ask(state: KnowledgeState, folder: Path) -> str | None:
    """Return `.` if `folder` is in a Git repository, otherwise the indexed repository if it is a local folder.

    A folder in `folder` is returned relative to it. Return None if the indexed repository is not a local folder.
    """
    if any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return "."
    location = Path(state.location)
    if not location.is_dir():
        return None
    return str(location.relative_to(folder)) if location.is_relative_to(folder) else str(location)


def _example_ref(blocks: Sequence[Block]) -> str:
    """Return the ref of the last result of a tool that is not in TOOLS_WITHOUT_EXAMPLE, or else of the last block.

    Without blocks, return `artifact:conv.timeline.v1`.
    """
    for block in reversed(blocks):
        if isinstance(block.body, ToolResult) and block.body.tool not in TOOLS_WITHOUT_EXAMPLE:
            return block.ref
    return blocks[-1].ref if blocks else "artifact:conv.timeline.v1"


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]
