"""The tools for the files of a turn: `react.write` and `react.patch`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loopline.errors import RefError, ToolError
from loopline.files import (
    FileHits,
    FileQuery,
    PatchedFile,
    SearchReport,
    Workspace,
    apply_patch,
    search_files,
)
from loopline.files.search import MAX_CONTEXT, MAX_HITS
from loopline.files.workspace import path_beside
from loopline.models import JsonObject, ToolSpec
from loopline.refs import FileRef, parse
from loopline.timeline import (
    Block,
    Effect,
    FileAdded,
    FilesPulled,
    Visibility,
    parse_path,
    turn_number,
    workspace,
)
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, counted
from loopline.tools.parameters import (
    check_names,
    integer_argument,
    limit_schema,
    object_schema,
    text_argument,
)
from loopline.tools.tool import RerunnableTool

WORKSPACE_KEY = "workspace"
"""The key of all calls that change files, so that they keep their order."""
_PATH: JsonObject = {
    "type": "string",
    "description": "files/… for the project, outputs/… for a product of this turn.",
}


class WriteTool(RerunnableTool):
    """The tool that writes a whole file."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.write",
        description=(
            "Write a text file of the workspace, whole. Later turns begin with what is in files/; outputs/ "
            "holds what this turn makes for the user. The result gives the ref that reads this version again. "
            "To change a part of a file, use react.patch."
        ),
        parameters=object_schema(
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

    def check(self, arguments: JsonObject) -> None:
        """Refuse a path that no workspace takes, and a content that is no text."""
        check_names(self.spec, arguments)
        parse_path(text_argument(arguments, "path"))
        _content(arguments)
        _visibility(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the change."""
        files, path = call.context.workspace, parse_path(text_argument(arguments, "path"))
        data = _content(arguments).encode()
        same = files.find(path) == data
        files.write(str(path), data, visibility=_visibility(arguments))
        text = f"{path} has this content already: {files.ref(str(path))}" if same else ""
        return Outcome(text=text, files=tuple(files.changes))


def _content(arguments: JsonObject) -> str:
    content = arguments.get("content")
    if not isinstance(content, str):
        raise ToolError("content: a text, which may be empty")
    return content


def _visibility(arguments: JsonObject) -> Visibility:
    value = arguments.get("visibility", "external")
    if value not in ("external", "internal"):
        raise ToolError("visibility: external or internal")
    return "internal" if value == "internal" else "external"


class PatchTool(RerunnableTool):
    """The tool that changes files by a unified diff."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.patch",
        description=(
            "Change files of the workspace by a unified diff, all of it or nothing: --- a/files/x.py, +++ b/files/x.py, "
            "then hunks that begin @@ -1,3 +1,4 @@ with lines of context as they stand in the file. The diff may "
            "change, create, rename and delete several files. If a hunk does not fit, the error says what stands there."
        ),
        parameters=object_schema(
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

    def check(self, arguments: JsonObject) -> None:
        """Refuse an empty patch, and a path that no workspace takes."""
        check_names(self.spec, arguments)
        text_argument(arguments, "patch")
        if _path(arguments):
            parse_path(_path(arguments))

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the changes that Git makes of the diff."""
        files, patch = call.context.workspace, text_argument(arguments, "patch").encode()
        limit = files.limits.file_bytes
        patched = await asyncio.to_thread(
            apply_patch, patch, files.find, limit, _path(arguments), files.is_executable
        )
        for file in patched:
            _stage(files, file)
        text = "" if patched else "the files are so already: nothing was changed"
        return Outcome(text=text, files=tuple(files.changes))


def _stage(files: Workspace, file: PatchedFile) -> None:
    if file.after is None:
        files.remove(str(file.path))
    else:
        files.write(str(file.path), file.after, executable=file.executable)


def _path(arguments: JsonObject) -> str:
    path = arguments.get("path") or ""
    if not isinstance(path, str):
        raise ToolError("path: a text such as files/src/a.py")
    return path


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


HITS = 100
_FIELDS = ("content_regex", "name_regex", "glob", "root")


class SearchFilesTool(RerunnableTool):
    """The tool that finds files by name, and lines by a regular expression."""

    spec: ToolSpec = ToolSpec(
        name="react.search_files",
        description=(
            "Search the workspace: lines that fit content_regex, in files whose path fits name_regex and glob; without "
            "content_regex it lists files. Regular expressions are those of RE2, without look-around and "
            "back-references. Each file comes with its ref; react.read shows more of it by ref#L10-L40."
        ),
        parameters=object_schema(
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
                "max_hits": limit_schema(HITS, MAX_HITS),
            }
        ),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse fields that are no texts and numbers out of their range."""
        check_names(self.spec, arguments)
        _query(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the hits, file by file."""
        files, query = call.context.workspace, _query(arguments)
        report = await asyncio.to_thread(search_files, files, query)
        return Outcome(text="\n".join(_lines(report, query, files)), match_count=report.count)


def _query(arguments: JsonObject) -> FileQuery:
    texts = {name: _text(arguments, name) for name in _FIELDS}
    ignore_case = arguments.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise ToolError("ignore_case: true or false")
    context = (
        0
        if not arguments.get("context")
        else integer_argument(arguments, "context", 0, MAX_CONTEXT)
    )
    return FileQuery(
        content=texts["content_regex"],
        name=texts["name_regex"],
        globs=[texts["glob"]] if texts["glob"] else [],
        below=texts["root"],
        ignore_case=ignore_case,
        context=context,
        limit=integer_argument(arguments, "max_hits", HITS, MAX_HITS),
    )


def _text(arguments: JsonObject, name: str) -> str:
    value = arguments.get(name) or ""
    if not isinstance(value, str):
        raise ToolError(f"{name}: a text")
    return value


def _lines(report: SearchReport, query: FileQuery, files: Workspace) -> Iterator[str]:
    unit = "hit" if query.content else "file"
    looked = f" in {len(report.files)} of {counted(report.searched, 'file')}"
    yield f"{counted(report.count, unit)}{looked if query.content else ''}"
    for found in report.files:
        yield from _file_lines(found, files)
    if report.binary:
        yield f"{counted(report.binary, 'file')} with no text in UTF-8 not searched"
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
    if not files.paths(query.below):
        folders = sorted({path.rpartition("/")[0] for path in files.paths()})
        return f"nothing is below {query.below or 'the workspace'}; folders are {', '.join(folders[:8]) or 'none'}"
    if query.content and not query.ignore_case:
        return "try ignore_case, a shorter content_regex, or another root"
    return "try another name_regex, glob or root: without any of them all files are listed"
