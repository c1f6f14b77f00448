"""The knowledge space: searched by words, read by ref, rebuilt when its commit has moved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError
from loopline.knowledge.index_build import (
    BuildReport,
    IndexBuild,
    IndexStore,
    Progress,
    Skipped,
    StoredIndex,
    dump_report,
    load_report,
)
from loopline.knowledge.passage import Passage, PassageReader
from loopline.knowledge.repository import Repository
from loopline.knowledge.tree import KnowledgeConfig, Root, configured_roots
from loopline.refs import KnowledgeRef, Lines
from loopline.search import CHUNKS_VERSION, Hit, Index, IndexDamaged

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


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open index, its signature and the state it stands for."""

    signature: str
    index: Index
    state: KnowledgeState


class KnowledgeSpace:
    """A repository at a commit. Work that blocks runs in threads; one space serves any event loop."""

    def __init__(
        self,
        repository: Repository,
        indexes: IndexStore,
        config: KnowledgeConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._repository = repository
        self._indexes = indexes
        self._config = config or KnowledgeConfig()
        self._clock = clock or SystemClock()
        self._roots = configured_roots(self._config)
        self._reader = PassageReader(repository, self._roots)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._retired: Index | None = None

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

        `progress(done, total, activity)` counts files; it is called from another thread.

        Raises:
            KnowledgeError: it cannot be built; the message names the setting to change.
        """
        return (await asyncio.to_thread(self._ensure, progress)).state

    async def search(self, query: str, *, limit: int = 5) -> Sequence[Passage]:
        """Return the passages that match the query best, best first; any text is a query."""
        return await asyncio.to_thread(self._search, query, limit)

    async def read(self, ref: str | KnowledgeRef) -> Passage:
        """Return a file, some of its lines, or a folder's listing, at the ref's commit or the current one.

        Raises:
            RefError: the ref names nothing; the message lists what is there.
        """
        return await asyncio.to_thread(self._read, ref)

    async def close(self) -> None:
        """Close the index; a later call opens it again."""
        await asyncio.to_thread(self._close)

    def _search(self, query: str, limit: int) -> list[Passage]:
        opened = self._opened or self._ensure(None)
        try:
            hits = opened.index.search(query, limit=limit)
        except IndexDamaged:
            opened = self._rebuild(opened)
            hits = opened.index.search(query, limit=limit)
        return [_passage(hit, opened.state) for hit in hits]

    def _read(self, ref: str | KnowledgeRef) -> Passage:
        opened = self._opened or self._ensure(None)
        return self._reader.passage(ref, opened.state.commit)

    def _close(self) -> None:
        with self._lock:
            for index in (self._retired, self._opened.index if self._opened else None):
                if index is not None:
                    index.close()
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
        self._retired = self._opened.index if self._opened else None
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
        return _Opened(signature, stored.index, state)

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
    )
