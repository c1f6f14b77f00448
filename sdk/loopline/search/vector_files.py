"""Vectors in memory-mapped files of 32-bit floats, which NumPy searches exactly.

Each index has two files: the digests of the texts of its passages, and their vectors, in the same order. A build appends to
both in batches of the embedder. A process that is killed loses at most one batch. Since a vector may depend on the other
texts of its batch, batches always start at the same rows.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopline.search.embedder import Embedder, EmbeddingError, Vector
from loopline.search.index import Index
from loopline.search.vectors import (
    PASSAGE_TEXT_VERSION,
    CosineFunction,
    Neighbour,
    VectorCache,
    VectorIndex,
    VectorProgress,
    passage_text,
)
from loopline.shared_files import lock_file, open_lock_file

MAX_FINISHED = 16
MAX_UNFINISHED = 4
"""The numbers of indexes with finished and unfinished vectors in a folder; the least recently used are removed."""
DIGEST_BYTES = 16
UNFINISHED = ".growing"
"""The suffix of the file of vectors during a build. The name of the file of digests has `-digests` after the suffix."""
CACHED = ".cached"
"""The suffix of the file of vectors of single texts. Its file of digests has `-digests` after the suffix."""
CACHED_BYTES = 64 << 20
"""The size from which a file of single vectors starts again from empty."""
LOCK_SECONDS = 0.2
"""The pause between attempts to lock while another process makes vectors of the same model."""
_Rows = NDArray[np.float32]


class VectorMatrix:
    """The vectors of an index as rows of a matrix. Row 0 is the vector of chunk 1."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        """Return the `limit` nearest chunks, nearest first; with `among`, only chunks with these numbers."""
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
        """Return the cosine of the query and the vector of each of these chunks, in the same order."""
        rows = self._rows[np.asarray(numbers, dtype=np.int64) - 1]
        return [float(value) for value in rows @ np.frombuffer(query, dtype="<f4")]


def vector_rows(data: bytes, count: int) -> CosineFunction:
    """Load `count` concatenated vectors, and return a function that compares queries with them."""
    rows = np.frombuffer(data, dtype="<f4").reshape(count, len(data) // 4 // max(count, 1))

    def compare(query: Vector) -> list[float]:
        if not count:
            return []
        similarities: list[float] = (rows @ np.frombuffer(query, dtype="<f4")).tolist()
        return similarities

    return compare


class VectorFiles:
    """Vectors in a folder. Several processes may share it: one builds, and the others wait and open the result."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def cache(self, embedder: Embedder) -> VectorCache:
        """Return the cache of the vectors of single texts by the embedder. A build uses its vectors too."""
        return _CachedTexts(_Files(self._directory, "single texts", embedder))

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        """Return the vectors of the index with `size` chunks, or None if some are missing."""
        rows = _Files(self._directory, signature, embedder).complete_rows(size)
        return None if rows is None else VectorMatrix(rows)

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
        """Make the missing vectors, and return the vectors of all chunks; return None if `progress` returned False.

        While another process builds, `progress` is called with 0. Old files of the model are removed at the end.

        Raises:
            EmbeddingError: the vectors cannot be written, or the embedder failed.
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
    """The files of vectors and digests of one index and embedder, finished and unfinished."""

    def __init__(self, directory: Path, signature: str, embedder: Embedder) -> None:
        self._embedder = embedder
        self._directory = directory
        self.model: str = _digest(
            f"{embedder.key}/{embedder.dimensions}/{PASSAGE_TEXT_VERSION}"
        ).hex()[:16]
        self.vectors: Path = directory / _vectors_name(signature, self.model)
        self._row_bytes = 4 * embedder.dimensions

    def complete_rows(self, size: int) -> _Rows | None:
        """Return the rows of a finished build if it has `size` rows, otherwise None."""
        rows = self._map_rows(self.vectors)
        return rows if rows is not None and len(rows) == size else None

    def fill(self, index: Index, progress: VectorProgress) -> bool:
        """Append the missing rows and finish the files; return False if `progress` did, and keep the rows."""
        growing = self.vectors.with_suffix(UNFINISHED)
        done = self._count_valid_rows(growing)
        source = _TextRows(index, self._embedder, self._load_base(index), self)
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
        """Remove the least recently used files of the model, except 4 unfinished and 16 finished ones.

        The caller must have the lock. A process that has mapped a removed file can continue to use it.
        """
        finished = [path for path in self._paths(".vectors") if path != self.vectors]
        finished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        unfinished = self._paths(UNFINISHED)
        unfinished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [*unfinished[MAX_UNFINISHED:], *finished[MAX_FINISHED - 1 :]]:
            _digests_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def _load_base(self, index: Index) -> _Base | None:
        """Return the vectors of the index that this index was made from; None if there are none."""
        if index.base is None:
            return None
        path = self._directory / _vectors_name(index.base.signature, self.model)
        rows = self._map_rows(path)
        if rows is None:
            return None
        return _Base(rows, _digests_of(path).read_bytes(), index.base.changed)

    def read_cached(self) -> dict[bytes, Vector]:
        """Return the vectors of single texts by the digest of their text; vectors that were cut off are left out."""
        return {key: _vector(*place) for key, place in self.find_rows(CACHED).items()}

    def append_cached(self, vectors: Mapping[bytes, Vector]) -> None:
        """Append vectors of single texts, by digest, to a cache, which is emptied first if it exceeds 64 MiB.

        Other processes that append wait.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.vectors.with_suffix(CACHED)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock_file(self._directory / f"{self.model}.cache-lock"):
            if path.exists() and path.stat().st_size > CACHED_BYTES:
                # Removed and not truncated: another process may have mapped the rows.
                _digests_of(path).unlink(missing_ok=True)
                path.unlink()
            with path.open("ab") as rows, _digests_of(path).open("ab") as digests:
                complete = min(rows.tell() // self._row_bytes, digests.tell() // DIGEST_BYTES)
                rows.truncate(complete * self._row_bytes)
                digests.truncate(complete * DIGEST_BYTES)
                rows.write(b"".join(vectors.values()))
                digests.write(b"".join(vectors))

    def _count_valid_rows(self, growing: Path) -> int:
        """Return the number of valid rows of an unfinished build: whole batches in which all vectors have length 1."""
        rows = self._map_rows(growing)
        if rows is None:
            return 0
        # A crash of the machine can leave blocks of zeros in the file.
        broken = np.flatnonzero(np.abs(np.linalg.norm(rows, axis=1) - 1) > 1e-2)
        first = int(broken[0]) if len(broken) else len(rows)
        return first - first % self._embedder.batch

    def _paths(self, suffix: str) -> list[Path]:
        return list(self._directory.glob(f"*-{self.model}{suffix}"))

    def find_rows(self, *suffixes: str) -> dict[bytes, tuple[_Rows, int]]:
        """Return rows in the model's files with these suffixes, by digest of the text: a matrix and a row number."""
        found: dict[bytes, tuple[_Rows, int]] = {}
        for path in [path for suffix in suffixes for path in self._paths(suffix)]:
            rows = self._map_rows(path)
            if rows is None or path == self.vectors.with_suffix(UNFINISHED):
                continue
            usable = self._count_valid_rows(path) if path.suffix == UNFINISHED else len(rows)
            digests = _digests_of(path).read_bytes()
            for row in range(usable):
                found[digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]] = (rows, row)
        return found

    def _map_rows(self, vectors: Path) -> _Rows | None:
        """Map the rows of a file; None if a file is missing, or a finished file is truncated.

        An unfinished file may have more rows than digests or the reverse; only rows with a digest are returned.
        """
        try:
            rows, partial_row = divmod(vectors.stat().st_size, self._row_bytes)
            digests, partial_digest = divmod(_digests_of(vectors).stat().st_size, DIGEST_BYTES)
            if vectors.suffix == ".vectors":
                if partial_row or partial_digest or rows != digests:
                    return None
                os.utime(vectors)
            shape = (min(rows, digests), self._embedder.dimensions)
            if not shape[0]:  # an empty file cannot be mapped
                return np.empty(shape, dtype=np.float32)
            return np.memmap(vectors, dtype="<f4", mode="r", shape=shape)
        except OSError:
            return None


