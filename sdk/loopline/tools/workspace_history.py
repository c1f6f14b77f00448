"""The tools that bring files of older turns into the workspace: `react.pull` and `react.checkout`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from loopline.errors import RefError, ToolError
from loopline.files import Workspace
from loopline.files.workspace import path_beside
from loopline.models import JsonObject, ToolSpec
from loopline.refs import FileRef, parse
from loopline.timeline import Block, Effect, FileAdded, FilesPulled, turn_number, workspace
from loopline.tools.arguments import check_names, object_schema
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, counted
from loopline.tools.tool import RerunnableTool
from loopline.tools.workspace_tools import WORKSPACE_KEY

MAX_REFS = 50
SHOWN_FILES = 40
_AREA = re.compile(r"fi:(turn_[1-9][0-9]{0,9})\.(files|outputs)/?")
_PATHS: JsonObject = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "maxItems": MAX_REFS,
    "description": "Refs of files, folders or trees of older turns: fi:turn_2.files/src, fi:turn_2.files.",
}


class PullTool(RerunnableTool):
    """The tool that puts files of older turns beside those of this one."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.pull",
        description=(
            "Put files of older turns beside the current ones, at turn_2/files/…, where react.search_files and tools "
            "find them; files/ stays as it is. To go on with an older state, use react.checkout."
        ),
        parameters=object_schema({"paths": _PATHS}, "paths"),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a list of refs."""
        check_names(self.spec, arguments)
        _refs(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the files that stand beside the current ones now."""
        found = [
            await _selected(call, text, ("files", "outputs", "user.attachments"))
            for text in _refs(arguments)
        ]
        blocks = {block.ref: block for selection in found for block in selection}
        own = [ref for ref, block in blocks.items() if block.turn_id == call.context.turn_id]
        if own:
            raise ToolError(f"{own[0]} is a file of this turn: it is in the workspace already")
        lines = [f"{path_beside(block)} {ref}" for ref, block in blocks.items()]
        return Outcome(
            text="\n".join([f"pulled {counted(len(blocks), 'file')}", *_shown(lines)]),
            bodies=(FilesPulled(refs=tuple(blocks), call_id=call.context.call_id),),
        )


class CheckoutTool(RerunnableTool):
    """The tool that makes files of older turns the current ones."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.checkout",
        description=(
            "Make files of older turns the current ones in files/. mode=replace: files/ has them and nothing else; "
            "overlay: they are put over what is there. Of two refs with the same file the later one counts."
        ),
        parameters=object_schema(
            {"mode": {"type": "string", "enum": ["replace", "overlay"]}, "paths": _PATHS},
            "mode",
            "paths",
        ),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse another mode, and anything but a list of refs."""
        check_names(self.spec, arguments)
        _refs(arguments)
        _replaces(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the changes that make the tree."""
        files = call.context.workspace
        tree: dict[str, FileAdded] = {}
        for text in _refs(arguments):
            for block in await _selected(call, text, ("files",)):
                if isinstance(block.body, FileAdded):
                    tree[f"files/{block.body.path}"] = block.body
        removed = _removed(files, tree) if _replaces(arguments) else []
        for path in removed:
            files.remove(path)
        for path, version in tree.items():
            files.write(path, workspace.file_bytes(version), executable=version.executable)
        changed = counted(len(tree), "file")
        return Outcome(text=f"checked out {changed}", files=tuple(files.changes))


def _removed(files: Workspace, tree: Mapping[str, FileAdded]) -> list[str]:
    return [path for path in files.paths("files") if path not in tree]


def _replaces(arguments: JsonObject) -> bool:
    mode = arguments.get("mode")
    if mode not in ("replace", "overlay"):
        raise ToolError("mode: replace or overlay")
    return mode == "replace"


def _refs(arguments: JsonObject) -> list[str]:
    paths = arguments.get("paths")
    refs = [ref for ref in paths if isinstance(ref, str)] if isinstance(paths, list) else []
    if not isinstance(paths, list) or not refs or len(refs) != len(paths) or len(refs) > MAX_REFS:
        raise ToolError(f"paths: a list of 1 to {MAX_REFS} refs such as fi:turn_2.files/src")
    return refs


async def _selected(call: ToolInvocation, text: str, areas: Sequence[str]) -> Sequence[Block]:
    """Return the files that a ref names: one version, a folder, or the whole tree of a turn.

    Raises:
        ToolError: there are none, or the ref is of another kind.
    """
    whole = _AREA.fullmatch(text)
    ref = _file_ref(text) if whole is None else None
    turn_id = whole[1] if whole else ref.turn_id if ref else ""
    area = whole[2] if whole else ref.area if ref else ""
    if area not in areas:
        raise ToolError(f"{text!r}: the ref is to be of {' or '.join(areas)}")
    if ref is not None:
        block = await call.reader.find(ref)
        if block is not None:
            return [block]
    probe = FileRef(turn_id=turn_id, area="files", path="-")
    timeline = await call.reader.conversation.containing(probe)
    number = turn_number(turn_id)
    if number not in timeline.turns:
        raise ToolError(f"{text!r}: there is no {turn_id!r} here")
    tree = timeline.files_at(number)
    blocks = tree.files if area == "files" else tree.outputs_of(number)
    folder = f"{ref.path.rstrip('/')}/" if ref else ""
    selected = [block for path, block in blocks.items() if path.startswith(folder)]
    if not selected:
        raise ToolError(f"{text!r}: {turn_id} has {_some(blocks)}")
    return selected


def _file_ref(text: str) -> FileRef:
    try:
        ref = parse(text)
    except RefError as error:
        raise ToolError(str(error)) from error
    if not isinstance(ref, FileRef):
        raise ToolError(f"{text!r} names no files: write fi:turn_2.files/src or fi:turn_2.files")
    return ref


def _some(paths: Iterable[str]) -> str:
    names = sorted(paths)
    hidden = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return f"{', '.join(names[:SHOWN_FILES])}{hidden}" if names else "no files"


def _shown(lines: Sequence[str]) -> Sequence[str]:
    hidden = len(lines) - SHOWN_FILES
    return [*lines[:SHOWN_FILES], *([f"and {hidden} more"] if hidden > 0 else [])]
