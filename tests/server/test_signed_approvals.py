"""Signed approvals: an answer brings what the server signed, for that call, of that conversation, until it expires."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import httpx2
import pytest
from msgspec import structs

from loopline import BaseWorkflow, Bundle
from loopline.client import connect
from loopline.conversations import UnansweredCall
from loopline.guards import ask_before
from loopline.models import Json, Model
from loopline.server import ApiKeys, Principal, app
from loopline.server.approvals import ApprovalSigner
from loopline.server.principals import new_key
from loopline.server.problems import RequestProblem
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import ConversationKey
from tests.support.clocks import ClockAhead
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving, wait

HERE = "/conversations/acme/tea"
SOLD = "The tool said: [tc:turn_1.c1.result]\nwaited"
ANN = Principal(tenant="acme", project="tea", user="ann")


class Careful(BaseWorkflow):
    """Asks before each call."""

    guards = (ask_before(["till.wait"]),)


TILL = Bundle(id="till", instructions="You sell.", tools=[wait], workflow=Careful)


@dataclass(frozen=True, slots=True)
class Served:
    """A server with one key, its clock, and a client with that key."""

    client: httpx2.Client
    clock: ClockAhead
    url: str
    key: str

    def pause(self, name: str) -> str:
        """Begin a conversation whose call awaits approval, and return the approval that is shown."""
        body = {"text": "call till.wait name=0"}
        [call] = self.client.post(f"{HERE}/{name}/messages", json=body).json()["pending"]
        assert call["call_id"] == "c1"
        return str(call["approval"])

    def post_text(self, name: str, text: str, *, route: str = "completions") -> httpx2.Response:
        """Send a text in a conversation as OpenAI's clients do."""
        named = {"Loopline-Conversation": name}
        message: dict[str, Json] = {"role": "user", "content": text}
        if route == "completions":
            body: Json = {"messages": [message]}
            return self.client.post("/v1/chat/completions", json=body, headers=named)
        return self.client.post("/v1/responses", json={"input": [message]}, headers=named)

    def complete(self, name: str, text: str, *, route: str = "completions") -> str:
        """Send a text and return the answer."""
        response = self.post_text(name, text, route=route)
        assert response.status_code == 200, response.text
        reply = response.json()
        if route == "completions":
            return str(reply["choices"][0]["message"]["content"])
        return str(reply["output"][-1]["content"][0]["text"])

    def answer(self, name: str, approval: str | None, value: Json = True) -> httpx2.Response:
        """Answer the call of a conversation."""
        approvals = {} if approval is None else {"c1": approval}
        body: Json = {"values": {"c1": value}, "approvals": {**approvals}}
        return self.client.post(f"{HERE}/{name}/answers", json=body)


@contextmanager
def serving_till(model: Model) -> Generator[Served]:
    """Serve the bundle with this model."""
    clock = ClockAhead()
    key, stored = new_key(ANN)
    server = app(TILL, store="memory:", auth=ApiKeys([stored]), model=model, clock=clock)
    headers = {"Authorization": f"Bearer {key}"}
    with serving(server) as url, httpx2.Client(base_url=url, headers=headers, timeout=30) as client:
        yield Served(client, clock, url, key)


@pytest.fixture(scope="module")
def served() -> Generator[Served]:
    with serving_till(EchoModel()) as opened:
        yield opened


@pytest.mark.parametrize("value", [True, "yes", False])
def test_an_answer_to_an_approval_needs_what_was_signed_for_it(served: Served, value: Json) -> None:
    name = f"needs-{value}"
    served.pause(name)
    assert served.answer(name, None, value).status_code == 403
    [shown] = served.client.get(f"{HERE}/{name}/approvals").json()["approvals"]
    assert (shown["tool"], shown["arguments"]) == ("till.wait", {"name": "0"})
    answered = served.answer(name, shown["approval"], value)
    assert (answered.status_code, answered.json()["exit_reason"]) == (200, "complete")


@pytest.mark.parametrize("value", [[], ["yes"], {}, {"a": 1}, {"approved": "yes"}, 7, None, "x"])
def test_an_answer_that_is_neither_yes_nor_no_is_refused_and_the_call_still_waits(
    served: Served, value: Json
) -> None:
    name = f"odd-{json.dumps(value)}"
    approval = served.pause(name)
    refused = served.answer(name, approval, value)
    assert (refused.status_code, refused.json()["action_by"]) == (422, "client")
    assert "c1 awaits approval: answer yes or no" in refused.json()["detail"]
    assert served.answer(name, approval).json()["answer"] == SOLD


