"""A whole run is recorded, and comes again without its server: the same blocks at the same times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from pydantic_ai.models.test import TestModel

import loopline
from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.errors import CassetteError, ModelError
from loopline.harness.model_choice import Cassette, Models
from loopline.models import ModelRegistry
from loopline.testing import FakeClock, ScriptedModel
from loopline.timeline import Block
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Behaviour, Cut, Status
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import workbench

LOOKED = (
    Call("react__read", '{"paths": ["artifact:conv.timeline.v1"]}', "call_2"),
    Call("w__find", '{"url": "https://example.org"}', "call_3"),
)
SCRIPT: tuple[Behaviour[oai.Says], ...] = (
    oai.Says("I count.", calls=(Call("w__count", '{"number": 3}', "call_1"),)),
    Status(429, headers={"Retry-After": "0.01"}),
    Cut(oai.Says("Half an answer " * 9, pieces=20), after_chunks=9),
    oai.Says("I read when all was.", calls=LOOKED),
    oai.Says("It is 7 [[S:1]]."),
    oai.Says("I said 7."),
)
"""A fault that passes, a stream that breaks, and a result that holds the times of all blocks."""


async def talked(store: str, cassette: Cassette, *texts: str) -> list[Block]:
    """The blocks of a conversation of so many turns, each of which ends well."""
    async with Harness.open(workbench(), store=store, cassette=cassette) as harness:
        talk = harness.conversation("c")
        for text in texts:
            result = await talk.say(text)
            assert result.ok, result.error
        return list(await talk.blocks())


def in_it(folder: Path) -> list[Path]:
    """What the folder holds."""
    return list(folder.iterdir())


def chosen(peer: Peer, environment: pytest.MonkeyPatch) -> None:
    """Have the environment choose the model at that server."""
    environment.setenv("LOOPLINE_MODEL", "openai:m")
    environment.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
    environment.setenv("OPENAI_API_KEY", "sk-secret-of-mine")


async def test_a_run_comes_again_block_by_block_and_needs_no_setting(tmp_path: Path) -> None:
    first_store, second_store = (f"sqlite:///{tmp_path}/{n}.db" for n in (1, 2))
    file = tmp_path / "talk.jsonl"
    async with openai_like(*SCRIPT) as peer:
        with pytest.MonkeyPatch.context() as environment:
            chosen(peer, environment)
            recorded = Cassette(file, mode="record")
            first = await talked(first_store, recorded, "How many?", "What did you say?")
    second = await talked(second_store, Cassette(file), "How many?", "What did you say?")
    assert len(peer.requests) == len(SCRIPT)
    assert [(block.ts, block.body) for block in second] == [
        (block.ts, block.body) for block in first
    ]


async def test_a_miss_ends_the_turn_and_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    async with openai_like(oai.Says("It is 7.")) as peer:
        with pytest.MonkeyPatch.context() as environment:
            chosen(peer, environment)
            await talked("memory:", Cassette(file, mode="record"), "How many?")
    async with Harness.open(workbench(), store="memory:", cassette=Cassette(file)) as harness:
        talk = harness.conversation("c")
        with pytest.raises(CassetteError, match=r"differs first at messages\[1\].content"):
            await talk.say("How much?")
        last = (await talk.blocks())[-1]
    assert (last.type, "differs first" in str(last.body)) == ("react.exit", True)


async def test_a_clock_that_is_given_is_gone_by_in_both(tmp_path: Path) -> None:
    file, times = tmp_path / "talk.jsonl", list[set[object]]()
    async with openai_like(oai.Says("It is 7.")) as peer:
        with pytest.MonkeyPatch.context() as environment:
            chosen(peer, environment)
            for cassette in (Cassette(file, mode="record"), Cassette(file)):
                clock = FakeClock()
                opened = Harness.open(workbench(), store="memory:", cassette=cassette, clock=clock)
                async with opened as harness:
                    talk = harness.conversation("c")
                    await talk.say("How many?")
                    times.append({block.ts for block in await talk.blocks()})
    assert times == [{FakeClock().now()}] * 2


async def test_a_model_that_needs_a_key_leaves_no_file_without_it(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("ANTHROPIC_API_KEY", raising=False)
        environment.delenv("ANTHROPIC_BASE_URL", raising=False)
        with pytest.raises(ModelError, match="set ANTHROPIC_API_KEY"):
            async with Harness.open(
                workbench(),
                store="memory:",
                model="anthropic:claude-sonnet-5",
                cassette=Cassette(file, mode="record"),
            ):
                pass
    assert not in_it(tmp_path)


PAST_IT: dict[str, Callable[[], Models]] = {
    "a string of another's": lambda: "pydantic-ai:test",
    "one in a chain": lambda: ["offline", ScriptedModel(["Tea."])],
    "made in code": lambda: loopline.model("openai:m", base_url="http://localhost:1/v1"),
    "made by another": TestModel,
    "a registry": lambda: ModelRegistry({"general": (ScriptedModel(["Tea."]),)}),
}


@pytest.mark.parametrize("choice", PAST_IT)
@pytest.mark.parametrize("mode", ["record", "replay"])
async def test_a_model_that_would_be_asked_past_the_cassette_is_refused(
    mode: Literal["record", "replay"], choice: str, tmp_path: Path
) -> None:
    file, make = tmp_path / "talk.jsonl", PAST_IT[choice]
    if mode == "replay":
        await talked("memory:", Cassette(file, mode="record"), "How many?")  # by offline
    cassette = Cassette(file, mode=mode)
    with pytest.raises(CassetteError, match="cannot be used with a cassette"):
        async with Harness.open(workbench(), store="memory:", model=make(), cassette=cassette):
            pass
    assert (in_it(tmp_path) == []) == (mode == "record")
    opened = Harness.open(workbench(), store="memory:", model=lambda: make(), cassette=cassette)
    async with opened as harness:
        with pytest.raises(CassetteError, match="cannot be used with a cassette"):
            await harness.conversation("c").say("How many?")


async def test_a_model_that_a_workflow_brings_is_not_asked_past_the_cassette(
    tmp_path: Path,
) -> None:
    stray = ScriptedModel(["Tea."])

    class Own(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(model=stray)
            return await react.run(payload)

    cassette = Cassette(tmp_path / "talk.jsonl", mode="record")
    own = Bundle(id="own", workflow=Own)
    async with Harness.open(own, store="memory:", cassette=cassette) as harness:
        with pytest.raises(CassetteError, match="scripted cannot be used with a cassette"):
            await harness.conversation("c").say("How many?")
    assert stray.requests == []
