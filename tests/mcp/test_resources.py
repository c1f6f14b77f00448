"""Resources and prompts of servers: listed, read by address, and readable by ref again when the server has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import RoundStart
from tests.mcp.served import SERVERS, Served, results_in, sdk, warm
from tests.mcp.servers.library_server import COVER
from tests.support.workbench import bodies

TOKEN = "token-that-nobody-may-read"


def library() -> dict[str, Json]:
    return warm(SERVERS / "library_server.py", API_TOKEN=TOKEN)


async def test_resources_are_listed_and_read_by_their_addresses(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"lib": library()})
    listed, narrowed, page, book, missing = await served.calls(
        Call("mcp.lib.list_resources"),
        Call("mcp.lib.list_resources", containing="COVERS"),
        Call("mcp.lib.read_resource", uri="shelf://tea"),
        Call("mcp.lib.read_resource", uri="shelf://books/pots"),
        Call("mcp.lib.read_resource", uri="shelf://nothing"),
    )
    assert listed.text.splitlines() == [
        "shelf://tea — tea (text/markdown): How tea is made.",
        "shelf://covers/tea.png — cover (image/png): Return bytes that are not the same twice, as a page that others edit.",
        "template shelf://books/{title} — book (text/plain): Return a book.",
    ]
    assert narrowed.text.startswith("shelf://covers/tea.png")
    assert page.text == "shelf://tea:\n# Tea\n\nThree minutes.\n[secret]"
    assert book.text == "shelf://books/pots:\nThe book of pots."
    assert missing.status == "error"


async def test_what_was_read_stays_read(tmp_path: Path) -> None:
    served = Served(tmp_path, in_memory=False).declare({"lib": library()})
    call = Call("mcp.lib.read_resource", uri="shelf://covers/tea.png")
    first, second = results_in(await served.turn(ScriptedModel([call, call, Say("Done.")])))
    refs = [f"fi:turn_1.outputs/mcp/lib/c{number}-1.png@1" for number in (1, 2)]
    assert (refs[0] in first.text, refs[1] in second.text) == (True, True)
    served.declare({})
    async with served.open(ScriptedModel([])) as harness:
        one, two = await harness.conversation("c1").read(refs)
    assert (one.mime, one.data[: len(COVER)]) == ("image/png", COVER)
    assert one.data != two.data


async def test_prompts_are_made_with_their_arguments(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"lib": library()})
    model = ScriptedModel(
        [
            Call("mcp.lib.get_prompt", name="brew", arguments={"kind": "green", "cups": "2"}),
            Call("mcp.lib.get_prompt", name="brew"),
            Say("Done."),
        ]
    )
    made, missing = results_in(await served.turn(model))
    [spec] = [tool for tool in model.requests[0].tools if tool.name == "mcp.lib.get_prompt"]
    assert spec.description.endswith("There are:\n- brew(kind, cups?): Ask for tea.")
    assert made.text == "user:\nMake 2 of green."
    assert (missing.status, missing.text) == ("error", "the prompt 'brew' needs the arguments kind")


async def test_changed_prompts_are_a_new_epoch_of_the_next_turn(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"lib": library()})
    model = ScriptedModel([Call("mcp.lib.publish"), Say("Done."), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!")
        await asyncio.sleep(0.5)
        await talk.say("Again!")
        starts = await bodies(talk, RoundStart)
    offered = [
        next(tool.description for tool in request.tools if tool.name.endswith("get_prompt"))
        for request in model.requests
    ]
    assert [text.count("\n- ") for text in offered] == [1, 1, 2]
    assert [(start.epoch, start.opened_by) for start in starts][-1] == (2, "tools")


async def test_a_server_without_resources_and_prompts_has_no_tools_for_them(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"calc": sdk()})
    model = ScriptedModel([Say("Done.")])
    await served.turn(model)
    names = {tool.name for tool in model.requests[0].tools}
    assert not {f"mcp.calc.{name}" for name in ("list_resources", "get_prompt")} & names
