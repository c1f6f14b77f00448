"""The vectors of past turns, made in the background while words are searched already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from loopline.memory.turn_index import QueryVector, TurnIndex
from loopline.memory.turn_texts import Owner
from loopline.search import Embedder, EmbeddingError, SharedEmbedder, VectorState

logger: logging.Logger = logging.getLogger("loopline")

AT_ONCE = 32
"""A search waits for the vectors of texts that are no more than these."""
VectorsMade = Callable[[int, int], None]
"""Is called with the texts that have a vector, and the texts in all."""


class TurnVectors:
    """Makes the vectors of an owner's texts, a batch at a time. The index keeps them, so a killed process loses a batch."""

    def __init__(self, embedder: SharedEmbedder, index: Callable[[], Awaitable[TurnIndex]]) -> None:
        """`index` returns the open index."""
        self._embedder = embedder
        self._index = index
        self._tasks: dict[Owner, asyncio.Task[None]] = {}
        self._problem = ""

    async def query_vector(self, owner: Owner, text: str) -> QueryVector | None:
        """Return the vector of a query; None when no vectors can be made, and `state` says why.

        The vectors of a few new texts are waited for; those of many follow in the background, and until then these
        texts are found by words.
        """
        try:
            embedder = await asyncio.to_thread(self._embedder.get)
            await self._catch_up(owner, embedder)
            vector = await asyncio.to_thread(embedder.embed_query, text)
        except EmbeddingError as error:
            self._problem = str(error)
            return None
        return QueryVector(embedder.key, vector)

    async def ready(self, owner: Owner, progress: VectorsMade | None) -> None:
        """Wait until every text of the owner has a vector.

        Raises:
            EmbeddingError: they cannot be made; the message says what to do.
        """
        embedder = await asyncio.to_thread(self._embedder.get)
        index = await self._index()
        while await index.unembedded(owner, embedder.key, 1):
            task = self._started(owner, embedder)
            while not task.done():
                if progress is not None:
                    state = await index.vector_state(owner, embedder.key)
                    progress(state.done, state.total)
                await asyncio.wait({task}, timeout=0.2)
            await task
        if progress is not None:
            state = await index.vector_state(owner, embedder.key)
            progress(state.done, state.total)

    async def state(self, owner: Owner) -> VectorState:
        """Return how many texts of the owner have a vector, and why the last could not be made."""
        try:
            embedder = await asyncio.to_thread(self._embedder.get)
        except EmbeddingError as error:
            return VectorState(problem=str(error))
        state = await (await self._index()).vector_state(owner, embedder.key)
        return replace(state, problem=self._problem)

    async def close(self) -> None:
        """Stop after the texts that are being embedded; what is done is kept."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _catch_up(self, owner: Owner, embedder: Embedder) -> None:
        index = await self._index()
        while missing := await index.unembedded(owner, embedder.key, AT_ONCE + 1):
            task = self._started(owner, embedder)
            if len(missing) > AT_ONCE:
                return
            await asyncio.shield(task)
        self._problem = ""

    def _started(self, owner: Owner, embedder: Embedder) -> asyncio.Task[None]:
        """Return the task that makes the owner's vectors, and start it if none runs."""
        task = self._tasks.get(owner)
        if task is None or task.done():
            task = asyncio.create_task(self._embed(owner, embedder))
            task.add_done_callback(self._note_failure)
            self._tasks[owner] = task
        return task

    async def _embed(self, owner: Owner, embedder: Embedder) -> None:
        index = await self._index()
        while missing := await index.unembedded(owner, embedder.key, embedder.batch):
            texts: Sequence[str] = list(missing.values())
            vectors = await asyncio.to_thread(embedder.embed_passages, texts)
            await index.add_vectors(owner, embedder.key, dict(zip(missing, vectors, strict=True)))
        self._problem = ""

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._problem = str(error)
            if not isinstance(error, EmbeddingError):
                logger.error("vectors of past turns cannot be made", exc_info=error)
