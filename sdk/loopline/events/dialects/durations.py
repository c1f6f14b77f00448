"""Durations as Go writes them: `1m30.5s`, `234ms`, `0s`."""

from __future__ import annotations

from decimal import Decimal

_SMALL = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def go_duration(milliseconds: float) -> str:
    """The duration, exact to the nanosecond: hours, minutes and seconds, or one unit below a second."""
    left = abs(round(Decimal(str(milliseconds)) * 1_000_000))
    sign = "-" if milliseconds < 0 and left else ""
    if left < 1_000_000_000:
        for size, unit in _SMALL:
            if left >= size:
                return f"{sign}{_decimal(left, size)}{unit}"
        return "0s"
    minutes, below = divmod(left, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    parts = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{parts}{_decimal(below, 1_000_000_000)}s"


def _decimal(count: int, size: int) -> str:
    """How many of a size, with as many decimals as it takes."""
    whole, rest = divmod(count, size)
    decimals = f"{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{decimals}" if decimals else str(whole)
