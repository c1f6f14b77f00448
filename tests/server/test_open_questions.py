"""A running call asks the user: clients of other protocols see an interrupt, answer it, and the turn goes on."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from msgspec import structs

from loopline import Bundle, Harness, LooplineError
from loopline.events import ClientRun, run_dialect
from loopline.models import Json
from loopline.redaction.redacted_log import ForwardingLog
from loopline.server import app
from loopline.server.bundle_host import bundle_host
from loopline.server.turn_requests import serve
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as Turn
from loopline.timeline import Block, ConversationKey, Entry, MemoryLog, ToolQuestion
from tests.dialects.sample_conversation import BLOCKS
from tests.mcp.served import Served, sdk
from tests.server.test_sockets import Page
from tests.support.live_server import serving

STATUS = "/conversations/default/default/{}/status"
Row = dict[str, Json]
QUESTIONS = 2
"""The calls of the turn, each of which asks."""


@contextmanager
def asking(folder: Path, *later: Turn, questions: int = QUESTIONS) -> Generator[httpx2.Client]:
    """The client of a server whose first turn asks so often."""
    Served(folder).declare({"calc": sdk()})
    turn: Sequence[Turn] = [*(Call("mcp.calc.choose") for _ in range(questions)), Say("Done.")]
    properties: Mapping[str, Json] = {
        "mcp.file": str(folder / ".mcp.json"),
        "react.select_tools": False,
    }
    served = app(
        Bundle(id="served"),
        store="memory:",
        model=ScriptedModel([*turn, *later]),
        properties=properties,
    )
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as http:
        yield http


@pytest.fixture
def client(tmp_path: Path) -> Generator[httpx2.Client]:
    """The client of a server that answers one turn."""
    with asking(tmp_path) as http:
        yield http


def events_of(response: httpx2.Response) -> list[Row]:
    """The events of a stream."""
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def types(events: Sequence[Row]) -> list[Json]:
    return [event["type"] for event in events]


def run_agent(client: httpx2.Client, number: int, **body: Json) -> list[Row]:
    """The events of a run of the thread."""
    common: Row = {"threadId": "thread", "runId": f"run{number}", "state": {}, "tools": []}
    empty: Row = {"messages": [], "context": [], "forwardedProps": {}}
    return events_of(client.post("/ag-ui", json={**common, **empty, **body}))


def asked_run(client: httpx2.Client) -> list[Row]:
    """The events of the first run, which ends when its first call asks."""
    message: Json = {"id": "m1", "role": "user", "content": "Go!"}
    return run_agent(client, 1, messages=[message])


def answered_runs(client: httpx2.Client, asked: list[Row]) -> list[list[Row]]:
    """The first run, and those that its answers continue, to the end of the turn."""
    runs = [asked]
    for number in range(QUESTIONS):
        [interrupt] = interrupts(runs[-1][-1])
        assert (interrupt["reason"], interrupt["toolCallId"]) == (
            "input_required",
            f"c{number + 1}",
        )
        assert "kind" in json.dumps(interrupt["responseSchema"])
        runs.append(run_agent(client, number + 2, resume=[answer_to(interrupt)]))
    return runs


def answer_to(interrupt: Row) -> Row:
    """The answer to an interrupt."""
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": {"kind": "green"}}


def test_a_question_of_a_running_call_is_an_interrupt_of_ag_ui(client: httpx2.Client) -> None:
    first = asked_run(client)
    status = client.get(STATUS.format("thread")).json()
    runs = answered_runs(client, first)
    [asked] = status["meta"]["questions"]
    assert (status["state"], asked["call_id"], asked["stays_open"]) == ("in_progress", "c1", True)
    assert [run[0]["type"] for run in runs] == ["RUN_STARTED"] * 3
    assert [run[0]["runId"] for run in runs] == ["run1", "run2", "run3"]
    results = [event for run in runs for event in run if event["type"] == "TOOL_CALL_RESULT"]
    assert [result["content"] for result in results] == ["accept: green"] * QUESTIONS
    assert runs[-1][-1]["result"] == {"answer": "Done.", "exitReason": "complete"}
    assert client.get(STATUS.format("thread")).json()["meta"]["questions"] == []


def interrupts(event: Row) -> list[Row]:
    """The interrupts with which a run has finished."""
    assert event["type"] == "RUN_FINISHED"
    match event["outcome"]:
        case {"type": "interrupt", "interrupts": list(found)}:
            return [row for row in found if isinstance(row, dict)]
        case outcome:
            raise AssertionError(outcome)


def test_a_question_of_a_running_call_is_answered_by_a_chat_of_the_ai_sdk(
    client: httpx2.Client,
) -> None:
    said: Row = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go!"}]}
    streams = [events_of(client.post("/api/chat", json={"id": "chat", "messages": [said]}))]
    for number in range(QUESTIONS):
        [asked] = [event for event in streams[-1] if event["type"] == "data-question"]
        assert asked["id"] == f"c{number + 1}"
        assert streams[-1][-1] == {"type": "finish", "finishReason": "tool-calls"}
        output: Row = {"state": "output-available", "toolCallId": asked["id"]}
        part: Json = {"type": "dynamic-tool", **output, "output": {"kind": "green"}}
        reply: Json = {"id": "turn_1", "role": "assistant", "parts": [part]}
        body: Json = {"id": "chat", "messages": [said, reply]}
        streams.append(events_of(client.post("/api/chat", json=body)))
    assert [stream[0] for stream in streams] == [{"type": "start", "messageId": "turn_1"}] * 3
    outputs = [e for s in streams for e in s if e["type"] == "tool-output-available"]
    assert [event["output"] for event in outputs] == ["accept: green"] * QUESTIONS
    assert types(streams[-1])[-1] == "finish"


def test_an_answer_that_comes_too_late_is_a_conflict_in_a_run_of_ag_ui(
    client: httpx2.Client,
) -> None:
    first = asked_run(client)
    [interrupt] = interrupts(first[-1])
    answered_runs(client, first)
    body: Row = {"threadId": "thread", "runId": "late", "state": {}, "tools": [], "messages": []}
    more: Row = {"context": [], "forwardedProps": {}, "resume": [answer_to(interrupt)]}
    late = client.post("/ag-ui", json={**body, **more})
    assert (late.status_code, "c1 has been answered" in late.json()["detail"]) == (409, True)


def test_an_answer_that_comes_too_late_is_a_conflict_in_a_chat_of_the_ai_sdk(
    client: httpx2.Client,
) -> None:
    answered_runs(client, asked_run(client))
    part: Json = {
        "type": "dynamic-tool",
        "state": "output-available",
        "toolCallId": "c1",
        "output": {"kind": "green"},
    }
    reply: Json = {"id": "turn_1", "role": "assistant", "parts": [part]}
    late = client.post("/api/chat", json={"id": "thread", "messages": [reply]})
    assert (late.status_code, "c1 has been answered" in late.json()["detail"]) == (409, True)


def test_a_chat_completion_during_a_question_of_a_running_call_waits_for_its_turn(
    tmp_path: Path,
) -> None:
    body: Row = {
        "stream": True,
        "messages": [{"role": "user", "content": "And tea?"}],
        "metadata": {"conversation_id": "thread"},
    }
    with asking(tmp_path, Say("Tea.")) as client:
        first = asked_run(client)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            runs = answered_runs(client, first)
            text = response.read().decode()
    assert runs[-1][-1]["result"] == {"answer": "Done.", "exitReason": "complete"}
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta["content"] for delta in deltas if delta.get("content")) == "Tea."


async def test_a_question_of_a_running_call_is_answered_by_a_page_with_a_socket(
    tmp_path: Path,
) -> None:
    body: Json = {"conversation_id": "thread", "values": {"c1": {"kind": "green"}}}
    with asking(tmp_path, questions=1) as client:
        asked_run(client)
        page = Page()
        await page.socket.connect(str(client.base_url), auth={"user_session_id": "s1"})
        answered = await page.call("chat_answer", body)
        assert (answered["ok"], answered["turn_id"]) == (True, "turn_1")
        events = await page.until("chat_complete")
        late = await page.call("chat_answer", body)
        await page.socket.disconnect()
    assert any("accept: green" in str(envelope) for _, envelope in events)
    assert (late["ok"], late["status"]) == (False, 409)


class CountingLog(ForwardingLog):
    """Counts how often a conversation is opened."""

    opened = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Return the blocks after `after` that match."""
        self.opened += not options.get("types")
        return await super().read(conversation, **options)


