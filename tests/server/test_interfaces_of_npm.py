"""The official clients of two protocols for user interfaces talk to a server: AG-UI's and that of the AI SDK."""

from __future__ import annotations

import base64
import fcntl
import json
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from loopline import BaseWorkflow, Bundle, tool
from loopline.guards import ask_before
from loopline.server import app
from tests.server.test_openai_clients import PIXEL, TalkativeModel
from tests.support.live_server import SHOP, serving, wait
from tests.support.peers.npm_packages import install, node

pytestmark = pytest.mark.service
CLIENTS = Path(__file__).with_name("clients")
Object = dict[str, Any]


class Desk(BaseWorkflow):
    """Asks before it waits."""

    instructions = "You help."
    guards = (ask_before(["desk.wait"]),)


@tool(client=True, approve=True)
def show(text: str) -> str:
    """Show a text to the user."""
    raise NotImplementedError


DESK = Bundle(id="desk", workflow=Desk, tools=[wait, show])


def installed(package: str, temporary: pytest.TempPathFactory) -> Path:
    """Return the folder in which the client is installed, once for all workers."""
    folder = temporary.getbasetemp().parent / f"npm-{package.replace('/', '-')}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules").exists():
            install(folder, package)
    return folder


@contextmanager
def desk(temporary: pytest.TempPathFactory) -> Generator[str]:
    """Serve both bundles over a new store; the address."""
    folder: Path = temporary.mktemp("server")
    served = app([SHOP, DESK], store=f"sqlite:///{folder}/talk.db", model=TalkativeModel())
    with serving(served) as address:
        yield address


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with desk(tmp_path_factory) as address:
        yield address


def told(packages: Path, script: str, *arguments: str) -> Object:
    """What a client prints of the server."""
    shutil.copy(CLIENTS / script, packages / script)
    done = subprocess.run(
        [node(), script, *arguments],
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cast("Object", json.loads(done.stdout))


@pytest.fixture(scope="module")
def ag_ui(tmp_path_factory: pytest.TempPathFactory, url: str) -> Object:
    packages = installed("@ag-ui/client@1", tmp_path_factory)
    return told(packages, "ag_ui.mjs", url, base64.b64encode(PIXEL).decode())


def types(run: Object) -> list[str]:
    return [event["type"] for event in run["events"]]


def texts(run: Object) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in run["messages"] if "content" in one]


RESULT = "[tc:turn_1.c1.result]"


