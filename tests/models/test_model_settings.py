"""Settings of models: their ranges, their layers, the stored form, and which model supports which of them."""

from __future__ import annotations

from typing import Any

import pytest

from loopline import LooplineError, ModelSettings
from loopline.errors import ModelRequestError
from loopline.models import (
    ATTACHMENTS,
    FAMILIES,
    UNSET,
    Capabilities,
    SupportedSettings,
    find_model_facts,
    read_settings,
    restore_settings,
)
from loopline.react import Limits, LoopOptions
from loopline.react.loop_options import merge_limits

DROP: Any = {"unsupported": "drop"}


def supported(model: str, **settings: Any) -> SupportedSettings:
    capabilities = find_model_facts(model).capabilities(ATTACHMENTS["openai"])
    return capabilities.supported(ModelSettings(**settings), model)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("seed", 1.5),
        ("stop", [""]),
        ("stop", ["x"] * 65),
        ("max_tokens", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", "much"),
        ("reasoning_effort", "huge"),
        ("parallel_tool_calls", 1),
        ("service_tier", "fl\nex"),
        ("timeout", 0),
        ("extra_headers", {"Authorization": "Bearer x"}),
        ("extra_headers", {"X-Trace": "a\r\nHost: b"}),
        ("extra_headers", {"X Trace": "a"}),
        ("extra_body", {"model": "dearer"}),
        ("extra_body", {"top_k": {1, 2}}),
        ("unsupported", "ignore"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_its_name(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(LooplineError, match=rf"ModelSettings\({name}=…\) must be"):
        ModelSettings(**settings)


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    misspelt: dict[str, Any] = {"temprature": 0.2}
    with pytest.raises(TypeError, match="no parameter 'temprature', nearest is 'temperature'"):
        ModelSettings(**misspelt)
    with pytest.raises(LooplineError, match="no setting 'max_token', nearest is 'max_tokens'"):
        read_settings({"max_token": 5})


def test_one_text_may_end_a_reply() -> None:
    assert ModelSettings(stop="END") == ModelSettings(stop=["END"])


def test_a_later_layer_overrides_the_same_settings_alone() -> None:
    first = ModelSettings(temperature=0.2, seed=1, extra_body={"top_k": 5, "min_p": 0.1})
    second = ModelSettings(temperature=0.9, extra_body={"top_k": 9})
    assert first.override(second) == ModelSettings(
        temperature=0.9, seed=1, extra_body={"top_k": 9, "min_p": 0.1}
    )
    assert first.override(UNSET) is first


def test_settings_are_the_same_when_they_are_read_again() -> None:
    settings = ModelSettings(temperature=0, stop=["a", "b"], extra_headers={"X-Trace": "1"})
    assert restore_settings(settings.stored()) == settings
    assert restore_settings({**settings.stored(), "of_a_later_version": 1}) == settings


def test_a_round_records_no_value_of_a_header() -> None:
    settings = ModelSettings(seed=1, extra_headers={"X-Gateway-Token": "secret"})
    assert settings.recorded() == {"seed": 1, "extra_headers": {"X-Gateway-Token": "***"}}
    with pytest.raises(LooplineError, match="'X-Gateway-Token' would be stored"):
        settings.check_storable()


def test_the_effort_of_a_later_limit_replaces_that_of_earlier_settings() -> None:
    bundle: Limits = {"settings": ModelSettings(reasoning_effort="high", seed=1)}
    assert merge_limits(bundle, {"reasoning_effort": "low"}) == {
        "reasoning_effort": "low",
        "settings": ModelSettings(seed=1),
    }
    limits: Limits = {"reasoning_effort": "low"}
    merged = merge_limits(limits, bundle).get("settings")
    assert merged is not None
    assert merged.reasoning_effort == "high"


def test_options_take_the_settings_of_their_layers() -> None:
    options = LoopOptions().with_limits(
        {"settings": ModelSettings(seed=1)}, {"settings": ModelSettings(top_p=0.5)}
    )
    assert options.settings == ModelSettings(seed=1, top_p=0.5)


SAMPLING = {"temperature": 0.2}
UNTHINKING = {**SAMPLING, "reasoning_effort": "none"}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("openai:gpt-4.1", {**SAMPLING, "top_p": 0.9, "seed": 1, "presence_penalty": 1}),
        ("openai:gpt-4o", {"stop": ["a", "b", "c", "d"], "service_tier": "priority"}),
        ("openai:gpt-5", {"seed": 1, "reasoning_effort": "minimal", "service_tier": "flex"}),
        ("openai:gpt-5.2", UNTHINKING),
        ("openai:gpt-5.6", {**UNTHINKING, "parallel_tool_calls": False}),
        ("anthropic:claude-sonnet-4-5", SAMPLING),
        ("anthropic:claude-sonnet-4-5", {"reasoning_effort": "high", "stop": ["a"] * 9}),
        ("anthropic:claude-sonnet-4-0", {**SAMPLING, "top_p": 0.9}),
        ("anthropic:claude-opus-5", {"reasoning_effort": "xhigh", "parallel_tool_calls": False}),
        ("anthropic:claude-opus-4-6", {"service_tier": "standard_only"}),
        ("groq:openai/gpt-oss-120b", {**SAMPLING, "seed": 1, "service_tier": "flex"}),
        ("deepseek:deepseek-flash", {**UNTHINKING, "presence_penalty": 1, "stop": ["a"] * 16}),
        ("openrouter:anything/at-all", {**SAMPLING, "seed": 1, "frequency_penalty": 1}),
        ("ollama:llama3", {**SAMPLING, "top_p": 0.9, "seed": 1, "presence_penalty": 1}),
    ],
)
def test_what_a_model_supports_is_sent(model: str, settings: dict[str, Any]) -> None:
    assert supported(model, **settings) == SupportedSettings(ModelSettings(**settings))


@pytest.mark.parametrize(
    ("model", "settings", "dropped"),
    [
        ("openai:gpt-5", SAMPLING, "temperature"),
        ("openai:gpt-5", {"top_p": 0.5}, "top_p"),
        ("openai:gpt-5", {"stop": "a"}, "stop"),
        ("openai:gpt-5", {"frequency_penalty": 1}, "frequency_penalty"),
        ("openai:gpt-5", {"reasoning_effort": "none"}, "reasoning_effort"),
        ("openai:o3", {"parallel_tool_calls": False}, "parallel_tool_calls"),
        ("openai:gpt-5.2", SAMPLING, "temperature"),
        ("openai:gpt-5.2", {**SAMPLING, "reasoning_effort": "low"}, "temperature"),
        ("openai:gpt-5.6", {"seed": 1}, "seed"),
        ("openai:gpt-5.6", {"stop": "a"}, "stop"),
        ("openai:gpt-5-pro", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("openai:gpt-4.1", {"stop": ["a"] * 5}, "stop"),
        ("openai:gpt-4.1", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("openai:gpt-4.1", {"service_tier": "standard_only"}, "service_tier"),
        ("anthropic:claude-sonnet-4-5", {**SAMPLING, "top_p": 0.9}, "top_p"),
        ("anthropic:claude-sonnet-4-5", {"temperature": 1.5}, "temperature"),
        ("anthropic:claude-sonnet-4-5", {**SAMPLING, "reasoning_effort": "low"}, "temperature"),
        ("anthropic:claude-sonnet-4-5", {"seed": 1}, "seed"),
        ("anthropic:claude-opus-4-7", SAMPLING, "temperature"),
        ("anthropic:claude-opus-5-5", {"reasoning_effort": "none"}, "reasoning_effort"),
        ("anthropic:claude-3-5-haiku", {"presence_penalty": 1}, "presence_penalty"),
        ("groq:openai/gpt-oss-120b", {"presence_penalty": 1}, "presence_penalty"),
        ("deepseek:deepseek-flash", SAMPLING, "temperature"),
        ("deepseek:deepseek-flash", {"seed": 1}, "seed"),
        ("ollama:llama3", {"parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_what_a_model_refuses_is_an_error_or_left_out(
    model: str, settings: dict[str, Any], dropped: str
) -> None:
    with pytest.raises(ModelRequestError, match=f"{model} does not support {dropped}="):
        supported(model, **settings)
    left = supported(model, **settings, **DROP)
    assert list(left.dropped) == [dropped]
    assert left.settings == ModelSettings(**settings, **DROP).without([dropped])


def test_the_error_says_when_a_setting_is_supported() -> None:
    with pytest.raises(ModelRequestError, match="it supports it with reasoning_effort='none'"):
        supported("openai:gpt-5.2", temperature=0.2)


def test_an_effort_of_the_limits_turns_thinking_on_too() -> None:
    capabilities = find_model_facts("anthropic:claude-sonnet-4-5").capabilities(
        ATTACHMENTS["anthropic"]
    )
    assert not capabilities.supported(ModelSettings(temperature=0.2), "claude").dropped
    with pytest.raises(ModelRequestError, match="without reasoning_effort"):
        capabilities.supported(ModelSettings(temperature=0.2), "claude", effort="low")


def test_a_longer_reply_than_the_model_can_write_is_its_longest_reply() -> None:
    settings = supported("openai:gpt-4o", max_tokens=1_000_000)
    assert settings.settings == UNSET
    assert settings.dropped == {"max_tokens": "openai:gpt-4o supports at most 16384"}


def test_a_model_of_ones_own_supports_the_length_alone_until_it_says_more() -> None:
    own = Capabilities()
    assert own.supported(ModelSettings(max_tokens=5), "mine").settings.max_tokens == 5
    with pytest.raises(ModelRequestError, match=r"mine does not support temperature=0\.5"):
        own.supported(ModelSettings(temperature=0.5), "mine")


def test_only_chat_completions_have_a_seed_and_penalties() -> None:
    for family, facts in FAMILIES.items():
        support = facts.setting_support()
        if facts.api != "chat":
            assert not support.seed, family
            assert not support.penalties, family
        if facts.api == "responses":
            assert not support.stops, family
