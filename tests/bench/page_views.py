"""Takes pictures of each view of the web page, as its page in the docs shows them.

    python -m tests.bench.page_views docs/sdk/web

Needs Chromium. Each view is taken at 1,280 and at 390 pixels, light and dark.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from pathlib import Path

import httpx2
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from loopline.errors import ModelRequestError
from loopline.models import Usage
from loopline.server import app
from loopline.testing import Call, Fail, Say, ScriptedModel
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving
from tests.support.page_conversations import PRICE, TEA, write_tea_store

HERE = "/conversations/default/default"
TALK = "#/c/default/default/local/brewing"
VIEWS = {
    "chat": f"{TALK}/chat",
    "overview": f"{TALK}/overview",
    "timeline": f"{TALK}/timeline/19",
    "prompt": f"{TALK}/prompt/1/3",
    "beside": f"{TALK}/prompt/1/2/beside/brewing-fork-1",
    "work": "#/work",
    "approval": "#/c/default/default/local/order/chat",
}
CAREFUL = [
    Say(
        "The notes answer this. I need no prices.",
        Call("tea.find", words="sencha water temperature"),
        usage=Usage(input_tokens=2_650, output_tokens=60, cache_read_tokens=2_300),
    ),
    Say(
        "Sencha wants 70 to 80 degrees [[S:1]].", usage=Usage(input_tokens=2_900, output_tokens=40)
    ),
]
OTHERS: list[Say | Fail] = [
    Say("", Call("tea.order", tea="gyokuro", grams=50)),
    Fail(ModelRequestError("the provider refuses the key: set OPENAI_API_KEY")),
]
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


def play(url: str) -> None:
    """Run a round again with another model, and leave a turn that waits and one that failed."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        body = {"model": "careful", "instructions": "You know everything about tea. Be brief."}
        client.post(f"{HERE}/brewing/turns/turn_1/rounds/2/rerun", json=body).raise_for_status()
        while (
            client.get(f"{HERE}/brewing-fork-1/turns/turn_1").json()["exit_reason"] == "interrupted"
        ):
            time.sleep(0.1)
        for name, text in (("order", "Order 50 g of gyokuro."), ("matcha", "What is matcha?")):
            client.post(f"{HERE}/{name}/messages", json={"text": text})


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
        models = {
            "general": ScriptedModel(OTHERS, strict=False, price=PRICE, name="scripted:tea"),
            "careful": ScriptedModel(CAREFUL, strict=False, price=PRICE, name="scripted:careful"),
        }
        with serving(app(TEA, store=f"sqlite:///{file}", model=models)) as url:
            play(url)
            take_views(browser, url, folder)
        browser.close()


if __name__ == "__main__":
    main()
