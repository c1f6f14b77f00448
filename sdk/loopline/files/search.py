"""Search in the files of a workspace by regular expressions of RE2, whose time is linear in the size of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loopline.files.attachment import decoded_text
from loopline.files.workspace import Workspace
from loopline.models.patterns import Expression, compile_pattern

MAX_HITS = 200
MAX_CONTEXT = 10
LINE_CHARACTERS = 300
SHOWN_CHARACTERS = 100_000
_GLOB_PART = re.compile(r"\*\*/|\*\*|.", re.DOTALL)
_GLOB_PATTERNS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """A search for lines that match `content`, in files whose path matches `name` and one of the `globs`.

    Empty fields match everything; without `content`, whole files are found. `below` is a folder such as `files/src`.
    `context` is the number of lines that are shown before and after each hit. `limit` is the number of hits.
    """

    content: str = ""
    name: str = ""
    globs: Sequence[str] = ()
    below: str = ""
    ignore_case: bool = False
    context: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHits:
    """The hits in one file: the numbers of the matching lines, and the number and text of each shown line.

    Line numbers begin at 1. `size` is that of the file in bytes.
    """

    path: str
    size: int
    hits: tuple[int, ...] = ()
    shown: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class SearchReport:
    """The result of a search: the files with hits, and the counts of searched files, binary files and hits.

    `cut` says why hits may be missing; it is empty if the search is complete.
    """

    files: list[FileHits] = field(default_factory=list[FileHits])
    searched: int = 0
    binary: int = 0
    count: int = 0
    cut: str = ""


def glob_pattern(glob: str) -> str:
    """Convert a glob to a regular expression: `*` and `?` match within a name, `**` also matches slashes.

    A glob without a slash is matched against the last name of a path: `*.py` finds Python files in all folders.
    """
    parts = [_GLOB_PATTERNS.get(part) or _quote(part) for part in _GLOB_PART.findall(glob)]
    pattern = "".join(parts)
    return f"^{pattern}$" if "/" in glob else f"(?:^|/){pattern}$"


def _quote(character: str) -> str:
    is_plain = character.isalnum() or character in "_/" or not character.isascii()
    return character if is_plain else f"\\{character}"


def search_files(workspace: Workspace, query: FileQuery) -> SearchReport:
    """Search the workspace in the order of paths; blocks while it searches.

    The search stops at the limit of hits, and after 100,000 characters of shown lines; then `cut` is set. A file that is
    not UTF-8 is only counted if the query has `content`.

    Raises:
        LooplineError: a regular expression is invalid.
    """
    path_filter = _PathFilter(query)
    content = _ContentSearch(query) if query.content else None
    report = SearchReport()
    shown_characters = 0
    for path in filter(path_filter, workspace.paths(query.below)):
        data = workspace.read(path)
        report.searched += 1
        file_hits = FileHits(path=path, size=len(data))
        if content is not None:
            hits = content.hits(file_hits, data, query.limit - report.count)
            report.binary += hits is None
            if hits is None or not hits.hits:
                continue
            file_hits = hits
        report.files.append(file_hits)
        report.count += len(file_hits.hits) if content else 1
        shown_characters += sum(len(text) for _, text in file_hits.shown)
        if report.count >= query.limit or shown_characters > SHOWN_CHARACTERS:
            report.cut = "there may be more"
            break
    return report


class _PathFilter:
    """The test whether a path matches the name and one of the globs of a query."""

    def __init__(self, query: FileQuery) -> None:
        name = query.name
        self._name = compile_pattern(name, ignore_case=query.ignore_case) if name else None
        self._globs = [compile_pattern(glob_pattern(glob)) for glob in query.globs]

    def __call__(self, path: str) -> bool:
        # Globs may be written with or without the area `files/` or `outputs/`.
        forms = path.encode(), path.partition("/")[2].encode()
        if self._name is not None and self._name.search(forms[0]) is None:
            return False
        return not self._globs or any(glob.search(form) for glob in self._globs for form in forms)


class _ContentSearch:
    """The search for a regular expression in the lines of files."""

    def __init__(self, query: FileQuery) -> None:
        self._line = compile_pattern(query.content, ignore_case=query.ignore_case)
        self._context = query.context
        # One search in the whole file skips most files without splitting them into lines.
        self._whole: Expression | None = None
        if r"\A" not in query.content and r"\z" not in query.content:
            pattern = f"(?m:{query.content})"
            self._whole = compile_pattern(pattern, ignore_case=query.ignore_case)

    def hits(self, file: FileHits, data: bytes, limit: int) -> FileHits | None:
        """Return the file with its first `limit` hits and the lines around them, shortened to `LINE_CHARACTERS`.

        The result has no hits if no line matches. Return None if the file is not a text in UTF-8.
        """
        if b"\0" in data or decoded_text(data) is None:
            return None
        if self._whole is not None:
            with_lf = data.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in data else data
            if self._whole.search(with_lf) is None:
                return file
        lines = data.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        numbers: list[int] = []
        for number, line in enumerate(lines, 1):
            if self._line.search(line.removesuffix(b"\r")) is not None:
                numbers.append(number)
                if len(numbers) >= limit:
                    break
        shown = tuple(
            (number, _shorten(lines[number - 1].decode()))
            for number in self._add_context(numbers, len(lines))
        )
        return replace(file, hits=tuple(numbers), shown=shown)

    def _add_context(self, hits: Sequence[int], count: int) -> Iterator[int]:
        """Yield the line numbers of the sorted hits and the lines around them, each once, up to `count`."""
        last = 0
        for hit in hits:
            first = max(hit - self._context, last + 1)
            last = max(min(hit + self._context, count), last)
            yield from range(first, last + 1)


def _shorten(line: str) -> str:
    text = line.removesuffix("\r")
    return text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]}…"
