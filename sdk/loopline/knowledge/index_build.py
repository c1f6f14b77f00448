"""The port that keeps indexes, one for each signature, so that the next start finds them ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, TypedDict, cast

from loopline.errors import KnowledgeError
from loopline.knowledge.links import broken_links
from loopline.knowledge.repository import Repository, RepositoryFile
from loopline.knowledge.tree import Tree
from loopline.search import KINDS, Chunk, Index, MemoryIndex, chunk, kind_of


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index that can be searched, and the notes that were kept with it."""

    index: Index
    notes: str


class IndexStore(Protocol):
    """Indexes by signature; every method may block. What is damaged or foreign counts as absent."""

    def open(self, signature: str) -> StoredIndex | None:
        """The index built under this signature, or None."""
        ...

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """The index of these chunks. `notes` is called when all of them have been taken.

        When others build the same signature at the same time one does the work, and the rest get its
        index without taking a chunk. An index is there as a whole or not at all.
        """
        ...

    def discard(self, signature: str) -> None:
        """Forget the index of this signature, if there is one."""
        ...


class MemoryIndexes:
    """Indexes for as long as the process lives."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredIndex] = {}

    def open(self, signature: str) -> StoredIndex | None:
        """The index built under this signature, or None."""
        return self._stored.get(signature)

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """The index of these chunks, unless it is already there."""
        if signature not in self._stored:
            index = MemoryIndex(chunks)
            self._stored[signature] = StoredIndex(index, notes())
        return self._stored[signature]

    def discard(self, signature: str) -> None:
        """Forget it."""
        self._stored.pop(signature, None)


Reason = Literal["binary", "too large", "name is not UTF-8"]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in the index, and why."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a build; it is kept with the index, so that a later start can tell it again."""

    files: int
    passages: int
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]


class _StoredReport(TypedDict):
    files: int
    passages: int
    skipped: list[_StoredSkipped]
    warnings: list[str]


class _StoredSkipped(TypedDict):
    path: str
    reason: Reason


def dump_report(report: BuildReport) -> str:
    """The report as JSON."""
    return json.dumps(asdict(report))


def load_report(text: str) -> BuildReport:
    """The report that `dump` wrote.

    Raises:
        KnowledgeError: it is something else.
    """
    try:
        written = cast(_StoredReport, json.loads(text))
        return BuildReport(
            files=written["files"],
            passages=written["passages"],
            skipped=tuple(Skipped(row["path"], row["reason"]) for row in written["skipped"]),
            warnings=tuple(written["warnings"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise KnowledgeError(f"an index has notes that cannot be read: {error}") from error


Progress = Callable[[int, int, str], None]
LARGEST_FILE_BYTES = 1_000_000
LOOKED_AT_BYTES = 8_000
MOST_WARNINGS = 200
PROGRESS_EVERY = 100


class IndexBuild:
    """Reads a tree once. The report is right when `chunks` has been taken to its end."""

    def __init__(self, repository: Repository, tree: Tree, *, validate_refs: bool) -> None:
        self._repository = repository
        self._tree = tree
        self._validate_refs = validate_refs
        self._skipped: list[Skipped] = []
        self._warnings: list[str] = []
        self._files = 0
        self._passages = 0
        self.started: bool = False

    def chunks(self, progress: Progress | None) -> Iterator[Chunk]:
        """Every chunk of every text in the tree. `progress` is told of files: done, of how many."""
        self.started = True
        self._tree.check_roots()
        chosen = [
            (path, entry)
            for path, entry in sorted(self._tree.files.items(), key=_by_kind)
            if self._reads(path, entry)
        ]
        contents = self._repository.contents([entry.blob for _, entry in chosen])
        activity = f"reading {self._repository.name}"
        for done, ((path, entry), data) in enumerate(zip(chosen, contents, strict=True)):
            if progress is not None and done % PROGRESS_EVERY == 0:
                progress(done, len(chosen), activity)
            yield from self._file(path, entry, data)
        if progress is not None:
            progress(len(chosen), len(chosen), activity)

    def report(self) -> BuildReport:
        """What it came to."""
        warnings = self._warnings[:MOST_WARNINGS]
        if len(self._warnings) > MOST_WARNINGS:
            warnings.append(f"{len(self._warnings) - MOST_WARNINGS} more broken links and refs")
        return BuildReport(
            files=self._files,
            passages=self._passages,
            skipped=tuple(sorted(self._skipped, key=lambda file: file.path)),
            warnings=tuple(warnings),
        )

    def _file(self, path: str, entry: RepositoryFile, data: bytes) -> list[Chunk]:
        text = decode_text(data)
        if text is None:
            self._skip(path, "binary")
            return []
        if self._validate_refs:
            self._warnings += broken_links(path, entry.path, text, self._tree)
        chunks = chunk(path, text)
        self._files += 1
        self._passages += len(chunks)
        return chunks

    def _reads(self, path: str, entry: RepositoryFile) -> bool:
        if entry.size > LARGEST_FILE_BYTES:
            self._skip(path, "too large")
        elif not (path.isascii() or _is_text(path)):
            self._skip(ascii(path)[1:-1], "name is not UTF-8")
        else:
            return True
        return False

    def _skip(self, path: str, reason: Reason) -> None:
        self._skipped.append(Skipped(path, reason))


def decode_text(data: bytes) -> str | None:
    """The text of a file: UTF-8, or Latin-1 when it is not that; None when it is no text at all."""
    if b"\0" in data[:LOOKED_AT_BYTES]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _by_kind(file: tuple[str, RepositoryFile]) -> tuple[int, str]:
    """Files of a kind follow each other, which lets an index search each kind by itself."""
    return KINDS.index(kind_of(file[0])), file[0]


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
