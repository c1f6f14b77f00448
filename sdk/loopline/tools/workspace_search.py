"""The tool that searches in the files of a turn, `react.search_files`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from loopline.errors import ToolError
from loopline.files import FileHits, FileQuery, SearchReport, Workspace, search_files
from loopline.files.search import MAX_CONTEXT, MAX_HITS
from loopline.models import JsonObject, ToolSpec
from loopline.tools.arguments import check_names, integer_argument, limit_schema, object_schema
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, counted
from loopline.tools.tool import RerunnableTool

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
