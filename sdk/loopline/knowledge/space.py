"""The knowledge space: one repository or several under names, searched and read by `ks:` refs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain

from msgspec import structs

from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError, RefError
from loopline.knowledge.index_build import IndexStore, Progress
from loopline.knowledge.passage import Passage, parse_knowledge_ref
from loopline.knowledge.repository import Repository
from loopline.knowledge.repository_space import KnowledgeState, RepositorySpace
from loopline.knowledge.tree import KnowledgeConfig
from loopline.refs import KnowledgeRef
from loopline.search import MemoryVectors, SharedEmbedder, VectorState, VectorStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFilter:
    """Conditions on the files that a search examines; a file must meet all conditions that are set.

    `root` is a folder of the space, such as `docs`. `language` is the extension of a file name, such as `py`. `path` is
    a shell pattern, such as `docs/*.md`; its `*` also matches slashes.
    """

    root: str = ""
    language: str = ""
    path: str = ""

    def accepts(self, path: str) -> bool:
        """Return True if the file with this path in the space meets all conditions."""
        folder = self.root.strip("/")
        return (
            (not folder or path == folder or path.startswith(f"{folder}/"))
            and (not self.language or path.endswith(f".{self.language.lstrip('.')}"))
            and (not self.path or fnmatchcase(path, self.path))
        )


class KnowledgeSpace:
    """One or several repositories, each at a commit. Blocking work runs in threads; any event loop may use the space.

    In a space of several repositories each path begins with the name of its repository.
    """

    def __init__(
        self,
        repository: Repository | Mapping[str, Repository],
        indexes: IndexStore,
        config: KnowledgeConfig | None = None,
        *,
        clock: Clock | None = None,
        embedder: SharedEmbedder | None = None,
        vectors: VectorStore | None = None,
    ) -> None:
        """Set up the space; nothing is opened or read yet.

        Args:
            repository: one repository, or several by the names in `config.repositories`.
            indexes: the store of full-text indexes.
            config: the `knowledge` properties; by default the whole tree at HEAD.
            clock: the clock of durations.
            embedder: makes vectors of passages and queries; it is not closed. Without it only words are searched.
            vectors: the store of vectors, by default in memory.
        """
        self._config = config or KnowledgeConfig()
        named = repository if isinstance(repository, Mapping) else {"": repository}
        self._spaces: dict[str, RepositorySpace] = {
            name: RepositorySpace(
                each,
                indexes,
                self._config.repositories[name] if name else self._config,
                clock=clock or SystemClock(),
                embedder=embedder,
                vectors=vectors or MemoryVectors(),
                name=name,
            )
            for name, each in named.items()
        }

    @property
    def config(self) -> KnowledgeConfig:
        """The configuration of the space."""
        return self._config

    @property
    def state(self) -> KnowledgeState:
        """The state of the space.

        Raises:
            KnowledgeError: no index is open; call `ensure` first.
        """
        return _join_states({name: space.state for name, space in self._spaces.items()})

    async def ensure(self, progress: Progress | None = None) -> KnowledgeState:
        """Open the index of the commit that each configured ref names now, or build it; keep indexes that are open.

        With `wait` in the configuration this does the same as `ready`. `progress(done, total, activity)` is called with
        numbers of files, in another thread.

        Raises:
            KnowledgeError: an index cannot be built; the message names the setting to change.
        """
        if self._config.wait:
            return await self.ready(progress)
        return await self._run_each(lambda space: space.ensure(progress))

    @property
    def vectors(self) -> VectorState | None:
        """The progress of the vectors of all open indexes; None without an embedder, or before `ensure`."""
        states = [space.vectors for space in self._spaces.values()]
        vector_states = [state for state in states if state is not None]
        if len(vector_states) < len(states):
            return None
        return VectorState(
            done=sum(state.done for state in vector_states),
            total=sum(state.total for state in vector_states),
            is_ready=all(state.is_ready for state in vector_states),
            problem=next((state.problem for state in vector_states if state.problem), ""),
        )

    async def ready(self, progress: Progress | None = None) -> KnowledgeState:
        """Do the same as `ensure`, and wait until the vectors of the current commits are made if there is an embedder.

        `progress(done, total, activity)` is called with numbers of files and then of passages, in other threads.

        Raises:
            EmbeddingError: the vectors cannot be made; the message names the setting or the package to install.
            KnowledgeError: an index cannot be built, or the space was closed during the call.
        """
        return await self._run_each(lambda space: space.wait(progress))

    async def search(
        self, query: str, *, limit: int = 5, within: SearchFilter | None = None
    ) -> Sequence[Passage]:
        """Return the `limit` passages that match the query best, best first. Any text is a valid query.

        Vectors are used when all of them are made; until then only words are searched. The score of the first passage,
        from 0 to 1, estimates how likely the space contains an answer.
        """
        accepts = None if within is None else within.accepts
        searches = (
            asyncio.to_thread(space.search, query, limit, accepts)
            for space in self._spaces.values()
        )
        return _merge_hits(await asyncio.gather(*searches), limit)

    async def check(self) -> Sequence[str]:
        """Return each link, ref, `#heading` and path in backticks that does not exist, as `file:line: reason`, by file."""
        checks = (
            asyncio.to_thread(space.check, self._broken_ref) for space in self._spaces.values()
        )
        return [
            f"{name}/{problem}" if name else problem
            for name, problems in zip(self._spaces, await asyncio.gather(*checks), strict=True)
            for problem in problems
        ]

    async def read(self, ref: str | KnowledgeRef) -> Passage:
        """Return a file, a range of its lines, the section of a heading, or the listing of a folder.

        A ref with a commit is read at that commit, any other ref at the current commit.

        Raises:
            RefError: the ref does not exist; the message lists similar names.
        """
        return await asyncio.to_thread(self._read, parse_knowledge_ref(ref))

    async def close(self) -> None:
        """Close all indexes. A later call opens them again."""
        await asyncio.gather(*(asyncio.to_thread(space.close) for space in self._spaces.values()))

    async def _run_each(self, step: Callable[[RepositorySpace], KnowledgeState]) -> KnowledgeState:
        """Call `step` for each repository, one after another, and return their joined state.

        Raises:
            KnowledgeError: a step raised it; in a space of several the message names the repository.
        """
        states: dict[str, KnowledgeState] = {}
        for name, space in self._spaces.items():
            try:
                states[name] = await asyncio.to_thread(step, space)
            except KnowledgeError as error:
                if not name:
                    raise
                raise type(error)(f"knowledge.repositories.{name}: {error}") from error
        return _join_states(states)

    def _broken_ref(self, ref: KnowledgeRef) -> str:
        """Return the reason if a ref does not exist, or an empty string."""
        try:
            self._read(ref)
        except RefError as error:
            return str(error)
        return ""

    def _read(self, ref: KnowledgeRef) -> Passage:
        if (only := self._spaces.get("")) is not None:
            return only.read(ref)
        name, _, path = ref.path.strip("/").partition("/")
        if name in self._spaces:
            return self._spaces[name].read(structs.replace(ref, path=path))
        folders = [f"ks:{name}/" for name in self._spaces]
        if name:
            raise RefError(
                f"the knowledge space has no repository {name!r}; there is {', '.join(folders)}"
            )
        return Passage(ref="ks:/", title="/", text="\n".join(f"- {folder}" for folder in folders))


def _join_states(states: Mapping[str, KnowledgeState]) -> KnowledgeState:
    if (only := states.get("")) is not None:
        return only
    return KnowledgeState(
        repository=", ".join(state.repository for state in states.values()),
        location=", ".join(state.location for state in states.values()),
        ref="",
        commit="",
        short_commit="",
        files=sum(state.files for state in states.values()),
        passages=sum(state.passages for state in states.values()),
        seconds=sum(state.seconds for state in states.values()),
        reused=all(state.reused for state in states.values()),
        uncommitted=sum(state.uncommitted for state in states.values()),
        warnings=tuple(
            f"{name}/{warning}" for name, state in states.items() for warning in state.warnings
        ),
        skipped=tuple(
            replace(file, path=f"{name}/{file.path}")
            for name, state in states.items()
            for file in state.skipped
        ),
        repositories=states,
    )


def _merge_hits(hits: Iterable[Sequence[Passage]], limit: int) -> list[Passage]:
    """Return the `limit` best passages of several searches by score, without duplicate texts."""
    ranked = sorted(chain.from_iterable(hits), key=lambda passage: -(passage.score or 0.0))
    different: dict[str, Passage] = {}
    for passage in ranked:
        different.setdefault(passage.text, passage)
    return list(different.values())[:limit]
