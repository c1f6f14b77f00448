"""The blob store: large bodies stored once, under the sha256 of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError

LARGE_BYTES = 32 * 1024
"""A body whose JSON is longer is stored as a blob."""


class BlobStore(Protocol):
    """Bytes by their sha256 in hexadecimal. It may block, so it is called from threads.

    Promised: once `put` has returned, the bytes survive a loss of power, if the store outlives the process; `get`
    returns exactly the bytes that were put. Not promised: that a blob stays when nothing referred to it for a day.
    """

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name; bytes that are there already count as put again.

        Raises:
            StoreFull: there is no room; nothing was stored.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return the bytes that were put.

        Raises:
            StoreError: they are missing or damaged; the message names them.
        """
        ...

    def discard(self, names: Collection[str]) -> None:
        """Remove these blobs, however young; missing ones are ignored."""
        ...

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove the unreferenced blobs that were last put before that time, and return their number.

        A blob that is put at the same time stays.
        """
        ...


class MemoryBlobs:
    """A blob store in memory: the specification of the others."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._blobs: dict[str, tuple[bytes, datetime]] = {}

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name."""
        name = sha256(data).hexdigest()
        self._blobs[name] = data, self._clock.now()
        return name

    def get(self, name: str) -> bytes:
        """Return the bytes that were put."""
        if name not in self._blobs:
            raise StoreError(f"blob {name} is missing: put a backup in its place")
        return self._blobs[name][0]

    def discard(self, names: Collection[str]) -> None:
        """Remove these blobs."""
        for name in names:
            self._blobs.pop(name, None)

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove the unreferenced blobs that were last put before that time."""
        referenced_names = set(referenced())
        unreferenced = [
            name
            for name, (_, put) in self._blobs.items()
            if put < older_than and name not in referenced_names
        ]
        self.discard(unreferenced)
        return len(unreferenced)
