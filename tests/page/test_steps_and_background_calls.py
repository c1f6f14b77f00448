"""Steps of a workflow, calls in the background and tools of a client are shown in the chat for what they are."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from playwright.sync_api import Page, expect

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult, tool
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel
from tests.support.live_server import serving

pytestmark = pytest.mark.service
HERE = "/conversations/default/default"


@tool(effect="read", background=True)
async def brew(tea: str) -> str:
    """Brew a tea."""
    await asyncio.sleep(0.3)
    return f"{tea} is ready"


async def find_price(tea: str) -> str:
    """Return a price."""
    return f"{tea} costs 12 euros"


class Priced(BaseWorkflow):
    """A workflow with a step before its loop."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.step("price", find_price, "sencha")
        react = await self.build_react()
        return await react.run(payload)


def test_a_step_and_a_call_in_the_background_are_shown(page: Page) -> None:
    bundle = Bundle(id="shop", instructions="Be brief.", workflow=Priced, tools=[brew])
    script: list[Say | str] = [
        Say("", Call("shop.brew", tea="sencha")),
        "It is brewing.",
        "It is ready.",
    ]
    model = ScriptedModel(script, strict=False)
    with serving(app(bundle, store="memory:", model=model)) as url:
        httpx2.post(f"{url}{HERE}/c1/messages", json={"text": "Brew sencha."}, timeout=30)
        page.goto(f"{url}/page/#/c/default/default/local/c1/chat")
        expect(page.get_by_text("sencha costs 12 euros").first).to_be_visible()
        call = page.get_by_role("button", name="shop.brew")
        expect(call).to_be_visible()
        httpx2.post(f"{url}{HERE}/c1/messages", json={"text": "And now?"}, timeout=30)
        call.click()
        expect(page.get_by_text("sencha is ready").first).to_be_visible(timeout=15_000)
        page.get_by_role("link", name="Timeline").click()
        expect(page.get_by_text("price: ").first).to_be_visible()
