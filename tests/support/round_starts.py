"""Starts of rounds, for blocks that a test makes itself."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from loopline.timeline import RoundStart

_START = RoundStart(
    saw=1,
    takes=(),
    epoch=1,
    opened_by="",
    model="m",
    protocol="native",
    renderer=1,
    system_sha256="",
    tools_sha256="",
    stable_sha256="",
)


def round_start(**fields: Any) -> RoundStart:
    """Return the start of a round that took nothing, or one with these fields instead."""
    return structs.replace(_START, **fields)
