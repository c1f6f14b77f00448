"""Calls that go on in the background: their one result comes to the inbox, after a crash too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopline import Harness, tool
from loopline.conversations import Conversation
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import (
    BACKGROUND_STARTED,
    NEW_TURN,
    BackgroundResult,
    BackgroundStop,
    Block,
    Body,
    ConversationKey,
    CustomEvent,
    Entry,
    Exit,
    FileAdded,
    MemoryLog,
    Notes,
    Timeline,
    ToolCalled,
    ToolResult,
    TurnHeader,
    UserPrompt,
    UserRecalled,
    checkpoint,
)
from tests.support.programs import bundle
from tests.support.warm_programs import warm_program

STARTED = """
import asyncio, sys
from loopline import Harness
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


def results(blocks: Sequence[Block]) -> list[BackgroundResult]:
    """The results that came from the background."""
    return [block.body for block in blocks if isinstance(block.body, BackgroundResult)]


async def with_result(talk: Conversation[None]) -> Sequence[Block]:
    """The blocks of a conversation, once a result has come."""
    for _ in range(400):
        if results(await talk.blocks()):
            break
        await asyncio.sleep(0.05)
    return await talk.blocks()


async def test_a_result_comes_with_its_files_to_the_turn_that_runs() -> None:
    came = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait for the inbox."""
        await came.wait()
        return "it came"

    program = "open('outputs/a.txt', 'w').write('made'); print('said')"
    model = ScriptedModel([later(program, "outputs/a.txt"), Call("shop.wait"), "Done."])
    async with Harness.open(bundle(wait), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("go"):
            if isinstance(event, Block) and isinstance(event.body, BackgroundResult):
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


async def test_a_result_that_comes_after_its_turn_is_in_the_next_one() -> None:
    model = ScriptedModel([later("import time; time.sleep(0.3); 1 / 0"), "It runs.", "It failed."])
    async with Harness.open(bundle(), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        first = await talk.say("go")
        blocks = await with_result(talk)
        await talk.say("And?")
    assert first.answer == "It runs."
    [result] = results(blocks)
    assert (result.call_id, result.tool, result.ok) == ("c1", "exec.python", False)
    assert "ZeroDivisionError" in str(model.requests[-1])


async def test_a_program_in_the_background_calls_no_tools() -> None:
    @tool(effect="read")
    def price() -> float:
        """Return a price."""
        raise AssertionError("it was called")

    program = "await tools.call('shop.price')"
    model = ScriptedModel([later(program), "It runs."])
    async with Harness.open(bundle(price), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        blocks = await with_result(talk)
    assert "no tool 'shop.price' here" in results(blocks)[0].text


async def test_a_harness_that_closes_ends_what_goes_on(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    model = ScriptedModel([later("import time; time.sleep(60)"), "It runs."])
    async with Harness.open(bundle(), store=store, model=model) as harness:
        await harness.conversation("c").say("go")
    model = ScriptedModel([Say("It was cut off.")])
    async with Harness.open(bundle(), store=store, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("And?")
        blocks = await talk.blocks()
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

    async def turn(text: str) -> Sequence[Block]:
        model = ScriptedModel([Say(text)])
        async with Harness.open(bundle(), store=store, model=model) as harness:
            talk = harness.conversation("c")
            await talk.say(text)
            return await talk.blocks()

    assert results(await turn("Does it run?")) == []  # it does, in the other process
    process.kill()
    await process.communicate()
    assert [result.ok for result in results(await turn("And?"))] == [False]
    blocks = await turn("And now?")
    assert [result.ok for result in results(blocks)] == [False]
    assert not [block for block in blocks if isinstance(block.body, FileAdded)]


class CountingLog(MemoryLog):
    """A log that counts the blocks which a read by type has to look through."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_through = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        if options.get("types") and options.get("last") is None:
            summary = await self.find(conversation)
            self.looked_through += (summary.head if summary else 0) - options.get("after", 0)
        return await super().read(conversation, **options)


async def test_a_turn_looks_for_work_in_the_background_only_among_new_blocks() -> None:
    log = CountingLog()
    model = ScriptedModel([Say(f"answer {number}") for number in range(40)])
    async with Harness.open(bundle(), store=log, model=model) as harness:
        talk = harness.conversation("c")
        looked_through = list[int]()
        for number in range(40):
            await talk.say(f"question {number}")
            looked_through.append(log.looked_through)
    assert looked_through[-1] - looked_through[-2] <= looked_through[1] - looked_through[0]


async def test_work_that_was_begun_before_a_checkpoint_is_found_from_there() -> None:
    log, key = MemoryLog(), ConversationKey(name="c")
    event: Json = {"owner": "gone:1:1", "until": "2026-01-01T00:00:00+00:00", "tool": "exec.python"}
    bodies: list[Body] = [
        TurnHeader(bundle="shop", model="scripted", protocol="native"),
        ToolCalled(call_id="c1", tool="exec.python", arguments={}),
        ToolResult(call_id="c1", tool="exec.python", text="It goes on."),
        CustomEvent(name=BACKGROUND_STARTED, data=event, call_id="c1"),
        *[Notes(text="tea")] * 20,
        Exit(reason="complete"),
    ]
    await log.append(key, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
    async with log.lease(key) as term:
        entries = [Entry(body=body, turn=1) for body in bodies]
        await log.append(key, entries, seen=1, term=term)
        timeline = Timeline(await log.read(key))
        made = checkpoint(timeline, timeline.seq, {})
        assert made is not None
        assert "event.custom" in [block.type for block in timeline.at(made.carries)]
        assert made.carries_background
        await log.append(key, [Entry(body=made, turn=1)], seen=timeline.seq, term=term)
    async with Harness.open(bundle(), store=log, model=ScriptedModel(["It was."])) as harness:
        talk = harness.conversation("c")
        await talk.say("And?")
        assert [result.ok for result in results(await talk.blocks())] == [False]


async def test_a_call_that_was_told_to_stop_before_a_checkpoint_is_not_begun_again() -> None:
    log, key = MemoryLog(), ConversationKey(name="c")
    event: Json = {
        "owner": "gone:1:1",
        "until": "2026-01-01T00:00:00+00:00",
        "tool": "exec.python",
        "again": {},
    }
    bodies: list[Body] = [
        TurnHeader(bundle="shop", model="scripted", protocol="native"),
        ToolCalled(call_id="c1", tool="exec.python", arguments={}),
        ToolResult(call_id="c1", tool="exec.python", text="It goes on."),
        CustomEvent(name=BACKGROUND_STARTED, data=event, call_id="c1"),
        BackgroundStop(call_id="c1"),
        UserRecalled(said=1),
        *[Notes(text="tea")] * 20,
        Exit(reason="complete"),
    ]
    await log.append(key, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
    async with log.lease(key) as term:
        entries = [Entry(body=body, turn=1) for body in bodies]
        await log.append(key, entries, seen=1, term=term)
        timeline = Timeline(await log.read(key))
        made = checkpoint(timeline, timeline.seq, {})
        assert made is not None
        await log.append(key, [Entry(body=made, turn=1)], seen=timeline.seq, term=term)
    async with Harness.open(bundle(), store=log, model=ScriptedModel(["It was."])) as harness:
        talk = harness.conversation("c")
        await talk.say("And?")
        [result] = results(await talk.blocks())
    assert "was stopped" in result.text
