"""A cache of the tools of servers, in files next to the store, which delays the start of a server until a call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from loopline.shared_files import replace_file
from loopline.tools import McpToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTools:
    """The tools that a server listed, with checked schemas, and the name and version of the server.

    `left_out` are the reasons why other tools cannot be used, by their names.
    """

    server: str
    version: str
    tools: tuple[McpToolSpec, ...]
    left_out: dict[str, str]


_KEPT = TypeAdapter(CachedTools)


def read_cached_tools(folder: Path | None, digest: str) -> CachedTools | None:
    """Return the cached tools of the server with this digest, or None. Damaged files count as missing."""
    if folder is None:
        return None
    try:
        return _KEPT.validate_json((folder / f"{digest}.json").read_bytes())
    except (OSError, ValidationError):  # missing, or written by another version
        return None


def write_cached_tools(folder: Path | None, digest: str, tools: CachedTools) -> None:
    """Write the tools to the cache, in place of earlier tools. Without a folder, this has no effect.

    Raises:
        OSError: the folder cannot be written to.
    """
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / f"{digest}.json", _KEPT.dump_json(tools), private=False)
