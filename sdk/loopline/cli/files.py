"""`loopline files`: list, show, compare and export the files of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path

import click
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import parameters
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command
from loopline.cli.reader import read_timeline
from loopline.cli.terminal import QUIET, REF, Screen, escape, quantity
from loopline.errors import LooplineError
from loopline.events import Event
from loopline.files import Folder
from loopline.files.workspace import file_version
from loopline.models import Json, JsonObject

ADDED, REMOVED, PLACE = "green", "red", "cyan"
PATCH_TOOL = "react.patch"
PATCH_LINES = 40
LISTED_FILES = 10
_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", PLACE), ("+", ADDED), ("-", REMOVED))
FileLinesBody = tl.TurnHeader | tl.ToolCalled | tl.ToolResult | tl.FileAdded | tl.FileRemoved
_READ = tl.BodyUnion[FileLinesBody](FileLinesBody)


def diff_line(line: str) -> Text:
    """Return a line of a unified diff in the colour of an added, removed or header line."""
    style = next((style for start, style in _STYLES if line.startswith(start)), "")
    return Text(escape(line), style)


class FileLines:
    """Renders the applied patches of a turn, and at its end the files that it produced."""

    def __init__(self) -> None:
        self._patches: dict[str, str] = {}
        self._outputs: dict[str, tuple[tl.Block, tl.FileAdded]] = {}
        self._project: set[str] = set()

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the lines of a patch if the event is the result of a call that applied it; remember files for `end`."""
        if not isinstance(event, tl.Block) or not _READ.has(event.body):
            return
        match event.body:
            case tl.TurnHeader():
                self._patches.clear()
            case tl.ToolCalled(call_id=call_id, tool=tool, arguments={"patch": str(patch)}):
                if tool == PATCH_TOOL:
                    self._patches[call_id] = patch
            case tl.ToolCalled():
                pass
            case tl.ToolResult(call_id=call_id, status=status):
                patch = self._patches.pop(call_id, "")
                if patch and status == "ok":
                    yield from _patch_lines(patch)
            case tl.FileAdded() as file:
                self._add(event, file)
            case tl.FileRemoved(area=area, path=path):
                self._outputs.pop(f"{area}/{path}", None)

    def _add(self, block: tl.Block, file: tl.FileAdded) -> None:
        """Store the name of a project file, or the newest version of an output that is not internal, for `end`."""
        name = f"{file.area}/{file.path}"
        if file.area == "files":
            self._project.add(name)
        elif file.visibility == "external":
            self._outputs.pop(name, None)
            self._outputs[name] = block, file

    def end(self) -> Iterator[Text]:
        """Yield a line for each output file of the turn, and one line that counts its changed project files.

        At most LISTED_FILES names are in each list. The files are forgotten for the next turn.
        """
        outputs = self._outputs
        project = self._project
        self._outputs = {}
        self._project = set()
        for name, (block, file) in list(outputs.items())[:LISTED_FILES]:
            yield Text.assemble(
                ("file ", QUIET),
                escape(name),
                (f" · {tl.workspace.describe_file(file)} · ", QUIET),
                (block.ref, REF),
            )
        if len(outputs) > LISTED_FILES:
            yield Text(f"and {len(outputs) - LISTED_FILES} more: loopline files list", QUIET)
        if project:
            names = ", ".join(escape(name) for name in sorted(project)[:LISTED_FILES])
            hidden = " …" if len(project) > LISTED_FILES else ""
            yield Text(
                f"{quantity(len(project), 'file')} of the project changed: {names}{hidden}", QUIET
            )


def _patch_lines(patch: str) -> Iterator[Text]:
    lines = patch.strip("\n").splitlines()
    yield from map(diff_line, lines[:PATCH_LINES])
    if len(lines) > PATCH_LINES:
        yield Text(f"and {len(lines) - PATCH_LINES} more lines", QUIET)


_AREAS: tuple[tl.WorkspaceArea, ...] = ("files", "outputs")


@command
@parameters.turn_option
@parameters.conversation_option
@parameters.report_options
async def list_files(choices: Choices, screen: Screen, turn: int | None) -> int:
    """List the files of a turn."""
    tree = await _tree(choices, screen, turn)
    if choices.as_json:
        screen.write_json({"files": [_document(path, block) for path, block in tree.items()]})
    else:
        for path, block in tree.items():
            screen.print(_row(path, block))
        screen.note(quantity(len(tree), "file"))
    return ANSWERED if tree else FAILED


@command
@click.argument("path", metavar="PATH", help="Such as files/a.py.")
@parameters.turn_option
@parameters.conversation_option
@parameters.report_options
async def show(choices: Choices, screen: Screen, path: str, turn: int | None) -> int:
    """Print the text of a file of a turn."""
    tree = await _tree(choices, screen, turn)
    name = path if path.startswith(("files/", "outputs/")) else f"files/{path}"
    if name not in tree:
        raise LooplineError(f"no file {name!r} in this turn: loopline files list lists its files")
    version = file_version(tree[name])
    if choices.as_json:
        screen.write_json({**_document(name, tree[name]), "text": version.text})
    elif version.data:
        screen.note(
            f"{name} is {tl.workspace.describe_file(version)}: loopline files export writes it"
        )
        return FAILED
    else:
        screen.write_escaped(version.text)
    return ANSWERED


