"""Vectors in memory-mapped files of 32-bit floats, searched exactly by NumPy.

An index has a file of its passages' digests and one of their vectors, row by row. A build appends to both in
batches of the embedder's size, so that a process that is killed loses one batch, and equal batches give equal rows.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopline.search.embedder import Embedder, EmbeddingError, Vector
from loopline.search.file_lock import open_lock_file
from loopline.search.index import Index
from loopline.search.vectors import (
    PASSAGE_TEXT_VERSION,
    CosineFunction,
    Neighbour,
    VectorIndex,
    VectorProgress,
    passage_text,
)

KEPT, KEPT_UNFINISHED = 16, 4
"""The indexes whose vectors are kept, whole or in part; the longest unused are removed."""
DIGEST_BYTES = 16
UNFINISHED = ".growing"
"""The suffix of vectors while they are made; their digests have `-digests` behind it."""
LOCK_SECONDS = 0.2
"""How often it is tried again while another process makes vectors of the same model."""
_Rows = NDArray[np.float32]


class VectorMatrix:
    """The vectors of an index as rows of a matrix; row 0 belongs to chunk 1."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        """Return the nearest chunks, nearest first."""
        similarities = self._rows @ np.frombuffer(query, dtype="<f4")
        if among is not None:
            allowed = np.zeros(len(similarities), dtype=bool)
            allowed[np.fromiter((number - 1 for number in among), dtype=np.int64)] = True
            similarities = np.where(allowed, similarities, np.float32(-2))
            limit = min(limit, len(among))
        limit = min(limit, len(similarities))
        if limit < 1:
            return []
        best = np.argpartition(-similarities, limit - 1)[:limit]
        order = best[np.lexsort((best, -similarities[best]))]
        return [Neighbour(int(row) + 1, float(similarities[row])) for row in order]

    def similarities(self, query: Vector, numbers: Sequence[int]) -> list[float]:
        """Return the cosine of the question's vector and each of these chunks'."""
        rows = self._rows[np.asarray(numbers, dtype=np.int64) - 1]
        return [float(value) for value in rows @ np.frombuffer(query, dtype="<f4")]

    def close(self) -> None:
        """Release nothing: the mapping ends when nobody searches it any more."""


def vector_rows(data: bytes, count: int) -> CosineFunction:
    """Return what compares queries with so many vectors, one behind the other."""
    rows = np.frombuffer(data, dtype="<f4").reshape(count, len(data) // 4 // max(count, 1))

    def compare(query: Vector) -> list[float]:
        if not count:
            return []
        similarities: list[float] = (rows @ np.frombuffer(query, dtype="<f4")).tolist()
        return similarities

    return compare


class VectorFiles:
    """Vectors in a folder. Processes may share it: one builds, the others wait and open what it built."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        """Return the vectors of that index of so many chunks, or None while some are missing."""
        rows = _Files(self._directory, signature, embedder).complete_rows(size)
        return None if rows is None else VectorMatrix(rows)

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
        """Make the vectors that are missing and return all; None when `progress` stopped it.

        Raises:
            EmbeddingError: the embedder failed, or the folder cannot be written to. What is done is kept.
        """
        files = _Files(self._directory, signature, embedder)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_lock_file(self._directory / f"{files.model}.lock") as lock:
                while not _try_lock(lock):
                    if not progress(0, index.size):
                        return None
                    time.sleep(LOCK_SECONDS)
                if files.complete_rows(index.size) is None and not files.fill(index, progress):
                    return None
                files.prune()
        except OSError as error:
            raise EmbeddingError(
                f"the vectors cannot be written to {self._directory}: {error}"
            ) from error
        return self.open(signature, embedder, index.size)


class _Files:
    """The two files of an index and an embedder, and those they are while they grow."""

    def __init__(self, directory: Path, signature: str, embedder: Embedder) -> None:
        self._embedder = embedder
        self._directory = directory
        self.model: str = _digest(
            f"{embedder.key}/{embedder.dimensions}/{PASSAGE_TEXT_VERSION}"
        ).hex()[:16]
        self.vectors: Path = directory / _vectors_name(signature, self.model)
        self._row_bytes = 4 * embedder.dimensions

    def complete_rows(self, size: int) -> _Rows | None:
        """Return the rows of a finished build of so many passages; None if there is none."""
        rows = self._mapped(self.vectors)
        return rows if rows is not None and len(rows) == size else None

    def fill(self, index: Index, progress: VectorProgress) -> bool:
        """Append the rows that are missing; return whether all are there now."""
        growing = self.vectors.with_suffix(UNFINISHED)
        done = self._intact(growing)
        source = _TextRows(index, self._embedder, self._base(index), self._earlier)
        with growing.open("ab") as vectors, _digests_of(growing).open("ab") as digests:
            vectors.truncate(done * self._row_bytes)
            digests.truncate(done * DIGEST_BYTES)
            while done < index.size:
                if not progress(done, index.size):
                    return False
                rows, keys = source.batch(done)
                vectors.write(rows)
                digests.write(keys)
                vectors.flush()
                digests.flush()
                done += len(keys) // DIGEST_BYTES
            os.fsync(vectors.fileno())
            os.fsync(digests.fileno())
        progress(done, index.size)
        _digests_of(growing).replace(_digests_of(self.vectors))
        growing.replace(self.vectors)
        return True

    def prune(self) -> None:
        """Remove what other builds of the model left unfinished, and the vectors that were unused for longest.

        Only inside the lock. Whoever maps a removed file goes on.
        """
        finished = [path for path in self._paths(".vectors") if path != self.vectors]
        finished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        unfinished = self._paths(UNFINISHED)
        unfinished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [*unfinished[KEPT_UNFINISHED:], *finished[KEPT - 1 :]]:
            _digests_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def _base(self, index: Index) -> _Base | None:
        """Return the vectors of the index that this one was made from; None if there are none."""
        if index.base is None:
            return None
        path = self._directory / _vectors_name(index.base.signature, self.model)
        rows = self._mapped(path)
        if rows is None:
            return None
        return _Base(rows, _digests_of(path).read_bytes(), index.base.changed)

    def _earlier(self) -> _Earlier:
        return _Earlier(self._others(".vectors", UNFINISHED))

    def _intact(self, growing: Path) -> int:
        """Return the rows of an unfinished build that can be kept: whole batches of vectors of length 1."""
        rows = self._mapped(growing)
        if rows is None:
            return 0
        broken = np.flatnonzero(np.abs(np.linalg.norm(rows, axis=1) - 1) > 1e-2)
        first = int(broken[0]) if len(broken) else len(rows)
        return first - first % self._embedder.batch

    def _paths(self, suffix: str) -> list[Path]:
        return list(self._directory.glob(f"*-{self.model}{suffix}"))

    def _others(self, *suffixes: str) -> list[tuple[_Rows, bytes]]:
        """Return the rows that were made for other indexes, with their digests."""
        candidates: list[tuple[_Rows, bytes]] = []
        for path in [path for suffix in suffixes for path in self._paths(suffix)]:
            rows = self._mapped(path)
            if rows is not None and path != self.vectors.with_suffix(UNFINISHED):
                usable = self._intact(path) if path.suffix == UNFINISHED else len(rows)
                candidates.append((rows[:usable], _digests_of(path).read_bytes()))
        return candidates

    def _mapped(self, vectors: Path) -> _Rows | None:
        """Return the rows that have a digest, as they stand in a file; None if the file is missing or torn.

        Only an unfinished file may have more of one than of the other.
        """
        try:
            rows, torn = divmod(vectors.stat().st_size, self._row_bytes)
            digests, odd = divmod(_digests_of(vectors).stat().st_size, DIGEST_BYTES)
            if vectors.suffix != UNFINISHED:
                if torn or odd or rows != digests:
                    return None
                os.utime(vectors)
            shape = (min(rows, digests), self._embedder.dimensions)
            if not shape[0]:  # an empty file cannot be mapped
                return np.empty(shape, dtype=np.float32)
            return np.memmap(vectors, dtype="<f4", mode="r", shape=shape)
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class _Base:
    """The vectors of an index from which another was made, and the numbers whose text is another one there."""

    rows: _Rows
    digests: bytes
    changed: frozenset[int]

    def has(self, numbers: range) -> bool:
        return numbers.stop - 1 <= len(self.rows) and self.changed.isdisjoint(numbers)


class _TextRows:
    """Makes the rows of an index in batches: taken over where the text is the same, else embedded."""

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        base: _Base | None,
        earlier: Callable[[], _Earlier],
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._base = base
        self._find_earlier = earlier
        self._earlier: _Earlier | None = None

    def batch(self, done: int) -> tuple[bytes, bytes]:
        """Return the next rows after those that are done, and the digests of their texts."""
        last = min(done + self._embedder.batch, self._index.size)
        base = self._base
        if base is not None and base.has(range(done + 1, last + 1)):
            digests = base.digests[done * DIGEST_BYTES : last * DIGEST_BYTES]
            return base.rows[done:last].tobytes(), digests
        texts = [passage_text(chunk) for chunk in self._index.read(range(done + 1, last + 1))]
        if not texts:
            raise EmbeddingError(f"the index lacks passage {done + 1} of {self._index.size}")
        keys = [_digest(text) for text in texts]
        return b"".join(self._vectors(texts, keys)), b"".join(keys)

    def _vectors(self, texts: Sequence[str], keys: Sequence[bytes]) -> list[Vector]:
        if self._earlier is None:
            self._earlier = self._find_earlier()
        rows = [self._earlier.vector(key) for key in keys]
        new = [text for text, row in zip(texts, rows, strict=True) if row is None]
        embedded = iter(self._embedder.embed_passages(new) if new else [])
        return [next(embedded) if row is None else row for row in rows]


class _Earlier:
    """Vectors of the same embedder that were made for other indexes, by the digest of their text."""

    def __init__(self, others: Sequence[tuple[_Rows, bytes]]) -> None:
        self._rows: dict[bytes, tuple[_Rows, int]] = {}
        for rows, digests in others:
            keys = [
                digests[start : start + DIGEST_BYTES]
                for start in range(0, len(rows) * DIGEST_BYTES, DIGEST_BYTES)
            ]
            self._rows.update({key: (rows, row) for row, key in enumerate(keys)})

    def vector(self, key: bytes) -> Vector | None:
        """Return the vector of the text with this digest; None if there is none."""
        if key not in self._rows:
            return None
        rows, row = self._rows[key]
        vector: Vector = rows[row].tobytes()
        return vector


def _vectors_name(signature: str, model: str) -> str:
    return f"{_digest(signature).hex()}-{model}.vectors"


def _digests_of(vectors: Path) -> Path:
    return vectors.with_suffix(f"{vectors.suffix}-digests")


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=DIGEST_BYTES).digest()


def _try_lock(descriptor: int) -> bool:
    """Exclude other processes and threads unless one of them does so already; return whether it worked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
