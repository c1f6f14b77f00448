"""The port to a repository: the files of a commit, never a work tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha1
from typing import Literal, Protocol

from loopline.errors import KnowledgeError

LeftOut = Literal["link", "submodule"]
"""What a path of a commit may name besides a file or a folder; a space has neither."""


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """A file of a commit: its path with `/`, its size in bytes, the id of its bytes."""

    path: str
    size: int
    blob: str


class Repository(Protocol):
    """Files as they are at a commit. Nothing is ever written to it; every method may block."""

    @property
    def name(self) -> str:
        """The name people use for it."""
        ...

    @property
    def location(self) -> str:
        """Its absolute path or its URL, without a password."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """The problems that did not keep it from opening."""
        ...

    def resolve(self, ref: str) -> str:
        """Return the full id of the commit that a branch, tag, abbreviation or `HEAD` names now.

        Raises:
            KnowledgeError: there is no such commit; the message names `knowledge.ref` and close names.
        """
        ...

    def abbreviate(self, commit: str) -> str:
        """Return the first seven characters of a full id, or as many more as make it unique."""
        ...

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return every file of the commit, given its full id; no links and no submodules."""
        ...

    def left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return the links and submodules of the commit by their paths."""
        ...

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of many files, in the order of `blobs`, each read when it is taken."""
        ...

    def read(self, commit: str, path: str) -> bytes:
        """Return the bytes of one file.

        Raises:
            KnowledgeError: the commit has no such file.
        """
        ...

    def uncommitted(self) -> int:
        """Count the files of the work tree that differ from HEAD or are new; 0 without a work tree."""
        ...


class MemoryRepository:
    """Commits in a dict: the specification of a repository."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.location: str = f"memory:{name}"
        self.warnings: tuple[str, ...] = ()
        self._commits: dict[str, dict[str, bytes]] = {}
        self._blobs: dict[str, bytes] = {}
        self._refs: dict[str, str] = {}

    def commit(self, files: Mapping[str, str | bytes], *, branch: str = "main") -> str:
        """Replace the whole tree, move `branch` and `HEAD` there, and return the commit's id."""
        tree = {
            path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()
        }
        commit = sha1(repr((len(self._commits), sorted(tree.items()))).encode()).hexdigest()
        self._commits[commit] = tree
        self._blobs |= {sha1(data).hexdigest(): data for data in tree.values()}
        self._refs |= {branch: commit, "HEAD": commit}
        return commit

    def resolve(self, ref: str) -> str:
        """Return the commit of a branch, a full id or the beginning of one."""
        if not self._commits:
            raise KnowledgeError(f"{self.name} has no commit yet, so knowledge.ref names nothing")
        if ref in self._refs:
            return self._refs[ref]
        matches = [commit for commit in self._commits if len(ref) >= 4 and commit.startswith(ref)]
        if len(matches) == 1:
            return matches[0]
        near = get_close_matches(ref, self._refs, n=3, cutoff=0.4) or sorted(self._refs)
        raise KnowledgeError(
            f"knowledge.ref is {ref!r}, which names no commit of {self.name}; there is {', '.join(near)}"
        )

    def abbreviate(self, commit: str) -> str:
        """Return the shortest beginning, of seven characters or more, that only this commit has."""
        length = 7
        while sum(candidate.startswith(commit[:length]) for candidate in self._commits) > 1:
            length += 1
        return commit[:length]

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return every file, sorted by path."""
        files = self._commits[commit]
        return [
            RepositoryFile(path, len(files[path]), sha1(files[path]).hexdigest())
            for path in sorted(files)
        ]

    def left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return nothing: there are only files."""
        del commit
        return {}

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes, in the order of `blobs`."""
        for blob in blobs:
            yield self._blobs[blob]

    def read(self, commit: str, path: str) -> bytes:
        """Return the bytes of one file."""
        if path not in self._commits[commit]:
            raise KnowledgeError(f"{self.name} has no file {path!r} at {self.abbreviate(commit)}")
        return self._commits[commit][path]

    def uncommitted(self) -> int:
        """Return 0: there is no work tree."""
        return 0
