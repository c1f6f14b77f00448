"""The knowledge space: searched by words, read by ref, rebuilt when its commit has moved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256

from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError
from loopline.knowledge.index_build import (
    LARGEST_FILE_BYTES,
    BuildReport,
    IndexBuild,
    IndexStore,
    Progress,
    Skipped,
    StoredIndex,
    decode_text,
    dump_report,
    load_report,
)
from loopline.knowledge.links import broken_links
from loopline.knowledge.passage import Passage, PassageReader
from loopline.knowledge.repository import Repository
from loopline.knowledge.tree import KnowledgeConfig, Root, configured_roots
from loopline.knowledge.vector_build import VectorBuild
from loopline.refs import KnowledgeRef, Lines
from loopline.search import (
    CHUNKS_VERSION,
    Embedder,
    Hit,
    Index,
    IndexDamaged,
    MemoryVectors,
    SharedEmbedder,
    VectorState,
    VectorStore,
    search,
)

# Part of the signature: raise it when the same commit and configuration gives another index.
SPACE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeState:
    """The state of a space.

    `seconds` is the time it took to get ready, `reused` whether an index built earlier was opened,
    `uncommitted` the number of changed files in the work tree, whose changes are not in the space.
    """

    repository: str
    location: str
    ref: str
    commit: str
    short_commit: str
    files: int
    passages: int
    seconds: float
    reused: bool
    uncommitted: int
    warnings: tuple[str, ...]
    skipped: tuple[Skipped, ...]


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


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open index, its signature, the state it stands for, and its vectors if there is an embedder."""

    signature: str
    index: Index
    state: KnowledgeState
    vectors: VectorBuild | None

    def close(self) -> None:
        if self.vectors is not None:
            self.vectors.stop()
        self.index.close()


