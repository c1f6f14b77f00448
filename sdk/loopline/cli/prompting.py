"""`loopline prompt`: exactly what a round asked its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from loopline.cli.caching import CacheName, cache_document, play, show_cache
from loopline.cli.choices import Choices
from loopline.cli.conversing import latest_kept, stored
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, REF, visible
from loopline.errors import LooplineError
from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    OutputSchema,
    ToolMessage,
    UserMessage,
    dumps,
)
from loopline.prompt import Request, request_of, requests
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
        played = play(which.cache, which.model, list(requests(timeline)))
        if choices.as_json:
            screen.raw(dumps(cache_document(played)))
        else:
            show_cache(played, screen)
        return ANSWERED
    if which.model is not None:
        raise UsageError("--model prices what a cache would have read: it goes with --cache")
    asked = timeline.last_asked
    if asked is None:
        raise LooplineError("no model was asked in this conversation")
    request = request_of(timeline, which.turn or asked.turn, which.round)
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


def _heading(request: Request) -> Text:
    begun = request.begun
    opened = f", opened by {begun.opened_by}" if begun.opened_by else ""
    parts = [
        f"{request.block.turn_id} round {request.block.round}",
        f"{begun.model}, {begun.protocol}",
        f"epoch {begun.epoch}{opened}",
        f"about {begun.tokens:,} tokens",
    ]
    return Text(" · ".join(parts), style=QUIET)


def _form(timeline: Timeline, request: Request) -> JsonObject | None:
    """The JSON Schema to which the provider was to hold the answer, if it was."""
    begun = request.begun
    for block in timeline.blocks:
        match block.body:
            case TurnHeader(output=OutputSchema() as schema) if begun.answer_by == "schema":
                if schema.sha256 == begun.schema_sha256:
                    return schema.form.schema
            case _:
                pass
    return None


def _pieces(request: Request, form: JsonObject | None) -> Iterator[Text]:
    yield _rule("system")
    yield Text(visible(request.system))
    if request.tools:
        yield _rule("tools")
        yield Text(visible(request.tools))
    if form is not None:
        yield _rule("form of the answer")
        yield Text(visible(dumps(form)))
    points = {point.messages: point for point in request.begun.points}
    for place, message in enumerate(request.messages):
        yield _rule(f"{place + 1} {_role(message)}", request.refs[place])
        yield Text(visible(_written(message)))
        if place + 1 in points:
            yield _marked(points[place + 1])
    yield _rule(f"tail, {request.begun.tail_kind}")
    yield Text(visible(request.begun.tail))


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


def _prompt_document(request: Request, form: JsonObject | None) -> JsonObject:
    messages: list[Json] = [
        {"role": _role(message), "ref": ref, "text": _written(message)}
        for message, ref in zip(request.messages, request.refs, strict=True)
    ]
    points: list[Json] = [
        {"name": point.name, "messages": point.messages, "tokens": point.tokens}
        for point in request.begun.points
    ]
    return {
        "turn_id": request.block.turn_id,
        "round": request.block.round,
        "ref": request.block.ref,
        "model": request.begun.model,
        "protocol": request.begun.protocol,
        "epoch": request.begun.epoch,
        "opened_by": request.begun.opened_by,
        "tokens": request.begun.tokens,
        "exact": not request.inexact,
        "system": request.system,
        "tools": request.tools,
        "form": form,
        "messages": messages,
        "cache_points": points,
        "tail": request.begun.tail,
        "tail_kind": request.begun.tail_kind,
    }
