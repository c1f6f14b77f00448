"""Building an index of a commit: the protocol of index stores, the files that are read, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder, Encoder

from loopline.errors import KnowledgeError
from loopline.knowledge.links import DocumentLink, broken_links, document_labels, document_links
from loopline.knowledge.repository import Repository, RepositoryFile
from loopline.knowledge.tree import Tree
from loopline.search import KINDS, Chunk, Index, chunk, kind_of

Progress = Callable[[int, int, str], None]
"""A callback for progress: the number done, the total, and the name of the activity."""
Reason = Literal["binary", "too large", "name is not UTF-8"]

LARGEST_FILE_BYTES = 1_000_000
SNIFFED_BYTES = 8_000
WARNING_LIMIT = 200
PROGRESS_EVERY = 100


@dataclass(frozen=True, slots=True)
class IndexKey:
    """The key of an index. Indexes with the same `family` differ only in their commit."""

    signature: str
    family: str = ""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file to index: its path, the id of its content, its chunks, and a note to store with it."""

    path: str
    blob: str
    chunks: Sequence[Chunk]
    note: str = ""


FileReader = Callable[[Sequence[str]], Iterable[IndexedFile]]
"""Reads the files with these paths and yields them in the same order."""
NotesFunction = Callable[[Mapping[str, str]], str]
"""Returns the notes of an index, given the note of each of its files by path."""


class IndexStore(Protocol):
    """Stores indexes by key. Methods may block. A damaged index, or one of another program, counts as missing."""

    def open(self, key: IndexKey) -> Index | None:
        """Return the index that was built with this key, or None."""
        ...

    def build(
        self, key: IndexKey, files: Mapping[str, str], read: FileReader, notes: NotesFunction
    ) -> Index:
        """Build the index of `files`, ids of contents by path, and return it.

        Files that an earlier index of the family has are not read again. `notes` is called after all files were read.
        If several processes build the same index at once, one builds it, and the others wait and open it without
        reading files. An incomplete index is never stored.
        """
        ...

    def discard(self, key: IndexKey) -> None:
        """Remove the index, if it exists, and all indexes of its family, because it may have been made from one of them."""
        ...


class IndexFiles(Protocol):
    """Files of finished indexes that all processes of a store share, by name. The methods block.

    Raises:
        StoreError: the store cannot be used.
    """

    def building(self, name: str) -> AbstractContextManager[None]:
        """Wait until no other process builds this file, but not for ever, and let none begin until the context is left."""
        ...

    def fetch(self, name: str, path: Path) -> bool:
        """Write the file with this name to a new path; return False if there is none, or if it is damaged or too large."""
        ...

    def share(self, name: str, path: Path) -> None:
        """Store the file at the path under this name, in place of another one."""
        ...

    def discard(self, beginning: str) -> None:
        """Remove the files whose names begin so."""
        ...


@runtime_checkable
class HasIndexFiles(Protocol):
    """A log whose store shares files of indexes."""

    @property
    def index_files(self) -> IndexFiles:
        """The files."""
        ...


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in the index, and the reason."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The result of a build: the number of indexed files, the skipped files, and warnings about links.

    It is stored with the index, and read again when the index is opened later.
    """

    files: int
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]


def load_report(text: str) -> BuildReport:
    """Decode a report that `encode_note` encoded.

    Raises:
        KnowledgeError: the text is not such a report.
    """
    try:
        return _REPORT_DECODER.decode(text)
    except MsgspecError as error:
        raise KnowledgeError(f"an index has notes that cannot be read: {error}") from error


class FileNote(Struct, frozen=True, omit_defaults=True):
    """The note of a file: whether it is binary, its links to other files, and its labels."""

    binary: bool = False
    links: tuple[DocumentLink, ...] = ()
    labels: tuple[str, ...] = ()


_ENCODER = Encoder()
_DECODER = Decoder(FileNote)
_REPORT_DECODER = Decoder(BuildReport)


class CheckedLinks:
    """The broken links at the commit that was checked last. The next check looks only at links that may have changed.

    These are the links of changed documents, the broken links if there are more files or labels than before, and all
    links if a file or a label is gone. `name` is the name of the repository in a space of several.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._tree: Tree | None = None
        self._labels = frozenset[str]()
        self._broken: dict[str, tuple[str, ...]] = {}

    def check(self, tree: Tree, notes: Mapping[str, FileNote]) -> list[str]:
        """Return the warnings of `broken_links` for all documents, given the notes of the files by path.

        A file that was checked by the last call is not checked again if the changes cannot matter to it.
        """
        labels = frozenset(label for note in notes.values() for label in note.labels)
        before = self._tree
        has_more = before is None or before.lacks(tree) or labels != self._labels
        if before is None or tree.lacks(before) or not labels >= self._labels:
            checked_files: Mapping[str, RepositoryFile] = {}
        else:
            checked_files = before.files
        broken: dict[str, tuple[str, ...]] = {}
        for path, note in notes.items():
            entry = tree.files[path]
            known = self._broken.get(path, ())
            if checked_files.get(path) != entry or (known and has_more):
                known = tuple(
                    broken_links(path, entry.path, note.links, tree, name=self._name, labels=labels)
                )
            if known:
                broken[path] = known
        self._tree, self._labels, self._broken = tree, labels, broken
        return [problem for problems in broken.values() for problem in problems]


