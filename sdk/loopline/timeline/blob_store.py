"""The seam for what is too large for a row: bytes kept once, under their sha256."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError

LARGE_BYTES = 32 * 1024
"""A body whose stored JSON is longer travels as a blob."""


class BlobStore(Protocol):
    """Bytes by their sha256 in hexadecimal. It may block, so it is called from threads.

    Promised: what `put` has returned for survives the loss of power (where blobs are kept beyond the
    process), and no bytes are returned that are not those that were put. Not promised: that a blob is
    there which nothing referred to for a day.
    """

    def put(self, data: bytes) -> str:
        """Keep the bytes and return their name; what is there already counts as put anew.

        Raises:
            StoreFull: there is no room; nothing was kept.
        """
        ...

    def get(self, name: str) -> bytes:
        """The bytes that were put.

        Raises:
            StoreError: they are missing or damaged; the message names them.
        """
        ...

    def discard(self, names: Collection[str]) -> None:
        """Remove these, however young; what is not there is none the worse."""
        ...

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove what is not referenced and was put last before that moment; how many there were.

        A put at the same time, of something that was about to be removed, leaves it in place.
        """
        ...


class MemoryBlobs:
    """Blobs that are forgotten when the process ends: the specification of the others."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._blobs: dict[str, tuple[bytes, datetime]] = {}

    def put(self, data: bytes) -> str:
        """Keep the bytes and return their name."""
        name = sha256(data).hexdigest()
        self._blobs[name] = data, self._clock.now()
        return name

    def get(self, name: str) -> bytes:
        """The bytes that were put."""
        if name not in self._blobs:
            raise StoreError(f"blob {name} is missing: put a backup in its place")
        return self._blobs[name][0]

    def discard(self, names: Collection[str]) -> None:
        """Remove these."""
        for name in names:
            self._blobs.pop(name, None)

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove what is not referenced and was put last before that moment."""
        referenced_names = set(referenced())
        unreferenced = [
            name
            for name, (_, put) in self._blobs.items()
            if put < older_than and name not in referenced_names
        ]
        self.discard(unreferenced)
        return len(unreferenced)
