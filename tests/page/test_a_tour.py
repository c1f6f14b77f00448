"""A tour of the page from the first message to the exported file, with the prompt of every round as the command prints it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from loopline.models import Prompt
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel, Wait
from loopline.testing.scripted import Entry
from tests.support.live_server import serving
from tests.support.page_conversations import TEA
from tests.support.warm_programs import warm_program

pytestmark = pytest.mark.service
NAME = "tea-1"
HERE = f"#/c/default/default/local/{NAME}"
AGAIN = f"{NAME}-fork-2"
CITED = "Sencha wants 70 to 80 degrees [[S:1]]."
SHORT = "In short: 70 degrees."
ONLY = "Only the temperature."


def write_long(prompt: Prompt) -> Wait | str:
    """Write for a minute, unless the user's redirection came before the request."""
    return SHORT if ONLY in str(prompt.messages) else Wait(60)


FIRST: Sequence[Entry] = [
    Say("I look it up.", Call("tea.find", words="sencha")),
    Say("I order it.", Call("tea.order", tea="sencha", grams=100)),
    CITED,
    write_long,
    SHORT,
]
CAREFUL = ["The notes say 70 to 80 degrees [[S:1]], so I order nothing."]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Return the address of the page, and the URL of its store."""
    store = f"sqlite:///{tmp_path}/tour.db"
    model = {
        "general": ScriptedModel(FIRST, strict=False, name="scripted:first"),
        "careful": ScriptedModel(CAREFUL, strict=False, name="scripted:careful"),
    }
    with serving(app(TEA, store=store, model=model)) as url:
        yield f"{url}/page/", store


def send(page: Page, text: str, key: str = "Enter") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press(key)


def shown_parts(page: Page) -> list[str]:
    """Return the whole text of each part of the prompt that the page shows."""
    page.wait_for_selector(".part")
    for button in page.locator(".parts .fold[aria-expanded='false']").all():
        button.click()
    texts: list[str] = page.locator(".parts .part-text").evaluate_all(
        "all => all.map(one => one.textContent)"
    )
    return texts


def printed_parts(store: str, folder: Path, name: str, turn: int, number: int) -> list[str]:
    """Return the parts of the prompt that the command prints."""
    command = warm_program("-m", "loopline", "prompt", "-c", name, "--store", store, "--json")
    printed = subprocess.run(
        [*command, "--turn", str(turn), "--round", str(number)],
        cwd=folder,
        capture_output=True,
        check=True,
        text=True,
    )
    document: dict[str, Any] = json.loads(printed.stdout)
    texts = [document["tools"], document["system"]]
    texts += [row["text"] for row in document["messages"]] + [document["tail"]]
    return [text for text in texts if text]


def ask_and_approve(page: Page) -> None:
    """Ask, approve the order with another argument and a rule for the next calls, and read the answer."""
    send(page, "How hot, and order 100 g.")
    page.get_by_role("button", name="Edit the arguments").click()
    page.get_by_label("Arguments", exact=True).fill('{"tea": "sencha", "grams": 50}')
    page.get_by_label("The next call").select_option("any")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Sencha wants 70 to 80 degrees")).to_be_visible()
    page.get_by_role("button", name=re.compile("tea.order")).click()
    expect(page.get_by_text("ordered 50 g of sencha").first).to_be_visible()


def steer(page: Page) -> None:
    """Redirect a turn while its model is writing."""
    send(page, "Tell me everything.")
    page.get_by_label("Message", exact=True).fill(ONLY)
    page.get_by_role("button", name="Steer").click()
    expect(page.get_by_text(SHORT)).to_be_visible(timeout=20_000)


def read_the_cited_lines(page: Page) -> None:
    """Open the source behind a citation."""
    page.get_by_label("Source 1").last.click()
    reading = page.get_by_role("dialog", name="What so:sources_pool[1] names")
    expect(reading).to_contain_text("Gyokuro is steeped at 50 to 60 degrees")
    page.keyboard.press("Escape")


def fork_at_round_2(page: Page, address: str) -> None:
    """Fork the conversation before its second round, whose turn waits in the fork until somebody continues it."""
    page.goto(f"{address}{HERE}/timeline")
    page.locator(".opens-round [data-row]").nth(1).click()
    page.get_by_role("button", name="Fork up to here").click()
    expect(page.get_by_role("button", name="Continue the turn")).to_be_visible()


def run_again(page: Page, address: str) -> None:
    """Run the second round again with another model and other instructions, beside the recorded one."""
    page.goto(f"{address}{HERE}/prompt/1/2")
    page.get_by_role("button", name="Run again").click()
    page.get_by_label("Model").fill("careful")
    page.get_by_label("Instructions").fill("Never order anything.")
    page.get_by_role("button", name="Run in a fork").click()
    again = page.get_by_role("region", name="run again")
    expect(again).to_contain_text("so I order nothing", timeout=20_000)
    expect(again).to_contain_text("scripted:careful")
    expect(page.get_by_role("region", name="recorded")).to_contain_text("tea.order")
    differences = page.get_by_role("region", name="Differences of the prompts")
    expect(differences).to_contain_text("Never order anything.")
    page.goto(f"{address}{HERE}/overview")
    expect(page.get_by_role("link", name=AGAIN, exact=True)).to_be_visible()
    expect(page.get_by_text("goes on with scripted:careful")).to_be_visible()


def test_the_tour(page: Page, served: tuple[str, str], tmp_path: Path) -> None:
    address, store = served
    page.goto(address)
    page.get_by_role("link", name="New").click()
    ask_and_approve(page)
    steer(page)
    read_the_cited_lines(page)
    fork_at_round_2(page, address)
    run_again(page, address)
    for name, turn, number in [
        (NAME, 1, 1),
        (NAME, 1, 2),
        (NAME, 1, 3),
        (NAME, 2, 1),
        (AGAIN, 1, 2),
    ]:
        page.goto(f"{address}#/c/default/default/local/{name}/prompt/{turn}/{number}")
        expect(page.get_by_role("heading", name=f"turn {turn}, round {number}")).to_be_visible()
        assert shown_parts(page) == printed_parts(store, tmp_path, name, turn, number)
    page.get_by_text("Export", exact=True).click()
    page.get_by_label("mail addresses").check()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save HTML").click()
    file = tmp_path / saving.value.suggested_filename
    saving.value.save_as(file)
    page.goto(file.as_uri())
    expect(page.get_by_text("so I order nothing")).to_be_visible()
    page.get_by_role("link", name="Prompt", exact=True).first.click()
    assert shown_parts(page) == printed_parts(store, tmp_path, AGAIN, 1, 2)
