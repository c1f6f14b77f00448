"""Lines about the files of a running turn: a patch once it was applied, and at the end what the turn produced."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from loopline.cli.terminal import QUIET, REF, escape, quantity
from loopline.events import Event
from loopline.timeline import (
    Block,
    BodyUnion,
    FileAdded,
    FileRemoved,
    ToolCalled,
    ToolResult,
    TurnHeader,
    workspace,
)

ADDED, REMOVED, PLACE = "green", "red", "cyan"
PATCH_TOOL = "react.patch"
PATCH_LINES = 40
LISTED_FILES = 10
_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", PLACE), ("+", ADDED), ("-", REMOVED))
FileLinesBody = TurnHeader | ToolCalled | ToolResult | FileAdded | FileRemoved
_READ = BodyUnion[FileLinesBody](FileLinesBody)


def diff_line(line: str) -> Text:
    """Return a line of a unified diff in the colour of what it says."""
    style = next((style for start, style in _STYLES if line.startswith(start)), "")
    return Text(escape(line), style)


class FileLines:
    """The lines of one turn; `take` yields those of an applied patch, `end` the files that the user is offered."""

    def __init__(self) -> None:
        self._patches: dict[str, str] = {}
        self._outputs: dict[str, tuple[Block, FileAdded]] = {}
        self._project: set[str] = set()

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the lines that an event gives."""
        if not isinstance(event, Block) or not _READ.has(event.body):
            return
        match event.body:
            case TurnHeader():
                self._patches.clear()
            case ToolCalled(call_id=call_id, tool=tool, arguments={"patch": str(patch)}):
                if tool == PATCH_TOOL:
                    self._patches[call_id] = patch
            case ToolCalled():
                pass
            case ToolResult(call_id=call_id, status=status):
                patch = self._patches.pop(call_id, "")
                if patch and status == "ok":
                    yield from _patch_lines(patch)
            case FileAdded() as file:
                self._add(event, file)
            case FileRemoved(area=area, path=path):
                self._outputs.pop(f"{area}/{path}", None)

    def _add(self, block: Block, file: FileAdded) -> None:
        name = f"{file.area}/{file.path}"
        if file.area == "files":
            self._project.add(name)
        elif file.visibility == "external":
            self._outputs.pop(name, None)
            self._outputs[name] = block, file

    def end(self) -> Iterator[Text]:
        """Yield a line for each file that the turn produced, and one that counts what it changed in the project."""
        outputs, project = self._outputs, self._project
        self._outputs, self._project = {}, set()
        for name, (block, file) in list(outputs.items())[:LISTED_FILES]:
            yield Text.assemble(
                ("file ", QUIET),
                escape(name),
                (f" · {workspace.describe_file(file)} · ", QUIET),
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
