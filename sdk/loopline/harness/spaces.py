"""Opens knowledge spaces, embedders and the memory of a bundle."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopline import knowledge, search
from loopline.bundle import Properties, commits_of
from loopline.clock import Clock
from loopline.errors import KnowledgeError, StoreError
from loopline.harness import read_only_store
from loopline.memory import ConversationMemory, TurnIndex
from loopline.memory.postgres_turn_index import HasTurnDatabase, PostgresTurnIndex
from loopline.models import Json
from loopline.reader import KnowledgeRead
from loopline.timeline import History, KnowledgeCommit, Timeline, TimelineLog

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.search.static_vectors import StaticEmbedder


EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "local": (("tokenizers", "safetensors"), "semantic-light"),
    "sentence-transformers": (("torch", "sentence_transformers"), "semantic"),
    "openai": ((), ""),
}
"""For each provider of embedders, the required packages and the extra that installs them."""


def check_embedder(
    name: str, *, setting: str, is_installed: Callable[[str], object] = find_spec
) -> None:
    """Check the name of an embedder, and that its packages are installed.

    Raises:
        EmbeddingError: the name is malformed, or a package is missing; the message has the setting and the command to
            install.
    """
    provider, colon, model = name.partition(":")
    if provider not in EXTRAS or not (colon and model.strip()):
        providers = ", ".join(f"{provider}:…" for provider in EXTRAS)
        raise search.EmbeddingError(f"{setting} is {name!r}: write one of {providers}")
    packages, extra = EXTRAS[provider]
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise search.EmbeddingError(
            f"{setting} is {name!r}, which needs {', '.join(missing)}: "
            f"pip install 'loopline[{extra}]'"
        )


class Embedders:
    """The embedders of a bundle by name; each is loaded once and shared."""

    def __init__(self, folder: Path | None, environment: Mapping[str, str]) -> None:
        """`folder` is the base of relative paths; `environment` has the keys and addresses of providers."""
        self._folder = folder
        self._environment = environment
        self._shared: dict[str, search.SharedEmbedder] = {}

    def named(self, name: str, *, setting: str) -> search.SharedEmbedder:
        """Return the embedder of a name; it is loaded with its first use.

        Raises:
            EmbeddingError: the name is malformed, or a package is missing; the message has the setting.
        """
        check_embedder(name, setting=setting)
        if name not in self._shared:
            self._shared[name] = search.SharedEmbedder(
                partial(
                    load_embedder,
                    name,
                    folder=self._folder,
                    environment=self._environment,
                    exports=read_only_store.cache_folder(None, "models"),
                )
            )
        return self._shared[name]

    def of_memory(self, properties: Properties) -> search.SharedEmbedder:
        """Return the embedder of the property `memory.embedder`, or that of static vectors if the property is empty.

        Raises:
            EmbeddingError: the name is malformed, or a package is missing.
        """
        name = str(properties.at("memory.embedder", "")).strip()
        if name:
            return self.named(name, setting="memory.embedder")
        return self._shared.setdefault("", search.SharedEmbedder(_load_static))

    async def close(self) -> None:
        """Close every loaded embedder."""
        for shared in self._shared.values():
            if shared.is_loaded:
                await asyncio.to_thread(shared.close)


def load_embedder(
    name: str, *, folder: Path | None, environment: Mapping[str, str], exports: Path | None = None
) -> search.Embedder:
    """Load the embedder of a name that `check_embedder` accepts; this blocks for seconds.

    `folder` is the base of a relative path; `environment` has the key and the address of a provider. A model of
    `local:` is exported to the folder `exports` once, so that onnxruntime computes it; without it NumPy does.

    Raises:
        EmbeddingError: the model cannot be loaded.
    """
    provider, _, model = name.partition(":")
    if provider == "local":
        from loopline.search.local_embedder import LocalEmbedder

        return LocalEmbedder(model_folder(model.strip(), folder), exports)
    if provider == "openai":
        from loopline.search.http_embedder import HttpEmbedder

        return HttpEmbedder(model.strip(), environment)
    from loopline.search.torch_embedder import TorchEmbedder

    path = (folder or Path()) / model.strip()
    return TorchEmbedder(str(path) if path.is_dir() else model.strip())


def model_folder(name: str, base: Path | None) -> Path:
    """Return the folder of a model: `name` is a path, or an installed package with a `tokenizer.json`.

    Raises:
        EmbeddingError: `name` is neither.
    """
    path = (base or Path()) / Path(name).expanduser()
    if path.is_dir():
        return path
    spec = find_spec(name) if name.isidentifier() else None
    for location in (spec.submodule_search_locations if spec else None) or ():
        for tokenizer in sorted(Path(location).glob("**/tokenizer.json")):
            return tokenizer.parent
    raise search.EmbeddingError(
        f"{name!r} is neither a folder with a model nor a package that has one"
    )


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REPOSITORY_SETTINGS = ("repo", "ref", *knowledge.ROOT_SETTINGS)


def knowledge_config(properties: Properties) -> knowledge.KnowledgeConfig | None:
    """Parse the section `knowledge`; None if the section is missing.

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
            name: _parse_repository(name, value, validate_refs)
            for name, value in repositories.items()
        },
    )


