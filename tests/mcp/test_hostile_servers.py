"""A server that is dead, hangs, floods or lies gives an error result, and the turn goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, notices_in, plain, results_in

TOKEN = "token-that-nobody-may-read"


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("twice", "ok", "first"),
        ("garbage", "ok", "after the garbage"),
        ("wrong_id", "error", "cut off after 2 s"),
        ("hangs", "error", "cut off after 2 s"),
        ("no_result", "error", "sent an invalid result of a tool"),
        ("dies", "error", "gave no result, because it ended"),
        ("flood", "error", "because it sent a message of more than 8,388,608 bytes"),
        ("notifications", "error", "bytes without an answer"),
        ("huge", "ok", "[CUT] 3,000,000 bytes came, and 2,000,000 are kept"),
    ],
)
async def test_a_lying_server_gives_one_result(
    mode: str, status: str, words: str, tmp_path: Path
) -> None:
    served = Served(tmp_path).declare({"one": plain(mode)})
    seconds = 2.0 if "2 s" in words else 60.0
    [result] = await served.calls(Call("mcp.one.work"), seconds=seconds)
    assert (result.status, words in result.text) == (status, True), result.text[-300:]


async def test_a_server_that_ended_is_started_for_the_next_call(tmp_path: Path) -> None:
    served, notes = Served(tmp_path), tmp_path / "notes"
    served.declare({"one": plain("dies", notes)})
    results = await served.calls(Call("mcp.one.work"), Call("mcp.one.work"), seconds=60.0)
    assert [result.status for result in results] == ["error", "error"]
    assert notes.read_text().count('"initialize"') == 2


@pytest.mark.parametrize("mode", ["dead", "never_ready"])
async def test_a_server_that_does_not_start_is_a_notice_and_no_tools(
    mode: str, tmp_path: Path
) -> None:
    served = Served(tmp_path, start_seconds=3.0).declare(
        {"one": plain(mode, API_TOKEN=TOKEN), "two": plain("works")}
    )
    model = ScriptedModel([Call("mcp.two.work"), Say("Done.")])
    blocks = await served.turn(model)
    [notice] = notices_in(blocks)
    assert notice.code == "mcp_unavailable"
    assert notice.text.startswith(
        "Its tools are not available now: the MCP server 'one' cannot be started: "
    )
    assert [result.text for result in results_in(blocks)] == ["worked"]
    assert TOKEN not in f"{blocks}"


@pytest.mark.parametrize("mode", ["environment", "secret_error", "secret_death"])
async def test_no_secret_of_a_server_is_recorded(mode: str, tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"one": plain(mode, API_TOKEN=TOKEN)})
    [result] = await served.calls(Call("mcp.one.work"))
    assert TOKEN not in result.text
    assert "[secret]" in result.text
