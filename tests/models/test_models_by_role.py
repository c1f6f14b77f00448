"""Models by role: which chain is meant by a role, by none, and by one that there is not."""

from __future__ import annotations

from typing import Any

import pytest

import loopline
from loopline.errors import ModelError
from loopline.harness.model_choice import Models, resolve_models
from loopline.models import ModelRegistry
from loopline.testing import ScriptedModel

ONE, TWO, QUICK = (ScriptedModel([], name=name) for name in ("one", "two", "quick"))
REGISTRY = ModelRegistry({"fast": (QUICK,), "general": (ONE, TWO)})


def test_a_role_is_a_chain_whose_first_model_is_asked_first() -> None:
    assert REGISTRY.by_role("general") == (ONE, TWO)


def test_a_role_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ModelError, match="no model has the role 'slow': there are fast, general"):
        REGISTRY.by_role("slow")


@pytest.mark.parametrize("hint", [None, "general", "slow", ""])
def test_where_no_known_role_is_wanted_it_is_the_general_one(hint: str | None) -> None:
    assert REGISTRY.chain(hint) == (ONE, TWO)


def test_without_a_general_role_the_first_is_the_default() -> None:
    assert ModelRegistry({"fast": (QUICK,), "reasoning": (ONE,)}).default == (QUICK,)


def test_what_is_given_instead_of_a_role_is_taken_as_it_is() -> None:
    assert REGISTRY.chain(TWO) == (TWO,)
    assert REGISTRY.chain([QUICK, TWO]) == (QUICK, TWO)


def test_a_model_string_is_not_taken_for_a_role_that_there_is_not() -> None:
    with pytest.raises(ModelError, match="'openai:gpt-5' is a model string"):
        REGISTRY.chain("openai:gpt-5")


def test_a_model_of_two_roles_is_one_model() -> None:
    assert ModelRegistry({"general": (ONE, TWO), "fast": (TWO,)}).models == [ONE, TWO]


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(ModelError, match="there is no model"):
        ModelRegistry({})
    with pytest.raises(ModelError, match="at least one for the role 'fast'"):
        ModelRegistry({"general": (ONE,), "fast": ()})


def test_an_object_that_is_almost_a_model_is_refused_by_what_it_lacks() -> None:
    class Former:
        name = "former"
        abilities = None
        stream = None

    former: Any = Former()
    with pytest.raises(ModelError, match="missing: capabilities"):
        resolve_models(former)


@pytest.mark.parametrize("value", [5, [None], {"general": 5}, {"fast": [ONE, None]}])
def test_a_choice_of_what_is_no_model_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match="is not a model: pass a model string"):
        resolve_models(value)
    with pytest.raises(ModelError, match="is not a model: pass a model string"):
        resolve_models(lambda: value)()


@pytest.mark.parametrize("value", ["offline", ("offline",), ONE, 5])
def test_a_registry_of_what_is_no_chain_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match="is not a chain of models for the role 'general'"):
        ModelRegistry({"general": value})


def test_a_workflow_that_wants_what_is_no_model_is_refused() -> None:
    stray: Any = 5
    with pytest.raises(ModelError, match="is not a chain of models"):
        REGISTRY.chain(stray)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("offline, fast=offline", {"general": ["offline"], "fast": ["offline"]}),
        ([ONE, "offline"], {"general": ["one", "offline"]}),
        ({"fast": QUICK, "general": (ONE,)}, {"fast": ["quick"], "general": ["one"]}),
        (REGISTRY, {"fast": ["quick"], "general": ["one", "two"]}),
    ],
    ids=["strings", "a list", "roles", "a registry"],
)
def test_a_function_may_give_whatever_may_be_chosen(
    value: Models, names: dict[str, list[str]]
) -> None:
    registry = resolve_models(lambda: value)()
    found = {role: [item.name for item in chain] for role, chain in registry.roles.items()}
    assert found == names


def test_offline_is_made_in_code_too_and_has_nothing_to_be_told() -> None:
    assert loopline.model("offline").name == "offline"
    with pytest.raises(ModelError, match="offline sends no requests"):
        loopline.model("offline", base_url="http://localhost:8000/v1")


def test_a_role_is_written_before_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("LOOPLINE_MODEL", "openai:gpt-5, offline, fast=openai:gpt-5-mini,b=offline")
    registry = resolve_models(None)()
    names = {role: [item.name for item in chain] for role, chain in registry.roles.items()}
    assert names == {
        "general": ["openai:gpt-5", "offline"],
        "fast": ["openai:gpt-5-mini"],
        "b": ["offline"],
    }
    assert len(registry.models) == 3