def _parse_repository(name: str, value: Json, validate_refs: bool) -> knowledge.KnowledgeConfig:
    """Parse one entry of `knowledge.repositories`.

    Raises:
        KnowledgeError: the name has invalid characters, `repo` is missing, or a setting is unknown or not a text.
    """
    setting = f"knowledge.repositories.{name}"
    if not _NAME.fullmatch(name):
        raise KnowledgeError(
            f"{setting}: a name can have letters, digits, dots, dashes and underscores"
        )
    if not isinstance(value, dict) or "repo" not in value:
        raise KnowledgeError(f"{setting} must be a section with a key 'repo'")
    for key, text in value.items():
        if key not in _REPOSITORY_SETTINGS or not isinstance(text, str):
            settings = ", ".join(_REPOSITORY_SETTINGS)
            raise KnowledgeError(f"{setting}.{key}: the settings are {settings}, each a text")
    return _repository_config(value, validate_refs)


def _repository_config(
    settings: Mapping[str, Json], validate_refs: bool
) -> knowledge.KnowledgeConfig:
    texts: dict[str, Any] = {key: str(value) for key, value in settings.items()}
    return replace(knowledge.KnowledgeConfig(validate_refs=validate_refs), **texts)


def open_space(
    config: knowledge.KnowledgeConfig,
    *,
    folder: Path | None,
    store: TimelineLog,
    store_file: Path | None,
    clock: Clock,
    embedders: Embedders,
) -> knowledge.KnowledgeSpace:
    """Open the repositories of a knowledge space, and fetch remote repositories; this blocks.

    `folder` is the folder of the bundle.

    Raises:
        KnowledgeError: a repository cannot be opened; the message has the setting to change.
    """
    from loopline.knowledge.fts import FtsIndexes

    mirrors = read_only_store.cache_folder(store_file, read_only_store.MIRRORS)
    repositories = {
        name: _open_repository(each, f".repositories.{name}" if name else "", folder, mirrors)
        for name, each in (config.repositories or {"": config}).items()
    }
    shared = store.index_files if isinstance(store, knowledge.HasIndexFiles) else None
    is_on_disk = store_file is not None or shared is not None
    indexes = FtsIndexes(
        read_only_store.cache_folder(store_file, "indexes") if is_on_disk else None,
        load=_load_static,
        vectors_key=search.STATIC_KEY,
        shared=shared,
    )
    if not config.embedder:
        return knowledge.KnowledgeSpace(repositories, indexes, config, clock=clock)
    embedder = embedders.named(config.embedder, setting="knowledge.embedder")
    from loopline.search.vector_files import VectorFiles

    return knowledge.KnowledgeSpace(
        repositories,
        indexes,
        config,
        clock=clock,
        embedder=embedder,
        vectors=VectorFiles(read_only_store.cache_folder(store_file, "vectors")),
    )


def _load_static() -> StaticEmbedder:
    # NumPy is imported when the first index is built or searched.
    from loopline.search.static_vectors import load_static_embedder

    return load_static_embedder()


def _open_repository(
    config: knowledge.KnowledgeConfig, setting: str, folder: Path | None, mirrors: Path
) -> knowledge.Repository:
    """Open the Git repository of `config`, with fetched copies in `mirrors`; this blocks.

    A KnowledgeError gets the name of `setting` as a prefix, if `setting` is not empty.
    """
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
    space: knowledge.KnowledgeSpace | None,
    repositories: PastRepositories,
    timeline: Timeline,
    past: History | None = None,
) -> KnowledgeRead | None:
    """Return a function that reads knowledge refs from the space, or from another repository that a past turn used.

    Without a space refs are read from the repositories of past turns; None if no turn had a knowledge space.
    """
    if space is None:
        return read_only_store.past_knowledge_reader(repositories, timeline, past)

    async def read(ref: str) -> knowledge.Passage:
        commit = await read_only_store.find_commit(ref, timeline, past)
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


logger: logging.Logger = logging.getLogger("loopline")


def memory_file(store_file: Path) -> Path:
    """Return the file of the index of past turns, next to the store file."""
    return store_file.with_name(f"{store_file.name}-memory")


async def finish_forgetting(log: TimelineLog, memory: ConversationMemory) -> None:
    """Remove forgotten conversations from the index and the store, also after an interrupted removal."""
    forgotten = await log.forgetting()
    if forgotten:
        await memory.remove(forgotten)
        await log.finish_forgetting(forgotten)


async def finish_cut_off_forgetting(
    log: TimelineLog, memory: ConversationMemory, place: read_only_store.StorePlace
) -> None:
    """Finish the removal of forgotten conversations that a killed process left unfinished; log a failure.

    A store in memory does not need this.
    """
    try:
        if not place.is_in_memory:
            await finish_forgetting(log, memory)
    except StoreError as error:
        logger.warning("forgotten conversations are not removed completely: %s", error)


def open_memory(
    log: TimelineLog,
    store: TimelineLog,
    store_file: Path | None,
    clock: Clock,
    embedder: search.SharedEmbedder | None = None,
) -> ConversationMemory:
    """Return the memory of past turns in `log`; the first search opens the index and loads the embedder.

    The index is in a file next to the store file, in the database of a `store` that has one, or else in memory. `log` is the
    store, with redaction if there is any.
    """

    def open_index() -> TurnIndex:
        if store_file is None and isinstance(store, HasTurnDatabase):
            return PostgresTurnIndex(store.database)
        from loopline.memory.turn_file import IN_MEMORY, MemoryFile

        return MemoryFile(IN_MEMORY if store_file is None else memory_file(store_file.resolve()))

    return ConversationMemory(log, open_index, clock, embedder)
