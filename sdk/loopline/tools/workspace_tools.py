"""The tools for the files of a turn: `react.write`, `react.patch`, `react.pull`, `react.checkout`, `react.search_files`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

from loopline import timeline as tl
from loopline.errors import RefError, ToolError
from loopline.files import (
    FileHits,
    FileQuery,
    SearchReport,
    Workspace,
    apply_patch,
    search_files,
)
from loopline.files.search import MAX_CONTEXT, MAX_HITS
from loopline.files.workspace import path_when_pulled
from loopline.models import JsonObject, ToolSpec
from loopline.refs import FileRef, parse
from loopline.tools import parameters
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, count_text

WORKSPACE_KEY = "workspace"
"""The key of all calls that change files, so that they run in order."""
_PATH: JsonObject = {
    "type": "string",
    "description": "files/… for the project, outputs/… for a product of this turn.",
}


class WriteTool(RerunnableTool):
    """The tool that writes a whole text file."""

    effect: tl.Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.write",
        description=(
            "Write a text file of the workspace, whole. Later turns begin with what is in files/; outputs/ "
            "holds what this turn makes for the user. The result gives the ref that reads this version again. "
            "To change a part of a file, use react.patch."
        ),
        parameters=parameters.object_schema(
            {
                "path": _PATH,
                "content": {"type": "string", "description": "The whole text."},
                "visibility": {
                    "type": "string",
                    "enum": ["external", "internal"],
                    "default": "external",
                    "description": "internal: an output that the user is not offered.",
                },
            },
            "path",
            "content",
        ),
    )

    def parse(self, arguments: JsonObject) -> tuple[tl.WorkspacePath, bytes, tl.Visibility]:
        """Return the path, the content in UTF-8 and the visibility, by default "external".

        Raises:
            ToolError: the path is not one of the workspace, or the content or the visibility is not valid.
        """
        path = tl.parse_path(parameters.text_argument(arguments, "path"))
        content = arguments.get("content")
        if not isinstance(content, str):
            raise ToolError("content must be a string, which may be empty")
        visibility = arguments.get("visibility", "external")
        if visibility not in ("external", "internal"):
            raise ToolError("visibility must be external or internal")
        return path, content.encode(), "internal" if visibility == "internal" else "external"

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Write the file, and return the change; if the file has this content already, the text says so."""
        files = call.context.workspace
        path, data, visibility = self.parse(arguments)
        same = files.find(path) == data
        files.write(str(path), data, visibility=visibility)
        text = f"{path} has this content already: {files.ref(str(path))}" if same else ""
        return Outcome(text=text, files=tuple(files.changes))


class PatchTool(RerunnableTool):
    """The tool that changes files by a unified diff, completely or not at all."""

    effect: tl.Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.patch",
        description=(
            "Change files of the workspace by a unified diff, all of it or nothing: --- a/files/x.py, +++ b/files/x.py, "
            "then hunks that begin @@ -1,3 +1,4 @@ with lines of context as they stand in the file. The diff may "
            "change, create, rename and delete several files. If a hunk does not fit, the error says what stands there."
        ),
        parameters=parameters.object_schema(
            {
                "patch": {"type": "string", "description": "The unified diff."},
                "path": {
                    "type": "string",
                    "description": "The file, if the diff begins with its first hunk.",
                },
            },
            "patch",
        ),
    )

    def parse(self, arguments: JsonObject) -> tuple[bytes, str]:
        """Return the patch in UTF-8, and the path, empty if there is none.

        Raises:
            ToolError: the patch is missing, or the path is not one of the workspace.
        """
        patch = parameters.text_argument(arguments, "patch")
        path = parameters.optional_text(arguments, "path")
        if path:
            tl.parse_path(path)
        return patch.encode(), path

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Apply the diff by Git, and return the changes.

        Raises:
            ToolError: the diff does not apply; the message names the hunk and the lines that differ.
        """
        files = call.context.workspace
        patch, path = self.parse(arguments)
        patched = await asyncio.to_thread(
            apply_patch,
            patch,
            files.find,
            files.limits.file_bytes,
            path,
            files.is_executable,
            files.limits.tree_bytes,
        )
        for file in patched:
            if file.after is None:
                files.remove(str(file.path))
            else:
                files.write(str(file.path), file.after, executable=file.executable)
        text = "" if patched else "the files have this content already: nothing was changed"
        return Outcome(text=text, files=tuple(files.changes))


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
    """The tool that makes files of older turns readable at paths such as `turn_2/files/a.py`."""

    effect: tl.Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.pull",
        description=(
            "Put files of older turns beside the current ones, at turn_2/files/…, where react.search_files and tools "
            "find them; files/ stays as it is. To go on with an older state, use react.checkout."
        ),
        parameters=parameters.object_schema({"paths": _PATHS}, "paths"),
    )

    def parse(self, arguments: JsonObject) -> list[str]:
        """Return `paths`, a list of 1 to 50 strings."""
        return _refs(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Record the refs of the files as pulled, and return a line with the new path of each, at most 40 lines.

        Raises:
            ToolError: a ref does not name files, or names files of this turn.
        """
        blocks: dict[str, tl.Block] = {}
        for text in self.parse(arguments):
            for block in await _select(call, text, ("files", "outputs", "user.attachments")):
                blocks[block.ref] = block
        own = [ref for ref, block in blocks.items() if block.turn_id == call.context.turn_id]
        if own:
            raise ToolError(f"{own[0]} is a file of this turn: it is in the workspace already")
        lines = [f"{path_when_pulled(block)} {ref}" for ref, block in blocks.items()]
        return Outcome(
            text="\n".join([f"pulled {count_text(len(blocks), 'file')}", *_shorten(lines)]),
            bodies=(tl.FilesPulled(refs=tuple(blocks), call_id=call.context.call_id),),
        )


