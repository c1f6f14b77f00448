"""Tools with `@tool(background=True)`: the call ends at once, and the result is the input of a later round or turn."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    LooplineError,
    Output,
    Store,
    ToolContext,
    tool,
)
from loopline import timeline as tl
from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.conversations.background import LOOK_SECONDS
from loopline.files import OutputFile
from loopline.models import Json, JsonObject
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.tools import ToolFunction
from tests.support.crews import Scripts
from tests.support.programs import bundle
from tests.support.scripted_conversation import play_turn, talking
from tests.support.waiting import until
from tests.support.warm_programs import warm_program
from tests.support.workbench import Redacting

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


class Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.begun = asyncio.Event()

    async def wait(self, name: str) -> str:
        CALLS.append(name)
        self.begun.set()
        await self.opened.wait()
        return f"{name} is brewed"


def results(blocks: Sequence[tl.Block]) -> list[tl.BackgroundResult]:
    return [block.body for block in blocks if isinstance(block.body, tl.BackgroundResult)]


async def with_result(talk: Conversation[Any], number: int = 1) -> list[tl.BackgroundResult]:
    """The results of a conversation, once so many have come."""
    for _ in range(400):
        if len(found := results(await talk.blocks())) >= number:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("no result came")


def shop(*tools: ToolFunction[..., Any], **given: Any) -> Bundle[Any]:
    return Bundle(id="shop", tools=tools, **given)


def brewing(gate: Gate, effect: Any = "read") -> Bundle[Any]:
    """A bundle whose one tool brews in the background."""

    @tool(effect=effect, background=True)
    async def brew(name: str) -> str:
        """Brew a tea."""
        return await gate.wait(name)

    return shop(brew)


async def test_a_result_comes_to_a_later_round_of_the_turn() -> None:
    gate = Gate()
    model = ScriptedModel(
        [
            Call("shop.brew", name="sencha"),
            lambda _: _opened(gate, Call("react.background", mode="wait", call_id="c1")),
            "Done.",
        ]
    )
    async with Harness.open(brewing(gate), store="memory:", model=model) as harness:
        result = await harness.conversation("c").say("go")
    assert result.answer == "Done."
    assert "It runs in the background" in str(model.requests[0].tools)
    assert "c1 goes on in the background" in str(model.requests[1])
    assert "c1 has ended. Its result follows" in str(model.requests[2])
    assert "[BACKGROUND RESULT]" in str(model.requests[2])
    assert "sencha is brewed" in str(model.requests[2])


def _opened(gate: Gate, entry: Any) -> Any:
    asyncio.get_running_loop().call_later(0.05, gate.opened.set)
    return entry


async def test_a_result_comes_to_the_next_turn_with_its_sources_and_files() -> None:
    @tool(effect="write", background=True)
    async def report(name: str) -> Output:
        """Write a report."""
        await asyncio.sleep(0.01)
        return Output(f"about {name}", files=[OutputFile("report.txt", b"all of it")])

    model = ScriptedModel(
        [Call("shop.report", name="tea"), "It runs.", "It is there.", "So."], strict=False
    )
    async with talking(model, bundle=shop(report), clock=SystemClock()) as talk:
        await talk.say("go")
        await with_result(talk)
        await talk.say("And?")
        [file] = await talk.read(["fi:turn_1.outputs/report.txt@1"])
    assert file.text == "all of it"
    assert "fi:turn_1.outputs/report.txt@1" in str(model.requests[-1])


async def test_a_function_that_fails_or_asks_has_a_result_that_says_so() -> None:
    @tool(background=True)
    def fail() -> str:
        """Fail."""
        raise ValueError("no tea")

    @tool(background=True)
    async def ask(context: ToolContext) -> str:
        """Ask."""
        context.ask_user("Which?")

    script = [Say("", Call("shop.fail"), Call("shop.ask")), Say("It runs.")]
    model = ScriptedModel([*script, Say("So.")], strict=False)
    async with talking(model, bundle=shop(fail, ask), clock=SystemClock()) as talk:
        await talk.say("go")
        found = await with_result(talk, 2)
    texts = {result.call_id: result.text for result in found}
    assert not any(result.ok for result in found)
    assert "ValueError: no tea" in texts["c1"]
    assert "cannot ask the user" in texts["c2"]


async def test_the_guards_change_the_result_of_a_call_in_the_background() -> None:
    @tool(effect="read", background=True)
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0.01)
        return "a s3cret tea"

    class Shop(BaseWorkflow):
        guards = (Redacting(),)

    model = ScriptedModel([Call("shop.look"), "It runs.", "So."], strict=False)
    bundle = shop(look, workflow=Shop)
    async with talking(model, bundle=bundle, clock=SystemClock()) as talk:
        await talk.say("go")
        [result] = await with_result(talk)
    assert "a *** tea" in result.text


async def test_a_call_in_the_background_is_listed_awaited_and_stopped() -> None:
    gate = Gate()
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with talking(model, bundle=brewing(gate), clock=SystemClock()) as talk:
        await talk.say("go")
        [state] = await talk.background.calls()
        [waiting] = await talk.background.wait("c1", seconds=0.02)
        with pytest.raises(LooplineError, match="no call 'c9' runs in the background: c1"):
            await talk.background.stop("c9")
        await talk.background.stop("c1")
        assert await talk.background.wait("c1", seconds=20) == []
        [result] = results(await talk.blocks())
    assert (state.call_id, state.tool, state.status) == ("c1", "shop.brew", "running")
    assert waiting == state
    assert "was stopped" in result.text
    assert not result.ok


async def test_the_model_lists_and_stops_its_calls() -> None:
    gate = Gate()
    model = ScriptedModel(
        [
            Call("shop.brew", name="sencha"),
            Call("react.background", mode="list"),
            Say(
                "",
                Call("react.background", mode="stop", call_id="c1"),
                Call("react.background", mode="stop", call_id="c7"),
            ),
            Call("react.background", mode="wait", call_id="c1"),
            "Stopped.",
        ]
    )
    async with Harness.open(brewing(gate), store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    assert "- c1: shop.brew" in str(model.requests[2])
    assert "no call 'c7' runs in the background: c1" in str(model.requests[3])
    assert "was stopped" in str(model.requests[4])


async def live(
    bundle: Bundle[Any], log: tl.TimelineLog | str, *script: Any
) -> list[tl.BackgroundResult]:
    """Play a turn, and close the harness; return the results from the background."""
    async with Harness.open(bundle, store=log, model=ScriptedModel(script)) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        return results(await talk.blocks())


async def next_result(bundle: Bundle[Any], log: tl.TimelineLog) -> tl.BackgroundResult:
    """Play another turn in another process; return the result that comes with it or behind it."""
    model = ScriptedModel(["And?", "So."], strict=False)
    async with Harness.open(bundle, store=log, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("And?")
        [result] = await with_result(talk)
    return result


async def test_a_read_that_was_cut_off_begins_again_with_the_next_turn() -> None:
    gate, log = Gate(), tl.MemoryLog()
    assert await live(brewing(gate), log, Call("shop.brew", name="sencha"), "It runs.") == []
    gate.opened.set()
    model = ScriptedModel(["And?", "Good.", "So."], strict=False)
    async with Harness.open(brewing(gate), store=log, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("And?")
        [result] = await with_result(talk)
        await talk.say("So?")
    assert CALLS == ["sencha", "sencha"]
    assert result.ok
    assert "sencha is brewed" in str(model.requests[-1])


async def test_an_effect_that_was_cut_off_is_reported_and_not_begun_again() -> None:
    gate, log = Gate(), tl.MemoryLog()
    [result] = await live(brewing(gate, "write"), log, Call("shop.brew", name="a"), "It runs.") or (
        await live(brewing(gate, "write"), log, "And?")
    )
    assert "cut off, and is not begun again" in result.text
    assert CALLS == ["a"]


@pytest.mark.parametrize("known", ["it was brewed", None])
async def test_an_effect_that_was_cut_off_asks_its_reconcile(known: str | None) -> None:
    gate, log = Gate(), tl.MemoryLog()

    def find(name: str) -> str | None:
        assert name == "sencha"
        return known

    @tool(effect="write", background=True, reconcile=find)
    async def brew(name: str) -> str:
        """Brew a tea."""
        return await gate.wait(name)

    await live(shop(brew), log, Call("shop.brew", name="sencha"), "It runs.")
    result = await next_result(shop(brew), log)
    assert CALLS == ["sencha"]
    assert (known or "whether it took effect is unknown") in result.text


async def test_a_read_that_was_cut_off_and_whose_tool_has_gone_is_reported() -> None:
    gate, log = Gate(), tl.MemoryLog()
    await live(brewing(gate), log, Call("shop.brew", name="sencha"), "It runs.")
    assert not (await next_result(shop(), log)).ok


async def test_a_call_that_was_cut_off_can_be_stopped_before_the_next_turn() -> None:
    gate, log = Gate(), tl.MemoryLog()
    await live(brewing(gate), log, Call("shop.brew", name="sencha"), "It runs.")
    async with Harness.open(brewing(gate), store=log, model=ScriptedModel(["And?"])) as harness:
        talk = harness.conversation("c")
        [state] = await talk.background.calls()
        await talk.background.stop("c1")
        [result] = results(await talk.blocks())
        await talk.say("And?")
    assert (state.status, state.begins_again) == ("lost", True)
    assert "was stopped" in result.text
    assert CALLS == ["sencha"]


async def test_in_a_child_run_the_call_waits_for_the_function() -> None:
    @tool(effect="read", background=True)
    async def brew(name: str) -> str:
        """Brew a tea."""
        return f"{name} is brewed"

    reader = Agent(name="reader", description="Reads.")
    model = Scripts(
        {
            "go": [Call("crew.delegate", agent="reader", task="about tea"), "Done."],
            "about tea": [Call("shop.brew", name="sencha"), "It is brewed."],
        }
    )
    async with Harness.open(shop(brew, agents=[reader]), store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    assert "sencha is brewed" in model.prompt_of("about tea")


async def test_a_tool_that_waits_too_long_is_cut_off() -> None:
    gate = Gate()
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with talking(model, bundle=brewing(gate), clock=SystemClock()) as talk:
        await talk.say("go", tool_timeout_seconds=0.05)
        [result] = await with_result(talk)
    assert "it was cut off after 0.05 s" in result.text


def test_a_tool_in_the_background_begins_no_child_runs() -> None:
    with pytest.raises(BundleError, match="its child runs would end with the turn"):

        @tool(effect="meta", background=True)
        async def ask(question: str) -> str:
            """Ask."""
            return question


async def test_another_harness_stops_a_call(tmp_path: Path) -> None:
    gate, store = Gate(), f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with Harness.open(brewing(gate), store=store, model=model) as harness:
        await harness.conversation("c").say("go")
        async with Harness.open(brewing(gate), store=store, model=ScriptedModel([])) as other:
            talk = other.conversation("c")
            await talk.background.stop("c1")
            assert await talk.background.wait(seconds=20) == []
            [result] = results(await talk.blocks())
    assert "was stopped" in result.text


class BreakingLog(tl.MemoryLog):
    """A log that breaks once with an unexpected error when somebody asks whether a conversation was forgotten."""

    breaks = False

    async def forgotten(self, conversation: tl.ConversationKey) -> datetime | None:
        if self.breaks:
            self.breaks = False
            raise KeyError("a row")
        return await super().forgotten(conversation)


async def test_another_harness_stops_a_call_after_an_unexpected_error_of_the_log_which_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, log = Gate(), BreakingLog()
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with Harness.open(brewing(gate), store=log, model=model) as harness:
        await harness.conversation("c").say("go")
        log.breaks = True
        await until(lambda: not log.breaks)
        async with Harness.open(brewing(gate), store=log, model=ScriptedModel([])) as other:
            talk = other.conversation("c")
            await talk.background.stop("c1")
            [result] = await with_result(talk)
    assert "was stopped" in result.text
    assert "KeyError: 'a row'" in caplog.text


async def test_finished_work_is_recorded_although_a_stop_comes_before_it_can_be(
    tmp_path: Path,
) -> None:
    gate, store = Gate(), f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with (
        Harness.open(brewing(gate), store=store, model=model) as harness,
        Harness.open(brewing(gate), store=store, model=ScriptedModel([])) as other,
    ):
        talk = harness.conversation("c")
        await talk.say("go")
        async with other.log.lease(talk.conversation):  # as if it ran a turn
            gate.opened.set()
            await asyncio.sleep(0.05)
            await talk.background.stop("c1")
            await asyncio.sleep(LOOK_SECONDS + 0.2)
        assert await talk.background.wait("c1", seconds=5) == []
        [result] = results(await talk.blocks())
    assert result.ok
    assert "sencha is brewed" in result.text


async def test_a_harness_that_closes_records_finished_work_when_the_other_process_ends_its_turn(
    tmp_path: Path,
) -> None:
    gate, store = Gate(), f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with Harness.open(brewing(gate), store=store, model=ScriptedModel([])) as other:
        talk = other.conversation("c")

        async def run_turn() -> None:
            async with other.log.lease(talk.conversation):
                gate.opened.set()
                await asyncio.sleep(0.3)

        async with Harness.open(brewing(gate), store=store, model=model) as harness:
            await harness.conversation("c").say("go")
            turn = asyncio.create_task(run_turn())
            await gate.opened.wait()
            await asyncio.sleep(0.05)
        await turn
        [result] = results(await talk.blocks())
    assert result.ok
    assert "sencha is brewed" in result.text


@pytest.mark.parametrize("key", ["background:c1", "lesson:l1", "c1~queued"])
async def test_no_message_has_the_key_of_a_result_in_the_background_or_another_internal_key(
    key: str,
) -> None:
    gate = Gate()
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with talking(model, bundle=brewing(gate), clock=SystemClock()) as talk:
        await talk.say("go")
        for send in (talk.submit, talk.steer, talk.followup):
            with pytest.raises(LooplineError, match=f"the key '{key}' may be an internal one"):
                await send("And?", key=key)
        gate.opened.set()
        [result] = await with_result(talk)
    assert "sencha is brewed" in result.text


@contextmanager
def process_name(name: bytes) -> Generator[None]:
    """Give this process a name as `ps` shows it, until the context is left."""
    file = Path("/proc/self/comm")
    before = file.read_bytes()
    file.write_bytes(name)
    try:
        yield
    finally:
        file.write_bytes(before.rstrip(b"\n"))


async def test_the_name_of_the_process_can_have_any_bytes() -> None:
    gate = Gate()
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    with process_name(b"caf\xe9) 1 2"):
        async with talking(model, bundle=brewing(gate), clock=SystemClock()) as talk:
            await talk.say("go")
            [state] = await talk.background.calls()
    assert (state.status, state.is_here) == ("running", True)


LIST_CALLS = """
import asyncio
import sys

