"""What past turns read of their repositories, read again from the commits that their headers name."""

from __future__ import annotations

import asyncio

from loopline.errors import KnowledgeError
from loopline.knowledge import KnowledgeConfig, Passage, read_passage
from loopline.reader import KnowledgeRead
from loopline.refs import KnowledgeRef, parse
from loopline.timeline import History, KnowledgeCommit, Timeline


def past_knowledge_reader(timeline: Timeline, past: History | None = None) -> KnowledgeRead | None:
    """Return what reads a ref as the turn that used its commit did; None when no turn had a space.

    What moves is read as the newest turn did that had one.
    """
    if not timeline.knowledge:
        return None

    async def read(ref: str) -> Passage:
        commit = await used_commit(ref, timeline, past, newest=True)
        if commit is None:
            raise KnowledgeError("no turn of this conversation used that commit")
        return await asyncio.to_thread(read_at, commit, ref)

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


def read_at(used: KnowledgeCommit, ref: str, commit: str = "") -> Passage:
    """Read the ref from the repository of a past turn, at its commit or another one; this blocks.

    Raises:
        KnowledgeError: the repository cannot be opened, or has no such passage.
    """
    from loopline.adapters.git import GitRepository

    try:
        repository = GitRepository.open(used.repository, ref=commit or used.commit)
    except KnowledgeError as error:
        raise KnowledgeError(f"its repository cannot be opened now: {error}") from error
    folders = {"docs_root": "", "src_root": "", "deploy_root": "", "tests_root": ""} | used.roots
    config = KnowledgeConfig(
        docs_root=folders["docs_root"],
        src_root=folders["src_root"],
        deploy_root=folders["deploy_root"],
        tests_root=folders["tests_root"],
    )
    at = repository.resolve(commit) if commit else used.commit
    return read_passage(repository, config, ref, at, name=used.name)
