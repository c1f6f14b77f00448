"""The check that a page took no hostile text as markup or as an address."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.support.hostile_texts import RUN

MADE = "script, iframe, object, embed, form[action], base, link, style, video, math, meta"
ATTRIBUTES = "[...document.querySelectorAll('#page *')].flatMap(e => [...e.attributes]).map(a => a.name).filter(n => n.startsWith('on'))"


def open_everything(page: Page) -> None:
    """Open what is folded in the view."""
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    page.eval_on_selector_all(
        ".call-head[aria-expanded=false]", "all => all.forEach(one => one.click())"
    )
    page.wait_for_timeout(200)


def assert_nothing_ran(
    page: Page, *, protocols: frozenset[str] = frozenset({"http:", "https:"})
) -> None:
    """Check that no text of the page became an element, a handler or an address that runs something."""
    assert page.evaluate("window.wasRun") is None
    assert page.locator("#page").locator(MADE).count() == 0
    assert page.evaluate(ATTRIBUTES) == []
    leads = page.eval_on_selector_all("#page a", "links => links.map(link => link.protocol)")
    assert set(leads) <= protocols


def assert_is_shown(page: Page) -> None:
    """Check that the view has a hostile text, so that the other checks mean something."""
    assert RUN in page.locator("#page").inner_text() + "".join(
        page.locator("#page input, #page textarea, #page option").evaluate_all(
            "all => all.map(one => one.value + one.textContent)"
        )
    )