class IndexBuild:
    """One build of an index: it selects the files of a tree, reads those that are needed, and makes the report.

    `started` is True after the first call of `read`.
    """

    def __init__(
        self, repository: Repository, tree: Tree, checked: CheckedLinks, *, validate_refs: bool
    ) -> None:
        self._checked = checked
        self._repository = repository
        self._tree = tree
        self._validate_refs = validate_refs
        self._skipped: list[Skipped] = []
        self.started: bool = False

    def files(self) -> dict[str, str]:
        """Return the ids of the files to index by path: documents first, then source, tests and other files.

        Files that are too large, or whose name is not UTF-8, are left out and listed in the report.

        Raises:
            KnowledgeError: a configured root has no files.
        """
        self._tree.check_roots()
        return {
            path: entry.blob
            for path, entry in sorted(
                self._tree.files.items(),
                key=lambda file: (KINDS.index(kind_of(file[0])), file[0]),
            )
            if self._is_indexed(path, entry)
        }

    def read(self, paths: Sequence[str], progress: Progress | None) -> Iterator[IndexedFile]:
        """Read and yield the files with these paths, in their order, and set `started`.

        `progress(done, total, activity)` is called before the first file, after every 100 files, and at the end.
        """
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
        """Return the report of the build, given the encoded note of each file by path; it has at most 200 warnings.

        If there are more, a last line counts the other warnings.
        """
        skipped = list(self._skipped)
        decoded = {path: _DECODER.decode(note) for path, note in notes.items() if note}
        skipped += [Skipped(path, "binary") for path, note in decoded.items() if note.binary]
        problems = self._checked.check(self._tree, decoded)
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
        """Return a file with its chunks, and a note with its links and labels; a binary file has only a note.

        The note leaves out links to the file itself and paths in backticks; it is empty without `validate_refs`.
        """
        text = decode_text(data)
        if text is None:
            return IndexedFile(path, entry.blob, (), encode_note(FileNote(binary=True)))
        links = document_links(entry.path, text) if self._validate_refs else ()
        labels = document_labels(entry.path, text) if self._validate_refs else ()
        checked_links = tuple(
            link for link in links if link.kind != "path" and link.path != entry.path
        )
        note = ""
        if checked_links or labels:
            note = encode_note(FileNote(links=checked_links, labels=labels))
        return IndexedFile(path, entry.blob, chunk(path, text), note)

    def _is_indexed(self, path: str, entry: RepositoryFile) -> bool:
        """Return whether the file is indexed; if it is too large or its name is not UTF-8, add it to `_skipped`."""
        if entry.size > LARGEST_FILE_BYTES:
            self._skipped.append(Skipped(path, "too large"))
        elif not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path):
            self._skipped.append(Skipped(ascii(path)[1:-1], "name is not UTF-8"))
        else:
            return True
        return False


def encode_note(note: FileNote | BuildReport) -> str:
    """Encode the note of a file or of an index as JSON."""
    return _ENCODER.encode(note).decode()


def decode_text(data: bytes) -> str | None:
    """Decode a file as UTF-8, or as Latin-1 if it is not UTF-8; return None if the file is binary."""
    if b"\0" in data[:SNIFFED_BYTES]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
