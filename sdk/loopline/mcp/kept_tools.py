"""The tools of servers, kept in files beside the store, so that a server starts only at its first call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from pydantic import TypeAdapter, ValidationError

from loopline.tools import McpToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTools:
    """The tools that a server listed, and what it called itself then.

    The schemas of the tools have been checked. `left_out` says why other tools cannot be used.
    """

    server: str
    version: str
    tools: tuple[McpToolSpec, ...]
    left_out: dict[str, str]


_KEPT = TypeAdapter(KeptTools)


def read_kept_tools(folder: Path | None, digest: str) -> KeptTools | None:
    """Return what the folder has of the server with that digest, or None."""
    if folder is None:
        return None
    try:
        return _KEPT.validate_json((folder / f"{digest}.json").read_bytes())
    except (OSError, ValidationError):  # another version wrote it, or nothing did
        return None


def write_kept_tools(folder: Path | None, digest: str, kept: KeptTools) -> None:
    """Keep the tools in place of those kept before; without a folder keep nothing.

    Raises:
        OSError: the folder cannot be written to.
    """
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{digest}.{token_hex(4)}.partial"
    partial.write_bytes(_KEPT.dump_json(kept))
    partial.replace(folder / f"{digest}.json")
