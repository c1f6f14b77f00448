"""Knowledge spaces: a bundle's own, and the one that a past turn used."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from loopline.bundle import Properties, commit_of
from loopline.clock import Clock
from loopline.harness.embedders import check_embedder, load_embedder
from loopline.harness.past_knowledge import past_knowledge_reader, read_at, used_commit
from loopline.knowledge import KnowledgeConfig, KnowledgeSpace, Passage
from loopline.reader import KnowledgeRead
from loopline.timeline import History, KnowledgeCommit, Timeline


def knowledge_config(properties: Properties) -> KnowledgeConfig | None:
    """Return the configuration of the `knowledge` section, or None if no bundle or file sets it."""
    if "knowledge" not in properties.written:
        return None

    def text(name: str) -> str:
        return str(properties.at(f"knowledge.{name}", ""))

    return KnowledgeConfig(
        repo=text("repo"),
        ref=text("ref"),
        docs_root=text("docs_root"),
        src_root=text("src_root"),
        deploy_root=text("deploy_root"),
        tests_root=text("tests_root"),
        validate_refs=bool(properties.at("knowledge.validate_refs", True)),
        embedder=text("embedder").strip(),
        wait=bool(properties.at("knowledge.wait", False)),
    )


def open_space(
    config: KnowledgeConfig, *, folder: Path | None, store_file: Path | None, clock: Clock
) -> KnowledgeSpace:
    """Return the space of a configuration; this blocks, and fetches a URL. `folder` is the bundle's.

    Raises:
        KnowledgeError: there is no such repository; the message names the setting to change.
    """
    from loopline.adapters.fts import FtsIndexes
    from loopline.adapters.git import GitRepository

    repository = GitRepository.open(
        config.repo,
        ref=config.ref,
        bundle_folder=folder,
        mirrors=_kept_beside(store_file, "repositories"),
    )
    indexes = FtsIndexes(
        None if store_file is None else store_file.with_name(f"{store_file.name}-indexes")
    )
    if not config.embedder:
        return KnowledgeSpace(repository, indexes, config, clock=clock)
    check_embedder(config.embedder, setting="knowledge.embedder")
    from loopline.adapters.vectors import VectorFiles

    return KnowledgeSpace(
        repository,
        indexes,
        config,
        clock=clock,
        embedder=partial(load_embedder, config.embedder, folder=folder, environment=os.environ),
        vectors=VectorFiles(_kept_beside(store_file, "vectors")),
    )


def _kept_beside(store_file: Path | None, name: str) -> Path:
    """Return the folder beside a store for what can be made again, or one in the user's cache."""
    if store_file is not None:
        return store_file.with_name(f"{store_file.name}-{name}")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "loopline" / name


def knowledge_reader(
    space: KnowledgeSpace | None, timeline: Timeline, past: History | None = None
) -> KnowledgeRead | None:
    """Return what reads from the space; a ref pinned to a commit is read as the turn that used it did.

    Without a space what moves is read as the newest turn did that had one; None when no turn had.
    """
    if space is None:
        return past_knowledge_reader(timeline, past)

    async def read(ref: str) -> Passage:
        commit = await used_commit(ref, timeline, past)
        if commit is None or _same_space(commit, commit_of(space)):
            return await space.read(ref)
        return await asyncio.to_thread(read_at, commit, ref)

    return read


def _same_space(first: KnowledgeCommit, second: KnowledgeCommit) -> bool:
    return (first.repository, first.roots) == (second.repository, second.roots)