from loopline import Bundle, Harness
from loopline.testing import ScriptedModel


async def main() -> None:
    async with Harness.open(Bundle(id="shop"), store=sys.argv[1], model=ScriptedModel([])) as harness:
        print([call.status for call in await harness.conversation("c").background.calls()])


asyncio.run(main())
"""


@pytest.mark.service
async def test_a_container_on_the_same_machine_does_not_take_a_call_for_lost(
    tmp_path: Path,
) -> None:
    gate, store = Gate(), f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with Harness.open(brewing(gate), store=store, model=model) as harness:
        await harness.conversation("c").say("go")
        container = ("bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc")
        program = (sys.executable, "-c", LIST_CALLS, store)
        listing = await asyncio.create_subprocess_exec(*container, *program, stdout=PIPE)
        output, _ = await listing.communicate()
    assert output == b"['running']\n"


async def test_a_call_ends_when_its_conversation_is_forgotten(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    @tool(effect="read", background=True)
    async def brew(name: str) -> str:
        """Brew a tea."""
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return name

    store = f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([Call("shop.brew", name="sencha"), "It runs."])
    async with (
        Harness.open(shop(brew), store=store, model=model) as harness,
        Store.open(store) as other,
    ):
        await harness.conversation("c").say("go")
        await other.forget("c")
        await asyncio.wait_for(cancelled.wait(), 20)


async def test_a_fork_does_not_wait_for_a_call_of_its_origin() -> None:
    gate = Gate()
    model = ScriptedModel(
        [Call("shop.brew", name="sencha"), "It runs.", "And?", "So?", "Ah."], strict=False
    )
    async with talking(model, bundle=brewing(gate, "write"), clock=SystemClock()) as talk:
        await talk.say("go")
        fork = await talk.fork(seq=(await talk.blocks())[-1].seq, name="other")
        [state] = await fork.background.calls()
        await fork.say("And?")
        [in_fork] = results(await fork.blocks())
        gate.opened.set()
        [result] = await with_result(talk)
    assert state.status == "lost"
    assert "cut off, and is not begun again" in in_fork.text
    assert "sencha is brewed" in result.text


STARTED = """
import asyncio, sys
from loopline import Harness
from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.testing import Call, ScriptedModel
from tests.support.programs import bundle

