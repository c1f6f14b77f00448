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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import httpx2
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from pydantic import Field

from loopline import Bundle, tool
from loopline.errors import ModelRequestError
from loopline.models import Usage
from loopline.server import ApiKeys, Principal, add_key, app
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


@dataclass
class Climate:
    """The climate of a room."""

    degrees: Annotated[float, Field(description="In degrees Celsius")]
    humidity: Literal["dry", "moderate", "damp"]
    note: str = ""


SIZES = ((1280, 820), (390, 780))
COLOURS = 64


def save(picture: bytes, file: Path) -> None:
    """Write a picture with few colours, which is a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


@tool(effect="write", approve=True, people=2)
def refund(amount: int, to: str) -> str:
    """Refund an amount of euros."""
    return f"{amount} refunded to {to}"


@tool(client=True)
def measure(room: str) -> Climate:
    """Measure the climate of a room."""
    raise NotImplementedError


SHOP = Bundle(id="shop", instructions="You sell tea.", tools=[refund, measure])
SOLD = [
    Say("I refund the last order.", Call("shop.refund", amount=900, to="ann@tea.example")),
    Say("I ask your thermometer.", Call("shop.measure", room="cellar")),
]


def schemes(browser: Browser) -> Iterator[tuple[Page, str]]:
    """Return a page of each size and scheme, and the end of the names of its pictures."""
    for scheme in ("light", "dark"):
        for width, height in SIZES:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            yield context.new_page(), f"{width}-{scheme}.png"
            context.close()


def take_views(browser: Browser, url: str, folder: Path) -> None:
    """Take each view of a stored conversation in each size and scheme."""
    for page, name in schemes(browser):
        for view, address in VIEWS.items():
            page.goto(f"{url}/page/{address}")
            page.wait_for_timeout(900)
            save(page.screenshot(), folder / f"{view}-{name}")
        page.goto(f"{url}/page/{TALK}/chat")
        page.get_by_text("Export", exact=True).click()
        page.wait_for_timeout(600)
        save(page.screenshot(), folder / f"export-{name}")


def take_signed_in(browser: Browser, url: str, keys: Sequence[str], folder: Path) -> None:
    """Take the login, a call that waits for a second person, and one that the client runs."""
    ann, bob = keys
    with httpx2.Client(
        base_url=f"{url}{HERE}", headers={"Authorization": f"Bearer {ann}"}, timeout=60
    ) as client:
        client.post("/refund/messages", json={"text": "Refund my last order."})
        [call] = client.get("/refund/approvals").json()["approvals"]
        body = {"values": {"c1": True}, "approvals": {"c1": call["approval"]}}
        client.post("/refund/answers", json=body).raise_for_status()
        client.post("/cellar/messages", json={"text": "Is the cellar cold enough for gyokuro?"})
    for page, name in schemes(browser):
        for key, view, talk in ((bob, "people", "refund"), (ann, "client", "cellar")):
            page.goto("about:blank")
            page.goto(f"{url}/page/#/c/default/default/ann/{talk}/chat")
            page.evaluate("sessionStorage.clear()")
            page.reload()
            page.get_by_label("Key", exact=True).wait_for()
            save(page.screenshot(), folder / f"login-{name}")
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Sign in", exact=True).click()
            page.wait_for_timeout(1_200)
            save(page.screenshot(), folder / f"{view}-{name}")


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
        file = Path(scratch) / "keys.json"
        roles = frozenset({"approver", "privileged"})
        keys = [
            add_key(file, Principal(user="ann")),
            add_key(file, Principal(user="bob", roles=roles)),
        ]
        model = ScriptedModel(SOLD, strict=False, name="scripted:shop")
        with serving(app(SHOP, store="memory:", model=model, auth=ApiKeys.read(file))) as url:
            take_signed_in(browser, url, keys, folder)
        browser.close()


if __name__ == "__main__":
    main()
