"""Which blocks are asked for by type: a type stands for itself and for those below it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from loopline.timeline.codec import body_types


def is_among(kind: str, types: Sequence[str]) -> bool:
    """Whether a stored type is one of these or below one, as `react.tool.call` is below `react.tool`."""
    return any(kind == one or kind.startswith(f"{one}.") for one in types)


def is_known(kind: str) -> bool:
    """Whether this loopline has such a type, or types below it."""
    return kind in _known()


def nearest(kind: str) -> str:
    """The known type, or beginning of types, that is written most like this one."""
    (found,) = get_close_matches(kind, _known(), n=1, cutoff=0)
    return found


@cache
def _known() -> tuple[str, ...]:
    """Every type and every beginning of one, in alphabetical order."""
    parts = [word.split(".") for word in body_types()]
    return tuple(sorted({".".join(one[:end]) for one in parts for end in range(1, len(one) + 1)}))
