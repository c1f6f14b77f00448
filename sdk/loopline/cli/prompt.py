"""`loopline prompt` and `loopline replay`: what each round sent to its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from loopline.cli.access import latest_kept, stored
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError
from loopline.cli.terminal import QUIET, REF, Columns, Screen, counted, visible
from loopline.cli.timeline_reports import UNKNOWN, as_dollars
from loopline.errors import LooplineError
from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    OutputSchema,
    Price,
    ToolMessage,
    Usage,
    UserMessage,
    dumps,
    find_model_facts,
)
from loopline.prompt import (
    Divergence,
    ModelRequest,
    ReplayedRound,
    past_requests,
    replayed_rounds,
    request_of_round,
)
from loopline.prompt.caching import (
    AnthropicCache,
    CacheReport,
    CacheRow,
    CacheRules,
    OpenAICache,
    simulate,
)
from loopline.timeline import CachePoint, Timeline, TurnHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which round: None is the last one.

    With a `cache` all rounds are played through its rules, at the price of the models that were asked, or
    of `model`.
    """

    turn: int | None = None
    round: int | None = None
    cache: CacheName | None = None
    model: str | None = None


async def prompt(which: Which, choices: Choices, screen: Screen) -> int:
    """Print the request of a round, or what a cache would have read of all of them."""
    timeline = await chosen_timeline(choices, screen)
    if which.cache is not None:
        played = play(which.cache, which.model, list(past_requests(timeline)))
        if choices.as_json:
            screen.raw(dumps(cache_document(played)))
        else:
            show_cache(played, screen)
        return ANSWERED
    if which.model is not None:
        raise UsageError("--model prices what a cache would have read: it goes with --cache")
    asked = timeline.last_request
    if asked is None:
        raise LooplineError("no model was asked in this conversation")
    request = request_of_round(timeline, which.turn or asked.turn, which.round)
    if request.inexact:
        screen.note(Text(f"this may not be what was sent: {request.inexact}", style="yellow"))
    if choices.as_json:
        screen.raw(dumps(_prompt_document(request, _form(timeline, request))))
        return ANSWERED
    screen.note(_heading(request))
    shown = Text("\n").join(_pieces(request, _form(timeline, request)))
    screen.answer_whole(shown, shown.plain)
    return ANSWERED


async def chosen_timeline(choices: Choices, screen: Screen) -> Timeline:
    """The conversation that was chosen, else the latest, whole.

    Raises:
        LooplineError: there is no such conversation.
    """
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        blocks = await store.conversation(name, user=choices.whose).blocks()
    if not blocks:
        raise LooplineError(
            f"no conversation {name!r} of the user {choices.whose!r}: "
            "loopline timeline --list shows which there are"
        )
    return Timeline(blocks)


def _heading(request: ModelRequest) -> Text:
    begun = request.round_start
    opened = f", opened by {begun.opened_by}" if begun.opened_by else ""
    parts = [
        f"{request.block.turn_id} round {request.block.round}",
        f"{begun.model}, {begun.protocol}",
        f"epoch {begun.epoch}{opened}",
        f"about {begun.tokens:,} tokens",
    ]
    return Text(" · ".join(parts), style=QUIET)


def _form(timeline: Timeline, request: ModelRequest) -> JsonObject | None:
    """The JSON Schema to which the provider was to hold the answer, if it was."""
    begun = request.round_start
    for block in timeline.blocks:
        match block.body:
            case TurnHeader(output=OutputSchema() as schema) if begun.answer_by == "schema":
                if schema.sha256 == begun.schema_sha256:
                    return schema.form.schema
            case _:
                pass
    return None


