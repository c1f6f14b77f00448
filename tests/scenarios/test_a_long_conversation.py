"""Three hundred turns in a small window: nothing is sent that does not fit, and nothing is out of reach."""

from __future__ import annotations

import pytest

from loopline.prompt import ModelRequest, past_requests
from loopline.prompt.caching import AnthropicCache, CacheRules, OpenAICache, simulate
from loopline.timeline import Completion, RangeSummary, RoundStart, Timeline, ToolResult, UserPrompt
from tests.support.examples import sampled
from tests.support.recall_probe import OUTPUT_LIMIT, WINDOW, Lived, live

TURNS = 300


@pytest.fixture(scope="module")
def lived() -> Lived:
    return live(TURNS)


def test_no_request_exceeds_the_budget_though_much_more_was_said(lived: Lived) -> None:
    sent = [block.body.tokens for block in lived.blocks if isinstance(block.body, RoundStart)]
    assert max(sent) <= WINDOW - OUTPUT_LIMIT
    texts = [
        block.body.text
        for block in lived.blocks
        if isinstance(block.body, UserPrompt | ToolResult | Completion)
    ]
    assert sum(map(len, texts)) > 2 * 4 * (WINDOW - OUTPUT_LIMIT)
    assert sum(isinstance(block.body, RangeSummary) for block in lived.blocks) >= 3


def test_the_last_prompt_has_each_fact_or_names_its_very_block(lived: Lived) -> None:
    assert lived.held.share >= 0.99


def test_every_request_is_rendered_again_as_it_was_sent(lived: Lived) -> None:
    again = list(past_requests(Timeline(lived.blocks)))
    assert [item.inexact for item in again] == [""] * (2 * TURNS)
    decisions = [request for request in lived.requests if request.purpose == "decision"]
    assert [request.messages for request in again] == [decision.messages for decision in decisions]
    assert [item.round_start.tail for item in again] == [decision.tail for decision in decisions]
    assert [item.system for item in again] == [decision.system for decision in decisions]


@pytest.mark.parametrize("rules", [AnthropicCache(), OpenAICache()])
def test_what_a_request_held_is_read_from_the_cache_over_fifty_rounds(
    lived: Lived, rules: CacheRules
) -> None:
    asked_past_requests = list(past_requests(Timeline(lived.blocks)))
    report = simulate((item.as_sent for item in _within_epochs(asked_past_requests)[:50]), rules)
    assert len(report.rows) == 50
    assert report.read_of_held >= 0.99


@pytest.mark.parametrize("rules", sampled([AnthropicCache(), OpenAICache()], 2))
def test_every_cache_miss_of_the_whole_conversation_has_a_recorded_cause(
    lived: Lived, rules: CacheRules
) -> None:
    asked_past_requests = list(past_requests(Timeline(lived.blocks)))
    report = simulate((item.as_sent for item in asked_past_requests), rules)
    missed = [miss for row in report.rows for miss in row.misses if miss.reason != "minimum"]
    assert missed
    assert {(miss.reason, miss.cause) for miss in missed} == {("broken", "compaction")}


def _within_epochs(asked: list[ModelRequest]) -> list[ModelRequest]:
    first = [item for item in asked if item.round_start.epoch == 1]
    assert len(first) >= 50
    return first
