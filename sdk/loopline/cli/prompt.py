"""`loopline prompt` and `loopline replay`: print the prompts of a conversation, and render them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import click
from rich.text import Text

from loopline import models
from loopline import prompt as prompts
from loopline.cli import parameters
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command
from loopline.cli.reader import read_timeline
from loopline.cli.terminal import QUIET, REF, WARNING, Columns, Screen, escape, quantity
from loopline.cli.timeline_reports import UNKNOWN, format_dollars
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.prompt import caching
from loopline.timeline import Timeline

CacheName = Literal["anthropic", "openai"]
CACHE_HEADINGS = ("round", "read", "written", "fresh", "missed", "cost", "epoch", "why")
REPLAY_HEADINGS = ("round", "epoch", "messages", "tokens", "prompt", "opened by")
DIGITS = 12
"""The characters of a digest that are printed."""


@command
@parameters.conversation_option
@parameters.turn_option
@click.option(
    "number",
    "--round",
    type=parameters.COUNT,
    help="The round of the turn; its last one if omitted.",
)
@click.option(
    "--cache",
    type=click.Choice(get_args(CacheName)),
    help="Simulate the prompt cache of this provider for every round.",
)
@click.option("priced_as", "--model", help="With --cache: use the prices of this model.")
@parameters.user_options
@parameters.pager_option
@parameters.json_option
async def prompt(
    choices: Choices,
    screen: Screen,
    turn: int | None,
    number: int | None,
    cache: CacheName | None,
    priced_as: str | None,
) -> int:
    """Show exactly what a round sent to its model."""
    timeline = await read_timeline(choices, screen)
    if cache is not None:
        return _show_cache(timeline, cache, priced_as, choices, screen)
    if priced_as is not None:
        raise UsageError("--model sets the prices for --cache: use it with --cache")
    last = timeline.last_request
    if last is None:
        raise LooplineError("no model was asked in this conversation")
    request = prompts.request_of_round(timeline, turn or last.turn, number)
    schema = prompts.answer_schema(timeline, request)
    if request.inexact:
        screen.note(Text(f"the sent prompt may differ: {request.inexact}", style=WARNING))
    if choices.as_json:
        screen.write_json(prompts.prompt_document(request, schema))
        return ANSWERED
    start = request.round_start
    opened = f", opened by {start.opened_by}" if start.opened_by else ""
    parts = [
        f"{request.block.turn_id} round {request.block.round}",
        f"{start.model}, {start.protocol}",
        f"epoch {start.epoch}{opened}",
        f"about {start.tokens:,} tokens",
    ]
    screen.note(" · ".join(parts))
    text = Text("\n").join(_prompt_parts(request, schema))
    screen.print_layout(text, text.plain)
    return ANSWERED


def _prompt_parts(request: prompts.ModelRequest, schema: JsonObject | None) -> Iterator[Text]:
    """Yield a title and a text for each part: system, tools, settings, form of the answer, messages and tail.

    Empty tools and settings are left out. Dropped settings and cache points have a line without a title.
    """
    start = request.round_start
    yield _title("system")
    yield Text(escape(request.system))
    if request.tools:
        yield _title("tools")
        yield Text(escape(request.tools))
    if start.settings:
        yield _title("settings")
        yield Text(escape(models.dumps(start.settings)))
    for name, reason in start.dropped_settings.items():
        yield Text(escape(f"{name} was left out: {reason}"), style=WARNING)
    if schema is not None:
        yield _title("form of the answer")
        yield Text(escape(models.dumps(schema)))
    points = {point.messages: point for point in start.points}
    for number, (message, ref) in enumerate(
        zip(request.messages, request.refs, strict=True), start=1
    ):
        yield _title(f"{number} {prompts.message_role(message)}", ref)
        yield Text(escape(prompts.message_text(message)))
        if point := points.get(number):
            mark = f"══ cache point {point.name}: {point.tokens:,} tokens before it"
            yield Text(mark, style="green")
    yield _title(f"tail, {start.tail_kind}")
    yield Text(escape(start.tail))


def _title(name: str, ref: str = "") -> Text:
    return Text.assemble((f"── {name} ", "bold"), (escape(ref), REF))


def _show_cache(
    timeline: Timeline, name: CacheName, model: str | None, choices: Choices, screen: Screen
) -> int:
    """Print a simulation of a provider's cache for every round; return the exit code 0.

    The prices are those of `model`, or of the model of each round if `model` is None.
    """
    rules: caching.CacheRules = (
        caching.AnthropicCache() if name == "anthropic" else caching.OpenAICache()
    )
    sent = list(prompts.past_requests(timeline))
    report = caching.simulate((request.as_sent for request in sent), rules)
    costs: list[float | None] = []
    costs_uncached: list[float | None] = []
    for request, row in zip(sent, report.rows, strict=True):
        price = models.find_model_facts(model or request.round_start.model).price
        uncached = models.Usage(input_tokens=row.usage.input_tokens)
        costs.append(price.of(row.usage) if price else None)
        costs_uncached.append(price.of(uncached) if price else None)
    if choices.as_json:
        screen.write_json(_cache_document(sent, report, costs, costs_uncached))
        return ANSWERED
    rows = [
        _cache_row(request, row, cost)
        for request, row, cost in zip(sent, report.rows, costs, strict=True)
    ]
    right = frozenset({1, 2, 3, 4, 5})
    screen.print_columns(Columns(rows=rows, cut=7, right=right, headings=CACHE_HEADINGS))
    screen.note(
        f"read {report.read_of_held:.1%} of the prefix shared with the previous request, {report.read_of_all:.1%} of all; "
        f"the prompts cost {report.cost_factor:.2f} of their cost without a cache"
    )
    cost = _sum(costs)
    cost_uncached = _sum(costs_uncached)
    if cost is None or cost_uncached is None:
        screen.note("the price of a model is unknown: --model uses the prices of another model")
    else:
        screen.note(
            f"that is {format_dollars(cost)} instead of {format_dollars(cost_uncached)}, replies aside"
        )
    return ANSWERED


def _sum(costs: Sequence[float | None]) -> float | None:
    """Return the sum of the costs, or None if a cost is unknown."""
    known_costs = [cost for cost in costs if cost is not None]
    return sum(known_costs) if len(known_costs) == len(costs) else None


def _cache_row(
    request: prompts.ModelRequest, row: caching.CacheRow, cost: float | None
) -> tuple[Text, ...]:
    """Render a simulated round as cells for CACHE_HEADINGS; a cost of None is shown as `unknown`."""
    cost_text = UNKNOWN if cost is None else format_dollars(cost)
    return (
        Text(f"{request.block.turn}.{request.block.round}"),
        Text(f"{row.read:,}", style="green" if row.read else QUIET),
        Text(f"{row.written:,}"),
        Text(f"{row.fresh:,}"),
        Text(f"{row.missed:,}", style="yellow" if row.missed else QUIET),
        Text(cost_text, style=QUIET if cost is None else ""),
        Text(request.round_start.opened_by, style=QUIET),
        Text(_miss_reasons(row)),
    )


def _miss_reasons(row: caching.CacheRow) -> str:
    """Render the misses of a round (reason, tokens, position, cause), joined with `; `; empty without misses."""
    reasons: list[str] = []
    for miss in row.misses:
        difference = miss.difference
        where = (
            f" at part {difference.index} ({difference.ref or 'no block'})" if difference else ""
        )
        cause = f", {miss.cause}" if miss.cause else ""
        reasons.append(f"{miss.reason} {miss.tokens:,}{where}{cause}")
    return "; ".join(reasons)


def _cache_document(
    sent: Sequence[prompts.ModelRequest],
    report: caching.CacheReport,
    costs: Sequence[float | None],
    costs_uncached: Sequence[float | None],
) -> JsonObject:
    """Return the simulation as JSON: a row for each round, then totals; an unknown cost makes its total null."""
    rows: list[Json] = [
        {
            "turn_id": request.block.turn_id,
            "round": request.block.round,
            "opened_by": request.round_start.opened_by,
            "read": row.read,
            "written": row.written,
            "fresh": row.fresh,
            "held": row.held,
            "missed": row.missed,
            "cost": cost,
            "cost_uncached": cost_uncached,
            "why": _miss_reasons(row),
        }
        for request, row, cost, cost_uncached in zip(
            sent, report.rows, costs, costs_uncached, strict=True
        )
    ]
    return {
        "rows": rows,
        "read_of_held": report.read_of_held,
        "read_of_all": report.read_of_all,
        "cost_factor": report.cost_factor,
        "cost": _sum(costs),
        "cost_uncached": _sum(costs_uncached),
    }


@command
@parameters.conversation_argument
@parameters.user_options
@parameters.pager_option
@parameters.json_option
async def replay(choices: Choices, screen: Screen) -> int:
    """Render every prompt again, and show where one diverges."""
    rounds = list(prompts.replayed_rounds(await read_timeline(choices, screen)))
    if not rounds:
        raise LooplineError("no model was asked in this conversation: there is nothing to replay")
    diverging = next((item for item in rounds if item.divergence is not None), None)
    if choices.as_json:
        documents: list[Json] = [_round_document(item) for item in rounds]
        first = _round_document(diverging) if diverging else None
        screen.write_json({"identical": diverging is None, "first": first, "rounds": documents})
        return ANSWERED if diverging is None else FAILED
    rows = list(map(_round_row, rounds))
    right = frozenset({1, 2, 3})
    screen.print_columns(Columns(rows=rows, cut=5, right=right, headings=REPLAY_HEADINGS))
    if diverging is None or diverging.divergence is None:
        screen.note(f"{quantity(len(rounds), 'round')}, each rendered as it was")
        return ANSWERED
    screen.error(_divergence_text(diverging, diverging.divergence))
    return FAILED


def _round_row(item: prompts.ReplayedRound) -> tuple[Text, ...]:
    """Render a replayed round as cells for REPLAY_HEADINGS; a diverging prompt is shown as `other PART`."""
    block = item.request.block
    start = item.request.round_start
    divergence = item.divergence
    outcome = Text("identical", style="green")
    if divergence is not None:
        outcome = Text(f"other {divergence.part}", style="red")
    return (
        Text(f"{block.turn}.{block.round}"),
        Text(str(start.epoch)),
        Text(f"{len(item.request.messages):,}"),
        Text(f"{start.tokens:,}"),
        outcome,
        Text(start.opened_by, style=QUIET),
    )


def _divergence_text(item: prompts.ReplayedRound, divergence: prompts.Divergence) -> str:
    """Describe the first divergence: its round and part, the recorded value and the value that is rendered now."""
    block = item.request.block
    recorded = divergence.recorded
    rendered = divergence.rendered
    where = f"{block.turn_id} round {block.round} is the first that diverges"
    match divergence.part:
        case "renderer":
            return f"{where}: it was rendered by version {recorded}, and this loopline has version {rendered}"
        case "system" | "tools":
            now = f"that of the log has {rendered[:DIGITS]}" if rendered else "there is none"
            text = f"its {divergence.part} text had the digest {recorded[:DIGITS]}"
            return f"{where}: {text}, {now}"
        case "tail":
            before, now = (escape(line) or "nothing" for line in (recorded, rendered))
            return f"{where}: its tail said {before}, and the log makes {now}"
        case "messages":
            position = f"message {divergence.first}"
            if divergence.last > divergence.first:
                position = f"{position} to {divergence.last}"
            refs = escape(", ".join(dict.fromkeys(filter(None, item.suspects))))
            return (
                f"{where}, at {position}{f' ({refs})' if refs else ''}: the digest of all was "
                f"{recorded[:DIGITS]} and is {rendered[:DIGITS]}"
            )


def _round_document(item: prompts.ReplayedRound) -> JsonObject:
    """Return a replayed round as JSON; `divergence` is null if the prompt is identical to the recorded one."""
    block = item.request.block
    start = item.request.round_start
    divergence = item.divergence
    return {
        "turn_id": block.turn_id,
        "round": block.round,
        "ref": block.ref,
        "epoch": start.epoch,
        "opened_by": start.opened_by,
        "messages": len(item.request.messages),
        "tokens": start.tokens,
        "identical": divergence is None,
        "divergence": None if divergence is None else _divergence_document(item, divergence),
    }


def _divergence_document(item: prompts.ReplayedRound, divergence: prompts.Divergence) -> JsonObject:
    """Return a divergence as JSON; the message positions (from 1) are null if another part than messages diverges."""
    return {
        "part": divergence.part,
        "recorded": divergence.recorded,
        "rendered": divergence.rendered,
        "first_message": divergence.first or None,
        "last_message": divergence.last or None,
        "refs": list[Json](item.suspects),
    }
