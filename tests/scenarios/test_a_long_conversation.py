"""What a long conversation sends always fits, what it hides is in reach, and what a harness holds does not grow."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from loopline import Harness
from loopline import timeline as tl
from loopline.errors import ModelError
from loopline.models import ModelRegistry
from loopline.prompt import ModelRequest, past_requests
from loopline.prompt.caching import AnthropicCache, CacheRules, OpenAICache, simulate
from loopline.testing import Say, ScriptedModel
from tests.support.examples import sampled
from tests.support.playground import bundle as playground
from tests.support.recall_probe import OUTPUT_LIMIT, WINDOW, Lived, live

TURNS = 300


@pytest.fixture(scope="module")
def lived() -> Lived:
    return live(TURNS)


def test_no_request_exceeds_the_budget_though_much_more_was_said(lived: Lived) -> None:
    sent = [block.body.tokens for block in lived.blocks if isinstance(block.body, tl.RoundStart)]
    assert max(sent) <= WINDOW - OUTPUT_LIMIT
    texts = [
        block.body.text
        for block in lived.blocks
        if isinstance(block.body, tl.UserPrompt | tl.ToolResult | tl.Completion)
    ]
    assert sum(map(len, texts)) > 2 * 4 * (WINDOW - OUTPUT_LIMIT)
    assert sum(isinstance(block.body, tl.RangeSummary) for block in lived.blocks) >= 3


def test_the_last_prompt_has_each_fact_or_names_its_very_block(lived: Lived) -> None:
    assert lived.held.share >= 0.99


def test_every_request_is_rendered_again_as_it_was_sent(lived: Lived) -> None:
    again = list(past_requests(tl.Timeline(lived.blocks)))
    assert [item.inexact for item in again] == [""] * (2 * TURNS)
    decisions = [request for request in lived.requests if request.purpose == "decision"]
    assert [request.messages for request in again] == [decision.messages for decision in decisions]
    assert [item.round_start.tail for item in again] == [decision.tail for decision in decisions]
    assert [item.system for item in again] == [decision.system for decision in decisions]


@pytest.mark.parametrize("rules", [AnthropicCache(), OpenAICache()])
def test_what_a_request_held_is_read_from_the_cache_over_fifty_rounds(
    lived: Lived, rules: CacheRules
) -> None:
    asked_past_requests = list(past_requests(tl.Timeline(lived.blocks)))
    report = simulate((item.as_sent for item in _within_epochs(asked_past_requests)[:50]), rules)
    assert len(report.rows) == 50
    assert report.read_of_held >= 0.99


@pytest.mark.parametrize("rules", sampled([AnthropicCache(), OpenAICache()], 2))
def test_every_cache_miss_of_the_whole_conversation_has_a_recorded_cause(
    lived: Lived, rules: CacheRules
) -> None:
    asked_past_requests = list(past_requests(tl.Timeline(lived.blocks)))
    report = simulate((item.as_sent for item in asked_past_requests), rules)
    missed = [miss for row in report.rows for miss in row.misses if miss.reason != "minimum"]
    assert missed
    assert {(miss.reason, miss.cause) for miss in missed} == {("broken", "compaction")}


def _within_epochs(asked: list[ModelRequest]) -> list[ModelRequest]:
    first = [item for item in asked if item.round_start.epoch == 1]
    assert len(first) >= 50
    return first


def held() -> int:
    """The blocks that this process holds; the collector lists what refers to them, not the blocks."""
    gc.collect()
    blocks, walked, to_walk = 0, set[int](), [gc.get_objects()]
    while to_walk:
        untracked = [
            value for value in gc.get_referents(*to_walk.pop()) if not gc.is_tracked(value)
        ]
        fresh = {id(value): value for value in untracked if id(value) not in walked}
        walked |= fresh.keys()
        blocks += sum(type(value) is tl.Block for value in fresh.values())
        if fresh:
            to_walk.append(list(fresh.values()))
    return blocks


@pytest.mark.campaign
async def test_a_long_lived_conversation_holds_no_more_blocks_than_its_context_shows(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(
        [Say("Yes. " * 80) for _ in range(40)], window=6_000, output_limit=1_000, strict=False
    )
    store, before, counts = f"sqlite:///{tmp_path}/talk.db", held(), list[int]()
    async with Harness.open(playground, store=store, model=model) as harness:
        talk = harness.conversation("c")
        for turn in range(1, 41):
            assert (await talk.say("Go on. " * 80)).ok
            if turn % 4 == 0:
                counts.append(held() - before)
        blocks, checkpoints = await talk.blocks(), await talk.blocks(types="conv.checkpoint")
        assert (len(blocks) > 160, len(checkpoints) > 2) == (True, True)
    assert max(counts[5:]) < 1.5 * max(counts[:5])


class Closed(ScriptedModel):
    """Counts how often it was closed."""

    closed = 0

    async def close(self, *, failed: bool) -> None:
        self.closed += 1
        await super().close(failed=failed)


async def test_a_model_that_was_made_for_a_run_is_closed_once_no_run_uses_it() -> None:
    closeds = list[Closed]()

    def make() -> Closed:
        closeds.append(Closed(["Done."]))
        return closeds[-1]

    async with Harness.open(playground, store="memory:", model=make) as harness:
        for _ in range(5):
            await harness.conversation("c").say("go")
        assert [model.closed for model in closeds] == [1, 1, 1, 1, 0]
    assert [model.closed for model in closeds] == [1] * 5


async def test_models_that_are_given_again_stay_open_until_the_harness_closes() -> None:
    closed = Closed(["One.", "Two.", "Three."])
    registry = ModelRegistry({"general": (closed,), "fast": (Closed([]),)})
    async with Harness.open(playground, store="memory:", model=lambda: registry) as harness:
        for _ in range(3):
            await harness.conversation("c").say("go")
        assert [model.closed for model in registry.models if isinstance(model, Closed)] == [0, 0]
    assert [model.closed for model in registry.models if isinstance(model, Closed)] == [1, 1]


async def test_a_model_that_objects_to_being_closed_is_held_and_given_again() -> None:
    """A script that is not over is only read further by a run that comes after another model's."""
    first, second = Closed(["One.", "Three."]), Closed(["Two."])
    given = iter([first, second, first])
    async with Harness.open(playground, store="memory:", model=lambda: next(given)) as harness:
        answers = [(await harness.conversation("c").say("go")).answer for _ in range(3)]
    assert answers == ["One.", "Two.", "Three."]


class Objecting(Closed):
    """Cannot be closed the first time."""

    async def close(self, *, failed: bool) -> None:
        await super().close(failed=failed)
        if self.closed == 1:
            raise ModelError("it is still in use elsewhere")


async def test_a_model_that_objected_to_being_closed_stops_no_later_run() -> None:
    models = [Objecting(["One."]), Closed(["Two."]), Closed(["Three."])]
    given = iter(models)
    async with Harness.open(playground, store="memory:", model=lambda: next(given)) as harness:
        answers = [(await harness.conversation("c").say("go")).answer for _ in models]
    assert answers == ["One.", "Two.", "Three."]
    assert [model.closed for model in models] == [2, 1, 1]