class KnowledgeSpace:
    """A repository at a commit. Work that blocks runs in threads; one space serves any event loop."""

    def __init__(
        self,
        repository: Repository,
        indexes: IndexStore,
        config: KnowledgeConfig | None = None,
        *,
        clock: Clock | None = None,
        embedder: Callable[[], Embedder] | None = None,
        vectors: VectorStore | None = None,
    ) -> None:
        """`embedder` loads one, which blocks; without it only words are searched. Vectors are kept in `vectors`."""
        self._embedder = None if embedder is None else SharedEmbedder(embedder)
        self._vectors = vectors or MemoryVectors()
        self._repository = repository
        self._indexes = indexes
        self._config = config or KnowledgeConfig()
        self._clock = clock or SystemClock()
        self._roots = configured_roots(self._config)
        self._reader = PassageReader(repository, self._roots)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._retired: _Opened | None = None

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
        if self._opened is None:
            raise KnowledgeError("the knowledge space is not ready: await ensure() first")
        return self._opened.state

    async def ensure(self, progress: Progress | None = None) -> KnowledgeState:
        """Open the index of the commit that the ref names now, unless it is open; build it if there is none.

        With `wait` in the configuration this is `ready`. `progress(done, total, activity)` counts files; it is called
        from another thread.

        Raises:
            KnowledgeError: it cannot be built; the message names the setting to change.
        """
        if self._config.wait:
            return await self.ready(progress)
        return (await asyncio.to_thread(self._ensure, progress)).state

    @property
    def vectors(self) -> VectorState | None:
        """How far the vectors of the open index are; None without an embedder, or before `ensure`."""
        build = None if self._opened is None else self._opened.vectors
        return None if build is None else build.state

    async def ready(self, progress: Progress | None = None) -> KnowledgeState:
        """Wait until the vectors of the current commit are made, if there is an embedder.

        `progress(done, total, activity)` counts files and then passages; it is called from other threads.

        Raises:
            EmbeddingError: they cannot be made; the message names the setting or the line to install.
            KnowledgeError: the space cannot be built, or it was closed meanwhile.
        """
        return await asyncio.to_thread(self._wait, progress)

    async def search(
        self, query: str, *, limit: int = 5, within: SearchFilter | None = None
    ) -> Sequence[Passage]:
        """Return the passages that answer the query best, best first; any text is a query.

        Words are searched at once, and vectors too as soon as all are made. The score of the best passage, from 0
        to 1, says how likely the space has an answer.
        """
        return await asyncio.to_thread(self._search, query, limit, within)

    async def check(self) -> Sequence[str]:
        """Return each link, ref and path in backticks that names nothing, as `file:line: why`, in order of files."""
        return await asyncio.to_thread(self._check)

    async def read(self, ref: str | KnowledgeRef) -> Passage:
        """Return a file, some of its lines, or a folder's listing, at the ref's commit or the current one.

        Raises:
            RefError: the ref names nothing; the message lists what is there.
        """
        return await asyncio.to_thread(self._read, ref)

    async def close(self) -> None:
        """Close the index; a later call opens it again."""
        await asyncio.to_thread(self._close)

    def _search(self, query: str, limit: int, within: SearchFilter | None) -> list[Passage]:
        opened = self._opened or self._ensure(None)
        try:
            return _passages(opened, query, limit, within)
        except IndexDamaged:
            return _passages(self._rebuild(opened), query, limit, within)

    def _wait(self, progress: Progress | None) -> KnowledgeState:
        opened = self._ensure(progress)
        if opened.vectors is not None:
            opened.vectors.wait(progress)
        return opened.state

    def _read(self, ref: str | KnowledgeRef) -> Passage:
        opened = self._opened or self._ensure(None)
        return self._reader.passage(ref, opened.state.commit)

    def _check(self) -> list[str]:
        opened = self._opened or self._ensure(None)
        tree = self._reader.tree(opened.state.commit)
        files = [(path, tree.files[path]) for path in sorted(tree.files)]
        documents = [(path, entry) for path, entry in files if entry.size <= LARGEST_FILE_BYTES]
        contents = self._repository.contents([entry.blob for _, entry in documents])
        return [
            problem
            for (path, entry), data in zip(documents, contents, strict=True)
            for problem in broken_links(
                path, entry.path, decode_text(data) or "", tree, with_paths=True
            )
        ]

    def _close(self) -> None:
        with self._lock:
            for opened in (self._retired, self._opened):
                if opened is not None:
                    opened.close()
            self._retired = self._opened = None

    def _ensure(self, progress: Progress | None) -> _Opened:
        with self._lock:
            commit = self._repository.resolve(self._config.ref)
            opened = self._opened
            if opened is not None and opened.state.commit == commit:
                return opened
            return self._replace(self._open(commit, progress))

    def _rebuild(self, damaged: _Opened) -> _Opened:
        with self._lock:
            if self._opened is not damaged and self._opened is not None:
                return self._opened
            self._indexes.discard(damaged.signature)
            return self._replace(self._open(damaged.state.commit, None))

    def _replace(self, opened: _Opened) -> _Opened:
        """Use the new index. The one before stays open for searches that are under way."""
        if self._retired is not None:
            self._retired.close()
        self._retired = self._opened
        self._opened = opened
        return opened

    def _open(self, commit: str, progress: Progress | None) -> _Opened:
        start = self._clock.elapsed()
        signature = index_signature(commit, self._roots, validate_refs=self._config.validate_refs)
        stored, report, reused = self._load_or_build(signature, commit, progress)
        state = KnowledgeState(
            repository=self._repository.name,
            location=self._repository.location,
            ref=self._config.ref,
            commit=commit,
            short_commit=self._repository.abbreviate(commit),
            files=report.files,
            passages=report.passages,
            seconds=self._clock.elapsed() - start,
            reused=reused,
            uncommitted=self._repository.uncommitted(),
            warnings=(*self._repository.warnings, *report.warnings),
            skipped=report.skipped,
        )
        vectors = None
        if self._embedder is not None:
            vectors = VectorBuild(signature, stored.index, self._embedder, self._vectors)
        return _Opened(signature, stored.index, state, vectors)

    def _load_or_build(
        self, signature: str, commit: str, progress: Progress | None
    ) -> tuple[StoredIndex, BuildReport, bool]:
        stored = self._indexes.open(signature)
        if stored is not None:
            try:
                return stored, load_report(stored.notes), True
            except KnowledgeError:
                stored.index.close()
                self._indexes.discard(signature)
        tree = self._reader.tree(commit)
        build = IndexBuild(self._repository, tree, validate_refs=self._config.validate_refs)
        stored = self._indexes.build(
            signature, build.chunks(progress), lambda: dump_report(build.report())
        )
        return stored, load_report(stored.notes), not build.started


def index_signature(commit: str, roots: tuple[Root, ...], *, validate_refs: bool) -> str:
    """Return the name of an index: the same for the same commit, roots and versions."""
    parts = (SPACE_VERSION, CHUNKS_VERSION, commit, sorted(map(repr, roots)), validate_refs)
    return sha256(repr(parts).encode()).hexdigest()


def _passages(
    opened: _Opened, query: str, limit: int, within: SearchFilter | None
) -> list[Passage]:
    among = None if within is None else opened.index.numbers(within.accepts)
    vectors, question = None, None
    if opened.vectors is not None:
        vectors, question = opened.vectors.ask(query) or (None, None)
    hits = search(query, opened.index, vectors, question, limit=limit, among=among)
    return [_passage(hit, opened.state) for hit in hits]


def _passage(hit: Hit, state: KnowledgeState) -> Passage:
    chunk = hit.chunk
    ref = KnowledgeRef(path=chunk.path, commit=state.short_commit, span=Lines(*chunk.lines))
    return Passage(
        ref=str(ref),
        title=chunk.title,
        text=chunk.text,
        path=chunk.path,
        commit=state.commit,
        lines=chunk.lines,
        score=hit.score,
        why=hit.why,
    )
