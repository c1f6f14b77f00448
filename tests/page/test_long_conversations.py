"""Long conversations are shown in full with few elements: many turns, many rounds with summaries, many calls at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from loopline.harness import ReadOnlyStore
from loopline.server import reading_app
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving
from tests.support.long_conversations import write_marathon, write_parallel, write_turns

pytestmark = pytest.mark.service
ROUNDS, CALLS, TURNS = 300, 1_000, 1_700
MOST = 500
"""The most rows of a list, and the most parts of a prompt, that are in the page at once."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the conversations of a store with all three, up to their names."""
    store = f"sqlite:///{tmp_path_factory.mktemp('long')}/long.db"
    in_thread(write_marathon(store, ROUNDS))
    in_thread(write_parallel(store, CALLS))
    in_thread(write_turns(store, TURNS))
    with serving(reading_app(ReadOnlyStore(store))) as url:
        yield f"{url}/page/#/c/default/default/local"


def rows(page: Page) -> int:
    return page.locator("article, .part, .list-item").count()


def test_ten_thousand_blocks_are_scrolled_from_end_to_end(page: Page, address: str) -> None:
    page.goto(f"{address}/turns/timeline")
    feed = page.get_by_role("feed", name="Blocks of turns")
    expect(feed.locator("article").first).to_have_attribute("aria-setsize", "10200")
    for share in (0.25, 0.5, 0.75, 1):
        page.evaluate(
            "share => { const list = document.querySelector('.rows'); list.scrollTop = share * list.scrollHeight }",
            share,
        )
        page.wait_for_timeout(150)
        assert rows(page) <= MOST
    expect(page.get_by_text("1 round").last).to_be_visible()
    page.goto(f"{address}/turns/overview")
    expect(page.get_by_role("heading", name="turn 1 Question 0")).to_be_visible(timeout=20_000)
    expect(page.get_by_text("1,700", exact=True)).to_have_count(2, timeout=30_000)  # all are here
    last = page.get_by_role("heading", name=f"turn {TURNS} Question")
    for _ in range(20):  # rows are measured when they are seen, so the end moves
        page.evaluate("const list = document.querySelector('.turns'); list.scrollTop = 1e9")
        page.wait_for_timeout(150)
        if last.is_visible():
            break
    expect(last).to_be_visible()
    assert rows(page) <= MOST


def test_a_prompt_of_thousands_of_messages_shows_its_ends_first(page: Page, address: str) -> None:
    page.goto(f"{address}/turns/prompt")
    expect(page.get_by_role("heading", name=f"turn {TURNS}, round 1")).to_be_visible()
    expect(page.get_by_text(f"Question {TURNS - 1} about tea")).to_be_visible()
    assert rows(page) <= MOST
    page.get_by_role("button", name="Show 200 of").click()
    expect(page.get_by_text(f"Question {TURNS - 150} about tea")).to_be_visible()


def test_rounds_with_summaries_children_and_approvals_are_shown(page: Page, address: str) -> None:
    page.goto(f"{address}/marathon/chat")
    expect(page.get_by_text("I am done.")).to_be_visible()
    assert rows(page) <= MOST
    page.goto(f"{address}/marathon/overview")
    expect(page.get_by_role("img", name="300 requests and 299 calls")).to_be_visible()
    assert rows(page) <= MOST
    page.goto(f"{address}/marathon/prompt/1/300")
    expect(page.get_by_role("region", name="1 user").locator(".tone-tag-summary")).to_be_visible()
    page.goto(f"{address}/marathon~c25/overview")
    expect(page.get_by_role("heading", name="turn 1 task 25")).to_be_visible()
    expect(page.get_by_role("link", name="child run of marathon")).to_be_visible()


def test_a_thousand_calls_at_once_are_lanes_of_one_turn(page: Page, address: str) -> None:
    page.goto(f"{address}/parallel/overview")
    expect(page.get_by_role("img", name="2 requests and 1000 calls")).to_be_visible()
    expect(page.get_by_text("tea.price ×1000")).to_be_visible()
    page.goto(f"{address}/parallel/chat")
    expect(page.get_by_text("Done.")).to_be_visible()
    assert rows(page) <= MOST
