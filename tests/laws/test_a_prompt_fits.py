"""Laws 4 and 5: what is sent fits, its estimate is no flattery, and calls have their results."""

from __future__ import annotations

from loopline.models import AssistantMessage, Message, ToolCall, ToolMessage
from loopline.timeline import Decision
from tests.support.corpus import live, over_corpus
from tests.support.scenario import Life
from tests.support.scenario_strategies import finer, fives, lives


@over_corpus(lives)
def test_nothing_is_sent_that_exceeds_the_window_less_the_output(life: Life) -> None:
    for sent in live(life).sent:
        assert sent.begun.tokens <= sent.kind.window - sent.kind.output_limit


@over_corpus(lives)
def test_an_estimate_learns_from_what_was_reported(life: Life) -> None:
    """Where a model counts other than is estimated, but alike all the time, once it has reported."""
    lived = live(life)
    reports = [
        (block.seq, block.body.model)
        for block in lived.blocks
        if isinstance(block.body, Decision) and block.body.usage.input_tokens
    ]
    for one in lived.sent:
        known = [seq for seq, model in reports if model == one.kind.name and seq < one.start.seq]
        if known and one.kind.counts in (fives, finer):
            assert one.begun.tokens >= 0.95 * one.reported


@over_corpus(lives)
def test_cache_points_rise_to_the_end_of_the_stable_messages(life: Life) -> None:
    for sent in live(life).sent:
        points = sent.prompt.cache_points
        assert 1 <= len(points) <= 3
        assert list(points) == sorted(set(points))
        assert points[-1] == len(sent.prompt.messages)
        assert points[0] >= 1
        costs = [point.tokens for point in sent.begun.points]
        assert costs == sorted(costs)
        for at in points:
            assert in_pairs(sent.prompt.messages[:at])


@over_corpus(lives)
def test_a_result_follows_its_call_in_every_request(life: Life) -> None:
    lived = live(life)
    for prompt in [*(sent.prompt for sent in lived.sent), *lived.summaries]:
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
