"""Takes pictures of each view of the web page, as its page in the docs shows them.

    python -m tests.bench.page_views docs/sdk/web

Needs Chromium. Each view is taken at 1,280 and at 390 pixels, light and dark.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from loopline.harness import ReadOnlyStore
from loopline.server import app, reading_app
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving
from tests.support.page_conversations import TEA, tea_model, write_tea_store

TALK = "#/c/default/default/local/brewing"
VIEWS = {
    "chat": f"{TALK}/chat",
    "overview": f"{TALK}/overview",
    "timeline": f"{TALK}/timeline/19",
    "prompt": f"{TALK}/prompt/1/3",
}
SIZES = ((1280, 820), (390, 780))
COLOURS = 64


def save(picture: bytes, file: Path) -> None:
    """Write a picture with few colours, which is a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def take_views(browser: Browser, url: str, folder: Path) -> None:
    """Take each view of a stored conversation in each size and scheme."""
    for dark in (False, True):
        for width, height in SIZES:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
            )
            page = context.new_page()
            for name, view in VIEWS.items():
                page.goto(f"{url}/page/{view}")
                page.wait_for_timeout(900)
                scheme = "dark" if dark else "light"
                save(page.screenshot(), folder / f"{name}-{width}-{scheme}.png")
            context.close()


def take_approval(browser: Browser, url: str, folder: Path) -> None:
    """Take a chat whose call waits for an approval."""
    page = browser.new_context(viewport={"width": 1280, "height": 820}).new_page()
    page.goto(f"{url}/page/")
    page.get_by_role("link", name="New").click()
    for text in ("How do I steep sencha?", "Order 100 g of it."):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        page.wait_for_timeout(2_000)
    page.get_by_role("button", name="Edit the arguments").click()
    page.wait_for_timeout(400)
    save(page.screenshot(), folder / "approval-1280-light.png")


def main() -> None:
    """Take all pictures into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        file = Path(scratch) / "tea.db"
        in_thread(write_tea_store(file))
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        with serving(reading_app(ReadOnlyStore(f"sqlite:///{file}"))) as url:
            take_views(browser, url, folder)
        with serving(app(TEA, store="memory:", model=tea_model())) as url:
            take_approval(browser, url, folder)
        browser.close()


if __name__ == "__main__":
    main()
