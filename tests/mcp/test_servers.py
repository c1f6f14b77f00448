"""Tools of MCP servers: what is offered of them, what their calls return, and when a server starts."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from loopline import BundleError, Harness, ToolError
from loopline.bundle import load, load_mcp_selections, read_mcp_file
from loopline.events import Delta
from loopline.models import Json, ToolMessage
from loopline.react import PRESETS
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import ArtifactKept, RoundStart, ToolStarted
from tests.authoring.bundle_files import guide
from tests.doors.command import wait_for
from tests.mcp.served import Served, notices_in, plain, results_in, sdk
from tests.mcp.servers.sdk_server import PIXEL
from tests.support.sample_files import png
from tests.support.warm_programs import warm_program
from tests.support.workbench import bodies, bodies_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def test_the_tools_of_every_server_in_the_file_are_offered(served: Served) -> None:
    served.declare({"one": plain("works"), "two": sdk()})
    model = ScriptedModel([Say("Done.")])
    await served.turn(model)
    names = [tool.name for tool in model.requests[0].tools]
    assert {"mcp.one.work", "mcp.two.add", "mcp.two.weather"} <= set(names)


async def test_a_call_returns_the_text_of_its_server(served: Served) -> None:
    served.declare({"calc": sdk()})
    [added, failed] = await served.calls(
        Call("mcp.calc.add", a=2, b=3), Call("mcp.calc.fail", why="no tea")
    )
    assert (added.text, added.status) == ("5", "ok")
    assert failed.status == "error"
    assert "no tea" in failed.text


async def test_arguments_are_checked_before_the_server_sees_them(served: Served) -> None:
    notes = served.folder / "notes"
    served.declare({"calc": sdk(), "one": plain("works", notes)})
    [wrong] = await served.calls(Call("mcp.calc.add", a="two", b=3))
    assert wrong.status == "error"
    assert wrong.text == "mcp.calc.add: a: 'two' is not of type 'integer'"


async def test_a_structured_result_is_an_artifact_if_its_text_does_not_say_all(
    served: Served,
) -> None:
    served.declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.weather", place="Ulm"), Say("Done.")])
    blocks = await served.turn(model)
    [result] = results_in(blocks)
    assert json.loads(result.text) == {"place": "Ulm", "degrees": 7.5}
    assert bodies_of(blocks, ArtifactKept) == []


async def test_a_picture_is_a_file_of_the_turn(served: Served) -> None:
    served.declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.picture"), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!")
        [result] = results_in(await talk.blocks())
        [picture] = await talk.read(["fi:turn_1.outputs/mcp/calc/c1-1.png@1"])
    assert result.text == "wrote fi:turn_1.outputs/mcp/calc/c1-1.png@1 (image/png, 8 bytes)"
    assert (picture.data, picture.mime) == (PIXEL, "image/png")


async def test_a_model_with_vision_is_given_the_images_of_a_result(served: Served) -> None:
    served.declare({"calc": sdk()})
    images: list[Json] = [b64encode(png(width)).decode() for width in (30, 9_000)]
    refs = [f"fi:turn_1.outputs/mcp/calc/c1-{number}.png@1" for number in (1, 2)]
    show, read = (
        Call("mcp.calc.show", images=images),
        Call("react.read", paths=list[Json](refs[:1])),
    )
    seen = list[list[tuple[str, Json]]]()
    for vision in (True, False):
        model = ScriptedModel([show, read, Say(".")], vision=vision)
        async with served.open(model) as harness:
            talk = harness.conversation("c1")
            await talk.say("Go!")
            result, again = results_in(await talk.blocks())
        last = [item for item in model.requests[-1].messages if isinstance(item, ToolMessage)]
        seen.append([(image.ref, image.data) for item in last for image in item.attachments])
        if vision:
            assert f"{refs[1]} is not shown: an image may have 8,000 pixels a side" in result.text
            assert json.loads(again.text)["exists_in_visible_context"] == refs[:1]
    assert seen == [[(refs[0], images[0])], []]


async def test_the_effect_is_what_the_annotations_promise(served: Served) -> None:
    served.declare({"calc": sdk(NOTES=str(served.folder / "notes"))})
    model = ScriptedModel(
        [
            Call("mcp.calc.add", a=1, b=1),
            Call("mcp.calc.note", text="x"),
            Call("mcp.calc.erase"),
            Say("Done."),
        ]
    )
    started = bodies_of(await served.turn(model), ToolStarted)
    assert [(body.call_id, body.effect) for body in started] == [
        ("c2", "write"),
        ("c3", "exclusive"),
    ]


async def test_progress_is_heard_while_the_call_runs(served: Served) -> None:
    served.declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.count", to=3), Say("Done.")])
    async with served.open(model) as harness:
        texts = [
            event.text
            async for event in harness.conversation("c1").stream("Go!")
            if isinstance(event, Delta) and event.type == "progress" and event.channel == "tool"
        ]
    assert texts[-1] == "3 of 3: at 3"


async def test_cancelling_a_call_cancels_it_on_the_server(served: Served) -> None:
    notes = served.folder / "notes"
    served.declare({"calc": sdk(NOTES=str(notes))})
    [waited] = await served.calls(Call("mcp.calc.wait"), seconds=1.0)
    assert waited.status == "error"
    assert "cut off after 1 s" in waited.text
    assert notes.read_text().splitlines() == ["waiting", "cancelled"]


async def test_a_server_whose_tools_are_kept_starts_at_its_first_call(tmp_path: Path) -> None:
    served, notes = Served(tmp_path, in_memory=False), tmp_path / "notes"
    served.declare({"one": plain("works", notes)})
    for number in (1, 2):
        model = ScriptedModel([Say("Done.")])
        async with served.open(model) as harness:
            await harness.conversation(f"c{number}").say("Go!")
        assert "mcp.one.work" in [tool.name for tool in model.requests[0].tools]
        assert notes.exists() is (number == 1)
        notes.unlink(missing_ok=True)
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        talk = harness.conversation("c3")
        await talk.say("Go!")
        assert [result.text for result in results_in(await talk.blocks())] == ["worked"]
    assert notes.exists()


async def test_a_server_is_shared_by_the_turns_of_a_harness(served: Served) -> None:
    notes = served.folder / "notes"
    served.declare({"one": plain("works", notes)})
    model = ScriptedModel(
        [*[Call("mcp.one.work")] * 2, Say("Done."), *[Call("mcp.one.work")] * 2, Say("Done.")]
    )
    async with served.open(model) as harness:
        for name in ("c1", "c2"):
            await harness.conversation(name).say("Go!")
    assert notes.read_text().count('"initialize"') == 1


async def test_a_changed_list_is_offered_from_the_next_turn_on_as_a_new_epoch(
    served: Served,
) -> None:
    served.declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.change"), Say("Done."), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!")
        await asyncio.sleep(0.5)
        await talk.say("Again!")
        starts = await bodies(talk, RoundStart)
    offered = [{tool.name for tool in request.tools} for request in model.requests]
    assert offered[1] - offered[2] == {"mcp.calc.erase"}
    assert offered[2] - offered[1] == {"mcp.calc.newcomer"}
    assert [start.epoch for start in starts] == [1, 1, 2]
    assert starts[-1].opened_by == "tools"


async def test_a_selection_names_the_tools_and_the_alias(tmp_path: Path) -> None:
    folder = tmp_path / "guide"
    folder.mkdir()
    Served(tmp_path).declare({"calc": sdk()})
    (folder / "__init__.py").write_text(
        "from loopline import Bundle, BaseWorkflow\n"
        "class Guide(BaseWorkflow):\n"
        "    async def process(self, payload):\n"
        '        react = await self.build_react(tools_module="guide.tools_descriptor")\n'
        "        return await react.run(payload)\n"
        'bundle = Bundle(id="guide", workflow=Guide)\n'
    )
    (folder / "tools_descriptor.py").write_text(
        "TOOLS_SPECS = []\n"
        'MCP_TOOL_SPECS = [{"server_id": "calc", "alias": "sums", "tools": ["ad*", "tea"]}]\n'
    )
    model = ScriptedModel([Say("Done.")])
    properties = {"mcp.file": str(tmp_path / ".mcp.json")}
    async with Harness.open(folder, store="memory:", model=model, properties=properties) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!")
        notices = [notice.text for notice in notices_in(await talk.blocks())]
    names = [tool.name for tool in model.requests[0].tools]
    assert [name for name in names if name.startswith("mcp.")] == ["mcp.sums.add"]
    [notice] = notices
    assert notice.startswith("The MCP server 'calc' has no tool 'tea': the known names are note, ")
    assert notice.endswith(" and 3 more.")


async def test_of_more_than_twelve_tools_those_of_servers_are_requested(served: Served) -> None:
    served.declare({"calc": sdk(), "one": plain("works")})
    expected_call = Call("react.request_tools", tool_names=["mcp.calc.add"])
    model = ScriptedModel(
        [expected_call, Call("mcp.calc.add", a=1, b=2), Say("Done."), Say("Done.")]
    )
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!", select_tools=None)
        results = [result.text for result in results_in(await talk.blocks())]
        await harness.conversation("c2").say("Go!")
    offered = [
        [tool.name for tool in request.tools if tool.name.startswith("mcp.")]
        for request in model.requests
    ]
    assert offered[:3] == [[], ["mcp.calc.add"], ["mcp.calc.add"]]
    assert len(offered[3]) > 8
    assert results == ["brought in: mcp.calc.add", "3"]


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ({"x": {"command": "tea", "url": "http://x"}}, "both a 'command' and a 'url'"),
        ({"x": {}}, "the server 'x' has no 'command'"),
        ({"x": {"command": ["tea"]}}, ": mcpServers.x.command: "),
        (3, ".mcp.json: mcpServers: Input should be"),
    ],
)
def test_a_file_that_declares_nothing_usable_is_refused(
    servers: Json, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    with pytest.raises(BundleError) as raised:
        read_mcp_file(file)
    assert problem in str(raised.value)


async def test_a_server_of_an_unknown_type_is_left_out_with_a_notice_and_refused_if_it_is_selected(
    tmp_path: Path,
) -> None:
    folder = guide(tmp_path, {})
    servers: Json = {"mcpServers": {"old": {"type": "sse", "url": "http://x"}, "calc": sdk()}}
    (folder / ".mcp.json").write_text(json.dumps(servers), "utf-8")
    model = ScriptedModel([Call("mcp.calc.add", a=1, b=2), Say("Done.")])
    problem = "the server 'old' has the type 'sse': use stdio or http"
    async with Harness.open(folder, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!", select_tools=False)
        blocks = await talk.blocks()
    assert [result.text for result in results_in(blocks)] == ["3"]
    notices = [notice.text for notice in notices_in(blocks)]
    assert notices == [problem]  # without the path of the file, because users read notices
    selection = 'TOOLS_SPECS = []\nMCP_TOOL_SPECS = [{"server_id": "old"}]\n'
    (folder / "tools_descriptor.py").write_text(selection)
    selecting = tmp_path / "selecting"
    shutil.copytree(folder, selecting)
    with pytest.raises(BundleError, match=rf"\.mcp\.json: {problem}"):
        async with Harness.open(selecting, store="memory:", model=ScriptedModel([])):
            pass


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        ("3", "MCP_TOOL_SPECS must be a list such as"),
        ("[3]", "3 is incomplete: write {"),
        ('[{"server": "x"}]', "the key 'server' is unknown, nearest is 'server_id'"),
        ('[{"server_id": "x", "tools": "all"}]', "is incomplete: write {"),
        ('[{"server_id": "a b"}]', "'a b' cannot be an alias"),
    ],
)
def test_a_wrong_selection_is_named_with_its_line(specs: str, problem: str, tmp_path: Path) -> None:
    folder = guide(
        tmp_path, {"tools_descriptor.py": f"TOOLS_SPECS = []\nMCP_TOOL_SPECS = {specs}\n"}
    )
    with pytest.raises(BundleError) as raised:
        load_mcp_selections("guide.tools_descriptor", load(folder))
    assert "tools_descriptor.py:2: " in str(raised.value)
    assert problem in str(raised.value)


def test_variables_are_filled_in_and_only_their_names_are_part_of_the_digest(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path)
    env: dict[str, Json] = {"A": "${ONE}", "B": "${TWO:-two}", "API_KEY": "literal-key"}
    served.declare({"x": {"command": "${ONE}/run", "args": ["${TWO:-two}"], "env": env}})
    [entry] = read_mcp_file(tmp_path / ".mcp.json").values()
    settings = entry.resolve({"ONE": "one-secret-value"})
    assert settings.command == ("one-secret-value/run", "two")
    assert settings.env == {"A": "one-secret-value", "B": "two", "API_KEY": "literal-key"}
    assert settings.secrets == ("one-secret-value", "literal-key")
    assert "secret" not in repr(settings).replace("secrets", "")
    with pytest.raises(ToolError, match=r"needs the variable ONE, which .* names: set it"):
        entry.resolve({})


async def command(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *warm_program("-c", "from loopline.cli import main; main()", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


async def test_the_command_lists_and_calls_tools_of_servers_and_names_what_is_missing(
    tmp_path: Path,
) -> None:
    folder = guide(tmp_path, {})
    missing: Json = {"command": "no-such-command"}
    servers: Json = {"mcpServers": {"calc": sdk(), "gone": missing}}
    (folder / ".mcp.json").write_text(json.dumps(servers), "utf-8")
    store = ("--store", f"sqlite:///{tmp_path}/talk.db")
    checked, listed = await command("check", str(folder), *store)
    called, printed = await command("tool", str(folder), "mcp.calc.add", '{"a": 2, "b": 3}', *store)
    wrong, refusal = await command("tool", str(folder), "mcp.calc.add", '{"a": "x"}', *store)
    assert checked == 0, listed
    assert "mcp.calc.add(a: integer, b: integer)  read" in listed
    assert "'gone' cannot be started: there is no command 'no-such-command'" in listed.replace(
        "\n", " "
    )
    assert (called, printed.strip()) == (0, "5")
    assert (wrong, "is not of type 'integer'" in refusal) == (2, True)


async def test_a_call_that_a_crash_cut_off_is_interrupted_when_its_turn_goes_on(
    tmp_path: Path,
) -> None:
    served, notes = Served(tmp_path, in_memory=False), tmp_path / "notes"
    served.declare({"calc": sdk(NOTES=str(notes))})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.mcp.calling", str(tmp_path), "mcp.calc.hold", cwd=ROOT
    )
    await asyncio.to_thread(wait_for, notes.exists)
    process.kill()
    await process.wait()
    async with served.open(ScriptedModel([Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        result = await talk.resume()
        [cut] = results_in(await talk.blocks())
    assert (result.answer, cut.status) == ("Done.", "interrupted")
    assert notes.read_text().splitlines() == ["holding"]


async def test_two_processes_keep_one_whole_list(tmp_path: Path) -> None:
    folder = guide(tmp_path, {})
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"calc": sdk()}}), "utf-8")
    store = ("--store", f"sqlite:///{tmp_path}/talk.db")
    runs = await asyncio.gather(*(command("check", str(folder), *store) for _ in range(2)))
    [file] = (tmp_path / "talk.db-mcp").iterdir()
    kept = json.loads(file.read_text("utf-8"))
    assert [code for code, _ in runs] == [0, 0]
    assert {"add", "choose"} <= {tool["name"] for tool in kept["tools"]}


async def test_in_every_preset_many_tools_of_servers_wait_until_they_are_requested(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, in_memory=False).declare({"one": sdk(), "two": sdk(), "three": sdk()})
    offered = dict[str, int]()
    for preset in PRESETS:
        model = ScriptedModel([Say("Done.")] * 9, strict=False, json_mode=True)
        options: dict[str, Json] = {"react.select_tools": None, "react.preset": preset}
        async with served.open(model, **options) as harness:
            await harness.conversation(preset).say("Go!")
        first = next(request for request in model.requests if request.purpose == "decision")
        names = f"{first.system} {[tool.name for tool in first.tools]}"
        offered[preset] = sum(
            f"mcp.{server}.weather'" in names for server in ("one", "two", "three")
        )
    assert offered == dict.fromkeys(PRESETS, 0)
