"""The protocol of a repository: the files of its commits, without those of a work tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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
