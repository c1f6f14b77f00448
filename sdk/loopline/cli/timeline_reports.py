"""`loopline timeline --cost`, `--verify` and `--dialect`: reports on a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from loopline.cli.access import kept, latest_kept, stored, unknown
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import QUIET, REF, WIDE, Columns, Screen, counted, visible
from loopline.conversations import Conversation
from loopline.events import DialectName, Record, replayed, sse
from loopline.models import Json, JsonObject, Usage, dumps
from loopline.timeline import (
    Block,
    CitedSentence,
    Completion,
    CostSummary,
    Overlap,
    RequestCost,
    RunChild,
    Support,
    Timeline,
    Verification,
    request_cost,
    turn_id,
    verify,
)

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A request in the turn and round that it was made for; by a child run when `child` names one."""

    turn: int
    round: int
    spent: RequestCost
    child: str = ""


async def costs(turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print what the requests of a conversation, or of one turn of it, cost."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talks = partial(kept, store, choices=choices)
        blocks = await talks(name).blocks()
        if not blocks:
            raise unknown(name, choices)
        lines = [line for line in await _cost_lines(blocks, talks) if turn in (None, line.turn)]
    if choices.as_json:
        screen.raw(dumps(_cost_document(name, lines)))
        return ANSWERED
    if not lines:
        where = repr(name) if turn is None else f"{turn_id(turn)} of {name!r}"
        raise UsageError(f"no model was asked in {where}")
    wide = screen.width >= WIDE
    columns = Columns(
        rows=[_HEADINGS, *_rows(lines, wide=wide)], cut=2, right=frozenset(range(3, 9)), gap=1
    )
    screen.answer_whole(columns, "\n".join(map(_tabbed, _rows(lines, wide=True))))
    for said in _remarks(CostSummary.of(line.spent for line in lines)):
        screen.note(Text(said, style=QUIET))
    return ANSWERED


async def _cost_lines(blocks: Sequence[Block], talks: Callable[[str], Conversation]) -> list[Line]:
    """Every request of these blocks, those of a child run at the place where it was begun.

    A run whose conversation is no longer there is one line.
    """
    found, children = list[Line](), dict[str, list[Line]]()
    for block in blocks:
        here = partial(Line, turn=block.turn, round=block.round)
        one = request_cost(block)
        match block.body:
            case RunChild(conversation=child, reason=""):
                children[child] = below = await _cost_lines(await talks(child).blocks(), talks)
                found += [here(spent=line.spent, child=line.child or child) for line in below]
            case RunChild(conversation=child) if children.get(child):
                pass
            case RunChild(conversation=child) if one is not None:
                found.append(here(spent=one, child=child))
            case _ if one is not None:
                found.append(here(spent=one))
            case _:
                pass
    return found


def by_turn(lines: Sequence[Line]) -> Mapping[int, list[Line]]:
    """The lines of each turn, in the order of the turns."""
    turns = dict[int, list[Line]]()
    for line in lines:
        turns.setdefault(line.turn, []).append(line)
    return turns


def by_model(lines: Sequence[Line]) -> Mapping[str, list[Line]]:
    """The lines of each model, in the order in which they were asked first."""
    models = dict[str, list[Line]]()
    for line in lines:
        models.setdefault(line.spent.model, []).append(line)
    return models


_HEADINGS = tuple(
    Text(name, style=QUIET)
    for name in ("round", "for", "model", "cost", "input", "output", "read", "written", "cached")
)


def _rows(lines: Sequence[Line], *, wide: bool) -> Iterator[tuple[Text, ...]]:
    """A row for each request, a sum after each turn, and at the end one for each model and one for all."""
    for number, own in by_turn(lines).items():
        for line in own:
            yield _cost_row(line, wide=wide)
        yield _sum_row(turn_id(number), "", own)
    for model, asked in by_model(lines).items():
        yield _sum_row("model", _named(model, wide=wide), asked)
    yield _sum_row("all", "", lines)


def _cost_row(line: Line, *, wide: bool) -> tuple[Text, ...]:
    one = line.spent
    purpose = f"↳ {one.purpose}" if line.child and one.purpose != "child" else one.purpose
    return (
        Text(f"{line.turn}.{line.round}", style=QUIET),
        Text(purpose),
        Text(visible(line.child if one.purpose == "child" else _named(one.model, wide=wide))),
        *_amounts(CostSummary.of([one]), ""),
    )


def _named(model: str, *, wide: bool) -> str:
    """The model, less its provider where there is little room."""
    if not model:
        return UNKNOWN
    return model if wide else model.partition(":")[2] or model


def _sum_row(of: str, model: str, lines: Sequence[Line]) -> tuple[Text, ...]:
    together = CostSummary.of(line.spent for line in lines)
    return (
        Text(of, style="bold"),
        Text(counted(together.requests, "request"), style="bold"),
        Text(visible(model), style="bold"),
        *_amounts(together, "bold"),
    )


def _amounts(sums: CostSummary, style: str) -> tuple[Text, ...]:
    used = sums.usage
    return (
        Text(dollars(sums), style=style if sums.cost is not None else "yellow"),
        Text(f"{used.input_tokens:,}", style=style),
        Text(f"{used.output_tokens:,}", style=style),
        Text(f"{used.cache_read_tokens:,}", style=style),
        Text(f"{used.cache_write_tokens:,}", style=style),
        Text(f"{_share(used):.0%}", style="green" if used.cache_read_tokens else QUIET),
    )


def dollars(sums: CostSummary) -> str:
    """`$0.00123`; with `≈` where some of it is estimated, with `≥` where some of it is not known."""
    if sums.cost is None:
        return UNKNOWN
    marks = ("≥" if sums.unknown else "") + ("≈" if sums.estimated else "")
    return f"{marks}{as_dollars(sums.cost)}"


def as_dollars(cost: float) -> str:
    """`$0.00123`."""
    return f"${cost:,.5f}"


def _share(used: Usage) -> float:
    """What of the prompts was read from a cache."""
    return used.cache_read_tokens / used.input_tokens if used.input_tokens else 0.0


def _remarks(every: CostSummary) -> Iterator[str]:
    if every.unknown:
        yield f"of {counted(every.unknown, 'request')} no price is known: they are not in the sums"
    if every.estimated:
        yield f"≈ {counted(every.estimated, 'request')} priced by what is known of the model now"


def _tabbed(row: Sequence[Text]) -> str:
    return "\t".join(cell.plain for cell in row)


def _cost_document(name: str, lines: Sequence[Line]) -> JsonObject:
    turns: list[Json] = [
        {"turn_id": turn_id(number), **_summed(own)} for number, own in by_turn(lines).items()
    ]
    models: list[Json] = [
        {"model": model, **_summed(asked)} for model, asked in by_model(lines).items()
    ]
    return {
        "conversation": name,
        "requests": list[Json](map(_request_document, lines)),
        "turns": turns,
        "models": models,
        "all": _summed(lines),
    }


def _request_document(line: Line) -> JsonObject:
    one = line.spent
    return {
        "turn_id": turn_id(line.turn),
        "round": line.round,
        "child": line.child,
        "ref": one.block.ref,
        "purpose": one.purpose,
        "model": one.model,
        **_used(one.usage),
        "cost": one.cost,
        "estimated": one.estimated,
    }


def _summed(lines: Sequence[Line]) -> JsonObject:
    sums = CostSummary.of(line.spent for line in lines)
    return {
        "requests": sums.requests,
        **_used(sums.usage),
        "cost": sums.cost,
        "unknown": sums.unknown,
        "estimated": sums.estimated,
    }


def _used(used: Usage) -> JsonObject:
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_tokens": used.cache_read_tokens,
        "cache_write_tokens": used.cache_write_tokens,
        "cached": round(_share(used), 4),
    }


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


