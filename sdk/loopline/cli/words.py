"""What a run says, as text: the pieces from its first line to its last, each a value in and a text out."""

from __future__ import annotations

import re

from loopline.timeline import (
    LimitValue,
)

QUIET = "bright_black"
REF = "cyan"

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters made visible, so that it cannot steer a terminal."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def duration(ms: float) -> str:
    """`0.4 ms`, `31 ms`, `2.4 s`."""
    if ms < 1:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def worded(value: LimitValue) -> str:
    """The value of a policy, for people."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:,g}" if value < 1_000_000 else str(value)
        case str():
            return value


def counted(count: int, unit: str) -> str:
    """`1 hit`, `1,903 hits`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
