"""Disks that fail under a store: no log to sync, no log that can be opened, and files that cannot be written."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LOWEST_ADDRESS = 0x400000
"""The first address of a program that is not position-independent."""


@contextmanager
def unsynced(store: Path) -> Generator[None]:
    """Have no disk to wait for in the place of the store's write-ahead log, which is still written."""
    with _replaced_log(store, "/dev/null"):
        yield


@contextmanager
def unopened(store: Path) -> Generator[None]:
    """Have a link to itself in the place of the store's write-ahead log, which is still written."""
    with _replaced_log(store, f"{store}-wal"):
        yield


@contextmanager
def failing(file: Path) -> Generator[None]:
    """Let this process's reads and writes of a file that it has open for writing fail with EIO.

    Each descriptor of the file leads to the memory of this process meanwhile, where no page is mapped at the places
    of a small file. A descriptor that only syncs the file is left as it is.
    """
    if file.stat().st_size > LOWEST_ADDRESS // 2:
        raise ValueError(f"{file} is too large to be replaced by memory")
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    originals = {descriptor: os.dup(descriptor) for descriptor in _open_for_writing(file)}
    for descriptor in originals:
        os.dup2(memory, descriptor, inheritable=False)
    try:
        yield
    finally:
        for descriptor, original in originals.items():
            if _leads_to(descriptor, f"/proc/{os.getpid()}/mem"):  # else it was closed meanwhile
                os.dup2(original, descriptor, inheritable=False)
            os.close(original)
        os.close(memory)


@contextmanager
def no_growth(file: Path, more_bytes: int) -> Generator[None]:
    """Let no file of this process grow further than that beyond this one: the write that would is cut short."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + more_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _open_for_writing(file: Path) -> list[int]:
    descriptors = [int(link.name) for link in Path("/proc/self/fd").iterdir()]
    return [
        descriptor
        for descriptor in descriptors
        if _leads_to(descriptor, str(file)) and _may_write(descriptor)
    ]


def _leads_to(descriptor: int, target: str) -> bool:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()) == target
    except FileNotFoundError:  # that of the listing itself
        return False


def _may_write(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


@contextmanager
def _replaced_log(store: Path, target: str) -> Generator[None]:
    log, aside = Path(f"{store}-wal"), store.with_name("aside")
    log.rename(aside)
    log.symlink_to(target)
    try:
        yield
    finally:
        log.unlink()
        aside.rename(log)
