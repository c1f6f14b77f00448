"""What a request that was never recorded resembles most, and where it first differs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import AnyStr

from loopline.adapters.wires.bytes import a_list, an_object
from loopline.adapters.wires.cassettes.lines import Request
from loopline.models import Json, dumps

BEFORE, AFTER = 20, 60
"""How many characters of a text are shown, before its first difference and from there on."""
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two requests first differ, such as `messages[3].content`, and what each has there."""

    path: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.path}: recorded {self.recorded}, now {self.now}"


def nearest(recorded: Sequence[Request], now: Request) -> Request:
    """The one that shares most leading messages with it, then most leading bytes."""
    return max(recorded, key=lambda one: _alike(one, now))


def difference(recorded: Request, now: Request) -> Difference:
    """The first difference of two requests that differ: URL, headers, then body."""
    if recorded.url != now.url:
        return _texts("url", recorded.url, now.url)
    found = _between("headers", dict(recorded.headers), dict(now.headers))
    found = found or _between("", recorded.body, now.body)
    return found or _texts("body", repr(recorded.content), repr(now.content))


def _alike(one: Request, other: Request) -> tuple[int, int]:
    pairs = zip(_messages(one), _messages(other), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same, _shared(one.content, other.content)


def _shared(one: AnyStr, other: AnyStr) -> int:
    """How long the beginning is that both have."""
    lengths = range(min(len(one), len(other)))
    return bisect_left(lengths, True, key=lambda n: one[: n + 1] != other[: n + 1])


def _messages(request: Request) -> list[Json]:
    body = an_object(request.body)
    return a_list(body.get("messages", body.get("input")))


def _between(path: str, recorded: Json, now: Json) -> Difference | None:
    match recorded, now:
        case dict(), dict():
            names = dict.fromkeys([*recorded, *now])
            dot = f"{path}." if path else ""
            pairs = [(f"{dot}{name}", _at(recorded, name), _at(now, name)) for name in names]
        case list(), list():
            places = range(max(len(recorded), len(now)))
            pairs = [(f"{path}[{n}]", recorded[n : n + 1], now[n : n + 1]) for n in places]
        case str(), str():
            return None if recorded == now else _texts(path, recorded, now)
        case _:
            return None if recorded == now else _texts(path, dumps(recorded), dumps(now))
    for place, left, right in pairs:
        if not left or not right:
            return Difference(place, _only(left), _only(right))
        found = _between(place, left[0], right[0])
        if found is not None:
            return found
    return None


def _at(found: dict[str, Json], name: str) -> list[Json]:
    return [found[name]] if name in found else []


def _only(found: list[Json]) -> str:
    return _shortened(dumps(found[0])) if found else NOTHING


def _texts(path: str, recorded: str, now: str) -> Difference:
    at = _shared(recorded, now)
    return Difference(path, _shortened(recorded, at), _shortened(now, at))


def _shortened(text: str, at: int = 0) -> str:
    """The text about a place of it, in quotes."""
    start, end = max(at - BEFORE, 0), at + AFTER
    return dumps(f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}")
