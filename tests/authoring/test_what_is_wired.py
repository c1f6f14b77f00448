"""What a bundle's code wires is found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import BundleError, Harness
from loopline.bundle import build_call_problems, descriptor_modules, load

WORKFLOW = """
from loopline import BaseWorkflow, Bundle

class Shop(BaseWorkflow):
    async def process(self, payload):
        react = await self.build_react(tools_module={module})
        return await react.run(payload)

bundle = Bundle(id="shop", workflow=Shop)
"""


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ('"shop.my_tools"', ["shop.my_tools"]),
        ('f"{__package__}.my_tools"', ["shop.my_tools"]),
        ("chosen()", [""]),
    ],
)
def test_a_module_that_is_written_out_is_found(
    tmp_path: Path, module: str, expected: list[str]
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(WORKFLOW.replace("{module}", module))
    assert descriptor_modules(load(tmp_path / "shop"), "tools") == expected


def test_without_one_it_is_the_descriptor_of_the_usual_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(WORKFLOW.replace("{module}", "chosen()"))
    (tmp_path / "shop" / "tools_descriptor.py").write_text("TOOLS_SPECS = []\n")
    assert descriptor_modules(load(tmp_path / "shop"), "tools") == ["shop.tools_descriptor"]


LIMITED = """
from loopline import BaseWorkflow, Bundle

class Shop(BaseWorkflow):
    async def process(self, payload):
        react = await self.build_react(
            scratchpad=self.scratchpad,
            {argument},
        )
        return await react.run(payload)

bundle = Bundle(id="shop", workflow=Shop)
"""
WRONG = {
    "max_iteration=3": "no limit 'max_iteration', nearest is 'max_iterations'",
    "max_iterations=-3": "max_iterations must be 1 or more, a whole number, or None, not -3",
    'preset="nado"': "no preset 'nado', nearest is 'nadoo'",
}


def limited(tmp_path: Path, argument: str) -> Path:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").write_text(LIMITED.replace("{argument}", argument))
    return shop


@pytest.mark.parametrize("argument", [*WRONG, "max_iteration=some()"])
def test_a_limit_or_preset_that_is_written_out_wrongly_is_told_with_its_line(
    tmp_path: Path, argument: str
) -> None:
    shop = limited(tmp_path, argument)
    wrong = WRONG.get(argument, WRONG["max_iteration=3"])
    assert list(build_call_problems(load(shop))) == [f"{shop / '__init__.py'}:8: {wrong}"]


@pytest.mark.parametrize("argument", ["max_iterations=3", "max_iterations=some()", "**some()"])
def test_what_is_right_or_known_only_when_it_runs_is_no_problem(
    tmp_path: Path, argument: str
) -> None:
    assert list(build_call_problems(load(limited(tmp_path, argument)))) == []


@pytest.mark.parametrize(("argument", "wrong"), WRONG.items())
async def test_a_bundle_that_is_wired_wrongly_is_not_opened(
    tmp_path: Path, argument: str, wrong: str
) -> None:
    shop = limited(tmp_path, argument)
    with pytest.raises(BundleError) as raised:
        async with Harness.open(shop, store="memory:"):
            pass
    assert str(raised.value) == f"{shop / '__init__.py'}:8: {wrong}"


async def test_a_turn_that_is_wired_wrongly_ends_with_the_file_and_line_of_the_call(
    tmp_path: Path,
) -> None:
    shop = limited(tmp_path, '**{"max_iteration": 3}')
    async with Harness.open(shop, store="memory:") as harness:
        with pytest.raises(BundleError) as raised:
            await harness.conversation("c").say("hello")
    wrong = WRONG["max_iteration=3"]
    assert str(raised.value) == f"{shop / '__init__.py'}:6: ValueError: {wrong}"
