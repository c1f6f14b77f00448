"""The reports `--cost`, `--verify` and `--dialect` of `loopline timeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rich.text import Text

from loopline import timeline as tl
from loopline.cli.options import ANSWERED, Choices, UsageError
from loopline.cli.reader import conversation_in, open_store, read_blocks
from loopline.cli.terminal import QUIET, REF, Columns, Screen, escape, quantity
from loopline.events import DialectName, replayed, sse
from loopline.models import Json, JsonObject, Usage, dumps
from loopline.reader import ConversationReader

UNKNOWN = "unknown"
COST_HEADINGS = ("round", "for", "model", "cost", "input", "output", "read", "written", "cached")
SUPPORT_MARKS: Mapping[tl.Support, tuple[str, str]] = {
    "supported": ("✓", "green"),
    "weak": ("~", "yellow"),
    "unsupported": ("✗", "red"),
    "no text kept": ("?", QUIET),
}
UNCITED = "no source"
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The cost of a request in a turn and round; `child` is the conversation of the child run that sent it."""

    turn: int
    round: int
    spent: tl.RequestCost
    child: str = ""


async def show_costs(turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print the cost of each request in a conversation, or in one turn, with those of its child runs; return 0.

    Raises:
        LooplineError: the conversation does not exist.
        UsageError: no request was sent, and `--json` is not given.
    """
    async with open_store(choices) as store:
        conversation, blocks = await read_blocks(store, choices, screen)
        name = conversation.conversation.name
        open_child = partial(conversation_in, store, choices=choices)
        found = await _charges(blocks, open_child, {name: []})
        charges = [c for c in found if turn in (None, c.turn)]
    if choices.as_json:
        screen.write_json(_cost_document(name, charges))
        return ANSWERED
    if not charges:
        raise UsageError(f"no request was sent in {_scope(name, turn)}")
    rows = list(_cost_rows(charges, wide=screen.is_wide))
    right = frozenset(range(3, 9))
    screen.print_columns(Columns(rows=rows, cut=2, right=right, gap=1, headings=COST_HEADINGS))
    total = tl.CostSummary.of(charge.spent for charge in charges)
    if total.unknown:
        requests = quantity(total.unknown, "request")
        screen.note(f"the price of {requests} is unknown: the sums do not include them")
    if total.estimated:
        requests = quantity(total.estimated, "request")
        screen.note(f"≈ {requests} at the current price of the model")
    return ANSWERED


def _scope(name: str, turn: int | None) -> str:
    return repr(name) if turn is None else f"{tl.turn_id(turn)} of {name!r}"


async def _charges(
    blocks: Sequence[tl.Block],
    open_child: Callable[[str], ConversationReader],
    children: dict[str, list[Charge]],
) -> list[Charge]:
    """Return the cost of every request, with the requests of a child run at the place where the run began.

    A child run without a stored conversation is one charge. `children` has the charges of the conversations that were
    read, and gets those of each child run; none is read again, because an imported conversation may be its own child.
    """
    charges: list[Charge] = []
    for block in blocks:
        body = block.body
        cost = tl.request_cost(block)
        child = body.conversation if isinstance(body, tl.RunChild) else ""
        charge = partial(Charge, turn=block.turn, round=block.round)
        if isinstance(body, tl.RunChild) and not body.reason and child not in children:
            children[child] = []
            child_blocks = await open_child(child).blocks()
            children[child] = nested = await _charges(child_blocks, open_child, children)
            charges += [charge(spent=c.spent, child=c.child or child) for c in nested]
        elif cost is not None and not children.get(child):
            charges.append(charge(spent=cost, child=child))
    return charges


def _group(charges: Sequence[Charge], key: Callable[[Charge], K]) -> Mapping[K, list[Charge]]:
    """Group charges by key, in the order of the first request of each."""
    groups: dict[K, list[Charge]] = {}
    for charge in charges:
        groups.setdefault(key(charge), []).append(charge)
    return groups


def _cost_rows(charges: Sequence[Charge], *, wide: bool) -> Iterator[tuple[Text, ...]]:
    """Yield a row for each request, a sum after each turn, then the sums of each model and of all requests."""
    for number, of_turn in _group(charges, lambda charge: charge.turn).items():
        for charge in of_turn:
            yield _cost_row(charge, wide=wide)
        yield _sum_row(tl.turn_id(number), "", of_turn)
    for model, of_model in _group(charges, lambda charge: charge.spent.model).items():
        yield _sum_row("model", _model_name(model, wide=wide), of_model)
    yield _sum_row("all", "", charges)


def _cost_row(charge: Charge, *, wide: bool) -> tuple[Text, ...]:
    """Render a request as cells for COST_HEADINGS; `↳` marks a request of a child run.

    A child run that is one charge shows its conversation instead of the model.
    """
    cost = charge.spent
    child = charge.child
    is_whole_child = cost.purpose == "child"
    return (
        Text(f"{charge.turn}.{charge.round}", style=QUIET),
        Text(f"↳ {cost.purpose}" if child and not is_whole_child else cost.purpose),
        Text(escape(child if is_whole_child else _model_name(cost.model, wide=wide))),
        *_amounts(tl.CostSummary.of([cost]), ""),
    )


def _model_name(model: str, *, wide: bool) -> str:
    """Return the model string, without its provider if the screen is not `wide`."""
    if not model:
        return UNKNOWN
    return model if wide else model.partition(":")[2] or model


def _sum_row(label: str, model: str, charges: Sequence[Charge]) -> tuple[Text, ...]:
    """Render the sum of the charges as bold cells: the label, the number of requests, `model`, and the amounts."""
    total = tl.CostSummary.of(charge.spent for charge in charges)
    return (
        Text(label, style="bold"),
        Text(quantity(total.requests, "request"), style="bold"),
        Text(escape(model), style="bold"),
        *_amounts(total, "bold"),
    )


def _amounts(spending: tl.CostSummary, style: str) -> tuple[Text, ...]:
    """Render the cost, the tokens (input, output, cache reads and writes) and the cached share in percent."""
    usage = spending.usage
    return (
        Text(_cost_text(spending), style=style if spending.cost is not None else "yellow"),
        Text(f"{usage.input_tokens:,}", style=style),
        Text(f"{usage.output_tokens:,}", style=style),
        Text(f"{usage.cache_read_tokens:,}", style=style),
        Text(f"{usage.cache_write_tokens:,}", style=style),
        Text(f"{_cache_share(usage):.0%}", style="green" if usage.cache_read_tokens else QUIET),
    )


def _cost_text(spending: tl.CostSummary) -> str:
    """Render a cost as `$0.00123`, with `≈` if a part is estimated, and with `≥` if a part is unknown."""
    if spending.cost is None:
        return UNKNOWN
    marks = ("≥" if spending.unknown else "") + ("≈" if spending.estimated else "")
    return f"{marks}{format_dollars(spending.cost)}"


def format_dollars(cost: float) -> str:
    """Render a cost in US dollars as `$0.00123`."""
    return f"${cost:,.5f}"


def _cache_share(usage: Usage) -> float:
    """Return the share of input tokens that were read from a cache, from 0 to 1."""
    return usage.cache_read_tokens / usage.input_tokens if usage.input_tokens else 0.0


def _cost_document(name: str, charges: Sequence[Charge]) -> JsonObject:
    """Return the costs as JSON: each request, then the sums of each turn, of each model and of all requests."""
    turns: list[Json] = [
        {"turn_id": tl.turn_id(number), **_sum_document(of_turn)}
        for number, of_turn in _group(charges, lambda charge: charge.turn).items()
    ]
    models: list[Json] = [
        {"model": model, **_sum_document(of_model)}
        for model, of_model in _group(charges, lambda charge: charge.spent.model).items()
    ]
    return {
        "conversation": name,
        "requests": list[Json](map(_charge_document, charges)),
        "turns": turns,
        "models": models,
        "all": _sum_document(charges),
    }


def _charge_document(charge: Charge) -> JsonObject:
    """Return the cost of a request as JSON, in US dollars; null if its price is unknown."""
    cost = charge.spent
    return {
        "turn_id": tl.turn_id(charge.turn),
        "round": charge.round,
        "child": charge.child,
        "ref": cost.block.ref,
        "purpose": cost.purpose,
        "model": cost.model,
        **_usage_document(cost.usage),
        "cost": cost.cost,
        "estimated": cost.estimated,
    }


def _sum_document(charges: Sequence[Charge]) -> JsonObject:
    """Return the sum as JSON; `cost` leaves out the requests of unknown price, and is null if no price is known."""
    total = tl.CostSummary.of(charge.spent for charge in charges)
    return {
        "requests": total.requests,
        **_usage_document(total.usage),
        "cost": total.cost,
        "unknown": total.unknown,
        "estimated": total.estimated,
    }


def _usage_document(usage: Usage) -> JsonObject:
    """Return the token counts as JSON; `cached` is the cached share of the input, from 0 to 1, with 4 decimals."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cached": round(_cache_share(usage), 4),
    }


