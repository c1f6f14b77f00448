"""The files next to a SKILL.md: sources to cite, required tools and a short form, as KDCube has them, and other files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from loopline.errors import BundleError, RefError, ToolError
from loopline.files import Folder
from loopline.models import Json, JsonObject, YamlDocument, YamlError, read_yaml
from loopline.names import nearest_hint
from loopline.timeline import Source
from loopline.timeline.workspace_paths import check_names

SOURCES_FILE = "sources.yaml"
TOOLS_FILE = "tools.yaml"
COMPACT_FILE = "compact.md"
COMPANION_BYTES = 256 * 1024
MAX_SOURCES = 200
MAX_NUMBER = 1_000_000
MAX_TOOLS = 50

_TEXTS = ("url", "title", "text", "published_time_iso", "favicon_url")
_SOURCE_KEYS = (*_TEXTS, "sid")
_UNUSED_FIELDS = """
content mime size_bytes base64 artifact_path physical_path local_path rn hosted_uri key domain modified_time_iso
fetched_time_iso author provider_rank weighted_rank query_relevance authority favicon favicon_status turn_id used
source_type objective_relevance
"""
_UNUSED = frozenset(_UNUSED_FIELDS.split())
"""Fields of KDCube's source pool that Loopline does not use."""
_TOOL_KEYS = ("id", "role", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillTool:
    """A tool that a skill needs: its id, its role, the reason, and the file and line that name it."""

    id: str
    role: str = ""
    why: str = ""
    location: str = ""

    def __str__(self) -> str:
        reason = ": ".join(part for part in (self.role, self.why) if part)
        return f"{self.id} — {reason}" if reason else self.id


def read_sources(path: Path, stored: bytes) -> tuple[dict[int, Source], list[str]]:
    """Decode a `sources.yaml`; return the sources by citation number, and warnings about fields without effect.

    Raises:
        BundleError: the file is malformed; the message names file and line.
    """
    rows = _Rows(path, "sources", _document(path, stored), MAX_SOURCES)
    sources = dict[int, Source]()
    warnings = list[str]()
    for index, row in rows:
        warnings += (rows.at(index, f"{key!r} has no effect") for key in row if key in _UNUSED)
        rows.check_keys(index, row, _SOURCE_KEYS, _UNUSED)
        number, source = _source(rows, index, row)
        if number in sources:
            raise BundleError(rows.at(index, f"the number {number} is taken: give each its own"))
        sources[number] = source
    return sources, warnings


def _source(rows: _Rows, index: int, row: JsonObject) -> tuple[int, Source]:
    """Return the citation number and the source of a row; its type is `web` for an HTTP URL, otherwise `manual`.

    Raises:
        BundleError: `sid` is not a number from 1 to 999,999, or both `url` and `title` are empty.
    """
    texts = {key: bare_text(row.get(key)) for key in _TEXTS}
    match {"sid": None, **row}:
        case {"sid": int(number)} if 0 < number < MAX_NUMBER and number is not True:
            pass
        case _:
            raise BundleError(rows.at(index, "'sid' must be a number from 1 on, as in [[S:1]]"))
    if not (texts["url"] or texts["title"]):
        raise BundleError(rows.at(index, "it has neither 'url' nor 'title'"))
    is_web = texts["url"].startswith(("http://", "https://"))
    return number, Source(
        url=texts["url"],
        title=texts["title"],
        text=texts["text"],
        published_time_iso=texts["published_time_iso"],
        favicon_url=texts["favicon_url"],
        source_type="web" if is_web else "manual",
    )


def read_tools(path: Path, stored: bytes) -> tuple[SkillTool, ...]:
    """Decode the tools in a `tools.yaml`.

    Raises:
        BundleError: the file is malformed; the message names file and line.
    """
    rows = _Rows(path, "tools", _document(path, stored), MAX_TOOLS)
    tools: list[SkillTool] = []
    for index, row in rows:
        rows.check_keys(index, row, _TOOL_KEYS)
        texts = {key: bare_text(row.get(key)) for key in _TOOL_KEYS}
        if not texts["id"]:
            raise BundleError(rows.at(index, "'id' must name a tool, such as web.fetch"))
        tools.append(SkillTool(**texts, location=f"{path}:{rows.line(index)}"))
    return tuple(tools)


def decode_text(path: Path, stored: bytes) -> str:
    """Decode the content of a file, without a byte order mark.

    Raises:
        BundleError: it is not UTF-8; the message names file and line.
    """
    try:
        return stored.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = stored.count(b"\n", 0, error.start) + 1
        raise BundleError(f"{path}:{line}: not UTF-8: {error.reason}") from error


def _document(path: Path, stored: bytes) -> YamlDocument:
    try:
        return read_yaml(decode_text(path, stored))
    except YamlError as error:
        raise BundleError(f"{path}:{error.line}: {error.problem}") from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """The list of mappings under the only key of a document; errors name file and line."""

    path: Path
    key: str
    document: YamlDocument
    limit: int

    def __iter__(self) -> Iterator[tuple[int, JsonObject]]:
        value = self.document.value
        items = value.get(self.key) if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(items, list):
            raise BundleError(f"{self.path}:1: it must be a list below the one key `{self.key}:`")
        if len(items) > self.limit:
            raise BundleError(
                f"{self.path}:1: it lists {len(items)} {self.key}, and may list {self.limit}"
            )
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise BundleError(self.at(index, "it must be lines like `key: value`"))
            yield index, item

    def check_keys(
        self,
        index: int,
        row: JsonObject,
        keys: tuple[str, ...],
        unused: frozenset[str] = frozenset(),
    ) -> None:
        """Check that a row has only known keys, and that their values are texts or numbers.

        Raises:
            BundleError: a key is unknown, or its value is a list or an object.
        """
        for key, value in row.items():
            if key not in keys and key not in unused:
                problem = f"the key {key!r} is unknown, {nearest_hint(key, keys)}"
                raise BundleError(self.at(index, problem))
            if isinstance(value, dict | list):
                raise BundleError(self.at(index, f"{key!r} must be a text"))

    def line(self, index: int) -> int:
        return self.document.line(self.key, str(index))

    def at(self, index: int, problem: str) -> str:
        """Return the problem with the file and the line of an item."""
        return f"{self.path}:{self.line(index)}: {problem}"


def bare_text(value: Json) -> str:
    """Return a value of a front matter on one line; empty if it is a list or an object."""
    return "" if value is None or isinstance(value, dict | list) else " ".join(str(value).split())


FILE_BYTES = 10 * 1024 * 1024
"""The maximum size of a file of a skill."""
MAX_FILES = 500
MAX_DEPTH = 8
MAX_PROBLEMS = 20
LISTED = 60
"""The maximum number of files that the text of a skill lists."""
_LEFT_OUT = {"__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its path in the folder, and its size in bytes."""

    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.size:,} bytes)"


