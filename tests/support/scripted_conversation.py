"""A conversation with a scripted model, opened and closed in one line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from loopline import Bundle, Harness
from loopline.bundle import Setting
from loopline.conversations import Conversation
from loopline.testing import FakeClock, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.playground import bundle as playground


@asynccontextmanager
async def talking(
    script: Sequence[Entry] | ScriptedModel,
    *,
    bundle: Bundle = playground,
    store: str = "memory:",
    name: str = "c",
    properties: Mapping[str, Setting] | None = None,
) -> AsyncGenerator[Conversation, None]:
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    async with Harness.open(
        bundle, store=store, model=model, clock=FakeClock(), properties=properties
    ) as harness:
        yield harness.conversation(name)
