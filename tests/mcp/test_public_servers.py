"""Servers that others wrote: of the reference servers, two in Python and three in TypeScript."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from loopline.events import Delta
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, results_in
from tests.support.git_repositories import commit
from tests.support.peers.npm_packages import install, node

TOKEN = "token-that-nobody-may-read"
SCOPE = "@modelcontextprotocol"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the servers of npm."""
    folder = tmp_path_factory.mktemp("npm")
    install(folder, *(f"{SCOPE}/server-{name}" for name in ("everything", "filesystem", "memory")))
    return folder / "node_modules" / SCOPE


def of_npm(package: Path, *arguments: str, **env: str) -> dict[str, Json]:
    return {
        "command": str(node()),
        "args": [str(package / "dist" / "index.js"), *arguments],
        "env": dict(env),
    }


async def test_the_server_of_times_converts_them(tmp_path: Path) -> None:
    served = Served(tmp_path).declare(
        {"time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]}}
    )
    times = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    converted, wrong = await served.calls(
        Call("mcp.time.convert_time", **times),
        Call("mcp.time.get_current_time", timezone="Tea/Pot"),
    )
    assert json.loads(converted.text)["target"]["datetime"].endswith("T21:00:00+09:00")
    assert (wrong.status, "Invalid timezone" in wrong.text) == ("error", True)


async def test_the_server_of_git_reads_and_commits(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    commit(repository, {"tea.md": "Green.\n"})
    (repository / "tea.md").write_text("Black.\n")
    served, place = Served(tmp_path), str(repository)
    command = [sys.executable, "-m", "mcp_server_git", "--repository", place]
    served.declare({"git": {"command": command[0], "args": [*command[1:]]}})
    status, difference, log = await served.calls(
        Call("mcp.git.git_status", repo_path=place),
        Call("mcp.git.git_diff_unstaged", repo_path=place),
        Call("mcp.git.git_log", repo_path=place, max_count=1),
    )
    assert "tea.md" in status.text
    assert "+Black." in difference.text
    assert log.status == "ok"


@pytest.mark.service
async def test_the_server_of_everything_gives_each_kind_of_result(
    packages: Path, tmp_path: Path
) -> None:
    served = Served(tmp_path)
    everything = packages / "server-everything"
    served.declare({"all": of_npm(everything, "stdio", API_TOKEN=TOKEN)})
    calls = [
        Call("mcp.all.get-sum", a=2, b=3),
        Call("mcp.all.get-structured-content", location="Chicago"),
        Call("mcp.all.get-tiny-image"),
        Call("mcp.all.get-resource-links", count=2),
        Call("mcp.all.get-resource-reference", resourceType="Text", resourceId=1),
        Call("mcp.all.get-env"),
    ]
    model = ScriptedModel([*calls, Say("Done.")])
    blocks = await served.turn(model)
    total, structured, image, links, reference, env = results_in(blocks)
    assert "5" in total.text
    assert json.loads(structured.text)["temperature"] > 0
    assert "wrote fi:turn_1.outputs/mcp/all/c3-1.png@1 (image/png, " in image.text
    assert links.text.count("a resource: ") == 2
    assert "demo://resource/" in reference.text
    assert "[secret]" in env.text
    assert TOKEN not in f"{blocks} {model.requests}"
    assert {result.status for result in results_in(blocks)} == {"ok"}


@pytest.mark.service
async def test_the_server_of_everything_tells_its_progress(packages: Path, tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"all": of_npm(packages / "server-everything", "stdio")})
    call = Call("mcp.all.trigger-long-running-operation", duration=1, steps=2)
    async with served.open(ScriptedModel([call, Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        events = [event async for event in talk.stream("Go!", select_tools=False)]
    heard = [event.text for event in events if isinstance(event, Delta)]
    assert "2 of 2" in heard


@pytest.mark.service
async def test_the_servers_of_files_and_of_memory_keep_what_they_are_told(
    packages: Path, tmp_path: Path
) -> None:
    served = Served(tmp_path)
    memory = str(tmp_path / "memory.json")
    served.declare(
        {
            "fs": of_npm(packages / "server-filesystem", str(tmp_path)),
            "mem": of_npm(packages / "server-memory", MEMORY_FILE_PATH=memory),
        }
    )
    file, entity = (
        str(tmp_path / "tea.txt"),
        {"name": "tea", "entityType": "drink", "observations": ["hot"]},
    )
    written, read, refused, created, graph = await served.calls(
        Call("mcp.fs.write_file", path=file, content="Green."),
        Call("mcp.fs.read_text_file", path=file),
        Call("mcp.fs.read_text_file", path="/etc/hostname"),
        Call("mcp.mem.create_entities", entities=[entity]),
        Call("mcp.mem.read_graph"),
    )
    assert (written.status, read.text, refused.status) == ("ok", "Green.", "error")
    assert (created.status, "hot" in graph.text) == ("ok", True)


@pytest.mark.service
async def test_the_tools_of_three_servers_wait_until_they_are_requested(
    packages: Path, tmp_path: Path
) -> None:
    served = Served(tmp_path).declare(
        {
            "all": of_npm(packages / "server-everything", "stdio"),
            "fs": of_npm(packages / "server-filesystem", str(tmp_path)),
            "mem": of_npm(packages / "server-memory"),
        }
    )
    request = Call("react.request_tools", tool_names=["mcp.all.get-sum"])
    model = ScriptedModel([request, Call("mcp.all.get-sum", a=1, b=2), Say("Done.")])
    await served.turn(model, **{"react.select_tools": None})
    offered = [
        [tool.name for tool in each.tools if tool.name.startswith("mcp.")]
        for each in model.requests
    ]
    assert offered == [[], ["mcp.all.get-sum"], ["mcp.all.get-sum"]]
    [catalogue] = [tool for tool in model.requests[0].tools if tool.name == request.name]
    assert catalogue.description.count("\n- mcp.") >= 13 + 14 + 9
