"""Which skills an agent sees: patterns that enable or disable, by consumer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import cast

from loopline.errors import BundleError

REACT = "solver.react.decision.v2"
"""The consumer that the loop is; `react` means the same."""

HIDDEN = "internal"
"""The namespace whose skills are seen only where a pattern enables them."""

_SHORT = "react"
_KEYS = ("enabled", "disabled")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns over skills: an id, `<namespace>.<id>`, or a glob over one of them such as `public.*`."""

    enabled: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()

    def takes(self, namespace: str, id: str) -> bool:
        """Whether a skill is seen."""
        if self.enabled is not None:
            return any(_matches(pattern, namespace, id) for pattern in self.enabled)
        hidden = namespace == HIDDEN
        return not hidden and not any(_matches(p, namespace, id) for p in self.disabled)

    def matches(self, pattern: str, namespace: str, id: str) -> bool:
        """Whether the pattern names a skill."""
        return _matches(pattern, namespace, id)

    def unmatched(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """The patterns without wildcards that name none of these skills."""
        known = list(names)
        return [
            pattern
            for pattern in (*(self.enabled or ()), *self.disabled)
            if not _GLOB.search(pattern)
            and not any(_matches(pattern, namespace, id) for namespace, id in known)
        ]


def selections(config: object) -> dict[str, Selection]:
    """What an AGENTS_CONFIG says, by consumer; `react` comes under its full name.

    Raises:
        BundleError: it has another shape; the message says which one was meant.
    """
    if not isinstance(config, Mapping):
        raise BundleError(f'write {{"{REACT}": {{"enabled": […]}}}}, not {config!r}')
    found = dict[str, Selection]()
    for consumer, patterns in cast("Mapping[object, object]", config).items():
        name = REACT if consumer == _SHORT else consumer
        if not isinstance(name, str) or name in found:
            raise BundleError(f"{consumer!r} is no consumer, or is given twice")
        found[name] = _selection(name, patterns)
    return found


def _selection(consumer: str, patterns: object) -> Selection:
    if not isinstance(patterns, Mapping):
        raise BundleError(
            f'{consumer!r} must have {{"enabled": […]}} or {{"disabled": […]}} or {{}}'
        )
    given = cast("Mapping[object, object]", patterns)
    for key in given:
        if key not in _KEYS:
            near = get_close_matches(str(key), _KEYS, 1, 0.0)[0]
            raise BundleError(f"{consumer!r} has the unknown key {key!r}, nearest is {near!r}")
    if len(given) > 1:
        raise BundleError(f"{consumer!r} has both enabled and disabled: keep one of them")
    texts = {str(key): _texts(consumer, value) for key, value in given.items()}
    return Selection(enabled=texts.get("enabled"), disabled=texts.get("disabled", ()))


def _texts(consumer: str, value: object) -> tuple[str, ...]:
    items = cast("Iterable[object]", value) if isinstance(value, list | tuple) else [None]
    texts = [item for item in items if isinstance(item, str)]
    if not isinstance(value, list | tuple) or len(texts) != len(cast("list[object]", value)):
        raise BundleError(f"{consumer!r} must list patterns as texts, not {value!r}")
    return tuple(texts)


def _matches(pattern: str, namespace: str, id: str) -> bool:
    return fnmatchcase(f"{namespace}.{id}", pattern) or fnmatchcase(id, pattern)