@command
@click.argument("first", type=parameters.TURN, metavar="TURN", help="The older turn.")
@click.argument("second", type=parameters.TURN, metavar="TURN", help="The newer turn.")
@parameters.conversation_option
@parameters.scope_options
@parameters.pager_option
@parameters.json_option
async def diff(choices: Choices, screen: Screen, first: int, second: int) -> int:
    """Show what changed in the files between two turns."""
    timeline = await read_timeline(choices, screen)
    older, newer = (_files(timeline, _check_turn(timeline, turn)) for turn in (first, second))
    changed = [
        path for path in sorted({*older, *newer}) if _digest(older, path) != _digest(newer, path)
    ]
    if choices.as_json:
        changes: list[Json] = [_change_document(path, older, newer) for path in changed]
        screen.write_json({"files": changes})
    else:
        for path in changed:
            for line in diff_lines(path, older.get(path), newer.get(path)):
                screen.print(diff_line(line))
        screen.note(f"{quantity(len(changed), 'file')} changed")
    return ANSWERED


@command
@click.argument("folder", type=parameters.PATH, metavar="FOLDER", help="A new or an empty folder.")
@parameters.turn_option
@click.option("--force/--no-force", help="Write into a folder that has files.")
@parameters.conversation_option
@parameters.scope_options
async def export(
    choices: Choices, screen: Screen, folder: Path, turn: int | None, force: bool
) -> int:
    """Write the files of a turn into a folder."""
    tree = await _tree(choices, screen, turn)
    await asyncio.to_thread(_write_tree, folder, tree, force=force)
    screen.note(f"{quantity(len(tree), 'file')} in {folder}")
    return ANSWERED


def _write_tree(folder: Path, tree: Mapping[str, tl.Block], *, force: bool) -> None:
    """Write the files into the folder, which is created if it does not exist; existing files are replaced.

    Raises:
        UsageError: the path is not a folder, or the folder has files and `force` is false.
        ToolError: a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} has files: name a new folder, or pass --force")
    folder.mkdir(parents=True, exist_ok=True)
    with Folder(folder) as target:
        for path, block in tree.items():
            version = file_version(block)
            target.write(path, tl.workspace.file_bytes(version), executable=version.executable)


async def _tree(choices: Choices, screen: Screen, turn: int | None) -> Mapping[str, tl.Block]:
    """Return the files of a turn: the block of the newest version of each, by path."""
    timeline = await read_timeline(choices, screen)
    return _files(timeline, _check_turn(timeline, turn))


def _check_turn(timeline: tl.Timeline, number: int | None) -> int:
    """Return the number of the turn; None means the last turn.

    Raises:
        LooplineError: the conversation does not have that turn.
    """
    if number is None:
        return max(timeline.turns)
    if number not in timeline.turns:
        names = ", ".join(map(tl.turn_id, timeline.turns))
        raise LooplineError(f"no turn {tl.turn_id(number)!r} here: turns are {names}")
    return number


def _files(timeline: tl.Timeline, number: int) -> dict[str, tl.Block]:
    tree = timeline.files_at(number)
    areas = {"files": tree.files, "outputs": tree.outputs_of(number)}
    return {f"{area}/{path}": areas[area][path] for area in _AREAS for path in sorted(areas[area])}


def _digest(tree: Mapping[str, tl.Block], path: str) -> str:
    return file_version(tree[path]).sha256 if path in tree else ""


def _row(path: str, block: tl.Block) -> Text:
    """Render a file as its path, its ref, and its type and size, with tabs in between; ` internal` marks internal files."""
    version = file_version(block)
    kind = " internal" if version.visibility == "internal" else ""
    return Text.assemble(
        escape(path),
        "\t",
        (block.ref, REF),
        "\t",
        (f"{tl.workspace.describe_file(version)}{kind}", QUIET),
    )


def _document(path: str, block: tl.Block) -> JsonObject:
    """Return a file as JSON: path, ref, MIME type, size in bytes, SHA-256, visibility and the executable flag."""
    version = file_version(block)
    return {
        "path": path,
        "ref": block.ref,
        "mime": version.mime,
        "size": version.size,
        "sha256": version.sha256,
        "visibility": version.visibility,
        "executable": version.executable,
    }


def _change_document(
    path: str, older: Mapping[str, tl.Block], newer: Mapping[str, tl.Block]
) -> Json:
    """Return the path of a file and the refs of its versions `before` and `after` as JSON; a missing ref is null."""
    refs: JsonObject = {
        name: tree[path].ref if path in tree else None
        for name, tree in (("before", older), ("after", newer))
    }
    return {"path": path, **refs}


def diff_lines(path: str, before: tl.Block | None, after: tl.Block | None) -> Iterator[str]:
    """Yield the lines of the unified diff of a file, or one line with the sizes if the file is binary.

    A version of None is a file that does not exist, in the diff `/dev/null`.
    """
    versions = [None if block is None else file_version(block) for block in (before, after)]
    if any(version is not None and version.data for version in versions):
        sizes = [f"{version.size:,} bytes" if version else "no file" for version in versions]
        yield f"{path} is binary: {' → '.join(sizes)}"
        return
    old, new = [version.text.splitlines() if version else [] for version in versions]
    old_name, new_name = [
        "/dev/null" if version is None else f"{side}/{path}"
        for side, version in zip("ab", versions, strict=True)
    ]
    yield from unified_diff(old, new, old_name, new_name, lineterm="")
