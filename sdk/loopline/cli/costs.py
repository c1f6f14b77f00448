"""`loopline timeline --cost`: what each request of a conversation used and cost, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import WIDE, Columns
from loopline.cli.conversing import kept, latest_kept, stored, unknown
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.conversations import Conversation
from loopline.models import Json, JsonObject, Usage, dumps
from loopline.timeline import Block, RunChild, Spending, Spent, spent, turn_id

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A request in the turn and round that it was made for; by a child run when `child` names one."""

    turn: int
    round: int
    spent: Spent
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
    for said in _remarks(Spending.of(line.spent for line in lines)):
        screen.note(Text(said, style=QUIET))
    return ANSWERED


async def _cost_lines(blocks: Sequence[Block], talks: Callable[[str], Conversation]) -> list[Line]:
    """Every request of these blocks, those of a child run at the place where it was begun.

    A run whose conversation is no longer there is one line.
    """
    found, children = list[Line](), dict[str, list[Line]]()
    for block in blocks:
        here = partial(Line, turn=block.turn, round=block.round)
        one = spent(block)
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
        *_amounts(Spending.of([one]), ""),
    )


def _named(model: str, *, wide: bool) -> str:
    """The model, less its provider where there is little room."""
    if not model:
        return UNKNOWN
    return model if wide else model.partition(":")[2] or model


def _sum_row(of: str, model: str, lines: Sequence[Line]) -> tuple[Text, ...]:
    together = Spending.of(line.spent for line in lines)
    return (
        Text(of, style="bold"),
        Text(counted(together.requests, "request"), style="bold"),
        Text(visible(model), style="bold"),
        *_amounts(together, "bold"),
    )


def _amounts(sums: Spending, style: str) -> tuple[Text, ...]:
    used = sums.usage
    return (
        Text(dollars(sums), style=style if sums.cost is not None else "yellow"),
        Text(f"{used.input_tokens:,}", style=style),
        Text(f"{used.output_tokens:,}", style=style),
        Text(f"{used.cache_read_tokens:,}", style=style),
        Text(f"{used.cache_write_tokens:,}", style=style),
        Text(f"{_share(used):.0%}", style="green" if used.cache_read_tokens else QUIET),
    )


def dollars(sums: Spending) -> str:
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


def _remarks(every: Spending) -> Iterator[str]:
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
    sums = Spending.of(line.spent for line in lines)
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
