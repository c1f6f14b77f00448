"""Building an index from a commit: the port that stores indexes, which files are read, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder, Encoder

from loopline.errors import KnowledgeError
from loopline.knowledge.links import DocumentLink, broken_links, document_labels, document_links
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


@dataclass(frozen=True, slots=True)
class IndexKey:
    """The name of an index. The indexes of a `family` differ only in the commit that they were made of."""

    signature: str
    family: str = ""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file of an index: its path, the id of its bytes, its chunks, and a note that is kept with it."""

    path: str
    blob: str
    chunks: Sequence[Chunk]
    note: str = ""


FileReader = Callable[[Sequence[str]], Iterable[IndexedFile]]
"""Yields the files with these paths, in their order."""
NotesFunction = Callable[[Mapping[str, str]], str]
"""Returns the notes of an index, given the note of each file by its path."""


class IndexStore(Protocol):
    """Indexes by key; every method may block. A damaged or foreign index counts as absent."""

    def open(self, key: IndexKey) -> StoredIndex | None:
        """Return the index built under this key, or None."""
        ...

    def build(
        self, key: IndexKey, files: Mapping[str, str], read: FileReader, notes: NotesFunction
    ) -> StoredIndex:
        """Build and return the index of these files, given the ids of their bytes by their paths.

        Only files are read that an earlier index of the family lacks. `notes` is called after the last one was read.
        When several processes build the same index at once, one does the work, and the others get its index without
        reading a file. An index is complete or absent.
        """
        ...

    def discard(self, key: IndexKey) -> None:
        """Remove the index, if there is one, and those of its family, from which it may have been made."""
        ...


class MemoryIndexes:
    """Indexes in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._stored: dict[IndexKey, StoredIndex] = {}
        self._files: dict[str, dict[tuple[str, str], IndexedFile]] = {}

    def open(self, key: IndexKey) -> StoredIndex | None:
        """Return the index built under this key, or None."""
        return self._stored.get(key)

    def build(
        self, key: IndexKey, files: Mapping[str, str], read: FileReader, notes: NotesFunction
    ) -> StoredIndex:
        """Build the index of these files unless it exists, and return it."""
        if key not in self._stored:
            known = self._files.setdefault(key.family, {})
            missing = [path for path, blob in files.items() if (path, blob) not in known]
            known |= {(file.path, file.blob): file for file in read(missing)}
            indexed = [known[file] for file in files.items()]
            index = MemoryIndex(chunk for file in indexed for chunk in file.chunks)
            self._stored[key] = StoredIndex(
                index, notes({file.path: file.note for file in indexed})
            )
        return self._stored[key]

    def discard(self, key: IndexKey) -> None:
        """Remove the index and its family."""
        for kept in [kept for kept in self._stored if kept.family == key.family]:
            del self._stored[kept]
        self._files.pop(key.family, None)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in the index, and why."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a build; it is stored with the index, so that a later start can report it again."""

    files: int
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]


def dump_report(report: BuildReport) -> str:
    """Return the report as JSON."""
    return _ENCODER.encode(report).decode()


def load_report(text: str) -> BuildReport:
    """Return the report that `dump_report` wrote.

    Raises:
        KnowledgeError: the text is something else.
    """
    try:
        return _REPORT_DECODER.decode(text)
    except MsgspecError as error:
        raise KnowledgeError(f"an index has notes that cannot be read: {error}") from error


class FileNote(Struct, frozen=True, omit_defaults=True):
    """What an index keeps of a file besides its chunks."""

    binary: bool = False
    links: tuple[DocumentLink, ...] = ()
    labels: tuple[str, ...] = ()


_ENCODER = Encoder()
_DECODER = Decoder(FileNote)
_REPORT_DECODER = Decoder(BuildReport)


class IndexBuild:
    """Reads the files of a tree that are missing, and reports on all of them."""

    def __init__(
        self, repository: Repository, tree: Tree, *, validate_refs: bool, name: str = ""
    ) -> None:
        self._name = name
        self._repository = repository
        self._tree = tree
        self._validate_refs = validate_refs
        self._skipped: list[Skipped] = []
        self.started: bool = False

    def files(self) -> dict[str, str]:
        """Return the blobs of the files to index by their paths: documents first, then source, tests and others.

        Raises:
            KnowledgeError: a root has no files.
        """
        self._tree.check_roots()
        return {
            path: entry.blob
            for path, entry in sorted(self._tree.files.items(), key=_by_kind)
            if self._reads(path, entry)
        }

    def read(self, paths: Sequence[str], progress: Progress | None) -> Iterator[IndexedFile]:
        """Yield the files with these paths; `progress(done, total, activity)` counts them."""
        self.started = True
        contents = self._repository.contents([self._tree.files[path].blob for path in paths])
        activity = f"reading {self._repository.name}"
        for done, (path, data) in enumerate(zip(paths, contents, strict=True)):
            if progress is not None and done % PROGRESS_EVERY == 0:
                progress(done, len(paths), activity)
            yield self._file(path, self._tree.files[path], data)
        if progress is not None:
            progress(len(paths), len(paths), activity)

    def report(self, notes: Mapping[str, str]) -> BuildReport:
        """Return the outcome of the build, given the note of each file."""
        skipped = list(self._skipped)
        problems: list[str] = []
        decoded = {path: _DECODER.decode(note) for path, note in notes.items() if note}
        labels = frozenset(label for note in decoded.values() for label in note.labels)
        for path, note in decoded.items():
            if note.binary:
                skipped.append(Skipped(path, "binary"))
            problems += broken_links(
                path,
                self._tree.files[path].path,
                note.links,
                self._tree,
                name=self._name,
                labels=labels,
            )
        warnings = problems[:WARNING_LIMIT]
        if len(problems) > WARNING_LIMIT:
            warnings.append(f"{len(problems) - WARNING_LIMIT} more broken links and refs")
        binary = len(skipped) - len(self._skipped)
        return BuildReport(
            files=len(notes) - binary,
            skipped=tuple(sorted(skipped, key=lambda file: file.path)),
            warnings=tuple(warnings),
        )

    def _file(self, path: str, entry: RepositoryFile, data: bytes) -> IndexedFile:
        text = decode_text(data)
        if text is None:
            return IndexedFile(path, entry.blob, (), _encode(FileNote(binary=True)))
        links = document_links(entry.path, text) if self._validate_refs else ()
        labels = document_labels(entry.path, text) if self._validate_refs else ()
        checked_links = tuple(
            link for link in links if link.kind != "path" and link.path != entry.path
        )
        note = (
            _encode(FileNote(links=checked_links, labels=labels)) if checked_links or labels else ""
        )
        return IndexedFile(path, entry.blob, chunk(path, text), note)

    def _reads(self, path: str, entry: RepositoryFile) -> bool:
        if entry.size > LARGEST_FILE_BYTES:
            self._skipped.append(Skipped(path, "too large"))
        elif not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path):
            self._skipped.append(Skipped(ascii(path)[1:-1], "name is not UTF-8"))
        else:
            return True
        return False


def _encode(note: FileNote) -> str:
    return _ENCODER.encode(note).decode()


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
