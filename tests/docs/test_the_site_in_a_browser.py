"""The site in Chromium: accessible in both modes, searched without a network, and as wide as a telephone."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Generator, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loopline.cli.docs import HOST, make_handler, read_archive
from tests.support.peers import npm_packages

pytestmark = pytest.mark.service

PAGES = (
    "",
    "how-to/approve-a-write/",
    "reference/running/",
    "explanation/crashes/",
    "from/langgraph/",
)
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def address(
    site: Path, builder: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """The address of the site, served as `loopline docs` serves it."""
    archive = tmp_path_factory.mktemp("archive") / "pages.zip"
    builder.package(site, archive)
    with ThreadingHTTPServer((HOST, 0), make_handler(read_archive(archive))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """Chromium, without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "Chromium is not installed"
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page whose errors, and whose requests to other hosts, fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("requestfailed", lambda request: faults.append(request.url))
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:", "blob:"))
            else faults.append(request.url)
        ),
    )
    yield opened
    context.close()
    assert faults == []


def test_a_search_finds_a_page_without_a_network(page: Page, address: str) -> None:
    page.goto(address)
    field = page.locator("input:focus")
    while field.count() == 0:  # the key does nothing until the script of the page has run
        page.keyboard.press("Control+k")
        page.wait_for_timeout(200)
    field.fill("approve a write")
    expect(page.get_by_text(re.compile(r"^\d+ results?$"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_title(re.compile("pprove a write - Loopline"))


def test_a_page_is_not_wider_than_a_telephone(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    widths: dict[str, int] = {}
    for path in PAGES:
        page.goto(f"{address}{path}")
        widths[path] = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert {path: width for path, width in widths.items() if width > 390} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_five_pages_are_accessible(
    browser: Browser, address: str, tmp_path_factory: pytest.TempPathFactory, scheme: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "axe"
    if not folder.exists():
        folder.mkdir()
        npm_packages.install(folder, "axe-core@4.14.1")
    axe = (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(
        viewport={"width": 1280, "height": 860},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,
    )
    page = context.new_page()
    found: list[str] = []
    for path in PAGES:
        page.goto(f"{address}{path}")
        page.wait_for_timeout(400)
        page.evaluate(axe)
        result = page.evaluate("axe.run()")
        found += [
            f"{path}: {fault['id']} {node['target']} {node['failureSummary']}"
            for fault in result["violations"]
            if fault["impact"] in SERIOUS
            for node in fault["nodes"][:3]
        ]
    context.close()
    assert found == []
