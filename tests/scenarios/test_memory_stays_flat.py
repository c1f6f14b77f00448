"""What a harness holds in memory does not grow with how long its conversations are, or how many it ran."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from loopline import Harness
from loopline.errors import ModelError
from loopline.models import ModelRegistry
from loopline.testing import Say, ScriptedModel
from loopline.timeline import Block
from tests.support.playground import bundle as playground


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
        blocks += sum(type(value) is Block for value in fresh.values())
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
