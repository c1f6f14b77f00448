"""Vectors in memory-mapped files of 32-bit floats, searched exactly by NumPy.

An index has a file of its passages' digests and one of their vectors, row by row. A build appends to both in
batches of the embedder's size, so that a process that is killed loses one batch, and equal batches give equal rows.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopline.search import (
    Embedder,
    EmbeddingError,
    Index,
    Neighbour,
    Vector,
    VectorIndex,
    VectorProgress,
    passage_text,
)

KEPT = 8
"""The indexes whose vectors are kept; the longest unused are removed."""
DIGEST_BYTES = 16
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
        """Give up the mapping; the file is closed when nobody searches it any more."""
        self._rows = np.empty((0, self._rows.shape[1]), dtype=np.float32)


class VectorFiles:
    """Vectors in a folder. Processes may share it: one builds, the others wait and open what it built."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, signature: str, embedder: Embedder) -> VectorIndex | None:
        """Return the vectors of that index, or None while some are missing."""
        files = _Files(self._directory, signature, embedder)
        rows = files.complete_rows()
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
            with _locked(self._directory / f"{files.model}.lock"):
                if files.complete_rows() is None and not files.fill(index, progress):
                    return None
                _prune(self._directory, keep=files.vectors)
        except OSError as error:
            raise EmbeddingError(
                f"the vectors cannot be written to {self._directory}: {error}"
            ) from error
        return self.open(signature, embedder)


class _Files:
    """The two files of an index and an embedder, and those they are while they grow."""

    def __init__(self, directory: Path, signature: str, embedder: Embedder) -> None:
        self._embedder = embedder
        self._directory = directory
        self.model: str = _digest(f"{embedder.key}/{embedder.dimensions}").hex()[:16]
        name = f"{_digest(signature).hex()}-{self.model}"
        self.vectors: Path = directory / f"{name}.vectors"
        self._digests = directory / f"{name}.digests"
        self._row_bytes = 4 * embedder.dimensions

    def complete_rows(self) -> _Rows | None:
        """Return the rows of a finished build; None if there is none."""
        return _mapped(self.vectors, self._digests, self._embedder.dimensions)

    def fill(self, index: Index, progress: VectorProgress) -> bool:
        """Append the rows that are missing; return whether all are there now."""
        growing = (
            self.vectors.with_suffix(".vectors.part"),
            self._digests.with_suffix(".digests.part"),
        )
        done = self._intact(*growing)
        earlier = _Earlier(self._directory, self.model, self._embedder.dimensions)
        with growing[0].open("ab") as vectors, growing[1].open("ab") as digests:
            vectors.truncate(done * self._row_bytes)
            digests.truncate(done * DIGEST_BYTES)
            while done < index.size:
                if not progress(done, index.size):
                    return False
                texts = [
                    passage_text(chunk)
                    for chunk in index.read(range(done + 1, done + 1 + self._embedder.batch))
                ]
                if not texts:
                    raise EmbeddingError(f"the index lacks passage {done + 1} of {index.size}")
                keys = [_digest(text) for text in texts]
                vectors.write(b"".join(self._vectors(texts, keys, earlier)))
                digests.write(b"".join(keys))
                vectors.flush()
                digests.flush()
                done += len(texts)
            os.fsync(vectors.fileno())
            os.fsync(digests.fileno())
        progress(done, index.size)
        growing[1].replace(self._digests)
        growing[0].replace(self.vectors)
        return True

    def _vectors(
        self, texts: Sequence[str], keys: Sequence[bytes], earlier: _Earlier
    ) -> list[Vector]:
        rows = [earlier.vector(key) for key in keys]
        new = [text for text, row in zip(texts, rows, strict=True) if row is None]
        made = iter(self._embedder.embed_passages(new) if new else [])
        return [next(made) if row is None else row for row in rows]

    def _intact(self, vectors: Path, digests: Path) -> int:
        """Return the rows of an unfinished build that can be kept: whole batches of vectors of length 1."""
        if not (vectors.exists() and digests.exists()):
            return 0
        count = min(
            vectors.stat().st_size // self._row_bytes, digests.stat().st_size // DIGEST_BYTES
        )
        count -= count % self._embedder.batch
        if not count:
            return 0
        rows = np.fromfile(vectors, dtype="<f4", count=count * self._embedder.dimensions)
        lengths = np.linalg.norm(rows.reshape(count, -1), axis=1)
        broken = np.flatnonzero(np.abs(lengths - 1) > 1e-2)
        first = int(broken[0]) if len(broken) else count
        return first - first % self._embedder.batch


class _Earlier:
    """Vectors of the same embedder that were made for other indexes, by the digest of their text."""

    def __init__(self, directory: Path, model: str, dimensions: int) -> None:
        self._rows: dict[bytes, tuple[_Rows, int]] = {}
        for digests in directory.glob(f"*-{model}.digests"):
            rows = _mapped(digests.with_suffix(".vectors"), digests, dimensions)
            if rows is None:
                continue
            data = digests.read_bytes()
            for row in range(len(rows)):
                key = data[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
                self._rows[key] = (rows, row)

    def vector(self, key: bytes) -> Vector | None:
        """Return the vector of the text with this digest; None if there is none."""
        if key not in self._rows:
            return None
        rows, row = self._rows[key]
        vector: Vector = rows[row].tobytes()
        return vector


def _mapped(vectors: Path, digests: Path, dimensions: int) -> _Rows | None:
    """Return the rows of a finished build; None if there is none, or its files do not fit each other."""
    try:
        count, odd = divmod(vectors.stat().st_size, 4 * dimensions)
        if odd or digests.stat().st_size != count * DIGEST_BYTES:
            return None
        if not count:  # an empty file cannot be mapped
            return np.empty((0, dimensions), dtype=np.float32)
        os.utime(vectors)
        return np.memmap(vectors, dtype="<f4", mode="r", shape=(count, dimensions))
    except OSError:
        return None


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=DIGEST_BYTES).digest()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Exclude other processes and threads; the lock ends when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _prune(directory: Path, keep: Path) -> None:
    """Remove the vectors that were not used for the longest time; whoever maps them goes on."""
    others = [path for path in directory.glob("*.vectors") if path != keep]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT - 1 :]:
        path.with_suffix(".digests").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
