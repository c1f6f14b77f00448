"""The page in Chromium: reading a store, chatting, hostile texts, keyboard, and accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from loopline.harness import ReadOnlyStore
from loopline.server import app, reading_app
from tests.page.axe import axe_script, serious_faults
from tests.page.hostile import assert_nothing_ran, open_everything
from tests.support.hostile_conversation import in_thread, write_hostile_store
from tests.support.hostile_texts import TEXTS
from tests.support.live_server import serving
from tests.support.page_conversations import TEA, tea_model

pytestmark = pytest.mark.service
TALK = "#/c/default/default/local/brewing"


@pytest.fixture(scope="module")
def reading(tea_store: str) -> Iterator[str]:
    """Return the address of the page of a server that only shows the store."""
    with serving(reading_app(ReadOnlyStore(tea_store))) as url:
        yield f"{url}/page/"


@pytest.fixture
def chatting() -> Iterator[str]:
    """Return the address of the page of a server whose model plays the script about tea."""
    with serving(app(TEA, store="memory:", model=tea_model())) as url:
        yield f"{url}/page/"


def test_a_store_is_read_from_the_list_to_the_prompt_of_a_round(page: Page, reading: str) -> None:
    page.goto(reading)
    page.get_by_role("link", name=re.compile("How do I steep sencha")).click()
    expect(page.get_by_text("water of 70 to 80 degrees")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("img", name=re.compile("4 requests and 6 calls"))).to_be_visible()
    page.get_by_role("link", name="Prompt of round 3").click()
    expect(page.get_by_role("heading", name="turn 1, round 3")).to_be_visible()
    page.get_by_label("Compare with the round before").check()
    expect(page.get_by_text("unchanged").first).to_be_visible()
    page.get_by_role("link", name="Later round").click()
    expect(page.get_by_role("heading", name="turn 1, round 4")).to_be_visible()
    page.get_by_role("link", name="Timeline").click()
    feed = page.get_by_role("feed", name="Blocks of brewing")
    expect(feed.locator("article").first).to_have_attribute("aria-setsize", "57")


def test_arguments_and_results_of_all_calls_are_shown_at_once(page: Page, reading: str) -> None:
    page.goto(f"{reading}{TALK}/chat")
    expect(page.get_by_text("I have ordered 100 g")).to_be_visible()
    call = page.get_by_role("button", name=re.compile("tea.order"))
    expect(call).to_have_attribute("aria-expanded", "false")
    page.get_by_label("Show arguments and results").check()
    expect(call).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".call-body").last).to_contain_text("ordered 100 g of sencha")
    call.click()
    expect(call).to_have_attribute("aria-expanded", "false")


def test_the_keyboard_alone_finds_a_block_and_reads_it(page: Page, reading: str) -> None:
    page.goto(f"{reading}{TALK}/timeline")
    page.locator("[data-row][tabindex='0']").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    expect(page.locator("[data-row]:focus")).to_contain_text("feedback")
    page.keyboard.press("Enter")
    panel = page.get_by_role("complementary", name="Block 57")
    expect(panel).to_contain_text("ar:turn_2.turn.feedback.1")
    panel.get_by_role("button", name="Close the block").focus()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)


def test_a_search_beside_the_page_finds_blocks(page: Page, reading: str) -> None:
    page.goto(f"{reading}{TALK}/timeline")
    page.get_by_label("Search in this conversation").fill("oolong error")
    expect(page.get_by_role("status")).to_have_text("1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Block 23")).to_contain_text("oolong is not")


def test_a_chat_from_the_first_message_to_an_approval_and_its_rating(
    page: Page, chatting: str
) -> None:
    page.goto(chatting)
    page.get_by_role("link", name="New").click()
    page.get_by_label("Message", exact=True).fill("How do I steep sencha?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("water of 70 to 80 degrees")).to_be_visible()
    expect(page.get_by_text("2 of 3")).to_be_visible()
    page.get_by_label("Source 1").last.hover()
    expect(page.get_by_role("tooltip").last).to_contain_text("Water that boils")
    page.get_by_label("Message", exact=True).fill("Order 100 g of it.")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Edit the arguments").click()
    page.get_by_label("Arguments", exact=True).fill('{"tea": "sencha", "grams": 50}')
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("I have ordered 100 g of sencha of the first harvest.")).to_be_visible()
    page.get_by_role("button", name=re.compile("tea.order")).click()
    expect(page.get_by_text("ordered 50 g of sencha").first).to_be_visible()
    page.get_by_role("button", name="Good answer").last.click()
    expect(page.get_by_role("button", name="Good answer").last).to_have_attribute(
        "aria-pressed", "true"
    )


def test_a_message_is_edited_in_a_fork(page: Page, chatting: str) -> None:
    page.goto(chatting)
    page.get_by_role("link", name="New").click()
    page.get_by_label("Message", exact=True).fill("How do I steep sencha?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Good answer")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("Order 100 g of it.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.get_by_role("button", name="Edit in a fork").last.click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Order 100 g of it.")
    expect(page.get_by_text("water of 70 to 80 degrees")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_lost_server_and_a_deleted_conversation_are_shown_for_what_they_are(
    page: Page, tea_store: str
) -> None:
    with serving(reading_app(ReadOnlyStore(tea_store))) as url:
        page.goto(f"{url}/page/#/c/default/default/local/none/timeline")
        expect(page.get_by_role("alert")).to_contain_text("does not exist, or was deleted")
        page.goto(f"{url}/page/{TALK}/timeline")
        expect(page.get_by_role("feed", name="Blocks of brewing")).to_be_visible()
    expect(page.get_by_text("The server cannot be reached").first).to_be_visible(timeout=20_000)


def test_no_text_of_a_conversation_runs_or_requests_anything(page: Page, tmp_path: Path) -> None:
    assert len(TEXTS) >= 100
    store = f"sqlite:///{tmp_path}/hostile.db"
    in_thread(write_hostile_store(store, TEXTS))
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("dialog", lambda dialog: requested.append(f"dialog {dialog.message}"))
    with serving(reading_app(ReadOnlyStore(store))) as url:
        for view in ("chat", "overview", "timeline/1", "timeline/4", "timeline/20", "prompt"):
            page.goto(f"{url}/page/#/c/default/default/local/hostile/{view}")
            page.wait_for_timeout(800)
            open_everything(page)
            assert_nothing_ran(page)
        assert {
            address.partition("/page/")[0].partition("/stored")[0][: len(url)]
            for address in requested
        } == {url}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible(
    browser: Browser, reading: str, tmp_path_factory: pytest.TempPathFactory, scheme: str
) -> None:
    axe = axe_script(tmp_path_factory.getbasetemp() / "axe")
    found: list[str] = []
    for size in ({"width": 1280, "height": 860}, {"width": 390, "height": 844}):
        context = browser.new_context(
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme="dark" if scheme == "dark" else "light",
            bypass_csp=True,
        )
        page = context.new_page()
        for view in (
            "#/",
            "#/work",
            *(f"{TALK}/{name}" for name in ("chat", "overview", "timeline/21", "prompt/1/4")),
            f"{TALK}/prompt/1/2/beside/brewing",
        ):
            page.goto(f"{reading}{view}")
            page.wait_for_timeout(600)
            found += serious_faults(page, axe, f"{view} {size['width']}")
        context.close()
    assert found == []


def test_forms_that_change_something_are_accessible(
    chatting: str, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    axe = axe_script(tmp_path_factory.getbasetemp() / "axe")
    context = browser.new_context(viewport={"width": 1280, "height": 860}, bypass_csp=True)
    page = context.new_page()
    page.goto(chatting)
    page.get_by_role("link", name="New").click()
    for text in ("How do I steep sencha?", "Order 100 g of it."):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        messages = page.get_by_role("feed", name="Messages")
        expect(messages.get_by_text(text, exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    page.get_by_role("button", name="Edit the arguments").click()
    found = serious_faults(page, axe, "an approval")
    page.get_by_text("Export", exact=True).click()
    found += serious_faults(page, axe, "the export")
    page.get_by_role("link", name="Prompt", exact=True).last.click()
    page.get_by_role("button", name="Run again").click()
    found += serious_faults(page, axe, "running again")
    context.close()
    assert found == []
