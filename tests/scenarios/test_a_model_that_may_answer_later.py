"""A model that cannot answer now: it is asked again, after how long, and what is heard and kept of it."""

from __future__ import annotations

import pytest

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
    ModelUnreachable,
)
from loopline.events import Delta
from loopline.react.model_requests import RetryPolicy
from loopline.testing import Fail, FakeClock, ScriptedModel
from loopline.timeline import Decision, ModelSwitched
from tests.support.workbench import at_work, bodies, heard, said, workbench

LATER = [
    ModelRateLimited("busy", retry_after=2.0),
    ModelOverloaded("busy"),
    ModelTimedOut("silent"),
    ModelUnreachable("away"),
    ModelStreamBroken("cut"),
]


@pytest.mark.parametrize("error", LATER, ids=lambda one: type(one).__name__)
async def test_what_may_be_answered_later_is_asked_again(error: ModelError) -> None:
    model = ScriptedModel([Fail(error), Fail(error), "Tea."])
    async with at_work(model) as talk:
        result = await talk.say("go")
        (decision,) = await bodies(talk, Decision)
    assert (result.answer, result.rounds, decision.attempt) == ("Tea.", 1, 3)
    assert len({id(request) for request in model.requests}) == 1


async def test_after_three_more_attempts_it_is_given_up() -> None:
    model = ScriptedModel([Fail(ModelOverloaded("busy"))] * 5, strict=False)
    async with at_work(model) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, len(model.requests)) == ("error", 4)


@pytest.mark.parametrize("retries", [0, 1])
async def test_how_often_is_a_policy(retries: int) -> None:
    model = ScriptedModel([Fail(ModelOverloaded("busy"))] * 5, strict=False)
    async with at_work(model, workbench(model_retries=retries)) as talk:
        await talk.say("go")
    assert len(model.requests) == 1 + retries


@pytest.mark.parametrize("error", [ModelAccessError("no key"), ModelRequestError("no such tool")])
async def test_what_somebody_must_mend_is_neither_asked_again_nor_of_another(
    error: ModelError,
) -> None:
    first, second = ScriptedModel([Fail(error)]), ScriptedModel([])
    async with at_work((first, second)) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, len(first.requests), second.requests) == ("error", 1, [])
    assert str(error) in result.error


async def test_the_next_model_is_asked_when_the_attempts_are_over() -> None:
    first = ScriptedModel([Fail(ModelOverloaded("busy"))] * 4, name="one")
    async with at_work((first, ScriptedModel(["Tea."], name="two"))) as talk:
        assert (await talk.say("go")).answer == "Tea."
        (switched,) = await bodies(talk, ModelSwitched)
    assert (switched.why, len(first.requests)) == ("unavailable", 4)


async def test_text_that_was_shown_is_never_doubled() -> None:
    cut = ModelStreamBroken("cut")
    async with at_work([Fail(cut, after="Half"), Fail(cut, after="Half a"), "Whole."]) as talk:
        events = await heard(talk, "go")
    deltas = [(delta.type, delta.attempt) for delta in events if isinstance(delta, Delta)]
    assert said(events) == "Whole."
    assert deltas == [
        *[("delta", 1), ("reset", 1), ("progress", 1)],
        *[("delta", 2), ("reset", 2), ("progress", 2)],
        ("delta", 3),
    ]


async def test_a_wait_is_at_least_what_the_server_asks_for_and_part_of_a_doubling_one() -> None:
    patience = RetryPolicy(clock=FakeClock(), retries=3, jitter=lambda: 0.5)
    waits = [patience.delay(attempt, ModelOverloaded("busy")) for attempt in (1, 2, 3, 4)]
    assert waits == [0.5, 1.0, 2.0, None]
    assert patience.delay(1, ModelRateLimited("busy", retry_after=7.0)) == 7.0
    assert patience.delay(1, ModelRateLimited("busy", retry_after=61.0)) is None


async def test_the_wait_passes_on_the_clock_of_the_harness() -> None:
    clock = FakeClock()
    began = clock.now()
    model = ScriptedModel([Fail(ModelRateLimited("busy", retry_after=30.0)), "Tea."])
    async with at_work(model, clock=clock) as talk:
        await talk.say("go")
    assert (clock.now() - began).total_seconds() >= 30