class _CachedTexts:
    """The vectors of single texts in a file, and in memory once they are read."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._vectors: dict[bytes, Vector] | None = None
        self._lock = threading.Lock()

    def find(self, texts: Collection[str]) -> dict[str, Vector]:
        """Return the stored vectors by text; texts without a vector are left out. The first call reads the file."""
        with self._lock:
            if self._vectors is None:
                self._vectors = self._files.read_cached()
            digests = {text: _digest(text) for text in texts}
            return {
                text: self._vectors[digest]
                for text, digest in digests.items()
                if digest in self._vectors
            }

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Store the vectors of these texts; raise EmbeddingError if the folder cannot be written to."""
        new = {_digest(text): vector for text, vector in vectors.items()}
        with self._lock:
            if self._vectors is not None:
                self._vectors.update(new)
        try:
            self._files.append_cached(new)
        except OSError as error:
            raise EmbeddingError(f"a vector cannot be written: {error}") from error


@dataclass(frozen=True, slots=True)
class _Base:
    """The vectors of the base of an index, and the numbers of the chunks that changed since."""

    rows: _Rows
    digests: bytes
    changed: frozenset[int]

    def has(self, numbers: range) -> bool:
        return numbers.stop - 1 <= len(self.rows) and self.changed.isdisjoint(numbers)


class _TextRows:
    """Makes the rows of an index in batches. It copies the vectors of texts that were embedded earlier, and embeds the rest."""

    def __init__(self, index: Index, embedder: Embedder, base: _Base | None, files: _Files) -> None:
        self._index = index
        self._embedder = embedder
        self._base = base
        self._files = files

    @cached_property
    def _earlier(self) -> Mapping[bytes, tuple[_Rows, int]]:
        return self._files.find_rows(".vectors", UNFINISHED, CACHED)

    def batch(self, done: int) -> tuple[bytes, bytes]:
        """Return the next batch after `done` rows, as bytes: the rows, and the digests of their texts.

        Raises:
            EmbeddingError: the index lacks the next passage.
        """
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
        found = [self._earlier.get(key) for key in keys]
        new = [text for text, place in zip(texts, found, strict=True) if place is None]
        embedded = iter(self._embedder.embed_passages(new) if new else [])
        return [next(embedded) if place is None else _vector(*place) for place in found]


def _vector(rows: _Rows, row: int) -> Vector:
    vector: Vector = rows[row].tobytes()
    return vector


def _vectors_name(signature: str, model: str) -> str:
    return f"{_digest(signature).hex()}-{model}.vectors"


def _digests_of(vectors: Path) -> Path:
    return vectors.with_suffix(f"{vectors.suffix}-digests")


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=DIGEST_BYTES).digest()


def _try_lock(descriptor: int) -> bool:
    """Try to lock; return False if another process or thread has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