@dataclass(frozen=True, slots=True)
class VerifiedAnswer:
    """The turn and the ref of an answer, and its comparison with the sources that it cites."""

    turn_id: str
    ref: str
    report: tl.Verification


async def show_verification(turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print how well the cited sources support the answers of a conversation, or of one turn; return 0.

    Raises:
        LooplineError: the conversation does not exist.
        UsageError: there are no answers, and `--json` is not given.
    """
    async with open_store(choices) as store:
        conversation, blocks = await read_blocks(store, choices, screen)
    name = conversation.conversation.name
    answers = verify_answers(tl.Timeline(blocks), turn)
    if choices.as_json:
        documents: list[Json] = [_verification_document(answer) for answer in answers]
        screen.write_json({"conversation": name, "answers": documents})
        return ANSWERED
    if not answers:
        raise UsageError(f"no answer in {_scope(name, turn)}")
    for answer in answers:
        _show_answer(answer, screen)
    screen.note("only words are compared, not their meaning; S:1 is so:sources_pool[1]")
    return ANSWERED


def verify_answers(timeline: tl.Timeline, turn: int | None) -> list[VerifiedAnswer]:
    """Compare the answers of a conversation, or of one turn, with the stored texts of their sources."""
    texts = tl.source_texts(timeline)
    return [
        VerifiedAnswer(
            block.turn_id, block.ref, tl.verify(block.body.text, timeline.pool.sources, texts)
        )
        for block in timeline
        if isinstance(block.body, tl.Completion) and turn in (None, block.turn)
    ]


def _show_answer(answer: VerifiedAnswer, screen: Screen) -> None:
    """Print the ref and summary of an answer, and a row for each cited and then each uncited sentence."""
    report = answer.report
    heading = Text.assemble((answer.ref, REF), (f"  {verification_summary(report)}", QUIET))
    screen.print_layout(heading, heading.plain)
    rows: list[tuple[Text, ...]] = []
    lines: list[tuple[str, ...]] = []
    for sentence in report.cited:
        overlap, sids, text = sentence.together, _sids(sentence.sids), escape(sentence.text)
        mark, style = SUPPORT_MARKS[overlap.support]
        numbers = ", ".join(overlap.missing_numbers)
        rows.append(
            (
                Text(mark, style=style),
                Text(overlap.support, style=style),
                Text(f"{overlap.share:.0%}", style=QUIET),
                Text(sids, style=REF),
                Text.assemble((f"without {numbers}: " if numbers else "", "red"), text),
            )
        )
        missing = ",".join(overlap.missing_numbers)
        lines.append(
            (overlap.support, f"{overlap.share:.2f}", str(overlap.run), sids, missing, text)
        )
    for uncited in report.uncited:
        text = escape(uncited)
        cells = ("–", UNCITED, "", "", text)
        rows.append(tuple(Text(cell, style=QUIET) for cell in cells))
        lines.append((UNCITED, "", "", "", "", text))
    if rows:
        columns = Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2}), gap=1)
        screen.print_layout(columns, "\n".join(map("\t".join, lines)))


def verification_summary(report: tl.Verification) -> str:
    """Summarize a comparison as `2 supported · 1 weak · 1 no source · cites S:7, which is not there`."""
    parts = [f"{count} {support}" for support, count in report.counts.items() if count]
    if report.uncited:
        parts.append(f"{len(report.uncited)} {UNCITED}")
    if report.unknown:
        are = "which is" if len(report.unknown) == 1 else "which are"
        parts.append(f"cites {_sids(report.unknown)}, {are} not there")
    return " · ".join(parts) or "it says nothing"


def _sids(numbers: Sequence[int]) -> str:
    """Render the ids of sources as `S:1,3`."""
    return f"S:{','.join(map(str, numbers))}"


def _verification_document(answer: VerifiedAnswer) -> JsonObject:
    """Return the comparison as JSON: counts by support, cited and uncited sentences, and unknown source numbers."""
    report = answer.report
    return {
        "turn_id": answer.turn_id,
        "ref": answer.ref,
        "counts": {str(support): count for support, count in report.counts.items()},
        "cited": [_sentence_document(sentence) for sentence in report.cited],
        "uncited": list[Json](report.uncited),
        "unknown": list[Json](report.unknown),
    }


def _sentence_document(sentence: tl.CitedSentence) -> JsonObject:
    """Return a cited sentence as JSON, with its overlap with all its sources, and with `each` source by number."""
    by_source: JsonObject = {
        str(sid): _overlap_document(overlap)
        for sid, overlap in zip(sentence.sids, sentence.each, strict=True)
    }
    return {
        "text": sentence.text,
        "sids": list[Json](sentence.sids),
        **_overlap_document(sentence.together),
        "each": by_source,
    }


def _overlap_document(overlap: tl.Overlap) -> JsonObject:
    """Return an overlap as JSON; `share` is from 0 to 1 with 4 decimals."""
    return {
        "support": overlap.support,
        "share": round(overlap.share, 4),
        "run": overlap.run,
        "missing_numbers": list[Json](overlap.missing_numbers),
    }


async def show_records(
    dialect: DialectName, turn: int | None, choices: Choices, screen: Screen
) -> int:
    """Print the records that a subscriber of a dialect receives for a conversation, or for one turn; return 0.

    Raises:
        LooplineError: the conversation does not exist.
    """
    async with open_store(choices) as store:
        conversation, blocks = await read_blocks(store, choices, screen)
    turns = {block.seq: block.turn for block in blocks}
    records = [
        record
        for record in replayed(dialect, conversation.conversation, blocks)
        if turn in (None, turns[sse.position(record.id)[0]])
    ]
    if choices.as_json:
        screen.write_json([{"id": r.id, "event": r.event, "data": r.data} for r in records])
    elif records:
        rows = [
            (
                Text(record.id, style=QUIET),
                Text(record.event, style=REF),
                Text(escape(dumps(record.data))),
            )
            for record in records
        ]
        screen.print_columns(Columns(rows=rows, cut=2, right=frozenset({0})))
    else:
        screen.note("no record was sent")
    return ANSWERED
