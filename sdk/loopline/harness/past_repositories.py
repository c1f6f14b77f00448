"""Opens the repositories of past turns at the commits in their headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loopline.errors import KnowledgeError
from loopline.knowledge import ROOT_SETTINGS, KnowledgeConfig, Passage, Repository, read_passage
from loopline.timeline import KnowledgeCommit


class PastRepositories:
    """The repositories of past turns. A remote repository is read from its mirror, which is fetched if the commit is missing."""

    def __init__(self, mirrors: Path) -> None:
        """`mirrors` is the folder of the mirrors."""
        self._mirrors = mirrors
        self._fetched: dict[str, Repository] = {}

    def read(self, used: KnowledgeCommit, ref: str, commit: str = "") -> Passage:
        """Read a ref from the repository of a past turn, at `commit`, or at the commit of the turn if empty; this blocks.

        A name such as `HEAD` is resolved in the repository as it was at its first fetch by this object.

        Raises:
            KnowledgeError: the repository cannot be opened, or the passage does not exist.
        """
        try:
            repository, at = self._at(used.repository, commit or used.commit, moves=bool(commit))
        except KnowledgeError as error:
            raise KnowledgeError(f"its repository cannot be opened now: {error}") from error
        roots: dict[str, Any] = {
            name: used.roots[name] for name in ROOT_SETTINGS if name in used.roots
        }
        config = replace(KnowledgeConfig(), **roots)
        return read_passage(repository, config, ref, at, name=used.name)

    def has(self, used: KnowledgeCommit, commit: str) -> bool:
        """Return whether the repository of a past turn has a commit; false if the repository cannot be opened. This blocks."""
        try:
            self._at(used.repository, commit, moves=True)
        except KnowledgeError:
            return False
        return True

    def _at(self, location: str, commit: str, *, moves: bool) -> tuple[Repository, str]:
        """Return the repository and the full id of a commit; without `moves` a commit in the mirror is not fetched."""
        from loopline.knowledge.git import GitRepository

        if location not in self._fetched and not moves:
            try:
                repository = GitRepository.open(
                    location, ref=commit, mirrors=self._mirrors, fetch=False
                )
                return repository, repository.resolve(commit)
            except KnowledgeError:
                pass  # the commit is newer than the mirror
        if location not in self._fetched:
            self._fetched[location] = GitRepository.open(
                location, ref=commit, mirrors=self._mirrors
            )
        return self._fetched[location], self._fetched[location].resolve(commit)
