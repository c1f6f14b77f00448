"""A call that writes files is cut off at every append: its result and its files are both there, once, or neither is."""

from __future__ import annotations

import pytest

from loopline import Bundle, Harness, LooplineError, ToolContext, tool
from loopline.models import ToolCall
from loopline.testing import Call, ScriptedModel
from loopline.timeline import ConversationKey, FileAdded, MemoryLog, ToolResult
from tests.support.crashing_log import CrashingLog

HERE = ConversationKey(name="c")
PATCH = "@@ -1 +1 @@\n-one\n+two\n"
CALLS = {
    "react.write": Call("react.write", path="files/a.txt", content="two\n"),
    "react.patch": Call("react.patch", path="files/a.txt", patch=PATCH),
}


@tool(effect="write")
def shout(context: ToolContext) -> str:
    """Write in capitals."""
    context.workspace.write("files/b.txt", "LOUD\n")
    return "written"


bundle = Bundle(id="cut", tools=[shout], configuration={"react": {"workspace": "latest"}})


async def begun() -> MemoryLog:
    """A conversation whose first turn has written a file."""
    log = MemoryLog()
    first = Call("react.write", path="files/a.txt", content="one\n")
    async with Harness.open(bundle, store=log, model=ScriptedModel([first, "Done."])) as harness:
        await harness.conversation("c").say("begin")
    return log


async def cut(call: ToolCall, left: int) -> MemoryLog:
    """What is kept of a second turn whose one call was cut off after so many appends."""
    inner = await begun()
    log = CrashingLog(inner)
    log.left = left
    async with Harness.open(bundle, store=log, model=ScriptedModel([call])) as harness:
        with pytest.raises(LooplineError):
            await harness.conversation("c").say("go")
    return inner


async def carried_on(log: MemoryLog, call: ToolCall) -> tuple[list[FileAdded], list[ToolResult]]:
    """The versions and the results of the turn, once another runner has carried it on."""
    blocks = [block for block in await log.read(HERE) if block.turn == 2]
    is_decided = any(block.type == "react.decision" for block in blocks)
    model = ScriptedModel(["Done."] if is_decided else [call, "Done."], strict=False)
    async with Harness.open(bundle, store=log, model=model) as harness:
        talk = harness.conversation("c")
        await talk.resume()
        bodies = [block.body for block in await talk.blocks() if block.turn == 2]
    files = [body for body in bodies if isinstance(body, FileAdded)]
    return files, [body for body in bodies if isinstance(body, ToolResult)]


@pytest.mark.parametrize("left", [2, 3, 4])
@pytest.mark.parametrize("name", ["react.write", "react.patch"])
async def test_a_call_of_the_loop_writes_its_file_once_wherever_it_was_cut(
    name: str, left: int
) -> None:
    files, results = await carried_on(await cut(CALLS[name], left), CALLS[name])
    assert [(file.version, file.text) for file in files] == [(1, "two\n")]
    assert [result.status for result in results] == ["ok"]


@pytest.mark.parametrize("left", [2, 3, 4])
async def test_a_tool_that_had_begun_leaves_no_file_without_its_result(left: int) -> None:
    call = Call("cut.shout")
    files, results = await carried_on(await cut(call, left), call)
    (result,) = results
    assert bool(files) is (result.status == "ok")
    assert (result.status == "interrupted") is (left == 4)
