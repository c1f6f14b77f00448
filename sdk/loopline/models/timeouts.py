"""How long a model at a provider is waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds: for a connection, between two pieces of a reply, for all of it.

    The first piece is waited for as long as any other; a large model on a small machine may need more.
    """

    connect: float = 10.0
    read: float = 180.0
    total: float = 1_800.0
