"""Which harnesses on a store are present: each holds the lock of a file of its own beside the store."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from loopline.adapters.sql.sqlite import make_private_folder, store_error


class PresentHarnesses:
    """The harnesses that are present on a store, by number; the lock of a dead process is free."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-locks") / "harnesses"

    @asynccontextmanager
    async def enter(self, number: int) -> AsyncGenerator[None, None]:
        """Count the harness of that number as present until the context is left.

        Raises:
            StoreError: the file of the lock cannot be made.
        """
        descriptor = await asyncio.to_thread(self._lock, f"{number}")
        try:
            yield
        finally:
            await asyncio.to_thread(self._release, f"{number}", descriptor)

    async def has(self, number: int) -> bool:
        """Return whether the harness of that number is present."""
        return await asyncio.to_thread(self._is_locked, f"{number}")

    def _lock(self, name: str) -> int:
        """Lock a new file and return its descriptor; remove the files of processes that have died."""
        try:
            make_private_folder(self._folder.parent)
            make_private_folder(self._folder)
            for file in self._folder.iterdir():
                self._is_locked(file.name)
            while True:
                descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if (self._folder / name).exists():
                    return descriptor
                os.close(descriptor)  # another process removed the file before it was locked
        except OSError as error:
            raise store_error(self._folder, error) from error

    def _release(self, name: str, descriptor: int) -> None:
        (self._folder / name).unlink(missing_ok=True)
        os.close(descriptor)

    def _is_locked(self, name: str) -> bool:
        """Return whether a process holds the lock of the file; remove the file if none does."""
        file = self._folder / name
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error(file, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            with suppress(FileNotFoundError):
                file.unlink()
            return False
        finally:
            os.close(descriptor)
