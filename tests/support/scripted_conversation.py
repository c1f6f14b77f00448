"""A conversation with a scripted model, opened and closed in one line, and one turn of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

from loopline import Bundle, Harness, TurnResult
from loopline.bundle import Setting
from loopline.clock import Clock
from loopline.conversations import Conversation
from loopline.models import Model
from loopline.react import Limits
from loopline.testing import FakeClock, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, TimelineLog
from tests.support.playground import bundle as playground


@asynccontextmanager
async def talking(
    script: Sequence[Entry] | Model,
    *,
    bundle: Bundle[Any] | Path = playground,
    store: str | TimelineLog = "memory:",
    name: str = "c",
    clock: Clock | None = None,
    properties: Mapping[str, Setting] | None = None,
) -> AsyncGenerator[Conversation[Any], None]:
    model = ScriptedModel(script) if isinstance(script, Sequence) else script
    async with Harness.open(
        bundle, store=store, model=model, clock=clock or FakeClock(), properties=properties
    ) as harness:
        yield harness.conversation(name)


async def play_turn(
    script: Sequence[Entry] | Model,
    text: str = "go",
    *,
    bundle: Bundle[Any] | Path = playground,
    store: str | TimelineLog = "memory:",
    clock: Clock | None = None,
    **limits: Unpack[Limits],
) -> tuple[TurnResult[Any], list[Block]]:
    """Say the text in a conversation of its own; return the result, and all blocks."""
    async with talking(script, bundle=bundle, store=store, clock=clock) as talk:
        return await talk.say(text, **limits), list(await talk.blocks())
