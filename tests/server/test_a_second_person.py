"""A call that needs two people: the token of a request says who approves, and the role `approver` lets others do so."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

import httpx2
import pytest

from loopline import BaseWorkflow, Bundle
from loopline.client import connect
from loopline.guards import ask_before
from loopline.models import Json, JsonObject
from loopline.server import ApiKeys, Principal, app
from loopline.server.principals import APPROVER, PRIVILEGED, new_key
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving, wait


class Careful(BaseWorkflow):
    """Needs two people for each call."""

    guards = (ask_before(["till.wait"], people=2),)


TILL = Bundle(id="till", instructions="You sell.", tools=[wait], workflow=Careful)
SOLD = "The tool said: [tc:turn_1.c1.result]\nwaited"


def principal(user: str, *roles: str, project: str = "tea") -> Principal:
    return Principal(tenant="acme", project=project, user=user, roles=frozenset(roles))


PEOPLE = {
    "ann": principal("ann"),
    "bob": principal("bob", APPROVER),
    "eve": principal("eve"),
    "boss": principal("boss", PRIVILEGED),
    "abroad": principal("bob", APPROVER, project="coffee"),
    "ann as approver": principal("ann", APPROVER),
}


@dataclass(frozen=True)
class Served:
    """A server, and the keys of people by name."""

    url: str
    keys: dict[str, str]

    def send(
        self, who: str, method: str, action: str, body: Json = None, *, of: str = ""
    ) -> httpx2.Response:
        """Send a request about the conversation `c` of the user `of`, or of the sender."""
        project = PEOPLE[who].project
        return httpx2.request(
            method,
            f"{self.url}/conversations/acme/{project}/c/{action}",
            params={"user_id": of} if of else {},
            json=body,
            headers={"Authorization": f"Bearer {self.keys[who]}"},
            verify=False,  # loading the certificates of all authorities takes 25 ms
        )

    def waiting(self, who: str, *, of: str = "") -> JsonObject:
        """Return the only call that the sender may approve."""
        [call] = self.send(who, "GET", "approvals", of=of).json()["approvals"]
        row: JsonObject = call
        return row

    def answer(self, who: str, value: Json = True, *, of: str = "") -> httpx2.Response:
        """Answer the call with a signed approval."""
        signed = self.waiting("bob", of="ann")["approval"]
        body: Json = {"values": {"c1": value}, "approvals": {"c1": signed}}
        return self.send(who, "POST", "answers", body, of=of)


@pytest.fixture
def served() -> Generator[Served]:
    made = {name: new_key(person) for name, person in PEOPLE.items()}
    server = app(
        TILL,
        store="memory:",
        auth=ApiKeys([stored for _, stored in made.values()]),
        model=EchoModel(),
    )
    with serving(server) as url:
        opened = Served(url, {name: text for name, (text, _) in made.items()})
        asked = opened.send("ann", "POST", "messages", {"text": "call till.wait name=0"})
        [call] = asked.json()["pending"]
        assert (call["people"], call["approved_by"]) == (2, [])
        yield opened


@pytest.mark.parametrize("order", [("ann", "bob"), ("bob", "ann")])
def test_two_principals_approve_in_any_order_and_only_the_owner_reads_the_result(
    served: Served, order: tuple[str, str]
) -> None:
    for who in order:
        of = "" if who == "ann" else "ann"
        answered = served.answer(who, of=of)
        if who == order[0]:
            [row] = served.send("ann", "GET", "approvals").json()["approvals"]
            assert row["approved_by"] == [who]
            again = served.answer(who, of=of)
            assert (again.status_code, "another" in again.text) == (422, True)
        if who == "bob":
            assert (answered.status_code, answered.json()) == (202, {"done": True})
    assert ended_turn(served)["answer"] == SOLD


def ended_turn(served: Served) -> JsonObject:
    """Return the result of the turn, once it has ended."""
    while True:
        turn: JsonObject = served.send("ann", "GET", "turns/turn_1").json()
        if turn["exit_reason"] == "complete":
            return turn
        time.sleep(0.05)


@pytest.mark.parametrize("who", ["eve", "boss", "abroad"])
def test_who_has_no_role_here_neither_sees_nor_approves_the_call(served: Served, who: str) -> None:
    assert served.send(who, "GET", "approvals", of="ann").status_code in (403, 404)
    assert served.answer(who, of="ann").status_code in (403, 404)
    assert served.waiting("ann")["approved_by"] == []


def test_a_second_token_of_the_same_user_is_not_a_second_person(served: Served) -> None:
    served.answer("ann")
    assert served.answer("ann as approver").status_code == 422
    assert served.answer("ann as approver", of="ann").status_code == 422
    assert served.waiting("ann")["approved_by"] == ["ann"]


def test_an_approver_may_deny_and_does_nothing_else_in_another_conversation(served: Served) -> None:
    body: Json = {"values": {}, "approvals": {}}
    assert served.send("bob", "POST", "answers", body, of="ann").status_code == 403
    unknown: Json = {"values": {"c7": True}, "approvals": {}}
    assert served.send("bob", "POST", "answers", unknown, of="ann").status_code == 403
    for action in ("stop", "fork", "mode"):
        refused = served.send("bob", "POST", action, {"mode": "ask", "seq": 1}, of="ann")
        assert refused.status_code in (404, 422)
    assert served.answer("bob", {"approved": False, "reason": "no"}, of="ann").status_code == 202
    assert "did not approve" in f"{ended_turn(served)['answer']}"


def test_a_signature_is_of_the_arguments_that_were_shown(served: Served) -> None:
    shown = served.waiting("bob", of="ann")["approval"]
    edited: Json = {"approved": True, "arguments": {"name": "1"}}
    assert served.answer("ann", edited).status_code == 200
    stale: Json = {"values": {"c1": True}, "approvals": {"c1": shown}}
    assert served.send("bob", "POST", "answers", stale, of="ann").status_code == 403
    row = served.waiting("bob", of="ann")
    assert (row["arguments"], row["approved_by"]) == ({"name": "1"}, ["ann"])
    assert served.answer("bob", of="ann").status_code == 202


async def test_a_client_approves_as_a_further_person(served: Served) -> None:
    async with (
        connect(served.url, key=served.keys["ann"]) as ann,
        connect(served.url, key=served.keys["bob"]) as bob,
    ):
        paused = await ann.conversation("c").approve("c1")
        assert paused.pending[0].approved_by == ["ann"]
        await bob.conversation("c").approve_for("ann", "c1")
    assert ended_turn(served)["answer"] == SOLD
