"""Waiting until the disk has stored a file, on each operating system by the call that does so."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final

FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""The command of `fcntl` on macOS, where `fsync` does not wait for the disk; None on other systems."""

_UNSUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def _sync_fully(descriptor: int) -> None:
    """Sync a file with F_FULLFSYNC, or with `fsync` if its file system does not support the command."""
    assert FULL_SYNC is not None
    try:
        fcntl.fcntl(descriptor, FULL_SYNC)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.fsync(descriptor)


sync_file: Final[Callable[[int], None]] = os.fsync if FULL_SYNC is None else _sync_fully
"""Wait until the data and the attributes of an open file, or the names in an open folder, are stored."""

sync_data: Final[Callable[[int], None]] = (
    getattr(os, "fdatasync", os.fsync) if FULL_SYNC is None else _sync_fully
)
"""Wait until the data of an open file is stored, and its size."""
