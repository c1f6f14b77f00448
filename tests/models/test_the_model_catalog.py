"""The table of models: every row holds together, agrees with the caches, and is found by its names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import LooplineError
from loopline.models import (
    FAMILIES,
    UNKNOWN,
    VENDORS,
    ModelFacts,
    Usage,
    find_model_facts,
    find_vendor,
)
from loopline.prompt.caching import (
    MINIMUM_TOKENS,
    AnthropicCache,
    OpenAIBreakpointCache,
    OpenAICache,
    minimum_tokens,
)

ORDER = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
ROWS = list(FAMILIES.items())
CLAUDES = {
    family.removeprefix("anthropic:"): row
    for family, row in ROWS
    if family.startswith("anthropic:claude-")
}
every_claude = pytest.mark.parametrize("family", list(CLAUDES))


def every_row(law: Callable[[ModelFacts], None]) -> Callable[[], None]:
    """Hold a law for every row in one test, whose failure names the family: a test for each takes longer than all laws."""

    def hold() -> None:
        for family, row in ROWS:
            try:
                law(row)
            except AssertionError as error:
                error.add_note(family)
                raise

    return hold


@every_row
def test_the_output_leaves_room_for_a_prompt(row: ModelFacts) -> None:
    assert 0 < row.output_limit < row.window


@every_row
def test_a_model_that_can_be_made_to_call_a_tool_can_call_one(row: ModelFacts) -> None:
    assert row.tool_call or not row.tool_choice


@every_row
def test_efforts_rise_and_each_stands_once(row: ModelFacts) -> None:
    places = [ORDER.index(effort) for effort in row.efforts]
    assert places == sorted(set(places))


@every_row
def test_who_is_asked_to_think_does(row: ModelFacts) -> None:
    assert row.thinking_by == "nothing" or row.thinking != "none"
    assert row.thinking_by != "effort" or row.efforts


@every_row
def test_thinking_is_turned_off_by_an_effort_exactly_where_there_is_that_effort(
    row: ModelFacts,
) -> None:
    assert (row.thinking_off == "none") is ("none" in row.efforts)


@every_row
def test_a_temperature_waits_for_the_end_of_thinking_only_where_it_has_one(row: ModelFacts) -> None:
    assert row.temperature != "unthinking" or row.thinking_off


@every_row
def test_the_parameter_of_the_output_is_one_that_the_api_has(row: ModelFacts) -> None:
    record = {
        "chat": {"max_tokens", "max_completion_tokens"},
        "responses": {"max_output_tokens"},
        "messages": {"max_tokens"},
    }
    assert row.output_parameter in record[row.api]


@every_row
def test_a_rate_is_no_less_than_reading_a_cache(row: ModelFacts) -> None:
    long = row.price.long if row.price else None
    for price in [row.price, long.price if long else None]:
        if price is not None:
            assert 0 < price.cache_read <= price.input <= price.cache_write
            assert price.input < price.output
            assert price.cache_write_long is None or price.cache_write_long > price.cache_write


@every_row
def test_a_longer_prompt_costs_more_and_fits_the_window(row: ModelFacts) -> None:
    if row.price is not None and row.price.long is not None:
        assert row.price.long.over < row.window
        short_price = replace(row.price, long=None)
        pairs = zip(astuple(row.price.long.price), astuple(short_price), strict=True)
        assert all(long > short for long, short in pairs if short is not None)


@every_row
def test_a_tail_stays_where_thinking_is_bound_to_what_stands_before_it(row: ModelFacts) -> None:
    assert row.tail in {
        "signed": ("dropped", "kept", "cleared"),
        "summarized": ("dropped", "inside"),
    }.get(row.thinking, ("dropped",))


def test_openai_takes_as_a_prompt_what_its_errors_name() -> None:
    rows = [row for family, row in ROWS if family.startswith("openai:gpt-") and row.efforts]
    assert {row.window - row.output_limit for row in rows} == {272_000, 922_000}


# The caches


@every_claude
def test_writing_and_reading_a_claude_cost_what_its_cache_says(family: str) -> None:
    price = CLAUDES[family].price
    if price is not None:
        assert price.cache_write == pytest.approx(price.input * AnthropicCache().write_price)
        assert price.cache_write_long == price.input * AnthropicCache(ttl="1h").write_price
        part = round(price.cache_read / price.input, 6)
        assert part in {AnthropicCache().read_price, 0.05, 0.025}


@every_claude
def test_a_claude_that_is_known_has_a_minimum_of_its_own(family: str) -> None:
    assert any(family.startswith(known) for known in MINIMUM_TOKENS)
    assert minimum_tokens(family) < CLAUDES[family].window


@pytest.mark.parametrize("family", list(MINIMUM_TOKENS))
def test_what_the_cache_knows_the_table_knows(family: str) -> None:
    assert family in CLAUDES


@pytest.mark.parametrize(
    ("family", "factor"),
    [
        ("gpt-5.5", OpenAICache().write_price),
        ("gpt-5.6", OpenAIBreakpointCache().write_price),
        ("gpt-6.2-sol", OpenAIBreakpointCache().write_price),
    ],
)
def test_writing_costs_what_the_cache_of_the_model_says(family: str, factor: float) -> None:
    price = find_model_facts(f"openai:{family}").price
    assert price is not None
    assert price.cache_write == price.input * factor


# Finding a row


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("openai:gpt-5.6-sol-2026-07-09", "openai:gpt-5.6"),
        ("openai:gpt-5.6-terra-2026-07-09", "openai:gpt-5.6-terra"),
        ("openai:gpt-5-mini-2025-08-07", "openai:gpt-5-mini"),
        ("openai:gpt-5.7", "openai:"),
        ("openai:gpt-5.5-mini", "openai:"),
        ("openai:gpt-5.1-codex-mini", "openai:"),
        ("openai:gpt-5.2-chat-latest", "openai:"),
        ("openai:gpt-4.1-nano-2025-04-14", "openai:"),
        ("openai:gpt-4o-search-preview", "openai:"),
        ("openai:o3-deep-research", "openai:"),
        ("openai:o3-mini", "openai:"),
        ("openai:gpt-6", "openai:"),
        ("openai:gpt-4o-2024-11-20", "openai:gpt-4o"),
        ("anthropic:claude-opus-4-5-20251101", "anthropic:claude-opus-4-5"),
        ("anthropic:claude-opus-4-20250514", "anthropic:claude-opus-4"),
        ("anthropic:claude-3-5-haiku-latest", "anthropic:claude-3-5-haiku"),
        ("anthropic:claude-opus-5-5[1m]", "anthropic:claude-opus-5-5"),
        ("anthropic:claude-opus-5-7", "anthropic:"),
        ("anthropic:claude-opus-6", "anthropic:"),
        ("openrouter:anthropic/claude-sonnet-5:beta", "openrouter:anthropic/claude-sonnet-5"),
        ("openrouter:anthropic/claude-sonnet-5.5", "openrouter:"),
        ("ollama:gpt-oss:20b", "ollama:gpt-oss"),
        ("ollama:qwen3.5:9b", "ollama:"),
        ("ollama:qwen3-coder:30b", "ollama:"),
        ("openrouter:deepseek/deepseek-v4-pro", "openrouter:deepseek/"),
        ("groq:", "groq:"),
    ],
)
def test_the_longest_family_that_is_the_same_model_is_found(name: str, family: str) -> None:
    assert find_model_facts(name) is FAMILIES[family]


@pytest.mark.parametrize("name", ["openai:ft:gpt-4o-2024-08-06:org::abc", "openai:ft:gpt-9:o::x"])
def test_a_tuned_model_is_known_by_its_base_but_for_its_price(name: str) -> None:
    base = find_model_facts("openai:" + name.split(":")[2])
    assert find_model_facts(name) == replace(base, price=None)


def test_of_an_unknown_model_thinking_goes_back_in_a_way_that_is_safe_whatever_it_does() -> None:
    assert find_model_facts("anthropic:claude-opus-9").tail == "kept"
    assert find_model_facts("openai:gpt-9").thinking == "none"
    for name in ["deepseek:deepseek-v9", "openrouter:deepseek/deepseek-v9"]:
        assert find_model_facts(name).thinking_field == "reasoning_content"


@pytest.mark.parametrize("name", ["", "gpt-5", "claude-opus-5", "acme:gpt-5", ":gpt-5", "openai"])
def test_without_a_known_provider_the_least_is_promised(name: str) -> None:
    assert find_model_facts(name) is UNKNOWN
    assert (UNKNOWN.window, UNKNOWN.output_limit, UNKNOWN.tail) == (32_000, 8_000, "dropped")


@given(st.text() | st.builds("{}{}".format, st.sampled_from(list(FAMILIES)), st.text()))
def test_a_lookup_never_fails(name: str) -> None:
    assert find_model_facts(name).window > 0


@given(st.sampled_from(list(FAMILIES)), st.sampled_from(["", "-2026-11-20", "-20261120", "@x"]))
def test_a_dated_id_is_known_by_its_family(family: str, date: str) -> None:
    assert find_model_facts(family + date) == FAMILIES[family]


def test_who_knows_better_lays_it_over() -> None:
    assert replace(find_model_facts("ollama:qwen3"), window=64_000).window == 64_000


# What a request costs


def test_a_long_prompt_makes_the_whole_request_dearer() -> None:
    haiku = find_model_facts("anthropic:claude-haiku-5-5").price
    assert haiku is not None
    assert haiku.of(Usage(input_tokens=100_000, output_tokens=1_000)) == pytest.approx(0.0105)
    assert haiku.of(Usage(input_tokens=100_001, output_tokens=1_000)) == pytest.approx(0.0525005)


def test_writing_for_a_longer_life_costs_twice_the_input() -> None:
    haiku = find_model_facts("anthropic:claude-haiku-5-5").price
    assert haiku is not None
    assert haiku.long is not None
    assert haiku.long.price.cache_write_long == 2 * haiku.long.price.input == 1


def test_who_is_not_paid_has_no_price() -> None:
    assert find_model_facts("ollama:qwen3").price is None


def test_where_there_is_one_life_of_an_entry_no_longer_one_has_a_price() -> None:
    price = find_model_facts("openai:gpt-5.6").price
    assert price is not None
    assert price.cache_write_long is None


# Providers


def test_every_family_is_of_a_provider_that_speaks_its_api() -> None:
    for family, row in ROWS:
        wire = find_vendor(f"{family}x").api_vendor
        assert (wire == "anthropic") is (row.api == "messages"), family


def test_every_provider_has_a_row_for_what_is_not_known() -> None:
    assert {f"{name}:" for name in VENDORS} <= set(FAMILIES)


def test_a_provider_has_an_address_and_variables_of_its_own() -> None:
    assert all(
        vendor.base_url.startswith(("https://", "http://localhost")) for vendor in VENDORS.values()
    )
    assert not any(vendor.base_url.endswith("/") for vendor in VENDORS.values())
    assert all(
        vendor.url_variable == f"{name.removesuffix('-chat').upper()}_BASE_URL"
        for name, vendor in VENDORS.items()
    )
    assert [name for name, vendor in VENDORS.items() if not vendor.key_variable] == ["ollama"]


@pytest.mark.parametrize("name", ["gpt-5", "acme:gpt-5", "openai:", "openai", ""])
def test_a_name_without_a_provider_says_which_there_are(name: str) -> None:
    with pytest.raises(
        LooplineError, match="begin it with openai:, openai-chat:, anthropic:, groq:"
    ):
        find_vendor(name)
