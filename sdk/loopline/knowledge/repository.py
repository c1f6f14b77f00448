"""The protocol of a repository: the files of its commits, without those of a work tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha1
from typing import Literal, Protocol

from loopline.errors import KnowledgeError

LeftOut = Literal["link", "submodule"]
"""The kinds of entries of a commit that a space leaves out."""


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """A file of a commit: its path with `/`, its size in bytes, and the id of its content."""

    path: str
    size: int
    blob: str


class Repository(Protocol):
    """A repository whose commits can be read. Methods may block, and never write to the repository."""

    @property
    def name(self) -> str:
        """The short name of the repository, for messages."""
        ...

    @property
    def location(self) -> str:
        """The absolute path or the URL, without a password."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """Problems at opening that are not errors."""
        ...

    def resolve(self, ref: str) -> str:
        """Return the full id of the commit that a branch, tag, abbreviated id or `HEAD` names now.

        Raises:
            KnowledgeError: the ref names no commit; the message names `knowledge.ref` and similar names.
        """
        ...

    def abbreviate(self, commit: str) -> str:
        """Return the shortest unique prefix of a full commit id, of at least seven characters."""
        ...

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return all files of the commit with this full id, without symbolic links and submodules."""
        ...

    def list_left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return the symbolic links and submodules of the commit by path."""
        ...

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents with these ids, in the order of `blobs`; each is read when the iterator reaches it."""
        ...

    def read(self, commit: str, path: str) -> bytes:
        """Return the content of one file.

        Raises:
            KnowledgeError: the commit does not have the file.
        """
        ...

    def count_uncommitted(self) -> int:
        """Return the number of files in the work tree that differ from HEAD or are new; 0 without a work tree."""
        ...


class MemoryRepository:
    """A repository in memory, and the specification of the protocol."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.location: str = f"memory:{name}"
        self.warnings: tuple[str, ...] = ()
        self._commits: dict[str, dict[str, bytes]] = {}
        self._blobs: dict[str, bytes] = {}
        self._refs: dict[str, str] = {}

    def commit(self, files: Mapping[str, str | bytes], *, branch: str = "main") -> str:
        """Commit `files` as the whole tree, set `branch` and `HEAD` to the commit, and return its id."""
        tree = {
            path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()
        }
        commit = sha1(repr((len(self._commits), sorted(tree.items()))).encode()).hexdigest()
        self._commits[commit] = tree
        self._blobs |= {sha1(data).hexdigest(): data for data in tree.values()}
        self._refs |= {branch: commit, "HEAD": commit}
        return commit

    def resolve(self, ref: str) -> str:
        """Return the commit that a branch, a full id or a prefix of at least four characters names."""
        if not self._commits:
            raise KnowledgeError(f"{self.name} has no commit yet, so knowledge.ref cannot name one")
        if ref in self._refs:
            return self._refs[ref]
        matches = [commit for commit in self._commits if len(ref) >= 4 and commit.startswith(ref)]
        if len(matches) == 1:
            return matches[0]
        near = get_close_matches(ref, self._refs, n=3, cutoff=0.4) or sorted(self._refs)
        raise KnowledgeError(
            f"knowledge.ref is {ref!r}, which is not a commit of {self.name}; there is {', '.join(near)}"
        )

    def abbreviate(self, commit: str) -> str:
        """Return the shortest unique prefix of a full commit id, of at least seven characters."""
        length = 7
        while sum(candidate.startswith(commit[:length]) for candidate in self._commits) > 1:
            length += 1
        return commit[:length]

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return all files, sorted by path."""
        files = self._commits[commit]
        return [
            RepositoryFile(path, len(files[path]), sha1(files[path]).hexdigest())
            for path in sorted(files)
        ]

    def list_left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return an empty dict: a repository in memory has only files."""
        del commit
        return {}

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents with these ids, in the order of `blobs`."""
        for blob in blobs:
            yield self._blobs[blob]

    def read(self, commit: str, path: str) -> bytes:
        """Return the content of one file."""
        if path not in self._commits[commit]:
            raise KnowledgeError(f"{self.name} has no file {path!r} at {self.abbreviate(commit)}")
        return self._commits[commit][path]

    def count_uncommitted(self) -> int:
        """Return 0: there is no work tree."""
        return 0
