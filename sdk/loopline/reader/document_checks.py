"""Check that the numbers in a document's bodies are possible, and name what is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loopline.models import Json
from loopline.timeline import (
    ArtifactKept,
    Block,
    Body,
    Checkpoint,
    Completion,
    Projection,
    RangeSummary,
    RoundStart,
    SourceAdded,
    Unknown,
    UserRecalled,
    encode_full,
)

MOST = 2**53
"""No number of a block is larger."""
_FREE = {"arguments", "ran_with", "value", "parts", "limits"}
"""Fields whose values tools, bundles and providers choose."""


@dataclass(slots=True)
class _Known:
    """What the blocks before a place have made."""

    turn: int = 0
    sids: set[int] = field(default_factory=set[int])
    versions: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])


def number_fault(blocks: Sequence[Block]) -> tuple[int, str] | None:
    """Return the index of the first block with an impossible number, and what is wrong with it."""
    known = _Known()
    for index, block in enumerate(blocks):
        known.turn = max(known.turn, block.turn)
        for path, number in _numbers(_whole(block.body), "body"):
            if not 0 <= number <= MOST:
                return index, f"{path}: {number} is not from 0 to {MOST}"
        for fault in _faults(block, known):
            return index, fault
    return None


def _whole(body: Body) -> Json:
    written: Json = None if isinstance(body, Unknown) else json.loads(encode_full(body))
    return written


def _numbers(value: Json, path: str) -> Iterator[tuple[str, int | float]]:
    """Every number in a body, with its path, save those in free-form JSON."""
    match value:
        case dict():
            for name, item in value.items():
                if name not in _FREE:
                    yield from _numbers(item, f"{path}.{name}")
        case list():
            for index, item in enumerate(value):
                yield from _numbers(item, f"{path}[{index}]")
        case bool():
            pass
        case int() | float():
            yield path, value
        case _:
            pass


def _faults(block: Block, known: _Known) -> Iterator[str]:
    """Yield what is wrong with numbers that name other blocks, turns, sources or versions."""
    before = block.seq - 1
    match block.body:
        case UserRecalled(said=said):
            yield from _beyond("said", [said], 1, before)
        case RoundStart(saw=saw, takes=takes, window=window):
            yield from _beyond("saw", [saw], 0, before)
            yield from _beyond("takes", takes, 1, before)
            if window is not None:
                yield from _window_faults(window, known.turn, before)
        case RangeSummary(covers=covers, first_turn=first, last_turn=last):
            yield from _beyond("covers", [covers], 1, before)
            yield from _beyond("first_turn", [first], 1, known.turn)
            yield from _beyond("last_turn", [last], first, known.turn)
        case Checkpoint(covers=covers, carries=carries):
            yield from _beyond("covers", [covers], 1, before)
            yield from _beyond("carries", carries, 1, covers)
            if any(one >= after for one, after in pairwise(carries)):
                yield "body.carries: the places are not in order"
        case _:
            yield from _pool_faults(block, known)


def _window_faults(window: Projection, turn: int, before: int) -> Iterator[str]:
    places = {
        "summary": window.summary,
        "start": window.start,
        "reads_cleared": window.reads_cleared,
        "results_cleared": window.results_cleared,
        "hides": window.hides,
        "feedback": window.feedback,
        "unbound": window.unbound,
        "files_cleared": window.files_cleared,
    }
    for name, place in places.items():
        yield from _beyond(f"window.{name}", [place], 0, before)
    turns = {"old_before": window.old_before, "spent_before": window.spent_before}
    for name, number in turns.items():
        yield from _beyond(f"window.{name}", [number], 0, turn + 1)


def _pool_faults(block: Block, known: _Known) -> Iterator[str]:
    match block.body:
        case SourceAdded(sid=sid):
            yield from _beyond("sid", [sid], 1, len(known.sids) + 1)
            known.sids.add(sid)
        case Completion(sources_used=used):
            for sid in used:
                if sid not in known.sids:
                    yield f"body.sources_used: there is no source {sid}"
        case ArtifactKept(name=name, version=version):
            newest = known.versions.get((block.turn, name), 0)
            yield from _beyond("version", [version], newest + 1, newest + 1)
            known.versions[block.turn, name] = version
        case _:
            pass


def _beyond(name: str, numbers: Iterable[int], first: int, last: int) -> Iterator[str]:
    for number in numbers:
        if not first <= number <= last:
            yield f"body.{name}: {number} is not from {first} to {last}"
