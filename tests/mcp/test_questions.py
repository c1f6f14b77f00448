"""A server asks the user while one of its tools runs, and the call stays open meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import pytest

from loopline import Bundle, LooplineError, Store
from loopline.events import Delta, DialectName, dialect
from loopline.models import Json, dumps
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import ToolQuestion, UserAnswer
from tests.mcp.served import Served, follow, plain, results_in, sdk
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving

ROOT = Path(__file__).parents[2]
TOKEN = "token-that-nobody-may-read"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"kind": "green"}, "accept: green"),
        (None, "decline: "),
        ({"tea": 3}, "cancel: "),
    ],
)
async def test_the_answer_of_the_user_goes_on_with_the_call(
    answer: Json, text: str, tmp_path: Path
) -> None:
    served, questions = Served(tmp_path), list[Delta]()
    served.declare({"calc": sdk(API_TOKEN=TOKEN)})
    async with served.open(ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in follow(talk):
            questions.append(event)
            assert talk.answer(event.call_id, answer)
        [result] = results_in(await talk.blocks())
        assert not talk.answer("c1", answer)
    assert (result.status, result.text) == ("ok", text)
    [question] = questions
    assert (question.call_id, question.text) == ("c1", "calc asks: Which tea, [secret]?")
    assert isinstance(question.data, dict)
    assert "kind" in str(question.data)


async def test_a_server_of_the_older_protocol_asks_too(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"one": plain("asks", API_TOKEN=TOKEN)})
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in follow(talk):
            assert event.text == "one asks: Which tea, [secret]?"
            talk.answer(event.call_id, {"kind": "green"})
        [result] = results_in(await talk.blocks())
    assert json.loads(result.text) == {"action": "accept", "content": {"kind": "green"}}


async def test_a_question_that_nobody_hears_is_declined(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"calc": sdk()})
    [result] = await served.calls(Call("mcp.calc.choose"), seconds=60.0)
    assert (result.status, result.text) == ("ok", "decline: ")


async def test_a_question_that_is_not_answered_ends_with_the_time_of_its_call(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path).declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.choose"), Call("mcp.calc.add", a=1, b=2), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        events = [
            event
            async for event in talk.stream("Go!", select_tools=False, tool_timeout_seconds=2.0)
        ]
        late, added = results_in(await talk.blocks())
    assert "pending" in [event.type for event in events]
    assert (late.status, added.text) == ("error", "3")


async def test_questions_of_calls_side_by_side_reach_their_own_calls(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"calc": sdk()})
    model = ScriptedModel([Say("", Call("mcp.calc.choose"), Call("mcp.calc.choose")), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        asked = list[str]()
        async for event in follow(talk):
            asked.append(event.call_id)
            await asyncio.sleep(0)
            talk.answer(event.call_id, {"kind": event.call_id})
        results = {result.call_id: result.text for result in results_in(await talk.blocks())}
    assert {call_id: results[call_id] for call_id in asked} == {
        call_id: f"accept: {call_id}" for call_id in asked
    }


async def test_an_answer_of_another_process_goes_on_with_the_call(tmp_path: Path) -> None:
    served = Served(tmp_path, in_memory=False).declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])
    store = f"sqlite:///{tmp_path}/talk.db"
    async with served.open(model) as harness, Store.open(store) as elsewhere:
        talk, other = harness.conversation("c1"), elsewhere.conversation("c1").interrupts
        asked = list[ToolQuestion]()
        async for _ in follow(talk):
            asked += [question for _, question in await other.question_blocks()]
            with pytest.raises(LooplineError, match="no running call 'c2' asks anything: c1"):
                await other.answer("c2", None)
            assert await other.answer("c1", {"kind": "green"})
        with pytest.raises(LooplineError, match="asks anything: none does"):
            await other.answer("c1", {"kind": "black"})
        blocks = await talk.blocks()
    [result] = results_in(blocks)
    assert [(question.call_id, question.form is None) for question in asked] == [("c1", False)]
    assert (result.status, result.text) == ("ok", "accept: green")
    assert [block.term for block in blocks if isinstance(block.body, UserAnswer)] == [0]


async def test_a_server_of_the_same_store_takes_the_answer_to_an_open_question(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, in_memory=False).declare({"calc": sdk()})
    store, bundle = f"sqlite:///{tmp_path}/talk.db", Bundle(id="served")
    talk_path = "/conversations/default/default/c1"
    model = ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])
    answer = {"values": {"c1": {"kind": "green"}}, "only_open": True}
    with serving(app(bundle, store=store, model=EchoModel())) as url:
        async with (
            served.open(model) as harness,
            httpx2.AsyncClient(base_url=url, timeout=30) as client,
        ):
            talk, statuses = harness.conversation("c1"), list[int]()
            async for _ in follow(talk):
                replies = [
                    await client.post(f"{talk_path}/answers", json=answer),
                    await client.post(f"{talk_path}/answers", json=answer),
                ]
                statuses += [reply.status_code for reply in replies]
            blocks = await talk.blocks()
    [result] = results_in(blocks)
    assert (result.status, result.text) == ("ok", "accept: green")
    assert statuses == [202, 409]


async def test_protocols_tell_what_a_running_call_asks(tmp_path: Path) -> None:
    served = Served(tmp_path).declare({"calc": sdk()})
    async with served.open(ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in follow(talk):
            assert talk.answer(event.call_id, {"kind": "green"})
        blocks = await talk.blocks()
    names: list[DialectName] = ["ag-ui", "vercel"]
    for name in names:
        spoken = dialect(name, talk.conversation)
        lines = [dumps(record.data) for block in blocks for record in spoken.take(block)]
        [asked] = [line for line in lines if "loopline.question" in line]
        assert '"callId":"c1"' in asked


async def test_an_open_question_of_a_call_that_was_cut_off_takes_no_answer(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, in_memory=False).declare({"calc": sdk()})
    store = f"sqlite:///{tmp_path}/talk.db"
    program = [sys.executable, "-m", "tests.mcp.calling", str(tmp_path), "mcp.calc.pick", "heard"]
    process = await asyncio.create_subprocess_exec(
        *program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"calc asks: Which tea")
    process.kill()
    await process.wait()
    async with Store.open(store) as elsewhere:
        talk = elsewhere.conversation("c1")
        with pytest.raises(LooplineError, match="nobody runs its turn"):
            await talk.interrupts.answer("c1", {"kind": "green"})
    async with served.open(ScriptedModel([Say("Done.")])) as harness:
        again = harness.conversation("c1")
        assert (await again.resume()).answer == "Done."
        [result] = results_in(await again.blocks())
    assert result.status == "interrupted"
    assert "green" not in result.text