async def tell(name: DialectName, turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print the records that last, in their order: of one turn, or of all."""
    async with stored(choices) as store:
        conversation = await latest_kept(store, choices, screen)
        talk = kept(store, conversation, choices)
        blocks = await talk.blocks()
    if not blocks:
        raise unknown(conversation, choices)
    turns = {block.seq: block.turn for block in blocks}
    records = [
        record
        for record in replayed(name, talk.conversation, blocks)
        if turn in (None, turns[sse.position(record.id)[0]])
    ]
    if choices.as_json:
        screen.raw(dumps([_record_document(record) for record in records]))
    elif records:
        screen.answer_whole(_record_table(records), "\n".join(map(_record_line, records)))
    else:
        screen.note(Text("nothing was told of it", style=QUIET))
    return ANSWERED


def _record_table(records: list[Record]) -> Columns:
    rows = [
        (
            Text(record.id, style=QUIET),
            Text(record.event, style=REF),
            Text(visible(dumps(record.data))),
        )
        for record in records
    ]
    return Columns(rows=rows, cut=2, right=frozenset({0}))


def _record_line(record: Record) -> str:
    return "\t".join([record.id, record.event, visible(dumps(record.data))])


def _record_document(record: Record) -> Json:
    return {"id": record.id, "event": record.event, "data": record.data}
