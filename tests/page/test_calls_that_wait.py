"""A call that waits is answered on the page: by a second person, with a rule, with a reason, or with the result of a client's tool."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from loopline import Bundle, tool
from loopline.models import Json, ToolCall
from loopline.server import ApiKeys, Principal, add_key, app
from loopline.testing import Call, ScriptedModel
from tests.mcp.served import Served, sdk
from tests.page.axe import axe_script, serious_faults
from tests.support.live_server import serving

pytestmark = pytest.mark.service
HERE = "/conversations/default/default"
TALK = "#/c/default/default/local/c1/chat"


@dataclass
class Cup:
    """The cup that was picked."""

    color: Literal["red", "blue"]
    grams: int
    hot: bool


@tool(effect="write", approve=True, people=2)
def refund(amount: int) -> str:
    """Refund an amount of euros."""
    return f"{amount} refunded"


@tool(effect="write", approve=True)
def order(tea: str) -> str:
    """Order a tea."""
    return f"{tea} is ordered"


@tool(client=True)
def pick(label: str) -> Cup:
    """Let the user pick a cup."""
    raise NotImplementedError


@tool(client=True)
def locate(precision: str) -> Literal["here", "there"]:
    """Find the user."""
    raise NotImplementedError


SHOP = Bundle(id="shop", instructions="You sell tea.", tools=[refund, order, pick, locate])


@contextmanager
def shop(*script: ToolCall | str) -> Generator[str]:
    """Serve the shop; the conversation `c1` has a message, and waits for the first call of the script."""
    served = app(SHOP, store="memory:", model=ScriptedModel(list(script), strict=False))
    with serving(served) as url:
        httpx2.post(f"{url}{HERE}/c1/messages", json={"text": "Go!"}, timeout=30)
        yield url


def key_of(page: Page, url: str, key: str, user: str) -> None:
    """Open the conversation `c1` of a user with a key."""
    page.goto(f"{url}/page/#/c/default/default/{user}/c1/chat")
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_two_people_approve_the_same_arguments_in_their_own_browsers(
    page: Page, browser: Browser, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path / "keys.json"
    ann = add_key(file, Principal(user="ann"))
    bob = add_key(file, Principal(user="bob", roles=frozenset({"approver", "privileged"})))
    eve = add_key(file, Principal(user="eve", roles=frozenset({"privileged"})))
    model = ScriptedModel([Call("shop.refund", amount=900), "Refunded."], strict=False)
    with serving(app(SHOP, store="memory:", model=model, auth=ApiKeys.read(file))) as url:
        sent = {"text": "Refund it.", "background": False}
        httpx2.post(
            f"{url}{HERE}/c1/messages", json=sent, headers={"Authorization": f"Bearer {ann}"}
        )
        key_of(page, url, ann, "ann")
        expect(page.get_by_text("nobody has approved yet")).to_be_visible()
        expect(page.get_by_text("2 missing")).to_be_visible()
        expect(page.get_by_label("The next call")).to_have_count(0)
        page.get_by_role("button", name="Edit the arguments").click()
        page.get_by_label("Arguments", exact=True).fill('{"amount": 90}')
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text("approved by ann")).to_be_visible()
        expect(page.get_by_text("1 missing")).to_be_visible()
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        expect(page.get_by_role("button", name="Deny")).to_be_visible()

        other = browser.new_context(bypass_csp=True).new_page()
        key_of(other, url, eve, "ann")
        expect(other.get_by_text("approved by ann")).to_be_visible()
        expect(other.get_by_role("button", name="Approve")).to_have_count(0)
        other.get_by_role("button", name="Sign out eve").click()
        key_of(other, url, bob, "ann")
        expect(other.get_by_text("these are what all must approve")).to_be_visible()
        expect(other.get_by_text("90", exact=True)).to_be_visible()
        axe = axe_script(tmp_path_factory.getbasetemp() / "axe")
        faults = serious_faults(other, axe, "a second person")
        other.get_by_role("button", name="Approve").click()
        expect(other.get_by_text("Refunded.")).to_be_visible()
        expect(other.get_by_label("Message", exact=True)).to_have_count(0)
        expect(page.get_by_text("Refunded.")).to_be_visible()
        page.get_by_role("button", name="shop.refund").click()
        expect(page.get_by_text("90 refunded").first).to_be_visible()
        other.context.close()
    assert faults == []


def test_an_approver_who_may_not_read_the_conversation_approves_in_the_list(
    page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    ann = add_key(file, Principal(user="ann"))
    bob = add_key(file, Principal(user="bob", roles=frozenset({"approver"})))
    model = ScriptedModel([Call("shop.refund", amount=900), "Refunded."], strict=False)
    with (
        serving(app(SHOP, store="memory:", model=model, auth=ApiKeys.read(file))) as url,
        httpx2.Client(
            base_url=f"{url}{HERE}/c1", headers={"Authorization": f"Bearer {ann}"}
        ) as client,
    ):
        client.post("/messages", json={"text": "Refund it."})
        [call] = client.get("/approvals").json()["approvals"]
        body = {"values": {"c1": True}, "approvals": {"c1": call["approval"]}}
        client.post("/answers", json=body).raise_for_status()
        page.goto(f"{url}/page/#/work")
        page.get_by_label("Key", exact=True).fill(bob)
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_text("approved by ann")).to_be_visible()
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text("Nothing runs, waits or has failed.")).to_be_visible()
        rows = client.get("/window").json()["rows"]
    assert any(row["body"].get("text") == "900 refunded" for row in rows)


def test_a_rule_that_is_granted_lets_the_next_call_run(page: Page) -> None:
    calls = [Call("shop.order", tea="sencha"), Call("shop.order", tea="matcha")]
    with shop(*calls, "Both are ordered.") as url:
        page.goto(f"{url}/page/{TALK}")
        page.get_by_label("The next call").select_option("any")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text("Both are ordered.")).to_be_visible()
        rules = httpx2.get(f"{url}{HERE}/c1/mode").json()["rules"]
    assert [rule["tool"] for rule in rules] == ["shop.order"]


def test_the_reason_of_a_denial_reaches_the_model(page: Page) -> None:
    with shop(Call("shop.order", tea="sencha"), "Then not.") as url:
        page.goto(f"{url}/page/{TALK}")
        page.get_by_label("Reason").fill("too expensive")
        page.get_by_role("button", name="Deny").click()
        expect(page.get_by_text("Then not.")).to_be_visible()
        page.get_by_role("button", name="shop.order").click()
        expect(page.locator(".call-body")).to_contain_text("too expensive")


def test_arguments_that_are_not_valid_are_refused_and_the_call_goes_on_waiting(page: Page) -> None:
    with shop(Call("shop.order", tea="sencha"), "Done.") as url:
        page.goto(f"{url}/page/{TALK}")
        page.get_by_role("button", name="Edit the arguments").click()
        page.get_by_label("Arguments", exact=True).fill("[1")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text("The arguments are not a JSON object.")).to_be_visible()
        page.get_by_label("Arguments", exact=True).fill('{"coffee": 1}')
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("alert")).to_contain_text("coffee")
        expect(page.get_by_label("Arguments", exact=True)).to_have_value('{"coffee": 1}')
        expect(page.get_by_role("button", name="Approve")).to_be_visible()


def test_a_call_that_the_client_runs_is_answered_with_a_form(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    axe = axe_script(tmp_path_factory.getbasetemp() / "axe")
    page = browser.new_context(bypass_csp=True).new_page()
    calls = [Call("shop.pick", label="a cup"), Call("shop.locate", precision="m")]
    with shop(*calls, "Thanks.") as url:
        page.goto(f"{url}/page/{TALK}")
        expect(page.get_by_text("The client runs this tool.")).to_be_visible()
        faults = serious_faults(page, axe, "a client's tool")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("alert")).to_have_text("Choose a value for Color.")
        page.get_by_label("Color").select_option("blue")
        page.get_by_label("Grams").fill("many")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("alert")).to_have_text("Grams is not a number.")
        page.get_by_label("Grams").fill("200")
        page.get_by_label("Hot").select_option("yes")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("combobox", name="Result")).to_be_visible()
        page.get_by_role("button", name="Decline").click()
        expect(page.get_by_text("Thanks.")).to_be_visible()
        page.get_by_role("button", name="shop.pick").click()
        expect(page.locator(".call-body")).to_contain_text("blue")
        page.get_by_role("button", name="shop.locate").click()
        expect(page.locator(".call-body").last).to_contain_text("did not run this call")
        rows = httpx2.get(f"{url}{HERE}/c1/window", params={"user_id": "local"}).json()["rows"]
    values: list[Json] = [row["body"]["value"] for row in rows if row["type"] == "user.answer"]
    assert values[0] == {"color": "blue", "grams": 200, "hot": True}
    assert faults == []
    page.context.close()


def test_the_question_of_a_running_call_has_the_fields_of_its_form(
    page: Page, tmp_path: Path
) -> None:
    Served(tmp_path).declare({"calc": sdk()})
    properties: Mapping[str, Json] = {
        "mcp.file": str(tmp_path / ".mcp.json"),
        "react.select_tools": False,
    }
    script: list[ToolCall | str] = [Call("mcp.calc.choose"), Call("mcp.calc.choose"), "Done."]
    bundle, model = Bundle(id="served"), ScriptedModel(script, strict=False)
    with serving(app(bundle, store="memory:", model=model, properties=properties)) as url:
        page.goto(f"{url}/page/{TALK}")
        page.get_by_label("Message", exact=True).fill("Go!")
        page.keyboard.press("Enter")
        page.get_by_label("Kind").fill("green")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("button", name="mcp.calc.choose")).to_have_count(2)
        page.get_by_role("button", name="Decline").click()
        expect(page.get_by_text("Done.")).to_be_visible()
        page.get_by_role("button", name="mcp.calc.choose").first.click()
        expect(page.locator(".call-body")).to_contain_text("accept: green")
        page.get_by_role("button", name="mcp.calc.choose").last.click()
        expect(page.locator(".call-body").last).to_contain_text("decline")
