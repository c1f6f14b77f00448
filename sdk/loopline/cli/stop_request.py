"""`loopline stop`: what runs in a conversation, in whatever process, is ended from here."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import suppress

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import kept, latest_kept, stored, unknown
from loopline.cli.door import ANSWERED, FAILED
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.conversations import Conversation
from loopline.harness import Store
from loopline.models import JsonObject, dumps
from loopline.timeline import Timeline, Turn, turn_id


async def stop(seconds: float, choices: Choices, screen: Screen) -> int:
    """End the turns of a conversation that run or wait, and print what became of each.

    Waits at most so many `seconds` for the process that runs them; a failure if one still runs then.

    Raises:
        LooplineError: there is no such conversation.
    """
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        if await store.log.find(talk.conversation) is None:
            raise unknown(name, choices)
        numbers = await _open_turns(talk)
    turns = list[Turn]()
    if numbers:
        asked = ", ".join(map(turn_id, numbers))
        screen.note(Text(f"asking {asked} of {visible(name)} to stop", style=QUIET))
        async with Store.open(choices.store) as store:
            talk = kept(store, name, choices)
            with suppress(TimeoutError):
                await asyncio.wait_for(talk.stop(), seconds)
            timeline = Timeline(await talk.blocks())
            turns = [timeline.turn(number) for number in numbers]
    _show_stopped(name, turns, seconds, choices, screen)
    return ANSWERED if all(turn.exit for turn in turns) else FAILED


async def _open_turns(talk: Conversation) -> Sequence[int]:
    """The turns that run, are paused or cut off, or wait to be run."""
    timeline = Timeline(await talk.blocks())
    return [turn.number for turn in (*timeline.cut, *timeline.unbegun)]


def _show_stopped(
    name: str, turns: Sequence[Turn], seconds: float, choices: Choices, screen: Screen
) -> None:
    if choices.as_json:
        screen.raw(
            dumps({"conversation": name, "turns": [_stopped_document(turn) for turn in turns]})
        )
    elif not turns:
        screen.answer(Text(f"nothing was running in {visible(name)}"))
    for turn in turns:
        if turn.exit is None:
            screen.error(
                f"{turn_id(turn.number)} still runs after {seconds:g} s: it ends as soon as its process "
                f"looks again; loopline timeline {shlex.quote(visible(name))} shows when"
            )
        elif not choices.as_json:
            screen.answer(Text(f"{turn_id(turn.number)}: {turn.exit.reason}"))


def _stopped_document(turn: Turn) -> JsonObject:
    return {
        "turn_id": turn_id(turn.number),
        "exit_reason": turn.exit.reason if turn.exit else None,
    }
