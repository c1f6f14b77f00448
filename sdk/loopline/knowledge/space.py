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
    """Which files a search looks at: those that fit everything that is set.

    `root` is a folder of the space, such as `docs`; `language` a file name's ending, such as `py`; `path` a pattern
    as of a shell, such as `docs/*.md`, whose `*` matches slashes too.
    """

    root: str = ""
    language: str = ""
    path: str = ""

    def accepts(self, path: str) -> bool:
        """Return whether a file is looked at."""
        folder = self.root.strip("/")
        return (
            (not folder or path == folder or path.startswith(f"{folder}/"))
            and (not self.language or path.endswith(f".{self.language.lstrip('.')}"))
            and (not self.path or fnmatchcase(path, self.path))
        )


class KnowledgeSpace:
    """Repositories, each at a commit. Work that blocks runs in threads; one space serves any event loop.

    The paths of the only repository stand as they are; those of several begin with its name.
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
        """Several repositories are given by the names that `config.repositories` has.

        Without an `embedder`, which stays open, only words are searched. Vectors are kept in `vectors`.
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
            KnowledgeError: the space is not ready; call `ensure` first.
        """
        return _joined_state({name: space.state for name, space in self._spaces.items()})

    async def ensure(self, progress: Progress | None = None) -> KnowledgeState:
        """Open the index of the commit that each ref names now, unless it is open; build it if there is none.

        With `wait` in the configuration this is `ready`. `progress(done, total, activity)` counts files; it is called
        from another thread.

        Raises:
            KnowledgeError: it cannot be built; the message names the setting to change.
        """
        if self._config.wait:
            return await self.ready(progress)
        return await self._of_each(lambda space: space.ensure(progress))

    @property
    def vectors(self) -> VectorState | None:
        """How far the vectors of the open indexes are; None without an embedder, or before `ensure`."""
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
        """Wait until the vectors of the current commits are made, if there is an embedder.

        `progress(done, total, activity)` counts files and then passages; it is called from other threads.

        Raises:
            EmbeddingError: they cannot be made; the message names the setting or the line to install.
            KnowledgeError: the space cannot be built, or it was closed meanwhile.
        """
        return await self._of_each(lambda space: space.wait(progress))

    async def search(
        self, query: str, *, limit: int = 5, within: SearchFilter | None = None
    ) -> Sequence[Passage]:
        """Return the passages that answer the query best, best first; any text is a query.

        Words are searched at once, and vectors too as soon as all are made. The score of the best passage, from 0
        to 1, says how likely the space has an answer.
        """
        accepts = None if within is None else within.accepts
        searches = (
            asyncio.to_thread(space.search, query, limit, accepts)
            for space in self._spaces.values()
        )
        return _best(await asyncio.gather(*searches), limit)

    async def check(self) -> Sequence[str]:
        """Return each link, ref, `#heading` and path in backticks that names nothing, as `file:line: why`, by files."""
        checks = (
            asyncio.to_thread(space.check, self._broken_ref) for space in self._spaces.values()
        )
        return [
            f"{name}/{problem}" if name else problem
            for name, problems in zip(self._spaces, await asyncio.gather(*checks), strict=True)
            for problem in problems
        ]

    async def read(self, ref: str | KnowledgeRef) -> Passage:
        """Return a file, some of its lines, the lines below a heading, or a folder's listing.

        A ref with a commit is read there, any other at the current commit.

        Raises:
            RefError: the ref names nothing; the message lists what is there.
        """
        return await asyncio.to_thread(self._read, parse_knowledge_ref(ref))

    async def close(self) -> None:
        """Close the indexes; a later call opens them again."""
        await asyncio.gather(*(asyncio.to_thread(space.close) for space in self._spaces.values()))

    async def _of_each(self, step: Callable[[RepositorySpace], KnowledgeState]) -> KnowledgeState:
        """Return the joined state after a step of each repository, one after another."""
        states: dict[str, KnowledgeState] = {}
        for name, space in self._spaces.items():
            try:
                states[name] = await asyncio.to_thread(step, space)
            except KnowledgeError as error:
                if not name:
                    raise
                raise type(error)(f"knowledge.repositories.{name}: {error}") from error
        return _joined_state(states)

    def _broken_ref(self, ref: KnowledgeRef) -> str:
        """Return why a ref names nothing; else nothing."""
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


def _joined_state(states: Mapping[str, KnowledgeState]) -> KnowledgeState:
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


def _best(found: Iterable[Sequence[Passage]], limit: int) -> list[Passage]:
    """Return the best passages of several searches, whose scores compare, and no text twice."""
    ranked = sorted(chain.from_iterable(found), key=lambda passage: -(passage.score or 0.0))
    different: dict[str, Passage] = {}
    for passage in ranked:
        different.setdefault(passage.text, passage)
    return list(different.values())[:limit]
