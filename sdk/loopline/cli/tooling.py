"""`loopline tool`: one tool function of a bundle, called outside any conversation."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

from rich.text import Text

from loopline.bundle import LoadedBundle, begin, load, load_tools, make_deps, merged, wired
from loopline.cli.choices import Choices
from loopline.cli.door import ANSWERED, FAILED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.clock import SystemClock
from loopline.errors import PropertyError, ToolError
from loopline.models import Json, JsonObject, dumps
from loopline.prompt import Native, View
from loopline.reader import Conversed, Reader
from loopline.timeline import CustomEvent, Moment, Source, Timeline
from loopline.tools import AskUser, Call, Emission, Outcome, Tool, ToolContext, ToolSet, check_deps

TURN = "turn_1"
"""The turn that a call outside any conversation is told it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The call that was asked for."""

    bundle: str
    name: str
    arguments: str


async def tool(wanted: ToolCall, choices: Choices, screen: Screen) -> int:
    """Call the tool and print its result; a failure if it refuses."""
    loaded = load(wanted.bundle)
    tools = dict[str, Tool]()
    for module in wired(loaded, "tools") or [""]:
        tools |= load_tools(module, loaded)
    found = _tool(wanted.name, ToolSet(tools.values()))
    arguments = _checked(found, wanted.arguments)
    call = _call(loaded, choices, screen)
    await begin(loaded)
    try:
        async with AsyncExitStack() as stack:
            deps = await make_deps(loaded, stack)
            check_deps([found], deps)
            context = replace(call.context, deps=deps)
            outcome = await found.run(arguments, replace(call, context=context))
    except AskUser as asked:
        screen.error(
            f"{wanted.name} asks the user: {visible(asked.question)!r}. Outside a conversation nobody can "
            "answer: have a model call it with loopline run"
        )
        return FAILED
    except ToolError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        screen.error(f"{wanted.name}: {error}{notes}")
        return FAILED
    _show_outcome(outcome, choices, screen)
    return ANSWERED


def _tool(name: str, tools: ToolSet) -> Tool:
    if name.startswith("react."):
        raise UsageError(f"{name} needs a conversation: use loopline run, search or read")
    try:
        return tools.find(name)
    except ToolError as error:
        raise UsageError(str(error)) from error


def _checked(found: Tool, written: str) -> JsonObject:
    try:
        value = cast("Json", json.loads(written))
    except ValueError as error:
        raise UsageError(f"the arguments are no JSON: {error}: {written!r}") from error
    if not isinstance(value, dict):
        raise UsageError(f"the arguments must be a JSON object such as {{}}, not {written!r}")
    try:
        found.check(value)
    except ToolError as error:
        raise UsageError(str(error)) from error
    return value


def _call(loaded: LoadedBundle, choices: Choices, screen: Screen) -> Call:
    try:
        properties = merged(
            loaded.bundle.defaults, folder=loaded.folder, overrides=choices.settings
        )
    except PropertyError as error:
        if choices.props:
            raise UsageError(str(error)) from error
        raise
    clock = SystemClock()
    scratchpad: MutableMapping[str, Any] = {}

    def progress(text: str) -> None:
        screen.note(Text(visible(text), style=QUIET))

    def emit(event: CustomEvent, durable: bool) -> Emission:
        del durable  # there is no log
        screen.note(Text(f"{event.name} {visible(dumps(event.data))}", style=QUIET))
        return Emission()

    context = ToolContext(
        call_id="c1",
        idempotency_key=f"{clock.new_id()}:c1",
        conversation="",
        turn_id=TURN,
        user=choices.whose,
        properties=properties.flat(),
        scratchpad=scratchpad,
        on_progress=progress,
        on_emit=emit,
    )
    timeline = Timeline()
    return Call(
        context=context,
        timeline=timeline,
        view=View(Native()),
        reader=Reader(here=Conversed(timeline)),
        moment=Moment(clock.now(), TURN),
    )


def _show_outcome(outcome: Outcome, choices: Choices, screen: Screen) -> None:
    if choices.as_json:
        sources: list[Json] = [_source_document(source) for source in outcome.sources]
        shown: JsonObject = {
            "text": outcome.text,
            "sources": sources,
            "artifact": outcome.artifact,
        }
        screen.raw(dumps(shown))
        return
    screen.exact(outcome.text)
    for source in outcome.sources:
        screen.note(Text(f"source: {visible(source.title or source.url)} — {visible(source.url)}"))


def _source_document(source: Source) -> Json:
    return {"title": source.title, "url": source.url}
