"""`loopline serve --reload`: the process begins anew when a file of a bundle has changed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from loopline.bundle import load
from loopline.errors import BundleError

_SUFFIXES = frozenset({".py", ".yaml", ".yml", ".md", ".json", ".toml"})
_SKIPPED = frozenset({"__pycache__", "node_modules"})


def is_source(path: Path, folders: Sequence[Path]) -> bool:
    """Return whether a bundle in one of these folders is made of the file; what begins with a dot is no part of it."""
    inside = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    return path.suffix in _SUFFIXES and any(
        not any(part in _SKIPPED or part.startswith(".") for part in place.parts)
        for place in inside
    )


class _Watchfiles(Protocol):
    def awatch(
        self, *paths: Path, watch_filter: Callable[[int, str], bool]
    ) -> AsyncGenerator[set[tuple[int, str]], None]: ...


def bundle_location(source: str) -> Path:
    """Return the folder of a bundle, or its one file.

    Raises:
        BundleError: there is no such bundle, its code fails, or it is in no file.
    """
    loaded = load(source)
    location = loaded.file or loaded.folder
    if location is None:
        raise BundleError(f"{source}: it is in no file, and --reload has nothing to watch")
    return location


async def watch(locations: Sequence[Path], on_change: Callable[[Path], None]) -> None:
    """Call `on_change` with the first file of these bundles that changes, comes or goes."""
    library = cast("_Watchfiles", await asyncio.to_thread(import_module, "watchfiles"))
    async for changes in library.awatch(
        *locations, watch_filter=lambda _, path: is_source(Path(path), locations)
    ):
        on_change(min(Path(path) for _, path in changes))
        return


def begin_anew() -> None:
    """Replace this process by one with the same arguments."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
