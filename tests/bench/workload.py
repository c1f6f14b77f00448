"""What is measured: each round a reply of 45 characters with one call of an async tool that returns 1,000.

The model answers at once, so that only our own cost shows, and its window has room for everything.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from statistics import median

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult, tool
from loopline.models import Capabilities, Model, Prompt, Reply, TextDelta, ToolCall

REPLY = "Reading the next part of it, as was planned.."
RESULT = "r" * 1_000
TOOLS_SPECS = [{"module": __name__, "alias": "bench"}]


@tool(effect="read")
async def part(number: int) -> str:
    """Give a part."""
    del number
    return RESULT


class Bench(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__, max_iterations=100_000)
        return await react.run(payload)


class Instant:
    """A model that answers at once: so many calls, then the answer. It notes when it is asked."""

    name = "instant"

    def __init__(self, rounds: int, window: int = 100_000_000) -> None:
        self.rounds = rounds
        self.asked: list[float] = []
        self.capabilities: Capabilities = Capabilities(window=window)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if prompt.purpose == "summary":
            yield Reply(text="Parts were read, and more are to be read.")
            return
        self.asked.append(time.perf_counter())
        number = len(self.asked)
        if number > self.rounds:
            yield Reply(text="Done.")
        else:
            call = ToolCall(name="bench.part", arguments={"number": number})
            yield Reply(text=REPLY, calls=(call,))


def opened(store: str, model: Model | Callable[[], Model]) -> AbstractAsyncContextManager[Harness]:
    return Harness.open(Bundle(id="bench", workflow=Bench), store=store, model=model)


async def gaps(store: str, rounds: int) -> list[float]:
    """Milliseconds from each request of a turn to the next."""
    model = Instant(rounds)
    async with opened(store, model) as harness:
        await harness.conversation("c").say("go")
    return [
        (after - before) * 1000 for before, after in zip(model.asked, model.asked[1:], strict=False)
    ]


def tenths(times: Sequence[float]) -> float:
    """The median of the last tenth less that of the first."""
    tenth = max(len(times) // 10, 1)
    return median(times[-tenth:]) - median(times[:tenth])
