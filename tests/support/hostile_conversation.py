"""A conversation that has hostile texts in every place that a model, a tool or a user fills."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loopline import Bundle, Harness, Output, Source, ToolError, tool
from loopline.testing import Call, Say, ScriptedModel


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread, since the browser of a test has an event loop here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@tool(effect="read")
async def echo(text: str) -> Output:
    """Return a hostile text with a hostile source."""
    return Output(
        text, sources=[Source(url=f"https://a.example/{hash(text)}", title=text, text=text)]
    )


@tool(effect="read")
async def fail(text: str) -> str:
    """Fail with a hostile text."""
    raise ToolError(text)


HOSTILE_TOOLS = Bundle(id="hostile", instructions="Be careful.", tools=[echo, fail])


async def write_hostile_store(url: str, texts: Sequence[str]) -> None:
    """Write a conversation that has each text in every place that a model, a tool or a user fills."""
    calls = [Call("hostile.echo", text=text) for text in texts]
    calls += [Call("hostile.fail", text=text) for text in texts]
    joined = "\n\n".join(texts)
    script = [
        Say(joined, *calls[:100], thinking=joined),
        Say(joined, *calls[100:]),
        Say(f"{joined}\n\n[[S:1]] [[S:2-9]]", thinking=joined),
    ]
    model = ScriptedModel(script, thinking=True, strict=False)
    async with Harness.open(HOSTILE_TOOLS, store=url, model=model) as harness:
        await harness.conversation("hostile").say(joined)
