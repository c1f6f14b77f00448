"""`--record` and `--replay`: a run by a model at a provider, and the same one without it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from loopline.models import JsonObject
from tests.doors.bundles import QUESTION, TEA
from tests.doors.command import Loopline, at_openai, finish, wait_for
from tests.support.git_repositories import commit
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Fault, Silence, Status
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like

SEARCHED = Call("react__search_knowledge", '{"query": "green tea"}', "call_1")
READ = Call("react__read", '{"paths": ["so:sources_pool[1]", "ar:turn_1.user.prompt"]}', "call_2")

TOKEN = "token-of-mine-4711"

RECORD = ("run", "guide", QUESTION, "--model", "openai:m", "--record", "talk.jsonl")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Loopline:
    """The command beside a recording of a run of three rounds, `talk.jsonl`; the server has gone."""
    folder = tmp_path_factory.mktemp("recorded") / "tea house"
    folder.mkdir()
    commit(folder, TEA)
    return asyncio.run(record(Loopline(folder)))


async def record(tea: Loopline) -> Loopline:
    script = (
        oai.Says("I search.", calls=(SEARCHED,)),
        oai.Says("I read.", calls=(READ,)),
        oai.Says("Three minutes [[S:1]]."),
    )
    async with openai_like(*script) as peer:
        ran = await asyncio.to_thread(at_openai(tea, peer), *RECORD)
    assert (ran.code, len(peer.requests)) == (0, 3), ran.err
    return tea


def as_any_harness(block: JsonObject) -> JsonObject:
    """The block without the number of the harness that sent it, and the digest in which that number is."""
    body = block["body"]
    assert isinstance(body, dict)
    return {**block, "digest": None, "body": {**body, "sender": None}}


def test_a_run_is_replayed_without_its_server_and_any_setting(recorded: Loopline) -> None:
    ran = recorded("run", "guide", QUESTION, "--replay", "talk.jsonl", "-c", "again")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "Three minutes [1].")
    again, first = recorded.blocks("again"), recorded.blocks("tea_guide-1")
    assert [as_any_harness(block) for block in again] == list(map(as_any_harness, first))
    assert "sk-secret" not in (recorded.folder / "talk.jsonl").read_text("utf-8")


@pytest.mark.parametrize("model", ["openai:gpt-4o", "openai:gpt-5.5"])
async def test_a_replay_needs_no_conversation_of_the_recorded_name(
    model: str, tea: Loopline
) -> None:
    words = ("run", "guide", QUESTION, "--model", model, "--record", "talk.jsonl")
    async with openai_like(oai.Says("Three minutes.")) as peer:
        await asyncio.to_thread(at_openai(tea, peer), *words)
    ran = await asyncio.to_thread(tea, "run", "guide", QUESTION, "--replay", "talk.jsonl")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "Three minutes.")
    assert tea.blocks("tea_guide-2")
    other = await asyncio.to_thread(tea, "run", "guide", "And now?", "--replay", "talk.jsonl")
    assert (other.code, "differs first at prompt_cache_key" in other.err) == (1, False)
    assert "prompt_cache_key" in peer.requests[0].body


async def test_what_the_query_of_a_base_url_says_is_not_in_the_file(tea: Loopline) -> None:
    refused = Status(400, fault=Fault(message=f"{TOKEN} has expired"))
    async with openai_like(refused) as peer:
        url = f"{peer.url}/v1?api-version=preview&code={TOKEN}"
        asking = replace(tea, settings={"OPENAI_BASE_URL": url})
        ran = await asyncio.to_thread(asking, *RECORD)
    assert TOKEN in peer.requests[0].path
    text = (tea.folder / "talk.jsonl").read_text("utf-8")
    assert ("?api-version=preview&code=" in text, TOKEN in text) == (True, False)
    again = await asyncio.to_thread(tea, "run", "guide", QUESTION, "--replay", "talk.jsonl")
    assert (again.out, TOKEN in again.out) == (ran.out, False)


def test_a_replay_of_another_question_says_where_it_differs(recorded: Loopline) -> None:
    question = "How long is black tea steeped?"
    ran = recorded("run", "guide", question, "--replay", "talk.jsonl", "-c", "other")
    assert (ran.code, ran.out) == (1, "")
    assert (
        ran.err.count("most similar is number 1 of 3, and differs first at messages[1].content")
        == 1
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--record", "talk.jsonl"], "exists: replay it"),
        (["--replay", "guide/__init__.py"], "line 1"),
        (["--replay", "talk.jsonl", "--record", "new.jsonl"], "choose one"),
    ],
    ids=["taken", "no cassette", "both"],
)
def test_a_file_that_cannot_serve_is_a_wrong_option(
    words: list[str], message: str, recorded: Loopline
) -> None:
    ran = recorded("run", "guide", QUESTION, *words)
    assert (ran.code, message in ran.err) == (2, True)


def test_a_bundle_that_is_not_there_leaves_no_file(recorded: Loopline) -> None:
    ran = recorded("run", "none", QUESTION, "--record", "none.jsonl")
    assert (ran.code, (recorded.folder / "none.jsonl").exists()) == (1, False)


async def test_a_recording_of_a_run_that_was_killed_is_good_up_to_there(tea: Loopline) -> None:
    script = (oai.Says("I search.", calls=(SEARCHED,)), Silence(oai.Says("Three minutes.")))
    async with openai_like(*script) as peer:
        process = await asyncio.to_thread(at_openai(tea, peer).start, *RECORD)
        await asyncio.to_thread(wait_for, lambda: len(peer.requests) == 2)
        process.kill()
        await asyncio.to_thread(finish, process)
    ran = await asyncio.to_thread(tea, "run", "guide", QUESTION, "--replay", "talk.jsonl")
    assert (ran.code, "before the response to request 2" in ran.err) == (1, True)
    assert "react.tool.result" in [block["type"] for block in tea.blocks("tea_guide-2")]
