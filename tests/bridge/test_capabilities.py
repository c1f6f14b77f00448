"""What is known of a model of pydantic-ai: by our table, by its profile, or the least."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from loopline.bridge.bridged_model import BridgedModel, facts_of
from loopline.models import UNKNOWN, Price, Usage, find_model_facts


def _openai(name: str) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(api_key="a key of mine"))


def test_a_family_of_the_table_is_known_by_it() -> None:
    facts = facts_of(_openai("gpt-5.5"))
    assert facts is find_model_facts("openai:gpt-5.5")
    assert isinstance(facts.price, Price)


def test_a_long_prompt_costs_what_its_family_says() -> None:
    long = Usage(input_tokens=500_000, output_tokens=10_000)
    price = find_model_facts("openai:gpt-6-sol").price
    assert price is not None
    cost = BridgedModel("mine", _openai("gpt-6-sol")).capabilities.cost(long)
    assert cost == price.of(long) != replace(price, long=None).of(long)


def test_another_is_known_by_its_profile_and_has_no_price() -> None:
    profile = ModelProfile(
        context_window=64_000, supports_tools=False, supports_json_object_output=True
    )
    capabilities = BridgedModel("mine", TestModel(profile=profile)).capabilities
    assert (capabilities.window, capabilities.tool_call, capabilities.json_mode) == (
        64_000,
        False,
        True,
    )
    assert capabilities.price is None
    assert (capabilities.vision, capabilities.pdf) == (False, False)  # a profile assumes them


def test_models_that_ask_one_another_promise_the_least() -> None:
    facts = facts_of(FallbackModel(_openai("gpt-5.5"), _openai("gpt-5")))
    assert (facts.window, facts.price, facts.json_mode) == (UNKNOWN.window, None, False)
