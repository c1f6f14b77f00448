"""Findings: every passage that the searches and reads of a turn brought, and what to read next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopline.adapters.offline.evidence import Evidence, Found
from loopline.adapters.offline.passages import Passage, passages, region
from loopline.adapters.offline.turn import Done

SMOOTHING = 6.0
MOST_READ = 3
AROUND = 12


@dataclass(slots=True)
class _Tally:
    passage: Passage
    points: float = 0.0
    queries: set[str] = field(default_factory=set[str])


def gather(searches: Sequence[Done], reads: Sequence[Done]) -> tuple[list[Found], dict[str, int]]:
    """The passages found, ranked by all searches together, and how many each search gave."""
    tallies: dict[int, _Tally] = {}
    queries: dict[str, int] = {}
    for done in searches:
        query = str(done.call.arguments.get("query", ""))
        given = passages(done.text) if done.ok else []
        queries[query] = len(given)
        for place, passage in enumerate(given):
            tally = tallies.setdefault(passage.sid, _Tally(passage))
            tally.points += 1.0 / (SMOOTHING + place)
            tally.queries.add(query)
    for done in reads:
        for passage in passages(done.text) if done.ok else []:
            _take_read(tallies, passage)
    most = max((tally.points for tally in tallies.values()), default=0.0) or 1.0
    found = [
        Found(tally.passage, tally.points / most, frozenset(tally.queries))
        for tally in tallies.values()
    ]
    return found, queries


def _take_read(tallies: dict[int, _Tally], passage: Passage) -> None:
    """A read passage counts as much as the best that it contains."""
    inside = [tally for tally in tallies.values() if _contains(passage, tally.passage)]
    points = max((tally.points for tally in inside), default=0.0)
    held = tallies.get(passage.sid)
    if held is None or held.passage.cut or not held.passage.text:
        tallies[passage.sid] = _Tally(passage, max(points, held.points if held else 0.0))


def _contains(outer: Passage, inner: Passage) -> bool:
    if outer.path != inner.path or inner.lines is None:
        return False
    if outer.lines is None:
        return True
    return outer.lines[0] <= inner.lines[0] and inner.lines[1] <= outer.lines[1]


def readable(evidences: Sequence[Evidence]) -> list[str]:
    """The refs to read: the regions around the best passages of each question."""
    best: dict[str, Passage] = {}
    for evidence in evidences:
        chosen: list[Passage] = []
        for scored in evidence.scored:
            if len(chosen) >= MOST_READ:
                break
            if scored.passage not in chosen:
                chosen.append(scored.passage)
        best.update({passage.ref: passage for passage in chosen})
    return list(dict.fromkeys(region(passage, around=AROUND) for passage in best.values()))
