"""Acting: the calls of a round run by their effects, and each result is recorded as it arrives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from loopline.clock import Clock
from loopline.errors import LooplineError, StoreError
from loopline.events import Delta, Listen
from loopline.models import Json, dumps, well_formed
from loopline.prompt import View
from loopline.reader import Reader
from loopline.timeline import (
    ArtifactKept,
    Body,
    Effect,
    Moment,
    Recorder,
    Timeline,
    ToolCalled,
    ToolResult,
    ToolStarted,
)
from loopline.tools import Call, Outcome, Tool, ToolContext, ToolSet

logger: logging.Logger = logging.getLogger("loopline")

INTERRUPTED = (
    "This call was cut off after it had begun, and is not begun again: whether it took effect is "
    "unknown. Check before you call it once more."
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a call excludes: calls whose claims conflict keep their order."""

    effect: Effect
    key: str = ""

    def conflicts(self, other: Claim) -> bool:
        """Whether the two must not run at once."""
        match self.effect, other.effect:
            case ("exclusive", _) | (_, "exclusive"):
                return True
            case ("write", "write"):
                return self.key == other.key
            case ("meta", "meta"):
                return True
            case _:
                return False


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A call with the tool that runs it, or with why none does."""

    call: ToolCalled
    tool: Tool | LooplineError
    claim: Claim


class Actor:
    """Runs calls and records what comes of them."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        view: View,
        tools: ToolSet,
        reader: Reader,
        clock: Clock,
        listen: Listen,
        properties: Mapping[str, Json],
        scratchpad: MutableMapping[str, Any],
    ) -> None:
        self._recorder = recorder
        self._view = view
        self._tools = tools
        self._reader = reader
        self._clock = clock
        self._listen = listen
        self._properties = properties
        self._scratchpad = scratchpad

    async def settle(self) -> None:
        """Give every open call of the turn its one result.

        A call that is not a read and had begun is not begun again; every other one runs.
        """
        turn = self._recorder.turn
        calls = list(turn.open_calls.values())
        for call in calls:
            if call.call_id in turn.started:
                await self._recorder.record(
                    ToolResult(
                        call_id=call.call_id,
                        tool=call.tool,
                        text=INTERRUPTED,
                        status="interrupted",
                    )
                )
        await self.act([call for call in calls if call.call_id not in turn.started])

    async def act(self, calls: Sequence[ToolCalled]) -> None:
        """Run the calls: conflicting ones in order, the rest at once."""
        parsed = [self._parsed(call) for call in calls]
        tasks = list[asyncio.Task[None]]()
        for number, one in enumerate(parsed):
            before = [
                task
                for task, other in zip(tasks, parsed, strict=False)
                if other.claim.conflicts(parsed[number].claim)
            ]
            tasks.append(asyncio.create_task(self._after(before, one)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _parsed(self, call: ToolCalled) -> _Parsed:
        """The call with its tool, once its arguments are right; what cannot run excludes nothing."""
        try:
            tool = self._tools.find(call.tool)
            tool.check(call.arguments)
        except LooplineError as error:
            return _Parsed(call, error, Claim("read"))
        try:
            return _Parsed(call, tool, Claim(tool.effect, tool.key(call.arguments)))
        except Exception:
            logger.exception("the key of %s cannot be made: it runs alone", call.tool)
            return _Parsed(call, tool, Claim("exclusive"))

    async def _after(self, before: Sequence[asyncio.Task[None]], parsed: _Parsed) -> None:
        if before:
            await asyncio.wait(before)
        call = parsed.call
        start = self._clock.elapsed()
        try:
            outcome = await self._run(call, parsed.tool)
            await self._record(call, outcome, self._since(start))
        except StoreError:
            raise
        except LooplineError as error:
            for note in getattr(error, "__notes__", ()):
                logger.warning("%s", note)  # where in its bundle a tool broke: for its author
            await self._record_error(call, str(error), self._since(start))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            text = "The tool cancelled its own work."
            await self._record_error(call, text, self._since(start))
        except Exception as error:
            logger.exception("%s broke", call.tool)
            await self._record_error(call, f"{type(error).__name__}: {error}", self._since(start))

    def _since(self, start: float) -> float:
        return round((self._clock.elapsed() - start) * 1000, 3)

    async def _run(self, call: ToolCalled, tool: Tool | LooplineError) -> Outcome:
        if isinstance(tool, LooplineError):
            raise tool
        if tool.effect != "read":
            await self._recorder.record(ToolStarted(call_id=call.call_id, effect=tool.effect))
            await self._recorder.check_lease()  # the process may have been stopped since
        # A copy: what a tool does to its arguments must not change what the log says of them.
        return await tool.run(deepcopy(call.arguments), self._call(call))

    async def _record_error(self, call: ToolCalled, text: str, elapsed_ms: float) -> None:
        result = ToolResult(
            call_id=call.call_id,
            tool=call.tool,
            text=well_formed(text),
            status="error",
            elapsed_ms=elapsed_ms,
        )
        await self._recorder.record(result)

    async def _record(self, call: ToolCalled, outcome: Outcome, elapsed_ms: float) -> None:
        await self._recorder.record_made(
            lambda timeline: recorded(call, outcome, elapsed_ms, timeline, self._recorder.number)
        )

    def _call(self, call: ToolCalled) -> Call:
        recorder = self._recorder
        turn_id = f"turn_{recorder.number}"

        loop = asyncio.get_running_loop()

        def progress(text: str) -> None:  # a sync tool calls it from its thread
            delta = Delta(type="progress", channel="tool", text=well_formed(text))
            loop.call_soon_threadsafe(self._listen, delta)

        context = ToolContext(
            call_id=call.call_id,
            idempotency_key=f"{recorder.uid}:{call.call_id}",
            conversation=recorder.conversation.name,
            turn_id=turn_id,
            user=recorder.conversation.user,
            properties=self._properties,
            scratchpad=self._scratchpad,
            on_progress=progress,
        )
        moment = Moment(self._clock.now(), turn_id)
        return Call(
            context=context,
            timeline=recorder.timeline,
            view=self._view,
            reader=self._reader,
            moment=moment,
        )


def recorded(
    call: ToolCalled, outcome: Outcome, elapsed_ms: float, timeline: Timeline, turn: int
) -> list[Body]:
    """The result of a call with the sources it adds, numbered, and what it keeps."""
    cited = [section.source for section in outcome.sections if section.source]
    sids, added = timeline.pool.number([*cited, *outcome.sources])
    kept: list[Body] = []
    artifact = ""
    if outcome.artifact is not None:
        version = timeline.artifacts.get((turn, call.call_id), 0) + 1
        text, mime = dumps(outcome.artifact), "application/json"
        kept = [ArtifactKept(name=call.call_id, version=version, text=text, mime=mime)]
        artifact = f"ar:turn_{turn}.artifacts.{call.call_id}@{version}"
    result = ToolResult(
        call_id=call.call_id,
        tool=call.tool,
        text=rendered(outcome, sids, artifact),
        elapsed_ms=elapsed_ms,
        found=outcome.found,
        shows=outcome.shows,
        artifact=artifact,
    )
    return [result, *added, *outcome.bodies, *kept]


def rendered(outcome: Outcome, sids: Sequence[int], artifact: str) -> str:
    """The text that the model reads: the lead, the sections, the sources with their numbers."""
    numbers = iter(sids)
    parts = [outcome.text]
    for section in outcome.sections:
        mark = f"[[S:{next(numbers)}]] " if section.source else ""
        parts.append(f"{mark}{section.heading}\n{section.text}")
    listed = [
        f"[[S:{sid}]] {source.title or source.url} — {source.url}"
        for sid, source in zip(numbers, outcome.sources, strict=True)
    ]
    if listed:
        parts.append("\n".join(["sources:", *listed]))
    if artifact:
        parts.append(f"the whole is kept: {artifact}")
    return "\n\n".join(part for part in parts if part)
