"""Signing in to a server over HTTP: an authorization server on the loopback, and tokens that nobody sees."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from loopline import Harness, ToolError
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, notices_in, results_in
from tests.mcp.test_servers_over_http import free_port, listening

GUARDED = Path(__file__).parent / "authorization_server.py"


async def browse(address: str) -> None:
    """Open an address as a browser does, and follow it."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        page = await browser.get(address)
    assert page.text == "You are signed in, and can close this page.\n"


async def sign_in(harness: Harness, server: str = "far") -> list[str]:
    """Sign in to the server, and return the addresses that were shown."""
    shown, browsing = list[str](), list[asyncio.Task[None]]()

    def show(address: str) -> None:
        shown.append(address)
        browsing.append(asyncio.create_task(browse(address)))

    await harness.sign_in(server, show)
    await asyncio.gather(*browsing)
    return shown


def tokens_in(file: Path) -> list[str]:
    stored = json.loads(file.read_text("utf-8"))["tokens"]
    return [stored["access_token"], stored["refresh_token"]]


async def test_a_sign_in_is_kept_for_its_owner_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "loopline")
    served = Served(tmp_path, in_memory=False)
    call = Call("mcp.far.whose")
    async with listening(free_port(), GUARDED) as entry:
        served.declare({"far": entry})
        async with served.open(ScriptedModel([Say("Done."), call, Say("Done.")])) as harness:
            talk = harness.conversation("c1")
            await talk.say("Go!")
            [notice] = notices_in(await talk.blocks())
            [address] = await sign_in(harness)
            await talk.say("Again!", select_tools=False)
        async with served.open(ScriptedModel([call, Say("Done.")])) as harness:
            talk = harness.conversation("c2")
            await talk.say("And again!", select_tools=False)
            blocks = await talk.blocks()
    assert "'far' wants you to sign in: loopline mcp BUNDLE --login far" in notice.text
    assert [result.text for result in results_in(blocks)] == ["called with Bearer [secret]"]
    [file] = (tmp_path / "talk.db-mcp").glob("*.oauth")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = f"{blocks} {caplog.text} {address} {harness!r}"
    for token in tokens_in(file):
        assert token not in shown
        assert token not in str((tmp_path / "talk.db").read_bytes())


async def test_an_expired_token_is_renewed_and_a_refused_one_asks_for_a_sign_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, call = Served(tmp_path, in_memory=False), Call("mcp.far.whose")
    async with listening(free_port(), GUARDED) as entry:
        served.declare({"far": entry})
        async with served.open(ScriptedModel([], strict=False)) as harness:
            await sign_in(harness)
        [file] = (tmp_path / "talk.db-mcp").glob("*.oauth")
        first = tokens_in(file)
        age(file, expires_at=1.0)
        [renewed] = await served.calls(call)
        second = tokens_in(file)
        age(file, access_token="none", refresh_token="none")
        _, refused = await served.calls(call)
    assert (renewed.status, set(first) & set(second)) == ("ok", set())
    assert not [record for record in caplog.records if record.exc_info or record.levelno > 30]
    assert refused.status == "error"
    assert refused.text.endswith("'far' wants you to sign in: loopline mcp BUNDLE --login far")


async def test_servers_with_one_address_have_a_sign_in_each_also_one_of_an_earlier_version(
    tmp_path: Path,
) -> None:
    served, folder = Served(tmp_path, in_memory=False), tmp_path / "talk.db-mcp"
    async with listening(free_port(), GUARDED) as entry:
        served.declare({"far": entry, "near": entry})
        async with served.open(ScriptedModel([], strict=False)) as harness:
            await sign_in(harness)
        [file] = folder.glob("*.oauth")
        earlier = file.rename(file.with_name(f"{file.stem[:32]}.oauth"))
        tokens = tokens_in(earlier)
        async with served.open(ScriptedModel([Call("mcp.far.whose"), Say("Done.")])) as harness:
            await sign_in(harness, "near")
            assert tokens_in(earlier) == tokens
            talk = harness.conversation("c1")
            await talk.say("Go!", select_tools=False)
            [called] = results_in(await talk.blocks())
    assert (called.status, tokens_in(file)) == ("ok", tokens)
    [other] = {*folder.glob("*.oauth")} - {file}
    assert not {*tokens_in(other)} & {*tokens}


async def test_only_a_redirect_with_the_state_of_a_sign_in_ends_it(tmp_path: Path) -> None:
    served, statuses = Served(tmp_path), list[int]()
    browsing = list[asyncio.Task[None]]()

    async def attack(address: str) -> None:
        parameters = parse_qs(urlsplit(address).query)
        [redirect], [state] = parameters["redirect_uri"], parameters["state"]
        refusals = [
            {"error": "stolen"},
            {"error": "stolen", "state": "of-nobody"},
            {"code": "stolen", "state": ""},
            {"error": "access_denied\n\x1b[2J" + "x" * 300, "state": state},
        ]
        async with httpx2.AsyncClient() as browser:
            for refusal in refusals:
                statuses.append((await browser.get(redirect, params=refusal)).status_code)

    def show(address: str) -> None:
        browsing.append(asyncio.create_task(attack(address)))

    async with listening(free_port(), GUARDED) as entry:
        served.declare({"far": entry})
        async with served.open(ScriptedModel([], strict=False)) as harness:
            with pytest.raises(ToolError) as refused:
                await harness.sign_in("far", show)
            await asyncio.gather(*browsing)
    assert statuses == [404, 404, 404, 200]
    assert "the sign-in was refused: access_denied [2Jxx" in str(refused.value)
    assert str(refused.value).isprintable()


def age(file: Path, expires_at: float | None = None, **tokens: str) -> None:
    """Change what is stored of a sign-in."""
    stored = json.loads(file.read_text("utf-8"))
    changed = {**stored, "tokens": {**stored["tokens"], **tokens}}
    file.write_text(json.dumps({**changed, **({"expires_at": expires_at} if expires_at else {})}))


async def test_a_server_that_is_started_by_a_command_has_no_sign_in(tmp_path: Path) -> None:
    served = Served(tmp_path)
    entry: dict[str, Json] = {"command": "true"}
    served.declare({"far": entry})
    async with served.open(ScriptedModel([], strict=False)) as harness:
        with pytest.raises(ToolError, match="is started by a command"):
            await harness.sign_in("far", print)