def _pieces(request: ModelRequest, form: JsonObject | None) -> Iterator[Text]:
    yield _rule("system")
    yield Text(visible(request.system))
    if request.tools:
        yield _rule("tools")
        yield Text(visible(request.tools))
    if form is not None:
        yield _rule("form of the answer")
        yield Text(visible(dumps(form)))
    points = {point.messages: point for point in request.round_start.points}
    for place, message in enumerate(request.messages):
        yield _rule(f"{place + 1} {_role(message)}", request.refs[place])
        yield Text(visible(_written(message)))
        if place + 1 in points:
            yield _marked(points[place + 1])
    yield _rule(f"tail, {request.round_start.tail_kind}")
    yield Text(visible(request.round_start.tail))


def _rule(name: str, ref: str = "") -> Text:
    return Text.assemble((f"── {name} ", "bold"), (visible(ref), REF))


def _marked(point: CachePoint) -> Text:
    return Text(f"══ cache point {point.name}: {point.tokens:,} tokens before it", style="green")


def _role(message: Message) -> str:
    match message:
        case AssistantMessage():
            return "assistant"
        case ToolMessage(name=name):
            return f"tool {name}"
        case UserMessage(passing=True):
            return "tail of before"
        case UserMessage():
            return "user"


def _written(message: Message) -> str:
    match message:
        case AssistantMessage(text=text, calls=calls, echo=echo):
            made = [f"{call.call_id} {call.name} {dumps(call.arguments)}" for call in calls]
            back = [f"as it came: {dumps(part)}" for part in echo.parts] if echo else []
            return "\n".join([*back, *([text] if text and not back else []), *made])
        case UserMessage(text=text, attachments=attachments):
            return "\n".join([text, *map(str, attachments)])
        case ToolMessage(text=text):
            return text


def _prompt_document(request: ModelRequest, form: JsonObject | None) -> JsonObject:
    messages: list[Json] = [
        {"role": _role(message), "ref": ref, "text": _written(message)}
        for message, ref in zip(request.messages, request.refs, strict=True)
    ]
    points: list[Json] = [
        {"name": point.name, "messages": point.messages, "tokens": point.tokens}
        for point in request.round_start.points
    ]
    return {
        "turn_id": request.block.turn_id,
        "round": request.block.round,
        "ref": request.block.ref,
        "model": request.round_start.model,
        "protocol": request.round_start.protocol,
        "epoch": request.round_start.epoch,
        "opened_by": request.round_start.opened_by,
        "tokens": request.round_start.tokens,
        "exact": not request.inexact,
        "system": request.system,
        "tools": request.tools,
        "form": form,
        "messages": messages,
        "cache_points": points,
        "tail": request.round_start.tail,
        "tail_kind": request.round_start.tail_kind,
    }


