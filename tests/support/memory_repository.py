"""A repository in memory: what the protocol promises, in few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha1

from loopline.errors import KnowledgeError
from loopline.knowledge.repository import LeftOut, RepositoryFile


class MemoryRepository:
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
        length = 7
        while sum(candidate.startswith(commit[:length]) for candidate in self._commits) > 1:
            length += 1
        return commit[:length]

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        files = self._commits[commit]
        return [
            RepositoryFile(path, len(files[path]), sha1(files[path]).hexdigest())
            for path in sorted(files)
        ]

    def list_left_out(self, commit: str) -> Mapping[str, LeftOut]:
        return {}

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        for blob in blobs:
            yield self._blobs[blob]

    def read(self, commit: str, path: str) -> bytes:
        if path not in self._commits[commit]:
            raise KnowledgeError(f"{self.name} has no file {path!r} at {self.abbreviate(commit)}")
        return self._commits[commit][path]

    def count_uncommitted(self) -> int:
        return 0