def test_a_run_is_taken_by_the_verifier_of_ag_ui(ag_ui: Object) -> None:
    spoken = ag_ui["spoken"]
    assert spoken["error"] is None
    kinds = types(spoken)
    assert kinds[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
    assert kinds[-1] == "RUN_FINISHED"
    assert {"STEP_STARTED", "TOOL_CALL_ARGS", "TOOL_CALL_RESULT", "STATE_DELTA"} <= set(kinds)
    assert kinds.count("TEXT_MESSAGE_START") == kinds.count("TEXT_MESSAGE_END") == 2
    assert kinds.count("TEXT_MESSAGE_CONTENT") >= 2
    assert spoken["result"]["exitReason"] == "complete"
    roles = [message["role"] for message in spoken["messages"]]
    assert roles == ["user", "assistant", "assistant", "tool", "assistant"]
    assert ("assistant", "Let me see.") in texts(spoken)
    assert [file["path"] for file in spoken["state"]["files"]] == [
        "outputs/tea.html",
        "outputs/a/b.bin",
    ]


def test_a_second_run_of_ag_ui_repeats_nothing_that_the_client_has(ag_ui: Object) -> None:
    second = ag_ui["second"]
    assert "MESSAGES_SNAPSHOT" not in types(second)
    assert texts(second)[-2:] == [("user", "more"), ("assistant", "You said: more")]


def test_a_client_of_ag_ui_that_knows_nothing_gets_the_whole_thread(ag_ui: Object) -> None:
    again = ag_ui["again"]
    assert "MESSAGES_SNAPSHOT" in types(again)
    assert texts(again) == texts(ag_ui["second"])
    assert again["state"] == ag_ui["second"]["state"]


def test_a_question_is_an_interrupt_of_ag_ui_and_resumed(ag_ui: Object) -> None:
    [interrupt] = ag_ui["asked"]["events"][-1]["outcome"]["interrupts"]
    assert (interrupt["message"], interrupt["reason"]) == ("Book tea?", "input_required")
    answered = ag_ui["answered"]
    assert answered["error"] is None
    assert types(answered)[0] == "RUN_STARTED"
    assert types(answered)[-1] == "RUN_FINISHED"
    assert texts(answered)[-1] == ("assistant", f"The tool said: {RESULT}\nat noon")


def test_a_turn_that_fails_is_an_error_of_the_run(ag_ui: Object) -> None:
    assert types(ag_ui["broken"])[-1] == "RUN_ERROR"


@pytest.mark.parametrize("name", ["lost", "replayed", "answered", "failed"])
def test_a_client_of_ag_ui_has_the_thread_that_a_fresh_page_has(ag_ui: Object, name: str) -> None:
    own, fresh = ag_ui[name], ag_ui[f"{name}Again"]
    assert own["error"] is None
    assert [shown(message) for message in own["messages"]] == [
        shown(message) for message in fresh["messages"]
    ]


def shown(message: Object) -> Object:
    """The message without its id if it is one of the user, because each client has its own."""
    return {**message, "id": "" if message["role"] == "user" else message["id"]}


def test_a_client_of_ag_ui_keeps_its_ids_and_the_order_of_the_thread(ag_ui: Object) -> None:
    messages = ag_ui["lost"]["messages"]
    assert [message["id"] for message in messages if message["role"] == "user"] == ["m0", "m9"]
    roles = [message["role"] for message in messages]
    turn = ["user", "reasoning", "assistant", "assistant", "tool", "reasoning", "assistant"]
    assert roles == [*turn, "user", "reasoning", "assistant"]


def test_a_call_that_fails_has_its_error_in_ag_ui(ag_ui: Object) -> None:
    [result] = [message for message in ag_ui["failed"]["messages"] if message["role"] == "tool"]
    assert result["error"] == result["content"] != ""
    [event] = [event for event in ag_ui["failed"]["events"] if event["type"] == "TOOL_CALL_RESULT"]
    assert event["metadata"] == {"error": result["error"]}


def test_an_image_is_attached_to_a_message_of_ag_ui(ag_ui: Object, url: str) -> None:
    assert ag_ui["seen"]["error"] is None
    assert ag_ui["seen"]["messages"][-1]["content"].startswith("You said: look")
    blocks = httpx2.get(f"{url}/conversations/default/default/image/blocks").json()["blocks"]
    assert [block["body"]["mime"] for block in blocks if block["type"] == "user.attachment"] == [
        "image/png"
    ]
    message: Object = {"id": "m1", "role": "user"}
    for source in ({"type": "url", "value": f"{url}/x.png"}, {"type": "file", "value": "file-1"}):
        parts = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
        body = {"threadId": "url", "runId": "r", "messages": [{**message, "content": parts}]}
        refused = httpx2.post(f"{url}/ag-ui", json=body)
        assert (refused.status_code, "data URL" in refused.text) == (422, True)


def test_a_client_of_ag_ui_runs_a_tool_and_sends_its_result(ag_ui: Object) -> None:
    called, located = ag_ui["called"], ag_ui["located"]
    assert called["error"] is None
    assert called["events"][-1]["outcome"] == {"type": "success"}
    [call] = called["messages"][-1]["toolCalls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "where",
        {"unit": "m"},
    )
    assert located["error"] is None
    assert texts(located)[-1] == ("assistant", f"The tool said: {RESULT}\nin Rome")
    results = [message for message in located["messages"] if message["role"] == "tool"]
    assert [(message["id"], message["content"]) for message in results] == [("m5", "in Rome")]


def test_a_fresh_page_of_ag_ui_has_the_result_that_another_client_sent(ag_ui: Object) -> None:
    results = [
        message for message in ag_ui["locatedAgain"]["messages"] if message["role"] == "tool"
    ]
    assert [(message["toolCallId"], message["content"]) for message in results] == [
        ("c1", "in Rome")
    ]


def test_an_approval_of_ag_ui_edits_the_arguments_and_grants_a_rule(ag_ui: Object) -> None:
    [interrupt] = ag_ui["priced"]["events"][-1]["outcome"]["interrupts"]
    assert interrupt["reason"] == "tool_call"
    [schema] = [one for one in interrupt["responseSchema"]["anyOf"] if one["type"] == "object"]
    assert {"approved", "reason", "editedArgs", "rule"} == schema["properties"].keys()
    for run in ("paid", "ruled"):
        assert ag_ui[run]["error"] is None
        assert types(ag_ui[run])[-1] == "RUN_FINISHED"
        assert ag_ui[run]["result"]["exitReason"] == "complete"
    [result] = [message for message in ag_ui["paid"]["messages"] if message["role"] == "tool"]
    assert result["content"].startswith("The user approved this call with changed arguments")


def data(response: httpx2.Response) -> Iterator[Object]:
    """Yield the data of a stream's events."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_every_event_of_ag_ui_has_the_fields_of_its_type(ag_ui: Object, url: str) -> None:
    events = TypeAdapter[Event](Event)
    for run in ag_ui.values():
        for event in run["events"]:
            assert events.validate_python(event).type == event["type"]


def test_a_run_that_is_sent_again_is_read_again(url: str) -> None:
    message: Object = {"id": "m1", "role": "user", "content": "call shop.wait name=0"}
    body = {"threadId": "twice", "runId": "r1", "messages": [message]}
    streams = list[list[str]]()
    with httpx2.Client(timeout=30) as client:
        for _ in range(3):
            response = client.post(f"{url}/ag-ui", json=body)
            streams.append(response.text.split("\n\n"))
    assert streams[1] == streams[2]
    live = [frame for frame in streams[0] if frame.startswith("id: ")]
    assert live
    assert set(live) <= set(streams[1])


@pytest.fixture(scope="module", params=["ai@6", "ai@7"])
def vercel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Object:
    packages = installed(request.param, tmp_path_factory)
    with desk(tmp_path_factory) as address:
        return told(packages, "vercel.mjs", address)


def parts(chat: Object) -> list[Object]:
    return [part for part in chat["messages"][-1]["parts"] if part["type"] != "step-start"]


def test_a_chat_of_the_ai_sdk_shows_the_parts_of_a_turn(vercel: Object) -> None:
    spoken = vercel["spoken"]
    assert spoken["errors"] == []
    assert [message["role"] for message in spoken["messages"]] == ["user", "assistant"]
    assert spoken["messages"][-1]["id"] == "turn_1"
    note, call, *files, answer = parts(spoken)
    assert (note["type"], note["text"], note["state"]) == ("text", "Let me see.", "done")
    assert (call["toolName"], call["state"]) == ("shop.draw", "output-available")
    assert call["input"] == {"name": "tea"}
    assert [file["data"]["path"] for file in files] == ["outputs/tea.html", "outputs/a/b.bin"]
    assert answer["text"].startswith(f"The tool said: {RESULT}")
    assert spoken["messages"][-1]["metadata"]["exitReason"] == "complete"


def test_the_output_that_a_chat_adds_answers_a_question(vercel: Object) -> None:
    assert parts(vercel["asked"])[1]["state"] == "input-available"
    assert parts(vercel["asked"])[2]["data"] == {"toolCallId": "c1", "question": "Book tea?"}
    answered = vercel["answered"]
    assert answered["errors"] == []
    assert [message["role"] for message in answered["messages"]] == ["user", "assistant"]
    assert parts(answered)[-1]["text"] == f"The tool said: {RESULT}\nat noon"


@pytest.mark.parametrize(
    ("name", "state"), [("approved", "output-available"), ("denied", "output-denied")]
)
def test_an_approval_of_a_chat_continues_the_turn(vercel: Object, name: str, state: str) -> None:
    before, after = vercel[name]
    assert parts(before)[1]["state"] == "approval-requested"
    assert after["errors"] == []
    assert len(after["messages"]) == 2
    assert parts(after)[1]["state"] == state
    assert parts(after)[-1]["text"].startswith("The tool said: ")


def test_the_reason_of_a_denial_reaches_the_model(vercel: Object) -> None:
    assert "The user's reason: Too dear." in parts(vercel["denied"][1])[-1]["text"]


def test_an_error_for_a_question_is_a_declined_answer(vercel: Object) -> None:
    assert vercel["refused"]["errors"] == []
    assert parts(vercel["refused"])[-1]["text"] == (
        f"The tool said: {RESULT}\nThe user did not answer. No time."
    )


def test_a_message_of_a_chat_that_is_edited_forks_the_chat_there(vercel: Object) -> None:
    second, first, running, page = vercel["edited"]
    assert [written(chat) for chat in (second, first)] == [
        ["one", "You said: one", "too", "You said: too", "after too", "You said: after too"],
        ["won", "You said: won", "after won", "You said: after won"],
    ]
    assert [chat["errors"] for chat in vercel["edited"]] == [[]] * 4
    assert page["messages"] == running["messages"][-1:]
    assert written(page)[0].startswith("Let me see.")


def test_the_page_of_a_chat_runs_a_tool_and_the_turn_goes_on_by_itself(vercel: Object) -> None:
    located = vercel["located"]
    assert located["errors"] == []
    assert [message["role"] for message in located["messages"]] == ["user", "assistant"]
    [call] = located["calls"]
    assert (call["toolName"], call["input"], "dynamic" in call) == ("where", {"unit": "m"}, False)
    [part] = [part for part in parts(located) if part["type"] == "tool-where"]
    assert (part["state"], part["output"]) == ("output-available", {"city": "Rome", "unit": "m"})
    assert parts(located)[-1]["text"] == f'The tool said: {RESULT}\n{{"city":"Rome","unit":"m"}}'


def test_an_error_of_the_page_is_the_result_of_its_call(vercel: Object) -> None:
    assert vercel["lost"]["errors"] == []
    assert parts(vercel["lost"])[-1]["text"] == f"The tool said: {RESULT}\nNo signal."


def test_the_page_runs_a_tool_that_needs_approval_only_when_it_is_approved(vercel: Object) -> None:
    before, after = vercel["unapproved"], vercel["shown"]
    assert before["calls"] == []
    [part] = [part for part in parts(before) if part["type"] == "tool-desk.show"]
    assert (part["state"], part["input"]) == ("approval-requested", {"text": "hello"})
    assert [call["input"] for call in after["calls"]] == [{"text": "hello"}]
    assert after["errors"] == []
    assert parts(after)[-1]["text"] == f"The tool said: {RESULT}\nshown"


def written(chat: Object) -> list[str]:
    """The text of each message of a chat."""
    return [
        "".join(part["text"] for part in message["parts"] if part["type"] == "text")
        for message in chat["messages"]
    ]


def test_a_turn_that_fails_is_an_error_of_the_chat(vercel: Object) -> None:
    assert vercel["broken"]["status"] == "error"
    assert vercel["broken"]["errors"]


def test_a_page_that_is_opened_while_a_turn_runs_shows_it_from_its_beginning(
    vercel: Object,
) -> None:
    assert vercel["resumed"]["errors"] == vercel["slow"]["errors"] == []
    assert vercel["resumed"]["messages"][-1] == vercel["slow"]["messages"][-1]
    assert vercel["idle"]["messages"] == []


def test_a_stream_is_read_without_a_chat(vercel: Object) -> None:
    assert [part["text"] for part in vercel["read"]["parts"] if part["type"] == "text"] == [
        "You said: plain"
    ]


def test_a_chat_stream_names_its_protocol_and_ends_with_done(url: str) -> None:
    message: Object = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "tea"}]}
    body = {"id": "headers", "messages": [message]}
    with httpx2.Client(timeout=30) as client:
        first, *again = [client.post(f"{url}/api/chat", json=body) for _ in range(3)]
    assert first.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert first.text.endswith("data: [DONE]\n\n")
    assert next(data(first)) == {"type": "start", "messageId": "turn_1"}
    assert again[0].text == again[1].text
