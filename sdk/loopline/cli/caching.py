"""`loopline prompt --cache`: what a provider's cache would have read of every round, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from loopline.cli.columns import Columns
from loopline.cli.costs import UNKNOWN, as_dollars
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET
from loopline.models import Json, JsonObject, Price, Usage, facts
from loopline.prompt import Request
from loopline.prompt.caching import (
    AnthropicCache,
    CacheReport,
    CacheRow,
    CacheRules,
    OpenAICache,
    simulate,
)

CacheName = Literal["anthropic", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Requests and what a cache made of them, with the price of each; None where nobody knows one."""

    asked: Sequence[Request]
    report: CacheReport
    prices: Sequence[Price | None]

    @property
    def costs(self) -> list[float | None]:
        """What each prompt would have cost, in US dollars."""
        priced = zip(self.report.rows, self.prices, strict=True)
        return [price.of(row.usage) if price else None for row, price in priced]

    @property
    def costs_uncached(self) -> list[float | None]:
        """The same, without a cache."""
        priced = zip(self.report.rows, self.prices, strict=True)
        return [
            price.of(Usage(input_tokens=row.usage.input_tokens)) if price else None
            for row, price in priced
        ]


def play(name: CacheName, model: str | None, asked: Sequence[Request]) -> Played:
    """Play the requests through a provider's cache, at the price of that model, else of those that were asked."""
    rules: CacheRules = AnthropicCache() if name == "anthropic" else OpenAICache()
    return Played(
        asked=asked,
        report=simulate((request.sent for request in asked), rules),
        prices=[facts(model or request.begun.model).price for request in asked],
    )


def _together(costs: Sequence[float | None]) -> float | None:
    """The sum, None where part of it is not known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def show_cache(played: Played, screen: Screen) -> None:
    """Print a row for each request, and what they cost together."""
    report = played.report
    rows = [
        _cache_row(request, row, cost)
        for request, row, cost in zip(played.asked, report.rows, played.costs, strict=True)
    ]
    columns = Columns(rows=[_CACHE_HEADINGS, *rows], cut=7, right=frozenset({1, 2, 3, 4, 5}))
    plain = "\n".join("\t".join(cell.plain for cell in row) for row in rows)
    screen.answer_whole(columns, plain)
    held, every = report.read_of_held, report.read_of_all
    screen.note(
        Text(
            f"read {held:.1%} of what the request before held, {every:.1%} of all; "
            f"the prompts cost {report.cost_factor:.2f} of what they cost without a cache",
            style=QUIET,
        )
    )
    cost, uncached = _together(played.costs), _together(played.costs_uncached)
    if cost is None or uncached is None:
        said = (
            "a price is not known of every model that was asked: --model prices them as another's"
        )
    else:
        said = f"that is {as_dollars(cost)} instead of {as_dollars(uncached)}, replies aside"
    screen.note(Text(said, style=QUIET))


_CACHE_HEADINGS = tuple(
    Text(name, style=QUIET)
    for name in ("round", "read", "written", "fresh", "missed", "cost", "epoch", "why")
)


def _cache_row(request: Request, row: CacheRow, cost: float | None) -> tuple[Text, ...]:
    return (
        Text(f"{request.block.turn}.{request.block.round}"),
        Text(f"{row.read:,}", style="green" if row.read else QUIET),
        Text(f"{row.written:,}"),
        Text(f"{row.fresh:,}"),
        Text(f"{row.missed:,}", style="yellow" if row.missed else QUIET),
        Text(UNKNOWN if cost is None else as_dollars(cost), style=QUIET if cost is None else ""),
        Text(request.begun.opened_by, style=QUIET),
        Text(_why(row)),
    )


def _why(row: CacheRow) -> str:
    said = list[str]()
    for miss in row.misses:
        where = miss.difference
        at = f" at part {where.index} ({where.ref or 'no block'})" if where else ""
        cause = f", {miss.cause}" if miss.cause else ""
        said.append(f"{miss.reason} {miss.tokens:,}{at}{cause}")
    return "; ".join(said)


def cache_document(played: Played) -> JsonObject:
    """The same for programs."""
    report = played.report
    every = zip(played.asked, report.rows, played.costs, played.costs_uncached, strict=True)
    rows: list[Json] = [
        {
            "turn_id": request.block.turn_id,
            "round": request.block.round,
            "opened_by": request.begun.opened_by,
            "read": row.read,
            "written": row.written,
            "fresh": row.fresh,
            "held": row.held,
            "missed": row.missed,
            "cost": cost,
            "cost_uncached": uncached,
            "why": _why(row),
        }
        for request, row, cost, uncached in every
    ]
    return {
        "rows": rows,
        "read_of_held": report.read_of_held,
        "read_of_all": report.read_of_all,
        "cost_factor": report.cost_factor,
        "cost": _together(played.costs),
        "cost_uncached": _together(played.costs_uncached),
    }