class CheckoutTool(RerunnableTool):
    """The tool that writes files of older turns into `files/`."""

    effect: tl.Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.checkout",
        description=(
            "Make files of older turns the current ones in files/. mode=replace: files/ has them and nothing else; "
            "overlay: they are put over what is there. Of two refs with the same file the later one counts."
        ),
        parameters=parameters.object_schema(
            {"mode": {"type": "string", "enum": ["replace", "overlay"]}, "paths": _PATHS},
            "mode",
            "paths",
        ),
    )

    def parse(self, arguments: JsonObject) -> tuple[list[str], bool]:
        """Return `paths`, a list of 1 to 50 strings, and whether the mode is "replace" and not "overlay"."""
        refs = _refs(arguments)
        mode = arguments.get("mode")
        if mode not in ("replace", "overlay"):
            raise ToolError("mode must be replace or overlay")
        return refs, mode == "replace"

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Write the files, and return the changes; in the mode "replace" all other files in `files/` are removed.

        Raises:
            ToolError: a ref does not name files.
        """
        files = call.context.workspace
        tree: dict[str, tl.FileAdded] = {}
        refs, replaces = self.parse(arguments)
        for text in refs:
            for block in await _select(call, text, ("files",)):
                if isinstance(block.body, tl.FileAdded):
                    tree[f"files/{block.body.path}"] = block.body
        if replaces:
            for path in files.paths("files"):
                if path not in tree:
                    files.remove(path)
        for path, version in tree.items():
            files.write(path, tl.workspace.file_bytes(version), executable=version.executable)
        text = f"checked out {count_text(len(tree), 'file')}"
        return Outcome(text=text, files=tuple(files.changes))


def _refs(arguments: JsonObject) -> list[str]:
    expected = f"a list of 1 to {MAX_REFS} refs such as fi:turn_2.files/src"
    return parameters.list_argument(arguments, "paths", expected, most=MAX_REFS)


async def _select(call: ToolInvocation, text: str, areas: Sequence[str]) -> Sequence[tl.Block]:
    """Return the blocks of the files that a ref names: one version, a folder, or the whole tree of a turn.

    Raises:
        ToolError: the ref does not name files, or names files outside the areas.
    """
    whole_area = _AREA.fullmatch(text)
    ref: FileRef | None = None
    if whole_area is not None:
        turn_id = whole_area[1]
        area = whole_area[2]
    else:
        ref = _parse_file_ref(text)
        turn_id = ref.turn_id
        area = ref.area
    if area not in areas:
        raise ToolError(f"{text!r}: the ref must be of {' or '.join(areas)}")
    if ref is not None:
        block = await call.reader.find(ref)
        if block is not None:
            return [block]
    probe = FileRef(turn_id=turn_id, area="files", path="-")
    timeline = await call.reader.conversation.containing(probe)
    number = tl.turn_number(turn_id)
    if number not in timeline.turns:
        raise ToolError(f"{text!r}: {turn_id!r} does not exist in this conversation")
    tree = timeline.files_at(number)
    blocks = tree.files if area == "files" else tree.outputs_of(number)
    folder = f"{ref.path.rstrip('/')}/" if ref else ""
    selected = [block for path, block in blocks.items() if path.startswith(folder)]
    if not selected:
        names = ", ".join(_shorten(sorted(blocks))) or "no files"
        raise ToolError(f"{text!r}: {turn_id} has {names}")
    return selected


def _parse_file_ref(text: str) -> FileRef:
    """Parse the ref of files; raise a ToolError if the text is not a ref, or names something other than files."""
    try:
        ref = parse(text)
    except RefError as error:
        raise ToolError(str(error)) from error
    if not isinstance(ref, FileRef):
        raise ToolError(f"{text!r} names no files: write fi:turn_2.files/src or fi:turn_2.files")
    return ref


def _shorten(lines: Sequence[str]) -> Sequence[str]:
    hidden = len(lines) - SHOWN_FILES
    return [*lines[:SHOWN_FILES], *([f"and {hidden} more"] if hidden > 0 else [])]


HITS = 100


class SearchFilesTool(RerunnableTool):
    """The tool that finds files by their paths, and lines by a regular expression."""

    spec: ToolSpec = ToolSpec(
        name="react.search_files",
        description=(
            "Search the workspace: lines that fit content_regex, in files whose path fits name_regex and glob; without "
            "content_regex it lists files. Regular expressions are those of RE2, without look-around and "
            "back-references. Each file comes with its ref; react.read shows more of it by ref#L10-L40."
        ),
        parameters=parameters.object_schema(
            {
                "content_regex": {"type": "string", "description": "Sought in each line."},
                "name_regex": {"type": "string", "description": "Sought in the path."},
                "glob": {"type": "string", "description": "Such as *.py or files/src/**/*.ts."},
                "root": {
                    "type": "string",
                    "description": "A folder: files, outputs, attachments, files/src, turn_2/files.",
                },
                "ignore_case": {"type": "boolean", "default": False},
                "context": {"type": "integer", "minimum": 0, "maximum": MAX_CONTEXT, "default": 0},
                "max_hits": parameters.limit_schema(HITS, MAX_HITS),
            }
        ),
    )

    def parse(self, arguments: JsonObject) -> FileQuery:
        """Return the query; raise a ToolError that names an argument that is not valid."""
        glob = parameters.optional_text(arguments, "glob")
        has_context = bool(arguments.get("context"))  # 0 is allowed, too
        return FileQuery(
            content=_regex(arguments, "content_regex"),
            name=_regex(arguments, "name_regex"),
            globs=[glob] if glob else [],
            below=parameters.optional_text(arguments, "root"),
            ignore_case=parameters.boolean_argument(arguments, "ignore_case"),
            context=parameters.integer_argument(arguments, "context", 0, MAX_CONTEXT)
            if has_context
            else 0,
            limit=parameters.integer_argument(arguments, "max_hits", HITS, MAX_HITS),
        )

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the hits of each file as text, or a hint if there are none."""
        files = call.context.workspace
        query = self.parse(arguments)
        report = await asyncio.to_thread(search_files, files, query)
        return Outcome(text="\n".join(_lines(report, query, files)), match_count=report.count)