async def test_what_waits_for_the_user_is_read_at_once() -> None:
    log, model = CountingLog(MemoryLog()), ScriptedModel([Say("Done.")])
    host = bundle_host(app(Bundle(id="served"), store=log, model=model))
    await host.open()
    talk = host.harness("served").conversation("c1")
    await talk.say("Go!")
    served = await serve(host, talk.conversation)
    log.opened = 0
    assert not await served.waiting()
    assert log.opened == 1
    await host.close()


@pytest.mark.parametrize("value", [[], {}, {"a": 1}, 7, "x"])
async def test_an_approval_of_a_running_call_is_answered_with_yes_or_no_alone(value: Json) -> None:
    log = MemoryLog()
    question = ToolQuestion(call_id="c1", question="Order tea?", kind="approval")
    async with Harness.open(Bundle(id="served"), store=log, model=ScriptedModel([])) as harness:
        talk = harness.conversation("c1")
        async with log.lease(talk.conversation) as term:
            bodies = [block.body for block in BLOCKS[:9]]
            entries = [Entry(body=body, turn=1) for body in (*bodies, question)]
            await log.append(talk.conversation, entries, seen=0, term=term)
            with pytest.raises(LooplineError, match="c1 awaits approval: answer yes or no"):
                await talk.interrupts.answer("c1", value)
            assert await talk.interrupts.answer("c1", value=False)


@pytest.mark.parametrize("name", ["ag-ui", "vercel"])
def test_an_approval_that_a_program_asks_for_is_signed_in_a_run(
    name: Literal["ag-ui", "vercel"],
) -> None:
    run = ClientRun(turn=1, sign=lambda call_id, digest: f"{call_id}.{len(digest)}.signed")
    spoken = run_dialect(name, ConversationKey(name="c"), run)
    lines = list[str]()
    for block in BLOCKS[:9]:
        lines += [json.dumps(record.data) for record in spoken.take(block)]
    question = ToolQuestion(call_id="c1", question="Order tea?", kind="approval")
    asked = structs.replace(BLOCKS[8], seq=10, body=question)
    lines += [json.dumps(record.data) for record in spoken.take(asked)]
    assert spoken.is_over
    assert any('"c1.64.signed"' in line for line in lines)
