"""Another process reads what the teapot stored, without its bundle, and says which Loopline that is."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import loopline
from loopline import Store

LAZY = ("loopline.cli.terminal_chat", "loopline.providers.http")
"""What is imported only at a terminal, or for a model over the wire."""


async def main() -> None:
    """Read the conversation, and print where this Loopline is."""
    async with Store.open("sqlite:///talk.db", read_only=True) as store:
        [summary] = [summary async for summary in store.conversations()]
        talk = store.conversation(summary.conversation.name)
        reading = await talk.read(["ar:turn_1.assistant.completion", "tc:turn_1.c3.result"])
    answer, steeped = [item.text for item in reading]
    assert answer is not None
    assert "80" in answer
    assert steeped == '{"minutes":3,"degrees":80}'
    for name in LAZY:
        import_module(name)
    sys.stdout.write(f"{loopline.__file__} {loopline.__version__}\n")


asyncio.run(main())
