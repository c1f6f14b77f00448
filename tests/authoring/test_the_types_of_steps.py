"""The type checkers know what a step returns: this file is one that both of them must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult, run_sync, tool
from loopline.testing import ScriptedModel


@dataclass(frozen=True)
class Price:
    """The price of a tea."""

    euros: int


def find_price(tea: str, grams: int = 100) -> Price:
    return Price(len(tea) * grams // 100)


async def find_stock(tea: str) -> dict[str, int]:
    return {tea: 3}


@tool(effect="read")
def look_up(tea: str) -> list[str]:
    """Look a tea up."""
    return [tea]


class Typed(BaseWorkflow):
    """A workflow whose steps have these types."""

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        """Run them."""
        price = await self.step("price", find_price, "sencha")
        assert_type(price, Price)
        assert_type(await self.step("grams", find_price, "sencha", 50), Price)
        assert_type(await self.step("partial", partial(find_price, "assam", grams=50)), Price)
        assert_type(await self.step("stock", find_stock, "sencha", effect="read"), dict[str, int])
        assert_type(await self.step("look", look_up, "sencha"), list[str])
        assert_type(await self.step("number", lambda: 7, effect="read"), int)
        assert_type(await self.step("find", find_price, "sencha", reconcile=find_price), Price)
        return await self.answer(f"{price.euros}")


def test_what_the_type_checkers_know_of_steps_is_so() -> None:
    bundle = Bundle(id="tea", workflow=Typed)
    assert run_sync(bundle, "?", model=ScriptedModel([])).answer == "6"
