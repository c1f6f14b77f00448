"""`loopline timeline --verify`: how the sentences of the answers overlap the sources that they cite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import Columns
from loopline.cli.conversing import kept, latest_kept, stored, unknown
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, REF, visible
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import (
    CitedSentence,
    Completion,
    Overlap,
    Support,
    Timeline,
    Verification,
    turn_id,
    verify,
)

MARKS: Mapping[Support, tuple[str, str]] = {
    "supported": ("✓", "green"),
    "weak": ("~", "yellow"),
    "unsupported": ("✗", "red"),
    "no text kept": ("?", "bright_black"),
}
UNCITED = "no source"


@dataclass(frozen=True, slots=True)
class Verified:
    """An answer by its ref, and what was found of it."""

    turn_id: str
    ref: str
    report: Verification


async def verified(turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print how the answers of a conversation, or of one turn of it, are supported."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        blocks = await kept(store, name, choices).blocks()
    if not blocks:
        raise unknown(name, choices)
    found = answers(Timeline(blocks), turn)
    if choices.as_json:
        screen.raw(
            dumps({"conversation": name, "answers": [_verification_document(one) for one in found]})
        )
        return ANSWERED
    if not found:
        where = repr(name) if turn is None else f"{turn_id(turn)} of {name!r}"
        raise UsageError(f"there is no answer in {where}")
    for one in found:
        _show_verification(one, screen)
    screen.note(Text("words are compared, not what they mean; S:1 is so:sources_pool[1]", QUIET))
    return ANSWERED


def answers(timeline: Timeline, turn: int | None) -> list[Verified]:
    """Every answer of a conversation, or of one turn of it, compared with the sources' kept texts."""
    return [
        Verified(block.turn_id, block.ref, verify(block.body.text, timeline.pool.sources))
        for block in timeline
        if isinstance(block.body, Completion) and turn in (None, block.turn)
    ]


def _show_verification(answer: Verified, screen: Screen) -> None:
    heading = Text.assemble((answer.ref, REF), (f"  {summed(answer.report)}", QUIET))
    screen.answer_whole(heading, heading.plain)
    rows = [*map(_cited, answer.report.cited), *map(_uncited, answer.report.uncited)]
    if rows:
        table = Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2}), gap=1)
        screen.answer_whole(table, "\n".join(_verification_lines(answer)))


def summed(report: Verification) -> str:
    """`2 supported · 1 weak · 1 no source · cites S:7, which is not there`."""
    parts = [f"{count} {support}" for support, count in report.counts.items() if count]
    if report.uncited:
        parts.append(f"{len(report.uncited)} {UNCITED}")
    if report.unknown:
        are = "which is" if len(report.unknown) == 1 else "which are"
        parts.append(f"cites {sids(report.unknown)}, {are} not there")
    return " · ".join(parts) or "it says nothing"


def sids(numbers: Sequence[int]) -> str:
    """`S:1,3`."""
    return f"S:{','.join(map(str, numbers))}"


def _cited(sentence: CitedSentence) -> tuple[Text, ...]:
    overlap = sentence.together
    mark, style = MARKS[overlap.support]
    return (
        Text(mark, style=style),
        Text(overlap.support, style=style),
        Text(f"{overlap.share:.0%}", style=QUIET),
        Text(sids(sentence.sids), style=REF),
        Text.assemble((_missing(overlap), "red"), visible(sentence.text)),
    )


def _uncited(text: str) -> tuple[Text, ...]:
    return (
        Text("–", style=QUIET),
        Text(UNCITED, style=QUIET),
        Text(),
        Text(),
        Text(visible(text), style=QUIET),
    )


def _missing(overlap: Overlap) -> str:
    """The numbers of a sentence that its sources do not have."""
    numbers = ", ".join(overlap.missing_numbers)
    return f"without {numbers}: " if numbers else ""


def _verification_lines(answer: Verified) -> list[str]:
    """The rows for a pipe: support, share, words in a row, sids, missing numbers, sentence."""
    cited = [
        (
            sentence.together.support,
            f"{sentence.together.share:.2f}",
            str(sentence.together.run),
            sids(sentence.sids),
            ",".join(sentence.together.missing_numbers),
            visible(sentence.text),
        )
        for sentence in answer.report.cited
    ]
    uncited = [(UNCITED, "", "", "", "", visible(text)) for text in answer.report.uncited]
    return ["\t".join(row) for row in [*cited, *uncited]]


def _verification_document(answer: Verified) -> JsonObject:
    report = answer.report
    return {
        "turn_id": answer.turn_id,
        "ref": answer.ref,
        "counts": {str(support): count for support, count in report.counts.items()},
        "cited": [_sentence_document(one) for one in report.cited],
        "uncited": list[Json](report.uncited),
        "unknown": list[Json](report.unknown),
    }


def _sentence_document(sentence: CitedSentence) -> JsonObject:
    each: JsonObject = {
        str(sid): _overlap_document(overlap)
        for sid, overlap in zip(sentence.sids, sentence.each, strict=True)
    }
    return {
        "text": sentence.text,
        "sids": list[Json](sentence.sids),
        **_overlap_document(sentence.together),
        "each": each,
    }


def _overlap_document(overlap: Overlap) -> JsonObject:
    return {
        "support": overlap.support,
        "share": round(overlap.share, 4),
        "run": overlap.run,
        "missing_numbers": list[Json](overlap.missing_numbers),
    }