async def main():
    call = Call("exec.python", contract=[], program="import time; time.sleep(60)", background=True)
    async with Harness.open(bundle(), store=sys.argv[1], model=ScriptedModel([call, "It runs."])) as harness:
        await harness.conversation("c").say("go")
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def later(program: str, *filenames: str) -> ScriptEntry:
    """A call that runs the program in the background."""
    contract = [{"filename": name} for name in filenames]
    return Call("exec.python", contract=contract, program=program, background=True)


async def test_a_result_comes_with_its_files_to_the_turn_that_runs() -> None:
    came = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait for the inbox."""
        await came.wait()
        return "it came"

    program = "open('outputs/a.txt', 'w').write('made'); print('said')"
    model = ScriptedModel([later(program, "outputs/a.txt"), Call("shop.wait"), "Done."])
    async with talking(model, bundle=bundle(wait)) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.BackgroundResult):
                came.set()
        reading = await talk.read(["fi:turn_1.outputs/a.txt@1", "ar:turn_1.artifacts.c1"])
        document = await talk.export()
    async with Harness.open(bundle(), store="memory:", model=ScriptedModel([])) as harness:
        await harness.load(document)
    [made, kept] = [item.text for item in reading]
    assert made == "made"
    assert '"isolation":"none"' in kept
    assert "goes on in the background" in str(model.requests[1])
    shown = str(model.requests[2])
    assert "[BACKGROUND RESULT]" in shown
    assert "fi:turn_1.outputs/a.txt@1" in shown
    assert "| said" in shown
    assert "[USER INTERRUPT]" not in shown


async def test_a_program_in_the_background_calls_no_tools() -> None:
    @tool(effect="read")
    def price() -> float:
        """Return a price."""
        raise AssertionError("it was called")

    program = "await tools.call('shop.price')"
    model = ScriptedModel([later(program), "It runs."])
    async with talking(model, bundle=bundle(price)) as talk:
        await talk.say("go")
        [result] = await with_result(talk)
    assert (result.ok, "no tool 'shop.price' here" in result.text) == (False, True)


async def test_a_harness_that_closes_ends_the_program_that_goes_on() -> None:
    log, began = tl.MemoryLog(), later("import time; time.sleep(60)")
    async with (
        asyncio.timeout(30),
        talking([began, "It runs."], bundle=bundle(), store=log) as talk,
    ):
        await talk.say("go")
    model = ScriptedModel(["It was cut off."])
    _, blocks = await play_turn(model, "And?", bundle=bundle(), store=log)
    [result] = results(blocks)
    assert not result.ok
    assert "cut off, and is not begun again" in str(model.requests[0])


async def test_after_a_kill_the_next_turn_says_so_once_and_nothing_begins_again(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    process = await asyncio.create_subprocess_exec(
        *warm_program("-c", STARTED, store),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"

    async def turn(text: str) -> Sequence[tl.Block]:
        model = ScriptedModel([Say(text)])
        _, blocks = await play_turn(model, text, bundle=bundle(), store=store)
        return blocks

    assert results(await turn("Does it run?")) == []  # it does, in the other process
    process.kill()
    await process.communicate()
    assert [result.ok for result in results(await turn("And?"))] == [False]
    blocks = await turn("And now?")
    assert [result.ok for result in results(blocks)] == [False]
    assert not [block for block in blocks if isinstance(block.body, tl.FileAdded)]


class CountingLog(tl.MemoryLog):
    """A log that counts the blocks which a read by type has to look through."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_through = 0

    async def read(self, conversation: tl.ConversationKey, **options: Any) -> Sequence[tl.Block]:
        if options.get("types") and options.get("last") is None:
            summary = await self.find(conversation)
            self.looked_through += (summary.head if summary else 0) - options.get("after", 0)
        return await super().read(conversation, **options)


