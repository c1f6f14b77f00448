"""The vectors of a space, made in the background while words are searched already."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from loopline.clock import Clock
from loopline.errors import KnowledgeError
from loopline.knowledge.index_build import Progress
from loopline.search import (
    EmbeddingError,
    Index,
    SharedEmbedder,
    Vector,
    VectorIndex,
    VectorState,
    VectorStore,
)

logger: logging.Logger = logging.getLogger("loopline")

LOAD_SECONDS = 20.0
"""How long a search waits for an embedder that is being loaded."""
RETRY_SECONDS = 30.0
"""After a failure the next search that comes so much later begins to make the vectors again."""


class VectorBuild:
    """Makes the vectors of one index in a thread, or opens those that were made before."""

    def __init__(
        self,
        signature: str,
        index: Index,
        embedder: SharedEmbedder,
        store: VectorStore,
        clock: Clock,
    ) -> None:
        """Start at once."""
        self._signature = signature
        self._index = index
        self._embedder = embedder
        self._store = store
        self._clock = clock
        self._progress: Progress | None = None
        self._stopped = threading.Event()
        self._loaded = threading.Event()
        """Set when it is known whether the vectors were made before, or nobody waits for it any more."""
        self._vectors: VectorIndex | None = None
        self._state = VectorState(total=index.size)
        self._failed_at: float | None = None
        self._starting = threading.Lock()
        self._thread = self._start()

    @property
    def state(self) -> VectorState:
        """How far the vectors are."""
        return self._state

    def ask(self, query: str) -> tuple[VectorIndex, Vector] | None:
        """Return the vectors and that of the query; None until all vectors are made.

        The first call waits for the embedder, so that vectors that were made before always count. When the query cannot
        be embedded, `state` says why, and words are searched.
        """
        self._loaded.wait(LOAD_SECONDS)
        self._loaded.set()  # whoever searches next does not wait again
        vectors = self._vectors
        if vectors is None:
            self._start_again(RETRY_SECONDS)
            return None
        try:
            question = self._embedder.get().embed_query(query)
        except EmbeddingError as error:
            self._state = replace(self._state, problem=str(error))
            return None
        self._state = replace(self._state, problem="")
        return vectors, question

    def wait(self, progress: Progress | None = None) -> None:
        """Block until the vectors are made; `progress(done, total, activity)` counts passages in another thread.

        Vectors that could not be made earlier are tried again.

        Raises:
            EmbeddingError: they cannot be made; the message says what to do, or that the space was closed.
        """
        self._progress = progress
        self._start_again(0.0)
        self._thread.join()
        if self._vectors is None:
            raise EmbeddingError(
                self._state.problem
                or "the space was closed, or its commit moved, before all vectors were made"
            )

    def stop(self) -> None:
        """Stop after the texts that are being embedded; what is done is kept for the next start."""
        with self._starting:
            self._stopped.set()
        self._thread.join()
        if self._vectors is not None:
            self._vectors.close()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="loopline-embed", daemon=True)
        thread.start()
        return thread

    def _start_again(self, seconds: float) -> None:
        """Start again if making the vectors failed at least so long ago."""
        with self._starting:
            if self._failed_at is None or self._stopped.is_set():
                return
            if self._clock.elapsed() - self._failed_at >= seconds:
                self._thread.join()  # it has said that it failed, and ends
                self._failed_at = None
                self._thread = self._start()

    def _run(self) -> None:
        try:
            embedder = self._embedder.get()
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

    def _fail(self, problem: str) -> None:
        self._state = replace(self._state, problem=problem)
        self._failed_at = self._clock.elapsed()

    def _use(self, vectors: VectorIndex | None) -> None:
        if vectors is not None:
            self._state = VectorState(self._index.size, self._index.size, is_ready=True)
            self._vectors = vectors

    def _advance(self, done: int, total: int) -> bool:
        self._state = replace(self._state, done=done)
        if self._progress is not None:
            self._progress(done, total, "embedding passages")
        return not self._stopped.is_set()