def test_the_approval_of_another_conversation_is_refused(served: Served) -> None:
    other, own = served.pause("other"), served.pause("own")
    assert served.answer("own", other).status_code == 403
    assert served.answer("own", own).json()["answer"] == SOLD


def test_an_approval_that_has_expired_is_refused_until_it_is_shown_again(served: Served) -> None:
    old = served.pause("late")
    served.clock.ahead += timedelta(hours=1)
    assert served.answer("late", old).status_code == 403
    [shown] = served.client.get(f"{HERE}/late/approvals").json()["approvals"]
    assert served.answer("late", shown["approval"]).json()["answer"] == SOLD


def test_an_approval_counts_once(served: Served) -> None:
    approval = served.pause("once")
    assert served.answer("once", approval).status_code == 200
    assert served.answer("once", approval).status_code == 409
    assert served.client.get(f"{HERE}/once/approvals").json() == {"approvals": []}


def test_stopping_the_turn_revokes_its_approval(served: Served) -> None:
    approval = served.pause("stopped")
    assert served.client.post(f"{HERE}/stopped/stop").json() == {"done": True}
    assert served.answer("stopped", approval).status_code == 422
    blocks = served.client.get(f"{HERE}/stopped/blocks").json()["blocks"]
    assert not [block for block in blocks if block["type"] == "user.answer"]


def test_an_approval_is_the_id_of_an_interrupt_of_ag_ui(served: Served) -> None:
    served.pause("ag-ui")
    run: dict[str, Json] = {"threadId": "ag-ui", "runId": "r", "messages": []}
    run |= {"tools": [], "context": [], "state": None, "forwardedProps": None}
    joined = served.client.post("/ag-ui", json=run).text
    [record] = [line for line in joined.splitlines() if "interrupts" in line]
    [interrupt] = json.loads(record.removeprefix("data: "))["outcome"]["interrupts"]
    answer: dict[str, Json] = {"status": "resolved", "payload": {"approved": True}}
    statuses = list[int]()
    for name in ("c1", interrupt["id"][:-1], interrupt["id"]):
        body = {**run, "resume": [{**answer, "interruptId": name}]}
        statuses.append(served.client.post("/ag-ui", json=body).status_code)
    assert statuses == [403, 403, 200]


def test_an_approval_of_a_chat_is_signed(served: Served) -> None:
    signed = served.pause("chat")
    shown = served.client.post("/api/chat", json=_chat("chat", {"type": "text", "text": "again"}))
    assert shown.status_code == 422
    part: dict[str, Json] = {"state": "approval-responded", "toolCallId": "c1"}
    output: Json = {"state": "output-available", "toolCallId": "c1", "output": "yes"}
    by_id: Json = {**part, "approval": {"id": "c1", "approved": True}}
    for refused in (output, by_id):
        assert served.client.post("/api/chat", json=_chat("chat", refused)).status_code == 403
    body = _chat("chat", {**part, "approval": {"id": signed, "approved": True}})
    assert SOLD in _text(served.client.post("/api/chat", json=body))


def test_a_text_approves_with_the_code_of_the_question(served: Served) -> None:
    asked = served.complete("text", "call till.wait name=0")
    assert asked.startswith('May till.wait run with {"name":"0"}?\n\nTo approve, answer: yes ')
    code = code_of(asked)
    other = code_of(served.complete("text-other", "call till.wait name=0"))
    wrong = f"{code[:-1]}{'A' if code[-1] != 'A' else 'B'}"
    for text in ("yes", "ok.", f"yes {other}", f"yes {wrong}"):
        refused = served.post_text("text", text)
        assert refused.status_code == 403
        assert code in refused.json()["error"]["message"]
    assert served.complete("text", f" Yes {code.lower()}. ") == SOLD
    assert served.post_text("text", f"yes {code}").status_code == 403


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "The user did not approve of this call."),
        ("No, it is too dear.", "The user's reason: it is too dear."),
        ("forget it", "You said: forget it"),
        ("ok, what does it cost?", "You said: ok, what does it cost?"),
        ("no idea what you mean", "You said: no idea what you mean"),
    ],
)
@pytest.mark.parametrize("route", ["completions", "responses"])
def test_a_no_and_a_new_message_need_no_code(
    served: Served, route: str, text: str, said: str
) -> None:
    name = f"{route} {text}".rstrip("?")
    served.pause(name)
    assert said in served.complete(name, text, route=route)
    assert served.complete(name, "more", route=route) == "You said: more"


