"""What past turns read of their repositories, read again from the commits that their headers name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from loopline.errors import KnowledgeError
from loopline.knowledge import KnowledgeConfig, Passage, Repository, read_passage
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.timeline import History, KnowledgeCommit, Timeline


class PastRepositories:
    """The repositories that past turns used. One given by URL is read from its mirror, and fetched if that lacks the commit."""

    def __init__(self, mirrors: Path) -> None:
        """Take the folder of the mirrors."""
        self._mirrors = mirrors
        self._fetched: dict[str, Repository] = {}

    def read(self, used: KnowledgeCommit, ref: str, commit: str = "") -> Passage:
        """Read the ref from the repository of a past turn, at its commit or another one; this blocks.

        Another commit, such as `HEAD`, is that of the repository as it was when it was fetched first.

        Raises:
            KnowledgeError: the repository cannot be opened, or has no such passage.
        """
        try:
            repository, at = self._at(used.repository, commit or used.commit, moves=bool(commit))
        except KnowledgeError as error:
            raise KnowledgeError(f"its repository cannot be opened now: {error}") from error
        folders = {"docs_root": "", "src_root": "", "deploy_root": "", "tests_root": ""}
        folders |= used.roots
        config = KnowledgeConfig(
            docs_root=folders["docs_root"],
            src_root=folders["src_root"],
            deploy_root=folders["deploy_root"],
            tests_root=folders["tests_root"],
        )
        return read_passage(repository, config, ref, at, name=used.name)

    def has(self, used: KnowledgeCommit, commit: str) -> bool:
        """Return whether the repository of a past turn has a commit; this blocks."""
        try:
            self._at(used.repository, commit, moves=True)
        except KnowledgeError:
            return False
        return True

    def _at(self, location: str, commit: str, *, moves: bool) -> tuple[Repository, str]:
        """Return the repository and the full id of a commit; one that is pinned needs no network if it is there."""
        from loopline.adapters.git import GitRepository

        if location not in self._fetched and not moves:
            try:
                kept = GitRepository.open(location, ref=commit, mirrors=self._mirrors, fetch=False)
                return kept, kept.resolve(commit)
            except KnowledgeError:
                pass  # it came later than the mirror was fetched
        if location not in self._fetched:
            self._fetched[location] = GitRepository.open(
                location, ref=commit, mirrors=self._mirrors
            )
        return self._fetched[location], self._fetched[location].resolve(commit)


def past_knowledge_reader(
    repositories: PastRepositories, timeline: Timeline, past: History | None = None
) -> KnowledgeRead | None:
    """Return what reads a ref as the turn that used its commit did; None when no turn had a space.

    What moves is read as the newest turn did that had one.
    """
    if not timeline.knowledge:
        return None

    async def read(ref: str) -> Passage:
        commit = await used_commit(ref, timeline, past, newest=True)
        if commit is None:
            raise KnowledgeError("no turn of this conversation used that commit")
        return await asyncio.to_thread(repositories.read, commit, ref)

    return read


async def used_commit(
    ref: str, timeline: Timeline, past: History | None, *, newest: bool = False
) -> KnowledgeCommit | None:
    """Return the commit to which the ref is pinned, as a turn used it; `newest` is for a ref that moves."""
    parsed = parse(ref)
    if not isinstance(parsed, KnowledgeRef) or (parsed.commit is None and not newest):
        return None
    used = _commit_of_ref(timeline, parsed)
    if used is None and past is not None and parsed.commit is not None:
        used = _commit_of_ref(await past.full(), parsed)
    return used


def _commit_of_ref(timeline: Timeline, ref: KnowledgeRef) -> KnowledgeCommit | None:
    """Return the newest commit of the ref's repository, or the one that the ref is pinned to."""
    name = ref.path.strip("/").partition("/")[0]
    return next(
        (
            used
            for used in reversed(timeline.knowledge)
            if used.name in ("", name) and used.commit.startswith(ref.commit or "")
        ),
        None,
    )


def mirrors_beside(store_file: Path | None) -> Path:
    """Return the folder of the mirrors of a store, or of one in memory."""
    return kept_beside(store_file, "repositories")


def kept_beside(store_file: Path | None, name: str) -> Path:
    """Return the folder beside a store for what can be made again, or one in the user's cache."""
    if store_file is not None:
        return store_file.with_name(f"{store_file.name}-{name}")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "loopline" / name