CacheName = Literal["anthropic", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Requests and what a cache made of them, with the price of each; None where nobody knows one."""

    asked: Sequence[ModelRequest]
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


def play(name: CacheName, model: str | None, asked: Sequence[ModelRequest]) -> Played:
    """Play the requests through a provider's cache, at the price of that model, else of those that were asked."""
    rules: CacheRules = AnthropicCache() if name == "anthropic" else OpenAICache()
    return Played(
        asked=asked,
        report=simulate((request.as_sent for request in asked), rules),
        prices=[find_model_facts(model or request.round_start.model).price for request in asked],
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


def _cache_row(request: ModelRequest, row: CacheRow, cost: float | None) -> tuple[Text, ...]:
    return (
        Text(f"{request.block.turn}.{request.block.round}"),
        Text(f"{row.read:,}", style="green" if row.read else QUIET),
        Text(f"{row.written:,}"),
        Text(f"{row.fresh:,}"),
        Text(f"{row.missed:,}", style="yellow" if row.missed else QUIET),
        Text(UNKNOWN if cost is None else as_dollars(cost), style=QUIET if cost is None else ""),
        Text(request.round_start.opened_by, style=QUIET),
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
            "opened_by": request.round_start.opened_by,
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


_ROUND_HEADINGS = ("round", "epoch", "messages", "tokens", "prompt", "opened by")
DIGITS = 12
"""How much of a digest is shown to people."""


async def replay(choices: Choices, screen: Screen) -> int:
    """Print a line for each round; a failure if one of them is not what was recorded."""
    rounds = list(replayed_rounds(await chosen_timeline(choices, screen)))
    if not rounds:
        raise LooplineError("no model was asked in this conversation: there is nothing to replay")
    wrong = next((one for one in rounds if one.divergence is not None), None)
    if choices.as_json:
        screen.raw(dumps(_replay_document(rounds, wrong)))
        return ANSWERED if wrong is None else FAILED
    rows = list(map(_round_row, rounds))
    headings = tuple(Text(name, style=QUIET) for name in _ROUND_HEADINGS)
    columns = Columns(rows=[headings, *rows], cut=5, right=frozenset({1, 2, 3}))
    screen.answer_whole(columns, "\n".join("\t".join(cell.plain for cell in row) for row in rows))
    if wrong is None or wrong.divergence is None:
        screen.note(Text(f"{counted(len(rounds), 'round')}, each rendered as it was", style=QUIET))
        return ANSWERED
    screen.error(_told(wrong, wrong.divergence))
    return FAILED


def _round_row(one: ReplayedRound) -> tuple[Text, ...]:
    block, begun, found = one.request.block, one.request.round_start, one.divergence
    differs = Text("identical", style="green")
    if found is not None:
        differs = Text(f"other {found.part}", style="red")
    return (
        Text(f"{block.turn}.{block.round}"),
        Text(str(begun.epoch)),
        Text(f"{len(one.request.messages):,}"),
        Text(f"{begun.tokens:,}"),
        differs,
        Text(begun.opened_by, style=QUIET),
    )


def _told(one: ReplayedRound, found: Divergence) -> str:
    """Which part of which round is the first that diverges, and what it was."""
    block = one.request.block
    where = f"{block.turn_id} round {block.round} is the first that diverges"
    match found.part:
        case "renderer":
            return (
                f"{where}: it was rendered by version {found.recorded}, "
                f"this loopline has {found.rendered}"
            )
        case "system" | "tools":
            now = (
                f"that of the log has {found.rendered[:DIGITS]}"
                if found.rendered
                else "there is none"
            )
            return f"{where}: its {found.part} text had the digest {found.recorded[:DIGITS]}, {now}"
        case "tail":
            was, now = (visible(line) or "nothing" for line in (found.recorded, found.rendered))
            return f"{where}: its tail said {was}, and the log makes {now}"
        case "messages":
            place = f"message {found.first}"
            if found.last > found.first:
                place = f"{place} to {found.last}"
            refs = visible(", ".join(dict.fromkeys(filter(None, one.suspects))))
            return (
                f"{where}, at {place}{f' ({refs})' if refs else ''}: the digest of all was "
                f"{found.recorded[:DIGITS]} and is {found.rendered[:DIGITS]}"
            )


def _replay_document(rounds: Sequence[ReplayedRound], wrong: ReplayedRound | None) -> JsonObject:
    rows: list[Json] = [_round_document(one) for one in rounds]
    return {
        "identical": wrong is None,
        "first": _round_document(wrong) if wrong else None,
        "rounds": rows,
    }


def _round_document(one: ReplayedRound) -> JsonObject:
    block, begun, found = one.request.block, one.request.round_start, one.divergence
    return {
        "turn_id": block.turn_id,
        "round": block.round,
        "ref": block.ref,
        "epoch": begun.epoch,
        "opened_by": begun.opened_by,
        "messages": len(one.request.messages),
        "tokens": begun.tokens,
        "identical": found is None,
        "divergence": None if found is None else _divergence_document(one, found),
    }


def _divergence_document(one: ReplayedRound, found: Divergence) -> JsonObject:
    return {
        "part": found.part,
        "recorded": found.recorded,
        "rendered": found.rendered,
        "first_message": found.first or None,
        "last_message": found.last or None,
        "refs": list[Json](one.suspects),
    }
