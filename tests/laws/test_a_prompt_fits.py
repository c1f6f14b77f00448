"""Laws 4 and 5: what is sent fits, its estimate is no flattery, and calls have their results."""

from __future__ import annotations

from loopline.models import AssistantMessage, Message, ToolCall, ToolMessage
from loopline.timeline import Decision
from tests.support.corpus import over_corpus, run_of
from tests.support.scenario import Scenario
from tests.support.scenario_strategies import drawn_scenarios, finer, fives


@over_corpus(drawn_scenarios)
def test_nothing_is_sent_that_exceeds_the_window_less_the_output(scenario: Scenario) -> None:
    for sent in run_of(scenario).sent:
        assert sent.begun.tokens <= sent.kind.window - sent.kind.output_limit


@over_corpus(drawn_scenarios)
def test_an_estimate_learns_from_what_was_reported(scenario: Scenario) -> None:
    """Where a model counts other than is estimated, but alike all the time, once it has reported."""
    run = run_of(scenario)
    reports = [
        (block.seq, block.body.model)
        for block in run.blocks
        if isinstance(block.body, Decision) and block.body.usage.input_tokens
    ]
    for item in run.sent:
        known = [seq for seq, model in reports if model == item.kind.name and seq < item.start.seq]
        if known and item.kind.counts in (fives, finer):
            assert item.begun.tokens >= 0.95 * item.reported


@over_corpus(drawn_scenarios)
def test_cache_points_rise_to_the_end_of_the_stable_messages(scenario: Scenario) -> None:
    for sent in run_of(scenario).sent:
        points = sent.prompt.cache_points
        assert 1 <= len(points) <= 3
        assert list(points) == sorted(set(points))
        assert points[-1] == len(sent.prompt.messages)
        assert points[0] >= 1
        costs = [point.tokens for point in sent.begun.points]
        assert costs == sorted(costs)
        for at in points:
            assert in_pairs(sent.prompt.messages[:at])


@over_corpus(drawn_scenarios)
def test_a_result_follows_its_call_in_every_request(scenario: Scenario) -> None:
    run = run_of(scenario)
    for prompt in [*(sent.prompt for sent in run.sent), *run.summaries]:
        assert in_pairs(prompt.messages)


def in_pairs(messages: tuple[Message, ...]) -> bool:
    """Whether each call has its result, and all results of a round follow it in order."""
    expected: list[ToolCall] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not expected or expected.pop(0).call_id != message.call_id:
                return False
        elif expected:
            return False
        elif isinstance(message, AssistantMessage):
            expected = list(message.calls)
    return not expected