def folder_files(folder: Path, beside: Collection[str]) -> tuple[list[SkillFile], list[str]]:
    """List the files in the folder of a skill, sorted by path, except those in `beside`, and problems as texts.

    Links, large files, deep folders, and files after the first 500 are left out, each with a problem. After 20
    problems, one more says that the rest is left out.
    """
    files = list[SkillFile]()
    problems = list[str]()
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if name in beside:
            continue
        problem = _problem(path, name)
        if len(problems) == MAX_PROBLEMS:
            problems.append(f"{folder}: more files are left out")
            break
        if problem:
            problems.append(f"{path}: {problem}")
        elif len(files) == MAX_FILES:
            problems.append(f"{folder}: a skill has at most {MAX_FILES} files: {name} is left out")
            break
        else:
            files.append(SkillFile(name, path.stat().st_size))
    return sorted(files, key=lambda file: file.path), problems


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden names, `__pycache__`, `node_modules` and the content of links.

    The folders at MAX_DEPTH are yielded instead of their files.
    """
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _LEFT_OUT
        )
        if depth + 1 >= MAX_DEPTH:
            yield from (Path(root) / name for name in folders)
            folders.clear()
        yield from (link for name in folders if (link := Path(root) / name).is_symlink())
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


def _problem(path: Path, name: str) -> str:
    """Return the reason to leave out a path, such as a link or a large file; "" if the file is listed."""
    if path.is_symlink():
        return "a link is not followed: put the file itself here"
    if path.is_dir():
        return f"a folder of a skill is at most {MAX_DEPTH} deep, so its files are left out"
    if not path.is_file():
        return "it is not a regular file"
    try:
        check_names(name, name)
    except ToolError as error:
        return str(error)
    size = path.stat().st_size
    if size > FILE_BYTES:
        return f"it has {size:,} bytes, and a file of a skill may have {FILE_BYTES:,}"
    return ""


def read_folder_file(folder: Path, path: str) -> bytes:
    """Read a file of a skill; links out of the folder are not followed.

    Raises:
        RefError: the file does not exist, or is too large.
    """
    try:
        with Folder(folder, hard_links=True) as opened:
            data = opened.read(path, FILE_BYTES)
    except (ToolError, OSError) as error:
        raise RefError(str(error)) from error
    if data is None:
        raise RefError(f"no file {path!r} in {folder}")
    return data
