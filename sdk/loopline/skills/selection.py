"""Selections of skills: which of them each consumer sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

from loopline.errors import BundleError
from loopline.names import nearest_name

REACT = "solver.react.decision.v2"
"""The loop as a consumer of skills; `react` is short for it."""

REACT_SHORT = "react"

HIDDEN = "internal"
"""The namespace whose skills are hidden unless a pattern enables them."""

_KEYS = ("enabled", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSelection:
    """Patterns over skills: an id, `<namespace>.<id>`, or a glob over one of them such as `public.*`."""

    enabled: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()

    def takes(self, namespace: str, id: str) -> bool:
        """Return whether the agent sees a skill."""
        if self.enabled is not None:
            return any(_matches(pattern, namespace, id) for pattern in self.enabled)
        hidden = namespace == HIDDEN
        return not hidden and not any(_matches(p, namespace, id) for p in self.disabled)

    def matches(self, pattern: str, namespace: str, id: str) -> bool:
        """Return whether the pattern names a skill."""
        return _matches(pattern, namespace, id)

    def unmatched(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return the patterns that match none of these skills, which are pairs of namespace and id."""
        skills = list(names)
        return [
            pattern
            for pattern in (*(self.enabled or ()), *self.disabled)
            if not any(_matches(pattern, namespace, id) for namespace, id in skills)
        ]


def skill_selections(config: object) -> dict[str, SkillSelection]:
    """Return what an AGENTS_CONFIG selects, by consumer; `react` gets its full name.

    Raises:
        BundleError: it has another shape; the message says which one to write.
    """
    if not isinstance(config, Mapping):
        raise BundleError(f'write {{"{REACT}": {{"enabled": […]}}}}, not {config!r}')
    by_consumer: dict[str, SkillSelection] = {}
    for consumer, patterns in cast("Mapping[object, object]", config).items():
        name = REACT if consumer == REACT_SHORT else consumer
        if not isinstance(name, str) or name in by_consumer:
            raise BundleError(f"{consumer!r} is no name of a consumer, or stands there twice")
        by_consumer[name] = _selection(name, patterns)
    return by_consumer


def _selection(consumer: str, patterns: object) -> SkillSelection:
    if not isinstance(patterns, Mapping):
        raise BundleError(
            f'{consumer!r} must have {{"enabled": […]}} or {{"disabled": […]}} or {{}}'
        )
    settings = cast("Mapping[object, object]", patterns)
    for key in settings:
        if key not in _KEYS:
            near = nearest_name(str(key), _KEYS)
            raise BundleError(f"{consumer!r} has the unknown key {key!r}, nearest is {near!r}")
    if len(settings) > 1:
        raise BundleError(f"{consumer!r} has both enabled and disabled: keep one of them")
    texts = {str(key): _texts(consumer, value) for key, value in settings.items()}
    return SkillSelection(**texts)


def _texts(consumer: str, value: object) -> tuple[str, ...]:
    items = cast("Iterable[object]", value) if isinstance(value, list | tuple) else [None]
    texts = [item for item in items if isinstance(item, str)]
    if not isinstance(value, list | tuple) or len(texts) != len(cast("list[object]", value)):
        raise BundleError(f"{consumer!r} must list patterns as texts, not {value!r}")
    return tuple(texts)


def _matches(pattern: str, namespace: str, id: str) -> bool:
    return fnmatchcase(f"{namespace}.{id}", pattern) or fnmatchcase(id, pattern)
