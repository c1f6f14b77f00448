"""What every web promises: searches are bounded and best first, pages are fetched by their address."""

from __future__ import annotations

import pytest

from loopline import ToolError
from loopline.tools import MemoryWeb, WebFetch, WebPage, WebSearch

PAGES = [
    WebPage(url="https://tea.example/green", title="Green tea", text="Brew it at 70 °C."),
    WebPage(url="https://tea.example/black", title="Black tea", text="Brew it at 95 °C."),
    WebPage(url="https://coffee.example/", title="Coffee", text="Grind it."),
]


@pytest.fixture(params=["memory"])
def web() -> MemoryWeb:
    return MemoryWeb(PAGES)


def test_a_web_fills_both_ports(web: MemoryWeb) -> None:
    assert isinstance(web, WebSearch)
    assert isinstance(web, WebFetch)


async def test_the_best_hit_comes_first(web: WebSearch) -> None:
    hits = await web.search("black tea", 5)
    assert [hit.url for hit in hits] == ["https://tea.example/black", "https://tea.example/green"]


async def test_there_are_no_more_hits_than_were_asked_for(web: WebSearch) -> None:
    assert len(await web.search("tea", 1)) == 1


async def test_words_that_stand_nowhere_have_no_hit(web: WebSearch) -> None:
    assert list(await web.search("cocoa", 5)) == []


async def test_a_page_is_fetched_by_its_address(web: WebFetch) -> None:
    page = await web.fetch("https://coffee.example/")
    assert (page.title, page.text) == ("Coffee", "Grind it.")


async def test_an_address_without_a_page_is_an_error_for_the_model(web: WebFetch) -> None:
    with pytest.raises(ToolError, match="does not exist"):
        await web.fetch("https://nowhere.example/")
