"""An observer hears every turn once, whoever runs it, and never harms one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from loopline import Harness, LooplineError
from loopline.errors import ModelError
from loopline.events import ObservedTurn
from loopline.models import Prompt, Reply, TextDelta
from loopline.telemetry import spans as genai
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import Block, ConversationKey, MemoryLog, TimelineLog
from tests.support.child_runs import Cast, Line, bundle
from tests.support.crashing_log import CrashingLog
from tests.support.recording_observer import Watching, by_id, rebuilt, tree
from tests.support.workbench import Desk, workbench

C = ConversationKey(name="c")
FAMILY: dict[str, list[Line]] = {
    "top": [(Call("kin.ask", task="middle"), Call("play.look", text="x")), "Top."],
    "middle": [Call("kin.panel", tasks=["left", "right"]), "Middle."],
    "left": [Call("play.look", text="y"), "Left."],
    "right": ["Right."],
}
ASKING: dict[str, list[Line]] = {
    "go": [Call("kin.ask", task="find out"), "Done."],
    "find out": [Call("kin.question", text="Which?"), "That one."],
}


def opened(scripts: dict[str, list[Line]], log: TimelineLog, watching: Watching | None) -> Harness:
    return Harness.open(
        bundle, store=log, model=Cast(scripts), clock=FakeClock(), telemetry=watching
    )


async def test_calls_at_once_are_children_of_their_turn() -> None:
    watching, calls = Watching(), (Call("w.look", text="a"), Call("w.look", text="b"))
    model = ScriptedModel([Say("", *calls), "Seen."])
    async with Harness.open(
        workbench(Desk()), store="memory:", model=model, clock=FakeClock(), telemetry=watching
    ) as harness:
        await harness.conversation("c").say("go")
    assert tree(watching.spans) == {
        "": ["c invoke_agent workbench"],
        "c invoke_agent workbench": [
            "c chat scripted",
            "c chat scripted",
            "c execute_tool w.look c1",
            "c execute_tool w.look c2",
        ],
    }


async def test_child_runs_stand_below_their_calls_in_one_trace() -> None:
    watching = Watching()
    async with opened(FAMILY, MemoryLog(FakeClock()), watching) as harness:
        await harness.conversation("c").say("top")
    assert len({span.trace_id for span in watching.spans}) == 1
    assert tree(watching.spans) == {
        "": ["c invoke_agent kin"],
        "c invoke_agent kin": [
            "c chat cast",
            "c chat cast",
            "c execute_tool kin.ask c1",
            "c execute_tool play.look c2",
        ],
        "c execute_tool kin.ask c1": ["c~c1 invoke_agent kin"],
        "c~c1 invoke_agent kin": [
            "c~c1 chat cast",
            "c~c1 chat cast",
            "c~c1 execute_tool kin.panel c1",
        ],
        "c~c1 execute_tool kin.panel c1": [
            "c~c1~c1 invoke_agent kin",
            "c~c1~c1.2 invoke_agent kin",
        ],
        "c~c1~c1 invoke_agent kin": [
            "c~c1~c1 chat cast",
            "c~c1~c1 chat cast",
            "c~c1~c1 execute_tool play.look c1",
        ],
        "c~c1~c1.2 invoke_agent kin": ["c~c1~c1.2 chat cast"],
    }


async def test_each_turn_of_a_conversation_is_a_trace_of_its_own() -> None:
    watching = Watching()
    async with opened(FAMILY, MemoryLog(FakeClock()), watching) as harness:
        await harness.conversation("c").say("right")
        await harness.conversation("c").say("right")
        await harness.conversation("d").say("right")
    assert len({span.trace_id for span in watching.spans}) == 3


async def test_the_log_gives_the_spans_that_were_told() -> None:
    watching, log = Watching(), MemoryLog(FakeClock())
    async with opened(FAMILY, log, watching) as harness:
        await harness.conversation("c").say("top")
    assert by_id(watching.spans) == by_id(await rebuilt(log, C))


async def test_a_turn_that_waits_is_told_of_once_by_those_who_carry_it_on() -> None:
    first, second, log = Watching(), Watching(), MemoryLog(FakeClock())
    async with opened(ASKING, log, first) as harness:
        assert (await harness.conversation("c").say("go")).exit_reason == "paused"
    assert {span.name for span in first.spans} == {"chat cast"}
    async with opened(ASKING, log, second) as harness:
        assert (await harness.conversation("c").resume({"c1": "this"})).ok
    assert [there > 0 for _, there in second.begun] == [True, True]
    assert by_id([*first.spans, *second.spans]) == by_id(await rebuilt(log, C))


@pytest.mark.parametrize("scripts", [FAMILY, ASKING], ids=["family", "asking"])
async def test_wherever_a_runner_dies_every_span_is_told_once(
    scripts: dict[str, list[Line]],
) -> None:
    task, appends = next(iter(scripts)), 0
    died = True
    while died:
        watching, log = Watching(), CrashingLog(MemoryLog(FakeClock()))
        log.left = appends
        died = await _said_until_it_dies(scripts, log, watching, task)
        log.left = None
        await _carried_on(scripts, log, watching)
        told = by_id(watching.spans)
        assert told == by_id(await rebuilt(log, C)), f"after {appends} appends"
        assert len({span.span_id for span in told}) == len(told)
        appends += 1
    assert appends > 10


async def _said_until_it_dies(
    scripts: dict[str, list[Line]], log: TimelineLog, watching: Watching, task: str
) -> bool:
    async with opened(scripts, log, watching) as harness:
        try:
            await harness.conversation("c").say(task)
        except LooplineError:
            return True
    return False


async def _carried_on(scripts: dict[str, list[Line]], log: TimelineLog, watching: Watching) -> None:
    async with opened(scripts, log, watching) as harness:
        talk = harness.conversation("c")
        if not await talk.blocks():
            await talk.say(next(iter(scripts)))
        while not any(block.type == "react.exit" for block in await talk.blocks()):
            waiting = any(block.type == "react.tool.pending" for block in await talk.blocks())
            await talk.resume({"c1": "this"} if waiting else None)


async def test_a_turn_that_was_left_is_told_of_by_who_ends_it() -> None:
    watching, log = Watching(), CrashingLog(MemoryLog(FakeClock()))
    log.left = 4
    assert await _said_until_it_dies(FAMILY, log, watching, "top")
    log.left = None
    async with opened(FAMILY, log, watching) as harness:
        await harness.conversation("c").say("right")
    spans = [span for span in watching.spans if span.name == "invoke_agent kin"]
    assert [span.attributes[genai.EXIT_REASON] for span in spans] == ["interrupted", "complete"]
    assert by_id(watching.spans) == by_id(await rebuilt(log, C))


async def test_a_child_that_waits_is_told_of_when_it_ends_with_its_stopped_parent() -> None:
    first, second, log = Watching(), Watching(), MemoryLog(FakeClock())
    async with opened(ASKING, log, first) as harness:
        assert (await harness.conversation("c").say("go")).exit_reason == "paused"
    async with opened(ASKING, log, second) as harness:
        assert await harness.conversation("c").stop()
    spans = [span for span in second.spans if span.name == "invoke_agent kin"]
    assert [span.attributes[genai.EXIT_REASON] for span in spans] == ["stopped", "stopped"]
    assert by_id([*first.spans, *second.spans]) == by_id(await rebuilt(log, C))


async def test_a_turn_that_is_stopped_is_told_of_with_its_call() -> None:
    watching, desk = Watching(), Desk()
    model = ScriptedModel([Call("w.hang")])
    async with Harness.open(
        workbench(desk, tools=["w.hang"]),
        store="memory:",
        model=model,
        clock=FakeClock(),
        telemetry=watching,
    ) as harness:
        talk = harness.conversation("c")
        turn = asyncio.create_task(talk.say("go"))
        await desk.hanging.wait()
        await talk.stop()
        await turn
    _, call, agent = watching.spans
    assert (call.failed, call.attributes[genai.ERROR]) == (True, "stopped")
    assert (agent.failed, agent.attributes[genai.EXIT_REASON]) == (False, "stopped")


class Mute:
    """A model that cannot be asked."""

    name = "mute"
    capabilities = Cast.capabilities

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        raise ModelError("it is not to be had")
        yield


async def test_a_turn_whose_model_fails_is_told_of_as_failed() -> None:
    watching = Watching()
    async with Harness.open(
        bundle, store="memory:", model=Mute(), clock=FakeClock(), telemetry=watching
    ) as harness:
        assert (await harness.conversation("c").say("go")).exit_reason == "error"
    assert [(span.name, span.attributes[genai.ERROR]) for span in watching.spans] == [
        ("chat mute", "model_error"),
        ("invoke_agent kin", "error"),
    ]


class Broken:
    """An observer that breaks, at once or at the first block."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        if self.at_once:
            raise RuntimeError("broken")

        def heard(block: Block) -> None:
            raise RuntimeError("broken")

        return heard

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("at_once", [True, False])
async def test_an_observer_that_breaks_harms_no_turn_and_is_told_of_once(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Harness.open(
        bundle, store="memory:", model=Cast(FAMILY), telemetry=Broken(at_once=at_once)
    ) as harness:
        assert (await harness.conversation("c").say("right")).ok
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the observer broke"
    ]