def _regex(arguments: JsonObject, name: str) -> str:
    """Return an optional regular expression, with the spaces at its ends; "" if it is missing.

    Raises:
        ToolError: the argument is not a string.
    """
    value = arguments.get(name) or ""
    if not isinstance(value, str):
        raise ToolError(f"{name} must be a string")
    return value


def _lines(report: SearchReport, query: FileQuery, files: Workspace) -> Iterator[str]:
    """Yield the lines of a search: counts, the hits by file, unsearched binary files, and a cut or a hint."""
    if query.content:
        searched = f"{len(report.files)} of {count_text(report.searched, 'file')}"
        yield f"{count_text(report.count, 'hit')} in {searched}"
    else:
        yield count_text(report.count, "file")
    for found in report.files:
        yield from _file_lines(found, files)
    if report.binary:
        yield f"{count_text(report.binary, 'file')} not searched: not a text in UTF-8"
    if report.cut:
        yield (
            f"… {report.cut}: narrow the search by a longer content_regex, by glob, or by root, or raise max_hits "
            f"(at most {MAX_HITS})"
        )
    elif not report.count:
        yield _hint(query, files)


def _file_lines(found: FileHits, files: Workspace) -> Iterator[str]:
    yield f"{found.path} ({found.size:,} bytes) {files.ref(found.path)}".rstrip()
    hits = set(found.hits)
    for number, text in found.shown:
        yield f"{number}{':' if number in hits else '-'} {text}"


def _hint(query: FileQuery, files: Workspace) -> str:
    """Return the hint for a search without hits: the folders if `root` has no files, otherwise what to change."""
    if not files.paths(query.below):
        folders = sorted({path.rpartition("/")[0] for path in files.paths()})
        return f"{query.below or 'the workspace'} has no files; folders are {', '.join(folders[:8]) or 'none'}"
    if query.content and not query.ignore_case:
        return "try ignore_case, a shorter content_regex, or another root"
    return "try another name_regex, glob or root: without any of them all files are listed"
