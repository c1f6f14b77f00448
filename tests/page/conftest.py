"""A browser for the tests of the page: Chromium, which the system has."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.hostile_conversation import in_thread
from tests.support.page_conversations import write_tea_store


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "Chromium is not installed"
    expect.set_options(timeout=20_000)  # a machine under load shows a picture late
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page whose uncaught errors, and whose breaches of its policy, fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "console",
        lambda message: errors.append(message.text) if "Content Security" in message.text else None,
    )
    yield opened
    context.close()
    assert errors == []


@pytest.fixture(scope="session")
def tea_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a store with a conversation that uses a tool of each kind."""
    file: Path = tmp_path_factory.mktemp("page") / "tea.db"
    in_thread(write_tea_store(file))
    return f"sqlite:///{file}"
