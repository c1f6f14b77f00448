"""Measures the web page in Chromium: the time until it can be used, scrolling 10,000 blocks, a delta on the screen.

    python -m tests.bench.page

Needs Chromium. All numbers are of this machine, over loopback.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

from loopline import Bundle
from loopline.harness import ReadOnlyStore
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.server import app, reading_app
from loopline.server.page_files import FOLDER
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving
from tests.support.long_conversations import write_marathon, write_parallel, write_turns

console = Console(highlight=False, width=200)
TURNS = 1_700
ROUNDS = 300
CALLS = 1_000
SCREENS = 60
DELTAS = 40
LONG_MICROSECONDS = 50_000


async def write_store(url: str) -> None:
    """Write a conversation of 10,200 blocks, one of 300 rounds, and one with 1,000 calls at once."""
    await write_turns(url, TURNS)
    await write_marathon(url, ROUNDS)
    await write_parallel(url, CALLS)


class Ticking:
    """A model that sends the time of each delta in its text."""

    name = "ticking"
    capabilities = Capabilities(window=1_000_000)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        del prompt
        texts: list[str] = []
        for n in range(DELTAS):
            await asyncio.sleep(0.1)
            texts.append(f"tick{n}at{time.time() * 1000:.0f} ")
            yield TextDelta(text=texts[-1])
        yield Reply(text="".join(texts))


def open_page(browser: Browser) -> Page:
    return browser.new_context(viewport={"width": 1280, "height": 860}).new_page()


def measure_reading(browser: Browser, url: str) -> None:
    """Print the time until the list can be used, and what scrolling it costs."""
    page = open_page(browser)
    for name, view in (
        ("10,200 blocks, timeline", "turns/timeline"),
        ("10,200 blocks, chat", "turns/chat"),
        ("10,200 blocks, overview", "turns/overview"),
        ("10,200 blocks, the prompt of 3,400 messages", "turns/prompt"),
        ("300 rounds, overview", "marathon/overview"),
        ("1,000 calls at once, overview", "parallel/overview"),
        ("1,000 calls at once, chat", "parallel/chat"),
    ):
        times: list[float] = []
        for _ in range(5):
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(f"{url}/page/#/c/default/default/local/{view}")
            page.wait_for_selector(".row-line, .round, .part, .item")
            times.append(time.perf_counter() - began)
        console.print(
            f"{name}: usable after {statistics.median(times) * 1000:.0f} ms (median of 5)"
        )
    page.close()
    for view, row, scroller in (
        ("turns/timeline", ".row-line", ".rows"),
        ("turns/overview", ".round", ".turns"),
        ("turns/chat", ".item", ".messages"),
        ("turns/prompt", ".part", ".prompt"),
        ("marathon/overview", ".round", ".turns"),
    ):
        page = open_page(browser)
        page.goto(f"{url}/page/#/c/default/default/local/{view}")
        page.wait_for_selector(row)
        page.wait_for_timeout(1_500)
        measure_scrolling(browser, page, view, scroller)
        page.close()


def measure_scrolling(browser: Browser, page: Page, view: str, scroller: str) -> None:
    """Print what scrolling from end to end costs.

    A task of a busy machine lasts as long as other programs let it wait, so tasks are told by the processor time that they
    used, and by their duration.
    """
    browser.start_tracing(page=page, categories=["toplevel"])
    most = 0
    for screen in range(SCREENS):
        page.evaluate(
            "([name, share]) => { const list = document.querySelector(name); list.scrollTop = share * list.scrollHeight }",
            [scroller, screen / SCREENS],
        )
        page.wait_for_timeout(60)
        most = max(most, page.locator("article, .part").count())
    tasks = page_tasks(json.loads(browser.stop_tracing())["traceEvents"])
    used, lasted = ([task[part] for task in tasks] for part in ("tdur", "dur"))
    over = [sum(length > LONG_MICROSECONDS for length in lengths) for lengths in (used, lasted)]
    console.print(
        f"{view} scrolled: {over[0]} tasks used more than 50 ms of the processor, the longest {max(used) / 1000:.0f} ms; "
        f"{over[1]} lasted more than 50 ms; at most {most} rows in the page"
    )


def page_tasks(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the tasks of the page's main thread in a trace, with their durations and processor times in microseconds."""
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event
        for event in events
        if "tdur" in event
        and event["name"].endswith("RunTask")
        and (event["pid"], event["tid"]) in threads
    ]


def measure_deltas(browser: Browser) -> None:
    """Print how long after it was sent a delta is on the screen."""
    guide = Bundle(id="guide", instructions="Answer.")
    with serving(app(guide, store="memory:", model=Ticking())) as url:
        page = open_page(browser)
        page.goto(f"{url}/page/#/c/default/default/local/c1/chat")
        page.get_by_label("Message", exact=True).fill("go")
        page.evaluate(
            """() => {
              window.seen = new Map();
              new MutationObserver(() => {
                const text = document.querySelector(".item-streamed")?.textContent ?? "";
                for (const [, n, at] of text.matchAll(/tick(\\d+)at(\\d+)/g))
                  if (!window.seen.has(n)) window.seen.set(n, Date.now() - Number(at));
              }).observe(document.body, { subtree: true, childList: true, characterData: true });
            }"""
        )
        page.keyboard.press("Enter")
        page.wait_for_selector(".end", timeout=60_000)
        delays = sorted(page.evaluate("[...window.seen.values()]"))
    console.print(
        f"a delta on the screen: median {statistics.median(delays):.0f} ms, "
        f"slowest of {len(delays)} {delays[-1]:.0f} ms"
    )


def main() -> None:
    script = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.js")))
    console.print(
        f"script: {len(script) / 1000:.0f} kB, compressed {len(gzip.compress(script)) / 1000:.1f} kB"
    )
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{Path(folder)}/page.db"
        in_thread(write_store(url))
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        with serving(reading_app(ReadOnlyStore(url))) as address:
            measure_reading(browser, address)
        measure_deltas(browser)
        browser.close()


if __name__ == "__main__":
    main()
