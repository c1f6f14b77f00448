"""Knowledge spaces: a bundle's own, and the one that a past turn used."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loopline.bundle import Properties, commits_of
from loopline.clock import Clock
from loopline.errors import KnowledgeError
from loopline.harness.embedders import Embedders
from loopline.harness.past_knowledge import (
    kept_beside,
    mirrors_beside,
    past_knowledge_reader,
    used_commit,
)
from loopline.knowledge import KnowledgeConfig, KnowledgeSpace, Passage, Repository
from loopline.models import Json
from loopline.reader import KnowledgeRead
from loopline.timeline import History, KnowledgeCommit, Timeline

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REPOSITORY_SETTINGS: dict[str, str] = {
    "repo": "",
    "ref": "HEAD",
    "docs_root": "",
    "src_root": "",
    "deploy_root": "",
    "tests_root": "",
}
"""The settings of a repository, with their defaults."""


def knowledge_config(properties: Properties) -> KnowledgeConfig | None:
    """Return the configuration of the `knowledge` section, or None if no bundle or file sets it.

    Raises:
        KnowledgeError: `knowledge.repositories` is wrong; the message names the key.
    """
    if "knowledge" not in properties.written:
        return None
    section = properties.section("knowledge")
    validate_refs = bool(properties.at("knowledge.validate_refs", True))
    repositories = properties.section("knowledge.repositories")
    config = _repository_config(
        {name: section[name] for name in _REPOSITORY_SETTINGS}, validate_refs
    )
    return replace(
        config,
        embedder=str(properties.at("knowledge.embedder", "")).strip(),
        wait=bool(properties.at("knowledge.wait", False)),
        repositories={
            name: _named_config(name, value, validate_refs) for name, value in repositories.items()
        },
    )


def _named_config(name: str, value: Json, validate_refs: bool) -> KnowledgeConfig:
    setting = f"knowledge.repositories.{name}"
    if not _NAME.fullmatch(name):
        raise KnowledgeError(f"{setting}: a name has letters, digits, dots, dashes and underscores")
    if not isinstance(value, dict) or "repo" not in value:
        raise KnowledgeError(f"{setting} must be a section with a key 'repo'")
    for key, text in value.items():
        if key not in _REPOSITORY_SETTINGS or not isinstance(text, str):
            settings = ", ".join(_REPOSITORY_SETTINGS)
            raise KnowledgeError(f"{setting}.{key}: the settings are {settings}, each a text")
    return _repository_config(value, validate_refs)


def _repository_config(settings: Mapping[str, Json], validate_refs: bool) -> KnowledgeConfig:
    texts = {key: str(value) for key, value in {**_REPOSITORY_SETTINGS, **settings}.items()}
    return KnowledgeConfig(
        repo=texts["repo"],
        ref=texts["ref"],
        docs_root=texts["docs_root"],
        src_root=texts["src_root"],
        deploy_root=texts["deploy_root"],
        tests_root=texts["tests_root"],
        validate_refs=validate_refs,
    )


def open_space(
    config: KnowledgeConfig,
    *,
    folder: Path | None,
    store_file: Path | None,
    clock: Clock,
    embedders: Embedders,
) -> KnowledgeSpace:
    """Return the space of a configuration; this blocks, and fetches URLs. `folder` is the bundle's.

    Raises:
        KnowledgeError: there is no such repository; the message names the setting to change.
    """
    from loopline.knowledge.fts import FtsIndexes

    mirrors = mirrors_beside(store_file)
    repositories = {
        name: _open_repository(each, f".repositories.{name}" if name else "", folder, mirrors)
        for name, each in (config.repositories or {"": config}).items()
    }
    indexes = FtsIndexes(
        None if store_file is None else store_file.with_name(f"{store_file.name}-indexes")
    )
    if not config.embedder:
        return KnowledgeSpace(repositories, indexes, config, clock=clock)
    embedder = embedders.named(config.embedder, setting="knowledge.embedder")
    from loopline.search.vector_files import VectorFiles

    return KnowledgeSpace(
        repositories,
        indexes,
        config,
        clock=clock,
        embedder=embedder,
        vectors=VectorFiles(kept_beside(store_file, "vectors")),
    )


def _open_repository(
    config: KnowledgeConfig, setting: str, folder: Path | None, mirrors: Path
) -> Repository:
    from loopline.knowledge.git import GitRepository

    try:
        return GitRepository.open(
            config.repo, ref=config.ref, bundle_folder=folder, mirrors=mirrors
        )
    except KnowledgeError as error:
        if not setting:
            raise
        raise KnowledgeError(f"knowledge{setting}: {error}") from error


def knowledge_reader(
    space: KnowledgeSpace | None,
    repositories: PastRepositories,
    timeline: Timeline,
    past: History | None = None,
) -> KnowledgeRead | None:
    """Return what reads from the space; a ref pinned to a commit is read as the turn that used it did.

    Without a space what moves is read as the newest turn did that had one; None when no turn had.
    """
    if space is None:
        return past_knowledge_reader(repositories, timeline, past)

    async def read(ref: str) -> Passage:
        commit = await used_commit(ref, timeline, past)
        if commit is None or any(_same_space(commit, own) for own in commits_of(space)):
            return await space.read(ref)
        return await asyncio.to_thread(repositories.read, commit, ref)

    return read


def _same_space(first: KnowledgeCommit, second: KnowledgeCommit) -> bool:
    return (first.name, first.repository, first.roots) == (
        second.name,
        second.repository,
        second.roots,
    )
