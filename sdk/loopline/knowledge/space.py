"""The knowledge space: one repository or several under names, searched and read by `ks:` refs."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from itertools import chain

from msgspec import structs

from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError, RefError
from loopline.knowledge.index_build import (
    LARGEST_FILE_BYTES,
    BuildReport,
    CheckedLinks,
    IndexBuild,
    IndexKey,
    IndexStore,
    Progress,
    Skipped,
    decode_text,
    encode_note,
    load_report,
)
from loopline.knowledge.links import (
    LinkTargets,
    broken_links,
    document_labels,
    document_links,
    is_document,
)
from loopline.knowledge.passage import (
    Passage,
    PassageReader,
    document_headings,
    parse_knowledge_ref,
)
from loopline.knowledge.repository import Repository
from loopline.knowledge.tree import KnowledgeConfig, Root, read_roots
from loopline.refs import KnowledgeRef, Lines
from loopline.search import (
    CHUNKS_VERSION,
    Chunk,
    EmbeddingError,
    Hit,
    Index,
    IndexDamaged,
    SharedEmbedder,
    Vector,
    VectorCache,
    VectorIndex,
    VectorState,
    VectorStore,
    compare_chunks,
    search,
)

logger: logging.Logger = logging.getLogger("loopline")

LOAD_SECONDS = 20.0
"""The longest time that a search waits until an embedder is loaded."""
COMPARE_SECONDS = 1.0
"""The longest time that a search waits for a model that orders its candidates; usually it takes 0.3 seconds."""
COMPARED_AT_ONCE = 8
"""The number of searches whose candidates a model orders at the same time."""
PAUSE_SECONDS = 5.0
"""The longest time that making vectors pauses for a search before its next batch."""
RETRY_SECONDS = 30.0
"""The time after a failure from which the next search starts making the vectors again."""


class VectorBuild:
    """Opens the vectors of one index, or makes them in a thread if some are missing."""

    def __init__(
        self,
        signature: str,
        index: Index,
        embedder: SharedEmbedder,
        store: VectorStore,
        clock: Clock,
    ) -> None:
        """Start the thread."""
        self._signature = signature
        self._index = index
        self._embedder = embedder
        self._store = store
        self._clock = clock
        self._progress: Progress | None = None
        self._stopped = threading.Event()
        self._loaded = threading.Event()
        """Set when the stored vectors are open or known to be missing, or when a search has waited long enough."""
        self._vectors: VectorIndex | None = None
        self._is_loaded = False
        """True if the embedder is loaded, so that it can compare candidates."""
        self._cache: VectorCache | None = None
        self._compare_again_at = -math.inf
        self._free = threading.BoundedSemaphore(COMPARED_AT_ONCE)
        self._idle = threading.Event()
        """Cleared while a search uses the model."""
        self._idle.set()
        self.state: VectorState = VectorState(total=index.size)
        """The progress of the vectors, and the last problem."""
        self._failed_at: float | None = None
        self._starting = threading.Lock()
        self._thread = self._start()

    def compare(self, query: str, chunks: Sequence[Chunk]) -> Sequence[float | None]:
        """Return the cosines of the query and each chunk by the model, None if time or the model is missing.

        The call returns after `COMPARE_SECONDS` at the latest; a model that needs longer, such as one on a server, ends
        its work in another thread, and its vectors are there for the next search. The thread that makes all other
        vectors pauses. After a failure the model orders no candidates for `RETRY_SECONDS`. If 8 calls are
        running already, all values are None.
        """
        nothing = [None] * len(chunks)
        if not self._is_loaded or self._clock.elapsed() < self._compare_again_at:
            return nothing
        if not self._free.acquire(blocking=False):
            return nothing
        answer: Future[Sequence[float | None]] = Future()
        threading.Thread(
            target=self._compare, args=(query, chunks, answer), name="loopline-compare", daemon=True
        ).start()
        try:
            return answer.result(COMPARE_SECONDS)
        except TimeoutError:
            return nothing

    def _compare(
        self, query: str, chunks: Sequence[Chunk], answer: Future[Sequence[float | None]]
    ) -> None:
        """Compare the chunks, and set the result of `answer`; after a failure all cosines are None."""
        values: Sequence[float | None] = [None] * len(chunks)
        self._idle.clear()
        try:
            embedder = self._embedder.get()
            cache = self._cache or self._store.cache(embedder)
            self._cache = cache
            values = compare_chunks(query, chunks, embedder, cache, self._clock)
        except KnowledgeError as error:
            self._fail_to_compare(str(error))
        except Exception as error:
            logger.exception("candidates cannot be compared")
            self._fail_to_compare(f"{type(error).__name__}: {error}")
        finally:
            self._idle.set()
            self._free.release()
            answer.set_result(values)

    def ask(self, query: str) -> tuple[VectorIndex, Vector] | None:
        """Return the vectors of all chunks and the vector of the query; None if one of them is missing.

        The first call waits up to `LOAD_SECONDS` for the embedder, so that stored vectors are used from the first search
        on. If the query cannot be embedded, `state.problem` says why.
        """
        self._loaded.wait(LOAD_SECONDS)
        self._loaded.set()  # the next search does not wait again
        vectors = self._vectors
        if vectors is None:
            self._start_again(RETRY_SECONDS)
            return None
        try:
            question = self._embedder.get().embed_query(query)
        except EmbeddingError as error:
            self.state = replace(self.state, problem=str(error))
            return None
        self.state = replace(self.state, problem="")
        return vectors, question

    def wait(self, progress: Progress | None = None) -> None:
        """Block until all vectors are made. After a failure, start again.

        `progress(done, total, activity)` is called with numbers of passages, in another thread.

        Raises:
            EmbeddingError: the vectors cannot be made, or the space was closed; the message says what to do.
        """
        self._progress = progress
        self._start_again(0.0)
        self._thread.join()
        if self._vectors is None:
            raise EmbeddingError(
                self.state.problem
                or "the space was closed, or its commit moved, before all vectors were made"
            )

    def stop(self) -> None:
        """Stop after the current batch. Vectors made so far stay stored for the next start."""
        with self._starting:
            self._stopped.set()
        self._thread.join()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="loopline-embed", daemon=True)
        thread.start()
        return thread

    def _start_again(self, seconds: float) -> None:
        """Start the thread again if it failed at least `seconds` ago; do nothing while it runs or after `stop`."""
        with self._starting:
            if self._failed_at is None or self._stopped.is_set():
                return
            if self._clock.elapsed() - self._failed_at >= seconds:
                self._thread.join()  # it has set `_failed_at`, so it ends soon
                self._failed_at = None
                self._thread = self._start()

    def _run(self) -> None:
        """Load the embedder, and open the stored vectors or make them; a failure is stored in `state`, not raised."""
        try:
            embedder = self._embedder.get()
            self._is_loaded = True
            self._use(self._store.open(self._signature, embedder, self._index.size))
            self._loaded.set()
            if self._vectors is None:
                self._use(self._store.build(self._signature, embedder, self._index, self._advance))
        except KnowledgeError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("vectors cannot be made")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._loaded.set()

    def _fail_to_compare(self, problem: str) -> None:
        self.state = replace(self.state, problem=problem)
        self._compare_again_at = self._clock.elapsed() + RETRY_SECONDS

    def _fail(self, problem: str) -> None:
        self.state = replace(self.state, problem=problem)
        self._failed_at = self._clock.elapsed()

    def _use(self, vectors: VectorIndex | None) -> None:
        if vectors is not None:
            self.state = VectorState(self._index.size, self._index.size, is_ready=True)
            self._vectors = vectors

    def _advance(self, done: int, total: int) -> bool:
        self.state = replace(self.state, done=done)
        if self._progress is not None:
            self._progress(done, total, "embedding passages")
        self._idle.wait(PAUSE_SECONDS)
        return not self._stopped.is_set()


# Part of the signature: increment it when the same commit and configuration produce another index.
SPACE_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeState:
    """The state of a space.

    `seconds` is the time that opening or building took, and `reused` is True if the index was built earlier.
    `uncommitted` is the number of changed files in the work tree; the space does not contain these changes. The state
    of a space of several repositories has the state of each in `repositories`, by name. Its numbers are the sums, and
    its `ref`, `commit` and `short_commit` are empty.
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
    repositories: Mapping[str, KnowledgeState] = field(default_factory=dict[str, "KnowledgeState"])


