"""Summaries as text: what stands in a prompt for the blocks that a summary covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopline.refs import DocumentRef
from loopline.timeline.shown import LedgerLine, RangeSummary, turn_id


def summary_text(summary: RangeSummary) -> str:
    """Everything the summary says, section by section; a section without lines is left out."""
    return "\n".join(_lines(summary))


def _lines(summary: RangeSummary) -> Iterator[str]:
    end = ", in part" if summary.split else ""
    first, last = turn_id(summary.first_turn), turn_id(summary.last_turn)
    yield f"[SUMMARY] of {first} to {last}{end}. react.read gives what any ref below names, whole."
    if summary.text:
        yield summary.text
    yield from _section("[MEMORY NOTES]", summary.notes)
    if summary.dropped_notes:
        yield f"{summary.dropped_notes} older memory notes: {DocumentRef(name='conv:notes')}"
    yield from _section("[REFERRED TO LATER]", summary.carried)
    yield from _section("[SOURCES CITED]", summary.sources)
    if summary.dropped_sources:
        yield f"{summary.dropped_sources} older sources: {DocumentRef(name='conv:sources_pool')}"
    yield from _section("[BLOCKS]", summary.ledger)
    if summary.dropped:
        older = f", and {summary.older} has lines for some" if summary.older else ""
        yield (
            f"{summary.dropped} blocks that say little had no room: "
            f"artifact:conv.timeline.v1 has every block{older}."
        )


def _section(heading: str, lines: Sequence[LedgerLine]) -> Iterator[str]:
    if lines:
        yield heading
        yield from (f"{line.ref} {line.words}" for line in lines)
