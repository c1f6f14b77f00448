"""What cannot be read of a conversation is shown for what it is: a damaged row, a missing blob, a line of 5 MB."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from loopline.harness import DocumentStore, ReadOnlyStore
from loopline.server import reading_app
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving
from tests.support.page_conversations import LONG, tell, write_damaged_store, write_long_session

pytestmark = pytest.mark.service
TALK = "#/c/default/default/local/c1"


def test_a_damaged_row_is_a_row_with_its_reason(page: Page, tmp_path: Path) -> None:
    with serving(reading_app(ReadOnlyStore(write_damaged_store(tmp_path / "talk.db")))) as url:
        page.goto(f"{url}/page/{TALK}/timeline/1")
        feed = page.get_by_role("feed", name="Blocks of c1")
        expect(feed.get_by_role("article", name="damaged:")).to_contain_text("does not match")
        panel = page.get_by_role("complementary", name="Block 1")
        expect(panel).to_contain_text("does not match its digest")
        expect(feed.get_by_role("article", name="answer: Three.")).to_be_visible()
        page.get_by_role("link", name="Chat").click()
        expect(page.get_by_text("Three.")).to_be_visible()


def test_a_block_whose_blob_is_gone_is_a_row_with_its_reason(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "talk.db"
    in_thread(tell(f"sqlite:///{file}", "word " * 100_000))
    for folder in tmp_path.iterdir():
        if folder.is_dir() and "blob" in folder.name:
            shutil.rmtree(folder)
    with serving(reading_app(ReadOnlyStore(f"sqlite:///{file}"))) as url:
        page.goto(f"{url}/page/{TALK}/timeline/1")
        expect(page.get_by_role("complementary", name="Block 1")).to_contain_text("blob")
        feed = page.get_by_role("feed", name="Blocks of c1")
        expect(feed.get_by_role("article", name="answer: Three.")).to_be_visible()


def test_a_line_of_5_mb_is_shown_in_part_and_then_whole(page: Page, tmp_path: Path) -> None:
    with serving(reading_app(DocumentStore(write_long_session(tmp_path)))) as url:
        page.goto(f"{url}/page/#/c/default/default/local/session/timeline/1")
        panel = page.get_by_role("complementary", name="Block 1")
        expect(panel).to_contain_text("a part of 5.2 MB is shown")
        assert len(panel.inner_text()) < 200_000
        panel.get_by_role("button", name="Load all").click()
        expect(panel.get_by_text("a part of")).to_have_count(0, timeout=30_000)
        assert page.evaluate("document.querySelector('aside').textContent.length") > LONG