def test_words_in_the_form_of_a_code_are_a_message_while_no_call_waits_for_approval(
    served: Served,
) -> None:
    assert served.complete("words", "ok real-time") == "You said: ok real-time"
    assert served.post_text("words", "yes K7QX-2MTD").status_code == 403
    served.pause("words")
    assert served.post_text("words", "ok real-time").status_code == 403


def test_a_code_expires(served: Served) -> None:
    code = code_of(served.complete("text-late", "call till.wait name=0"))
    served.clock.ahead += timedelta(hours=1)
    refused = served.post_text("text-late", f"yes {code}")
    assert refused.status_code == 403
    fresh = code_of(refused.json()["error"]["message"])
    assert served.complete("text-late", f"yes {fresh}", route="responses") == SOLD


def test_a_code_approves_the_call_that_it_was_made_for() -> None:
    calls = [Call("till.wait", name="0"), Call("till.wait", name="0.01")]
    with serving_till(ScriptedModel([Say("", *calls), "Both."])) as served:
        asked = served.complete("two", "go")
        first, second = (code_of(part) for part in asked.split("May")[1:])
        asked = served.complete("two", f"yes {second}")
        assert (first == second, code_of(asked), asked.count("May")) == (False, first, 1)
        assert served.complete("two", f"yes {first}") == "Both."


def code_of(text: str) -> str:
    [code] = re.findall(r"yes ([A-Z2-7]{4}-[A-Z2-7]{4})", text)
    return str(code)


def _text(response: httpx2.Response) -> str:
    """The text that a stream of a chat has in pieces."""
    records = [line.removeprefix("data: ") for line in response.text.splitlines()]
    parts = [json.loads(record) for record in records if record.startswith("{")]
    return "".join(part["delta"] for part in parts if part["type"] == "text-delta")


def _chat(name: str, part: Json) -> Json:
    """The body of a chat whose last message has the part."""
    return {"id": name, "messages": [{"role": "assistant", "parts": [part]}]}


def test_the_client_brings_what_was_signed(served: Served) -> None:
    async def approve() -> str:
        async with connect(served.url, key=served.key) as server:
            talk = server.conversation("client")
            paused = await talk.say("call till.wait name=0")
            return (await talk.approve(paused.pending[0].call_id)).answer

    assert asyncio.run(approve()) == SOLD


KEY = ConversationKey(tenant="acme", project="tea", user="ann", name="c")
CALL = UnansweredCall(
    call_id="c1",
    tool="",
    arguments={},
    turn_id="turn_1",
    seq=3,
    kind="approval",
    question="?",
    digest="d1",
)


@pytest.mark.parametrize(
    "other",
    [structs.replace(KEY, **{field: "x"}) for field in ("tenant", "project", "user", "name")],
)
def test_what_was_signed_is_bound_to_its_conversation(other: ConversationKey) -> None:
    assert refusal(approval=signer().sign(other, "c1", "d1"))
    assert not refusal(approval=signer().sign(KEY, "c1", "d1"))


def test_what_was_signed_is_bound_to_its_call_arguments_expiry_and_key() -> None:
    right = signer().sign(KEY, "c1", "d1")
    call, expires, mac = right.split(".")
    tampered = [
        signer().sign(KEY, "c2", "d1"),
        signer().sign(KEY, "c2", "d1").replace("c2", "c1"),
        signer().sign(KEY, "c1", "d2"),
        signer(key=b"another").sign(KEY, "c1", "d1"),
        f"{call}.{int(expires) + 1}.{mac}",
        f"{call}.0{expires}.{mac}",
        f"{call}.{expires}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        f"{call}.{expires}.",
        f"{call}.{expires}",
        f"{right} ",
        "\ud800",
        "c1",
        "",
    ]
    assert [text for text in tampered if not refusal(approval=text)] == []


def test_without_accounts_an_answer_may_bring_nothing_but_nothing_wrong() -> None:
    signer(required=False).check(KEY, {"c1": CALL}, {"c1": True}, {})
    with pytest.raises(RequestProblem):
        signer(required=False).check(KEY, {"c1": CALL}, {"c1": True}, {"c1": "c1.1.ab"})


def signer(*, key: bytes = b"key", required: bool = True) -> ApprovalSigner:
    """A signer whose clock stands."""
    return ApprovalSigner(key, FakeClock(), seconds=60, required=required)


def refusal(*, approval: str) -> bool:
    """Whether the answer with that approval is refused."""
    try:
        signer().check(KEY, {"c1": CALL}, {"c1": True}, {"c1": approval})
    except RequestProblem:
        return True
    return False
