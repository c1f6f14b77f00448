"""What a user meets comes from `loopline`, and type checkers are told what is true when it runs."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module

import pytest

import loopline
from loopline import BaseWorkflow, Bundle, Harness, errors
from loopline.conversations import Conversation
from loopline.hooks import ReactStateV2
from loopline.names import MODULES
from loopline.testing import ScriptedModel
from tests.docs.pages import ROOT, code_words
from tests.house.tree import SDK, tree

MOST_NAMES = 25
SEED_NAMES = [
    *("BaseWorkflow", "ReactStateV2", "PlanSnapshot", "InterruptQueue", "structured_llm_call"),
    *("StructuredCallResult", "ModelRegistry", "AgentEvent"),
]


def declared() -> dict[str, object]:
    """What the imports that only a type checker sees would give, by name."""
    imports = [node for node in ast.walk(tree(SDK / "__init__.py")) if is_of_a_room(node)]
    return {
        alias.asname or alias.name: getattr(import_module(f"{node.module}"), alias.name)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_of_a_room(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("loopline.")


def test_type_checkers_see_the_names_that_there_are() -> None:
    given = {name: getattr(loopline, name) for name in loopline.__all__ if name != "__version__"}
    assert given == declared()


def test_every_error_is_a_public_name() -> None:
    raised = inspect.getmembers(errors, inspect.isclass)
    assert {name for name, _ in raised} <= {*loopline.__all__, *MODULES["errors"]}


def test_the_package_has_few_names_and_its_modules_the_others() -> None:
    assert len(loopline.__all__) <= MOST_NAMES
    for module, names in MODULES.items():
        own = import_module(f"loopline.{module}")
        assert [name for name in names if not hasattr(own, name)] == []
        assert set(names) & set(loopline.__all__) == set()


@pytest.mark.parametrize("name", SEED_NAMES)
def test_a_name_of_the_seeds_is_a_public_name(name: str) -> None:
    modules = [f"loopline.{module}" for module in MODULES if name in MODULES[module]]
    [place] = modules or ["loopline"]
    assert getattr(import_module(place), name).__name__ == name


def test_the_state_of_the_loop_is_where_the_seed_has_it() -> None:
    assert import_module("loopline.react.runtime").ReactStateV2 is ReactStateV2


async def test_a_harness_gives_a_conversation() -> None:
    bundle = Bundle(id="guide", workflow=BaseWorkflow)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        assert isinstance(harness.conversation("c1"), Conversation)


def test_the_page_of_names_has_every_public_name() -> None:
    words = set(code_words(ROOT / "docs" / "names.md"))
    assert set(loopline.__all__) - words == {"__version__"}
    for module, names in MODULES.items():
        assert {f"loopline.{module}", *names} - words == set()