async def test_an_observer_is_closed_with_its_harness() -> None:
    watching = Watching()
    async with opened(FAMILY, MemoryLog(FakeClock()), watching):
        assert watching.closed == 0
    assert watching.closed == 1


def test_telemetry_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPLINE_TELEMETRY", "jaeger")
    with pytest.raises(LooplineError, match="LOOPLINE_TELEMETRY is 'jaeger': use 'otlp'"):
        Harness.open(bundle, store="memory:")


IN_PROCESS = """
import asyncio, sys
{before}
from loopline import Harness, LooplineError
from loopline.errors import ModelError
from loopline.testing import ScriptedModel
from loopline import BaseWorkflow, Bundle

async def main():
    guide = Bundle(id="guide", workflow=BaseWorkflow)
    model = ScriptedModel(["Hello."])
    async with Harness.open(guide, store="memory:", model=model{telemetry}) as harness:
        await harness.conversation("c").say("Hi.")

try:
    asyncio.run(main())
except LooplineError as error:
    print(error)
names = ("opentelemetry", "loopline.telemetry.spans", "loopline.telemetry.otel", "google.protobuf")
print(len([name for name in sys.modules if name.startswith(names)]))
"""


def ran(folder: Path, *, before: str = "", telemetry: str = "") -> list[str]:
    """What a new Python prints that runs a turn, and how many modules of telemetry it has loaded."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", IN_PROCESS.format(before=before, telemetry=telemetry)],
        cwd=folder,
        env={"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_without_telemetry_a_turn_loads_nothing_of_it(tmp_path: Path) -> None:
    assert ran(tmp_path) == ["0"]


def test_without_the_extra_it_is_said_how_to_install_it(tmp_path: Path) -> None:
    absent, text = "sys.modules['opentelemetry'] = None", ", telemetry='otlp'"
    said, _ = ran(tmp_path, before=absent, telemetry=text)
    assert said == "telemetry is not installed: pip install 'loopline[otel]'"
