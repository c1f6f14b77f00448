"""A turn waits for a tool that its client runs, and goes on with the result, from every protocol and after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from loopline import Bundle, tool
from loopline.models import Json, JsonObject
from loopline.server import app
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving, wait

Object = dict[str, Any]
HERE = "/conversations/default/default"
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"unit": {"type": "string"}},
    "required": ["unit"],
}
WHERE: JsonObject = {"name": "where", "description": "Where is the user?", "parameters": PARAMETERS}
ASK = "call where unit=m"
RESULT = "[tc:turn_1.c1.result]"


@tool(client=True)
def pick(label: str) -> Literal["red", "blue"]:
    """Let the user pick a color."""
    raise NotImplementedError


DESK = Bundle(id="desk", instructions="You help.", tools=[pick, wait])


@contextmanager
def desk(folder: Path) -> Generator[httpx2.Client]:
    """Serve the desk over the store in the folder."""
    served = app(DESK, store=f"sqlite:///{folder}/talk.db", model=EchoModel())
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        yield client


def records(response: httpx2.Response) -> list[Object]:
    """Return the data of the events of a stream."""
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def user(text: str) -> Object:
    return {"id": "m1", "role": "user", "content": text}


def run_of(name: str, messages: list[Object], **others: object) -> Object:
    return {"threadId": name, "runId": f"r{len(messages)}", "messages": messages, **others}


def ask_natively(client: httpx2.Client, name: str, text: str) -> Json:
    body = {"text": text, "tools": [WHERE]}
    [call] = client.post(f"{HERE}/{name}/messages", json=body).json()["pending"]
    assert call["kind"] == "client"
    return [call["tool"], call["arguments"]]


def ask_by_ag_ui(client: httpx2.Client, name: str, text: str) -> Json:
    events = records(client.post("/ag-ui", json=run_of(name, [user(text)], tools=[WHERE])))
    assert events[-1]["type"] == "RUN_FINISHED"
    assert events[-1]["outcome"] == {"type": "success"}
    named = [event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"]
    deltas = [event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS"]
    return [named[0], json.loads("".join(deltas))]


def chat_of(name: str, messages: list[Object], **others: object) -> Object:
    return {"id": name, "messages": messages, **others}


def ask_by_ai_sdk(client: httpx2.Client, name: str, text: str) -> Json:
    message: Object = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    tools = {"where": {name: value for name, value in WHERE.items() if name != "name"}}
    events = records(client.post("/api/chat", json=chat_of(name, [message], tools=tools)))
    assert events[-1] == {"type": "finish", "finishReason": "tool-calls"}
    [call] = [event for event in events if event["type"] == "tool-input-available"]
    assert "dynamic" not in call
    return [call["toolName"], call["input"]]


def ask_by_chat(client: httpx2.Client, name: str, text: str) -> Json:
    tools = [{"type": "function", "function": WHERE}]
    body = {"messages": [user(text)], "tools": tools, "metadata": {"conversation_id": name}}
    [choice] = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["id"] == f"call_{name}-c1"
    return [call["function"]["name"], json.loads(call["function"]["arguments"])]


def ask_by_response(client: httpx2.Client, name: str, text: str) -> Json:
    body = {"input": text, "tools": [{"type": "function", **WHERE}], "conversation": name}
    response = client.post("/v1/responses", json=body).json()
    assert response["status"] == "completed"
    [call] = response["output"]
    assert (call["type"], call["call_id"]) == ("function_call", f"call_{name}-c1")
    return [call["name"], json.loads(call["arguments"])]


ASKING: Mapping[str, Callable[[httpx2.Client, str, str], Json]] = {
    "native": ask_natively,
    "ag-ui": ask_by_ag_ui,
    "ai-sdk": ask_by_ai_sdk,
    "chat": ask_by_chat,
    "response": ask_by_response,
}


def answer_natively(client: httpx2.Client, name: str, value: Json) -> str:
    response = client.post(f"{HERE}/{name}/answers", json={"values": {"c1": value}})
    return str(response.json()["answer"])


def answer_by_ag_ui(client: httpx2.Client, name: str, value: Json) -> str:
    content = value if isinstance(value, str) else json.dumps(value)
    result: Object = {"id": "m2", "role": "tool", "toolCallId": "c1", "content": content}
    events = records(client.post("/ag-ui", json=run_of(name, [user(ASK), result])))
    assert not [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    return str(events[-1]["result"]["answer"])


def answer_by_ai_sdk(client: httpx2.Client, name: str, value: Json) -> str:
    part: Object = {"type": "tool-where", "state": "output-available", "toolCallId": "c1"}
    message: Object = {"id": "turn_1", "role": "assistant", "parts": [{**part, "output": value}]}
    events = records(client.post("/api/chat", json=chat_of(name, [message])))
    assert not [event for event in events if event["type"] == "tool-output-available"]
    return "".join(event["delta"] for event in events if event["type"] == "text-delta")


def answer_by_chat(client: httpx2.Client, name: str, value: Json) -> str:
    content = value if isinstance(value, str) else json.dumps(value)
    result: Object = {"role": "tool", "tool_call_id": f"call_{name}-c1", "content": content}
    body = {"messages": [user(ASK), {"role": "assistant", "content": None}, result]}
    answer = client.post("/v1/chat/completions", json=body).json()
    return str(answer["choices"][0]["message"]["content"])


def answer_by_response(client: httpx2.Client, name: str, value: Json) -> str:
    output = value if isinstance(value, str) else json.dumps(value)
    item = {"type": "function_call_output", "call_id": f"call_{name}-c1", "output": output}
    answer = client.post("/v1/responses", json={"input": [item]}).json()
    return str(answer["output"][-1]["content"][0]["text"])


ANSWERING: Mapping[str, Callable[[httpx2.Client, str, Json], str]] = {
    "native": answer_natively,
    "ag-ui": answer_by_ag_ui,
    "ai-sdk": answer_by_ai_sdk,
    "chat": answer_by_chat,
    "response": answer_by_response,
}


def test_any_client_answers_the_call_of_any_other_after_a_restart(tmp_path: Path) -> None:
    pairs = [(asked, answered) for asked in ASKING for answered in ANSWERING]
    with desk(tmp_path) as client:
        for asked, answered in pairs:
            call = ASKING[asked](client, f"{asked}.{answered}", ASK)
            assert call == ["where", {"unit": "m"}], asked
    with desk(tmp_path) as client:
        for asked, answered in pairs:
            answer = ANSWERING[answered](client, f"{asked}.{answered}", "in Rome")
            assert answer == f"The tool said: {RESULT}\nin Rome", (asked, answered)


@pytest.mark.parametrize("answered", ANSWERING)
def test_a_result_has_the_form_of_the_return_type_in_every_protocol(
    tmp_path: Path, answered: str
) -> None:
    with desk(tmp_path) as client:
        for name, value in (("right", "red"), ("wrong", "green")):
            client.post(f"{HERE}/{name}/messages", json={"text": "call desk.pick label=x"})
            if name == "right":
                answer = ANSWERING[answered](client, name, value)
                assert answer == f"The tool said: {RESULT}\nred"
        refused = client.post(f"{HERE}/wrong/answers", json={"values": {"c1": "green"}})
        assert (refused.status_code, "'green' is not one of" in refused.text) == (422, True)
        meta = client.get(f"{HERE}/wrong/status").json()["meta"]
        [call] = meta["questions"]
        assert (call["kind"], call["tool"], call["arguments"], call["form"]) == (
            "client",
            "desk.pick",
            {"label": "x"},
            {"enum": ["red", "blue"], "type": "string"},
        )


def test_a_bundle_may_refuse_the_tools_of_a_request_in_every_protocol(tmp_path: Path) -> None:
    refusing = {"react.client_tools": False}
    served = app(DESK, store=f"sqlite:///{tmp_path}/t.db", model=EchoModel(), properties=refusing)
    function: Object = {"name": "where", "parameters": PARAMETERS}
    message: Object = {"id": "m1", "role": "user", "content": "x"}
    run: Object = {"threadId": "g", "runId": "r", "state": {}, "messages": [message]}
    chat: Object = {
        "id": "v",
        "trigger": "submit-message",
        "tools": {"where": {"parameters": PARAMETERS}},
    }
    requests: list[tuple[str, Object]] = [
        (f"{HERE}/c/messages", {"text": "x", "tools": [WHERE]}),
        ("/ag-ui", {**run, "tools": [WHERE], "context": [], "forwardedProps": {}}),
        ("/api/chat", {**chat, "messages": [{"id": "m", "role": "user", "parts": [TEXT]}]}),
        (
            "/v1/chat/completions",
            {
                "model": "desk",
                "messages": [message],
                "tools": [{"type": "function", "function": function}],
            },
        ),
        (
            "/v1/responses",
            {"model": "desk", "input": "x", "tools": [{"type": "function", **function}]},
        ),
    ]
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        for path, body in requests:
            refused = client.post(path, json=body)
            assert refused.status_code == 422, (path, refused.text)
            assert "accepts no tools with a message" in refused.text, path
        own = client.post(f"{HERE}/c/messages", json={"text": "call desk.pick label=x"}).json()
    assert [call["kind"] for call in own["pending"]] == ["client"]


TEXT: Object = {"type": "text", "text": "x"}
