"""The way of `say`: which modules one turn with one tool call passes, up to the append of the result.

`python -m tests.bench.way_of_say` prints them in the order in which they are entered:

- `stack`: it stands on the stack, through every task, when the model is asked, the tool is called, or the result appended
- `waits`: something in it waits on the way, for a coroutine of its own is entered
- the others only compute

Left out are the store, the rooms of values and pure functions (`PURE`), and the folds of the timeline.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Coroutine, Generator, Iterator, Sequence
from types import CoroutineType, FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from loopline import Bundle, Harness, tool
from loopline.clock import SystemClock
from loopline.models import Prompt, ToolCall
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Block, ConversationKey, Entry, MemoryLog, ToolResult

T = TypeVar("T")

PURE = {"clock", "errors", "models", "prompt", "refs", "search", "skills", "store", "testing"}
WRITER = "timeline.recorder"
"""The module of the timeline that is no fold, no value and no adapter."""
WAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def module_of(frame: FrameType) -> str:
    """Return the name of the frame's module in the package, or nothing where it is left out."""
    package, _, name = str(frame.f_globals.get("__name__")).partition(".")
    room = name.partition(".")[0]
    is_left_out = room in PURE or (room == "timeline" and name != WRITER)
    # The body of a module that is imported late is no step of the way.
    is_import = frame.f_code.co_name == "<module>"
    return name if package == "loopline" and not is_left_out and not is_import else ""


class Way:
    """The modules that are entered while it is recorded, in order, each with whether it waits."""

    def __init__(self) -> None:
        self.waits: dict[str, bool] = {}
        self.stack: set[str] = set()
        self._parents = WeakKeyDictionary[asyncio.Task[Any], asyncio.Task[Any]]()

    def start(self) -> None:
        """Record every call, and which task begins which."""
        asyncio.get_running_loop().set_task_factory(self._begin_task)
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def stop(self) -> None:
        """Record nothing more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def look(self) -> None:
        """Note the modules that stand on the stack now, from here to whoever began the outermost task."""
        frames = list[FrameType]()
        frame = inspect.currentframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        task = asyncio.current_task()
        while task is not None and (task := self._parents.get(task)) is not None:
            frames.extend(_suspended(task.get_coro()))
        self.stack |= {name for name in map(module_of, frames) if name}

    def _begin_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        /,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coroutine, loop=loop)
        if parent := asyncio.current_task(loop):
            self._parents[task] = parent
        return task

    def _enter(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call" and (name := module_of(frame)):
            waits = bool(frame.f_code.co_flags & WAITS)
            self.waits[name] = self.waits.get(name, False) or waits


def _suspended(coroutine: object) -> Iterator[FrameType]:
    """Yield the frames of a task that waits, from its outermost coroutine inwards."""
    while isinstance(coroutine, CoroutineType):
        if coroutine.cr_frame is not None:
            yield coroutine.cr_frame
        coroutine = coroutine.cr_await


class WatchedLog(MemoryLog):
    """A log in memory that ends the way where a tool's result is appended."""

    def __init__(self, way: Way) -> None:
        super().__init__(SystemClock())
        self._way = way

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
        at_head: bool = False,
    ) -> Sequence[Block]:
        """Append the entries."""
        if any(isinstance(entry.body, ToolResult) for entry in entries):
            self._way.look()
            self._way.stop()
        return await super().append(
            conversation, entries, seen=seen, term=term, key=key, at_head=at_head
        )


async def recorded() -> Way:
    """Return the way of one `say`."""
    way = Way()

    @tool(effect="read")
    async def steep(leaves: str) -> str:
        """Say how long leaves steep."""
        way.look()
        return f"{leaves}: three minutes"

    def first_reply(request: Prompt) -> ToolCall:
        del request
        way.look()
        return Call("tea.steep", leaves="oolong")

    bundle = Bundle(id="tea", tools=[steep])
    model = ScriptedModel([first_reply, Say("Three minutes.")])
    async with Harness.open(bundle, store=WatchedLog(way), model=model) as harness:
        conversation = harness.conversation("c1")
        way.start()
        try:
            result = await conversation.say("How long?")
        finally:
            way.stop()
    assert result.answer == "Three minutes."
    return way


def main() -> None:
    """Print the modules in order, and how many there are."""
    way = asyncio.run(recorded())
    for name, waits in way.waits.items():
        kind = "stack" if name in way.stack else "waits" if waits else ""
        sys.stdout.write(f"{kind:6}{name}\n")
    waiting = {name for name, waits in way.waits.items() if waits} | way.stack
    sys.stdout.write(
        f"{len(way.stack)} stand on the stack, {len(waiting)} wait, {len(way.waits)} are entered\n"
    )


if __name__ == "__main__":
    main()
