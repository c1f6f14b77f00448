"""Search in the files of a workspace by regular expressions, each in a time that is linear in the text (RE2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loopline.files.attachment import decoded_text
from loopline.files.workspace import Workspace
from loopline.models.patterns import compile_pattern

MAX_HITS = 200
MAX_CONTEXT = 10
LINE_CHARACTERS = 300
SHOWN_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """What to look for: `content` in the lines of files whose path fits `name` and one of the `globs`.

    `below` is a folder such as `files/src`. `context` is how many lines are shown around each hit.
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
    """The hits in one file: the numbers of the lines that fit, and of those shown, each with its text."""

    path: str
    size: int
    hits: tuple[int, ...] = ()
    shown: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class SearchReport:
    """The files that were found, how many were looked into, and why not all hits are there."""

    files: list[FileHits] = field(default_factory=list[FileHits])
    searched: int = 0
    binary: int = 0
    count: int = 0
    cut: str = ""


def glob_pattern(glob: str) -> str:
    """Return the regular expression of a glob: `*` and `?` stay within a name, `**` crosses folders.

    A glob without a slash is for the last name, so that `*.py` finds Python files in every folder.
    """
    pattern, place = "", 0
    while place < len(glob):
        if glob.startswith("**/", place):
            pattern, place = f"{pattern}(?:.*/)?", place + 3
        elif glob.startswith("**", place):
            pattern, place = f"{pattern}.*", place + 2
        else:
            pattern, place = pattern + _one_character(glob[place]), place + 1
    return f"^{pattern}$" if "/" in glob else f"(?:^|/){pattern}$"


def _one_character(character: str) -> str:
    if character in "*?":
        return "[^/]*" if character == "*" else "[^/]"
    is_plain = character.isalnum() or character in "_/" or not character.isascii()
    return character if is_plain else f"\\{character}"


def search_files(workspace: Workspace, query: FileQuery) -> SearchReport:
    """Return the files and lines that fit, in the order of their paths; blocks while it looks.

    Raises:
        LooplineError: a regular expression is wrong.
    """
    fits = _PathFilter(query)
    content = _Content(query) if query.content else None
    report, shown_characters = SearchReport(), 0
    for path in filter(fits, workspace.paths(query.below)):
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
    """Whether a path fits the name and one of the globs of a query."""

    def __init__(self, query: FileQuery) -> None:
        name = query.name
        self._name = compile_pattern(name, ignore_case=query.ignore_case) if name else None
        self._globs = [compile_pattern(glob_pattern(glob)) for glob in query.globs]

    def __call__(self, path: str) -> bool:
        forms = path.encode(), path.partition("/")[2].encode()  # with its area and without
        if self._name is not None and self._name.search(forms[0]) is None:
            return False
        return not self._globs or any(glob.search(form) for glob in self._globs for form in forms)


class _Content:
    """The search in the content of one file after the other."""

    def __init__(self, query: FileQuery) -> None:
        self._line = compile_pattern(query.content, ignore_case=query.ignore_case)
        pattern = f"(?m:{query.content})"
        is_anchored = r"\A" in query.content or r"\z" in query.content
        self._whole = (
            None if is_anchored else compile_pattern(pattern, ignore_case=query.ignore_case)
        )
        self._context = query.context

    def hits(self, file: FileHits, data: bytes, limit: int) -> FileHits | None:
        """Return at most so many hits in a file, None if it is no text."""
        if b"\0" in data or decoded_text(data) is None:
            return None
        if self._whole is not None and self._whole.search(data) is None:
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
            (number, _shortened(lines[number - 1].decode()))
            for number in self._shown(numbers, len(lines))
        )
        return replace(file, hits=tuple(numbers), shown=shown)

    def _shown(self, hits: Sequence[int], count: int) -> Iterator[int]:
        """Yield the numbers of the lines that are shown, each once."""
        last = 0
        for hit in hits:
            first = max(hit - self._context, last + 1)
            last = max(min(hit + self._context, count), last)
            yield from range(first, last + 1)


def _shortened(line: str) -> str:
    text = line.removesuffix("\r")
    return text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]}…"
