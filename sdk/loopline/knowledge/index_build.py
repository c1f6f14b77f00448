"""Building an index from a commit: the port that stores indexes, which files are read, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from loopline.errors import KnowledgeError
from loopline.knowledge.links import broken_links
from loopline.knowledge.repository import Repository, RepositoryFile
from loopline.knowledge.tree import Tree
from loopline.search import KINDS, Chunk, Index, MemoryIndex, chunk, kind_of

Progress = Callable[[int, int, str], None]
"""Is called with the files done, the files in all, and what is going on."""
Reason = Literal["binary", "too large", "name is not UTF-8"]

LARGEST_FILE_BYTES = 1_000_000
SNIFFED_BYTES = 8_000
WARNING_LIMIT = 200
PROGRESS_EVERY = 100


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index that can be searched, and the notes that were stored with it."""

    index: Index
    notes: str


class IndexStore(Protocol):
    """Indexes by signature; every method may block. A damaged or foreign index counts as absent."""

    def open(self, signature: str) -> StoredIndex | None:
        """Return the index built under this signature, or None."""
        ...

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """Build and return the index of these chunks; `notes` is called after the last chunk was read.

        When several processes build the same signature at once, one does the work, and the others get its index without
        reading a chunk. An index is complete or absent.
        """
        ...

    def discard(self, signature: str) -> None:
        """Remove the index of this signature, if there is one."""
        ...


class MemoryIndexes:
    """Indexes in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredIndex] = {}

    def open(self, signature: str) -> StoredIndex | None:
        """Return the index built under this signature, or None."""
        return self._stored.get(signature)

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """Build the index of these chunks unless it exists, and return it."""
        if signature not in self._stored:
            index = MemoryIndex(chunks)
            self._stored[signature] = StoredIndex(index, notes())
        return self._stored[signature]

    def discard(self, signature: str) -> None:
        """Remove the index."""
        self._stored.pop(signature, None)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in the index, and why."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a build; it is stored with the index, so that a later start can report it again."""

    files: int
    passages: int
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]


def dump_report(report: BuildReport) -> str:
    """Return the report as JSON."""
    return json.dumps(asdict(report))


def load_report(text: str) -> BuildReport:
    """Return the report that `dump_report` wrote.

    Raises:
        KnowledgeError: the text is something else.
    """
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(BuildReport).validate_python(json.loads(text))
    except ValueError as error:
        raise KnowledgeError(f"an index has notes that cannot be read: {error}") from error


class IndexBuild:
    """Reads a tree once. The report is complete when `chunks` has been taken to its end."""

    def __init__(
        self, repository: Repository, tree: Tree, *, validate_refs: bool, name: str = ""
    ) -> None:
        self._name = name
        self._repository = repository
        self._tree = tree
        self._validate_refs = validate_refs
        self._skipped: list[Skipped] = []
        self._warnings: list[str] = []
        self._files = 0
        self._passages = 0
        self.started: bool = False

    def chunks(self, progress: Progress | None) -> Iterator[Chunk]:
        """Yield every chunk of every text in the tree; `progress(done, total, activity)` counts files."""
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
        """Return the outcome of the build."""
        warnings = self._warnings[:WARNING_LIMIT]
        if len(self._warnings) > WARNING_LIMIT:
            warnings.append(f"{len(self._warnings) - WARNING_LIMIT} more broken links and refs")
        return BuildReport(
            files=self._files,
            passages=self._passages,
            skipped=tuple(sorted(self._skipped, key=lambda file: file.path)),
            warnings=tuple(warnings),
        )

    def _file(self, path: str, entry: RepositoryFile, data: bytes) -> list[Chunk]:
        text = decode_text(data)
        if text is None:
            self._skipped.append(Skipped(path, "binary"))
            return []
        if self._validate_refs:
            self._warnings += broken_links(path, entry.path, text, self._tree, name=self._name)
        chunks = chunk(path, text)
        self._files += 1
        self._passages += len(chunks)
        return chunks

    def _reads(self, path: str, entry: RepositoryFile) -> bool:
        if entry.size > LARGEST_FILE_BYTES:
            self._skipped.append(Skipped(path, "too large"))
        elif not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path):
            self._skipped.append(Skipped(ascii(path)[1:-1], "name is not UTF-8"))
        else:
            return True
        return False


def decode_text(data: bytes) -> str | None:
    """Return the text of a file, as UTF-8 or else Latin-1; None when the file is binary."""
    if b"\0" in data[:SNIFFED_BYTES]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _by_kind(file: tuple[str, RepositoryFile]) -> tuple[int, str]:
    """Sort files of a kind together, which lets an index search each kind by itself."""
    return KINDS.index(kind_of(file[0])), file[0]
