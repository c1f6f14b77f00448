"""How much of one reply is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """The most that one reply may hold: bytes of text, thinking and arguments, and calls.

    The defaults are many times what any model writes today. A reply that holds more is given up while it
    streams, as `ModelReplyTooLarge`.
    """

    bytes: int = 16 * 2**20
    calls: int = 256