@dataclass(slots=True)
class _Opened:
    """An open index, its key, the state of its commit, and its vectors if there is an embedder.

    It is closed when neither the space nor a search uses it.
    """

    key: IndexKey
    index: Index
    state: KnowledgeState
    vectors: VectorBuild | None
    _users: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def use(self) -> bool:
        """Keep it open until `release`; False if it is closed already."""
        with self._lock:
            usable = self._users > 0
            self._users += usable
        return usable

    def release(self) -> None:
        """End one use; the end of the last use stops the build of vectors and closes the index."""
        with self._lock:
            self._users -= 1
            unused = self._users == 0
        if unused:
            if self.vectors is not None:
                self.vectors.stop()
            self.index.close()


class RepositorySpace:
    """A repository at a commit, searched and read. All methods block. `name` is the first part of its paths in a space of several."""

    def __init__(
        self,
        repository: Repository,
        indexes: IndexStore,
        config: KnowledgeConfig,
        *,
        clock: Clock,
        embedder: SharedEmbedder | None,
        vectors: VectorStore | None,
        name: str = "",
    ) -> None:
        self.name = name
        self.config = config
        self._embedder = embedder
        self._vectors = vectors
        self._repository = repository
        self._indexes = indexes
        self._clock = clock
        self._roots = read_roots(config)
        self._reader = PassageReader(repository, self._roots, name)
        self._checked = CheckedLinks(name)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @property
    def state(self) -> KnowledgeState:
        """The state of the repository.

        Raises:
            KnowledgeError: no index is open; call `ensure` first.
        """
        if self._opened is None:
            raise KnowledgeError("the knowledge space is not ready: await ensure() first")
        return self._opened.state

    @property
    def vectors(self) -> VectorState | None:
        """The progress of the vectors of the open index; None without an embedder, or before `ensure`."""
        build = None if self._opened is None else self._opened.vectors
        return None if build is None else build.state

    def search(
        self, query: str, limit: int, accepts: Callable[[str], bool] | None
    ) -> list[Passage]:
        """Return the best `limit` passages, best first, from files for which `accepts` returns true; None allows all.

        `accepts` receives the path in the space. A closed index is opened first, and a damaged index is built again.
        """
        with self._using() as opened:
            try:
                return self._passages(opened, query, limit, accepts)
            except IndexDamaged:
                self._rebuild(opened)
        with self._using() as opened:
            return self._passages(opened, query, limit, accepts)

    def ensure(self, progress: Progress | None) -> KnowledgeState:
        """Open the index of the commit that the configured ref names now, or build it; do nothing if it is open."""
        return self._open_current(progress).state

    def wait(self, progress: Progress | None) -> KnowledgeState:
        """Do the same as `ensure`, and then wait for all vectors if there is an embedder."""
        opened = self._open_current(progress)
        if opened.vectors is not None:
            opened.vectors.wait(progress)
        return opened.state

    def read(self, ref: KnowledgeRef) -> Passage:
        """Return the passage of a ref. Its path does not begin with the name of the repository."""
        opened = self._opened or self._open_current(None)
        return self._reader.passage(ref, opened.state.commit)

    def check(self, broken_ref: Callable[[KnowledgeRef], str]) -> list[str]:
        """Return a problem for each link, ref, path in backticks and heading in the documents that does not exist.

        `broken_ref` returns the reason if a ref of the space does not exist, or an empty string. Documents above 1 MB
        are not checked. The problems are in the order of the paths.
        """
        opened = self._opened or self._open_current(None)
        tree = self._reader.tree(opened.state.commit)
        files = [(path, tree.files[path]) for path in sorted(tree.files)]
        documents = [(path, entry) for path, entry in files if is_document(entry.path)]
        small = [(path, entry) for path, entry in documents if entry.size <= LARGEST_FILE_BYTES]
        contents = self._repository.contents([entry.blob for _, entry in small])
        texts = {
            path: decode_text(data) or "" for (path, _), data in zip(small, contents, strict=True)
        }
        headings = {entry.path: document_headings(entry.path, texts[path]) for path, entry in small}
        targets = LinkTargets(headings, broken_ref)
        labels = frozenset(
            label for path, entry in small for label in document_labels(entry.path, texts[path])
        )
        return [
            problem
            for path, entry in small
            for problem in broken_links(
                path,
                entry.path,
                document_links(entry.path, texts[path]),
                tree,
                name=self.name,
                labels=labels,
                targets=targets,
            )
        ]

    def close(self) -> None:
        """Close the index; a later call opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened.release()
            self._opened = None

    @contextmanager
    def _using(self) -> Generator[_Opened]:
        """Yield the current index, opened if necessary, and keep it open inside the context."""
        opened = self._opened or self._open_current(None)
        while not opened.use():
            opened = self._open_current(None)
        try:
            yield opened
        finally:
            opened.release()

    def _open_current(self, progress: Progress | None) -> _Opened:
        """Return the index of the commit that the ref names now; open or build it if another commit is open."""
        with self._lock:
            commit = self._repository.resolve(self.config.ref)
            opened = self._opened
            if opened is not None and opened.state.commit == commit:
                return opened
            return self._replace(self._open(commit, progress))

    def _rebuild(self, damaged: _Opened) -> None:
        with self._lock:
            if self._opened is damaged or self._opened is None:
                self._indexes.discard(damaged.key)
                self._replace(self._open(damaged.state.commit, None))

    def _replace(self, opened: _Opened) -> _Opened:
        """Use the new index. Searches that run in the previous one end there."""
        if self._opened is not None:
            self._opened.release()
        self._opened = opened
        return opened

    def _passages(
        self, opened: _Opened, query: str, limit: int, accepts: Callable[[str], bool] | None
    ) -> list[Passage]:
        """Search the index, and return at most `limit` passages, best first.

        While vectors are missing, the embedder compares the best candidates.
        """
        among = None
        if accepts is not None:
            among = opened.index.numbers(lambda path: accepts(self._reader.space_path(path)))
        answer = None if opened.vectors is None else opened.vectors.ask(query)
        vectors, question = answer or (None, None)
        compare = None
        if opened.vectors is not None and vectors is None:
            compare = partial(opened.vectors.compare, query)
        hits = search(
            query, opened.index, vectors, question, limit=limit, among=among, compare=compare
        )
        return [
            _passage(hit, self._reader.space_path(hit.chunk.path), opened.state) for hit in hits
        ]

    def _open(self, commit: str, progress: Progress | None) -> _Opened:
        """Open or build the index of a commit, count uncommitted files, and start the build of vectors, if any."""
        start = self._clock.elapsed()
        sign = partial(
            index_signature,
            roots=self._roots,
            validate_refs=self.config.validate_refs,
            name=self.name,
        )
        key = IndexKey(sign(commit), sign(self._repository.name))
        with ThreadPoolExecutor(1) as pool:
            uncommitted = pool.submit(self._repository.count_uncommitted)
            index, report, reused = self._load_or_build(key, commit, progress)
            try:
                state = KnowledgeState(
                    repository=self._repository.name,
                    location=self._repository.location,
                    ref=self.config.ref,
                    commit=commit,
                    short_commit=self._repository.abbreviate(commit),
                    files=report.files,
                    passages=index.size,
                    seconds=self._clock.elapsed() - start,
                    reused=reused,
                    uncommitted=uncommitted.result(),
                    warnings=(*self._repository.warnings, *report.warnings),
                    skipped=report.skipped,
                )
            except BaseException:
                index.close()
                raise
        vectors = None
        if self._embedder is not None and self._vectors is not None:
            vectors = VectorBuild(key.signature, index, self._embedder, self._vectors, self._clock)
        return _Opened(key, index, state, vectors)

    def _load_or_build(
        self, key: IndexKey, commit: str, progress: Progress | None
    ) -> tuple[Index, BuildReport, bool]:
        """Return the index, its report, and False if this call built the index.

        A stored index with a report that cannot be read is discarded and built again.
        """
        index = self._indexes.open(key)
        if index is not None:
            try:
                return index, load_report(index.notes), True
            except KnowledgeError:
                index.close()
                self._indexes.discard(key)
        tree = self._reader.tree(commit)
        build = IndexBuild(
            self._repository, tree, self._checked, validate_refs=self.config.validate_refs
        )
        index = self._indexes.build(
            key,
            build.files(),
            lambda paths: build.read(paths, progress),
            lambda notes: encode_note(build.report(notes)),
        )
        return index, load_report(index.notes), not build.started


def index_signature(
    commit: str, roots: tuple[Root, ...], *, validate_refs: bool, name: str = ""
) -> str:
    """Return a digest of everything that decides the content of an index.

    For the digest of a family, `commit` is the name of the repository instead. `name` is the name of the repository in a
    space of several; it matters only if `validate_refs` is set, because it is part of the stored warnings.
    """
    named = (name,) if name and validate_refs else ()
    parts = (SPACE_VERSION, CHUNKS_VERSION, commit, sorted(map(repr, roots)), validate_refs, *named)
    return sha256(repr(parts).encode()).hexdigest()


def _passage(hit: Hit, path: str, state: KnowledgeState) -> Passage:
    """Return the passage of a hit, with its score, its explanation, and a ref to its lines at the commit."""
    chunk = hit.chunk
    ref = KnowledgeRef(path=path, commit=state.short_commit, span=Lines(*chunk.lines))
    return Passage(
        ref=str(ref),
        title=chunk.title,
        text=chunk.text,
        path=path,
        commit=state.commit,
        lines=chunk.lines,
        score=hit.score,
        why=hit.why,
    )


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
            vectors: the store of vectors, which an embedder needs.

        Raises:
            KnowledgeError: there is an embedder, but no store for its vectors.
        """
        if embedder is not None and vectors is None:
            raise KnowledgeError("an embedder needs a store for its vectors: pass vectors=")
        self.config: KnowledgeConfig = config or KnowledgeConfig()
        named = repository if isinstance(repository, Mapping) else {"": repository}
        self._spaces: dict[str, RepositorySpace] = {
            name: RepositorySpace(
                each,
                indexes,
                self.config.repositories[name] if name else self.config,
                clock=clock or SystemClock(),
                embedder=embedder,
                vectors=vectors,
                name=name,
            )
            for name, each in named.items()
        }

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
        if self.config.wait:
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
        from 0 to 1, estimates how likely the space contains an answer. Passages with the same text are returned once.
        """
        accepts = None if within is None else within.accepts
        searches = (
            asyncio.to_thread(space.search, query, limit, accepts)
            for space in self._spaces.values()
        )
        return _merge_hits(await asyncio.gather(*searches), limit)

    async def check(self) -> Sequence[str]:
        """Return `file:line: reason` for each link, ref, `#heading` and path that does not exist, sorted by file."""
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

        A ref with a commit is read at that commit, any other ref at the current commit. `ks:/` lists the repositories
        if there are several.

        Raises:
            RefError: the ref does not exist, or its file is binary or above 32 MB; the message lists similar names.
        """
        return await asyncio.to_thread(self._read, parse_knowledge_ref(ref))

    async def close(self) -> None:
        """Close all indexes. A later call opens them again."""
        await asyncio.gather(*(asyncio.to_thread(space.close) for space in self._spaces.values()))

    async def _run_each(self, step: Callable[[RepositorySpace], KnowledgeState]) -> KnowledgeState:
        """Call `step` for each repository in turn, and return the joined states; an error names the repository."""
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
        """Read a ref of the space; an empty path lists the repositories. Raise RefError for an unknown repository."""
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
    """Return the state of a space: sums and joined texts of the states; for the only name "", its state unchanged."""
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