async def test_a_turn_looks_for_work_in_the_background_only_among_new_blocks() -> None:
    log = CountingLog()
    model = ScriptedModel([Say(f"answer {number}") for number in range(40)])
    async with talking(model, bundle=bundle(), store=log) as talk:
        looked_through = list[int]()
        for number in range(40):
            await talk.say(f"question {number}")
            looked_through.append(log.looked_through)
    assert looked_through[-1] - looked_through[-2] <= looked_through[1] - looked_through[0]


async def found_behind_a_checkpoint(
    event: JsonObject, *more: tl.Body
) -> tuple[tl.Checkpoint, tl.Timeline, list[tl.BackgroundResult]]:
    """What a turn behind a checkpoint says of a call that another process began before it."""
    log, key = tl.MemoryLog(), tl.ConversationKey(name="c")
    begun: Json = {"owner": "gone:1:1", "until": "2026-01-01T00:00:00+00:00", **event}
    bodies: list[tl.Body] = [
        tl.TurnHeader(bundle="shop", model="scripted", protocol="native"),
        tl.ToolCalled(call_id="c1", tool="exec.python", arguments={}),
        tl.ToolResult(call_id="c1", tool="exec.python", text="It goes on."),
        tl.CustomEvent(name=tl.BACKGROUND_STARTED, data=begun, call_id="c1"),
        *more,
        *[tl.Notes(text="tea")] * 20,
        tl.Exit(reason="complete"),
    ]
    await log.append(key, [tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)], seen=0)
    async with log.lease(key) as term:
        entries = [tl.Entry(body=body, turn=1) for body in bodies]
        await log.append(key, entries, seen=1, term=term)
        timeline = tl.Timeline(await log.read(key))
        made = tl.checkpoint(timeline, timeline.seq, {})
        assert made is not None
        await log.append(key, [tl.Entry(body=made, turn=1)], seen=timeline.seq, term=term)
    _, blocks = await play_turn(
        ["It was."], "And?", bundle=bundle(), store=log, clock=SystemClock()
    )
    return made, timeline, results(blocks)


async def test_work_that_was_begun_before_a_checkpoint_is_found_from_there() -> None:
    made, timeline, found = await found_behind_a_checkpoint({"tool": "exec.python"})
    assert "event.custom" in [block.type for block in timeline.at(made.carries)]
    assert made.carries_background
    assert [result.ok for result in found] == [False]


async def test_a_call_that_was_told_to_stop_before_a_checkpoint_is_not_begun_again() -> None:
    event: JsonObject = {"tool": "exec.python", "again": {}}
    stop = tl.BackgroundStop(call_id="c1")
    _, _, [result] = await found_behind_a_checkpoint(event, stop, tl.UserRecalled(said=1))
    assert "was stopped" in result.text
