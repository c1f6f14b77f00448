"""What past turns read of their repositories, read again from the commits that their headers name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from loopline.errors import KnowledgeError
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.timeline import History, KnowledgeCommit, Timeline

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.knowledge import Passage


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


def past_repositories_beside(store_file: Path | None) -> PastRepositories:
    """Return the repositories that past turns used, with their mirrors beside the store."""
    from loopline.harness.past_repositories import PastRepositories

    return PastRepositories(mirrors_beside(store_file))


def mirrors_beside(store_file: Path | None) -> Path:
    """Return the folder of the mirrors of a store, or of one in memory."""
    return kept_beside(store_file, "repositories")


def kept_beside(store_file: Path | None, name: str) -> Path:
    """Return the folder beside a store for what can be made again, or one in the user's cache."""
    if store_file is not None:
        return store_file.with_name(f"{store_file.name}-{name}")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "loopline" / name
