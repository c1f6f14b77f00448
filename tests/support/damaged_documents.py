"""Exported documents that somebody changed by hand, drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import cast

from loopline.models import Json, JsonObject

VALUES: list[Json] = [
    None, True, 0, -1, 7, 2**53, 10**30, 0.5, "", "turn_9", "\ud800", "\0", [], [[]], {}, {"a": 1}
]  # fmt: skip


def damaged(document: JsonObject, drawn: Random) -> JsonObject:
    """The document with one to three of its values changed, removed, doubled or put elsewhere."""
    broken = deepcopy(document)
    if drawn.random() < 0.5:
        for row in cast("list[JsonObject]", broken["blocks"]):
            row.pop("digest", None)
    for _ in range(drawn.randint(1, 3)):
        holders = [container for container in containers(broken) if container]
        _damage(drawn.choice(holders), drawn)
    return broken


def containers(value: Json) -> Iterator[JsonObject | list[Json]]:
    """Every object and every array in a value, itself included."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from containers(inner)
    elif isinstance(value, list):
        yield value
        for inner in value:
            yield from containers(inner)


def _damage(holder: JsonObject | list[Json], drawn: Random) -> None:
    if isinstance(holder, dict):
        name = drawn.choice(list(holder))
        if drawn.random() < 0.3:
            del holder[name]
        else:
            holder[name] = drawn.choice(VALUES)
        return
    at, other = drawn.randrange(len(holder)), drawn.randrange(len(holder))
    match drawn.randrange(4):
        case 0:
            del holder[at]
        case 1:
            holder.insert(other, deepcopy(holder[at]))
        case 2:
            holder[at], holder[other] = holder[other], holder[at]
        case _:
            holder[at] = drawn.choice(VALUES)
