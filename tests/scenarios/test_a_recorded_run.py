"""A recorded run comes again without its server, and every prompt of a kept conversation is rendered again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs
from pydantic_ai.models.test import TestModel

import loopline
from loopline import BaseWorkflow, Bundle, Harness, LooplineError, TurnPayload, TurnResult
from loopline.errors import CassetteError, ModelError
from loopline.harness.model_choice import Cassette, Models
from loopline.models import ModelRegistry
from loopline.prompt import Divergence, ReplayedRound, replayed_rounds, request_of_round
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Body, Plan, RoundStart, Timeline, ToolResult, UserPrompt
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Behaviour, Cut, Status
from tests.support.peers.call_replies import Call as WireCall
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import at_work, run_turn, workbench

LOOKED = (
    WireCall("react__read", '{"paths": ["artifact:conv.timeline.v1"]}', "call_2"),
    WireCall("w__find", '{"url": "https://example.org"}', "call_3"),
)
SCRIPT: tuple[Behaviour[oai.Says], ...] = (
    oai.Says("I count.", calls=(WireCall("w__count", '{"number": 3}', "call_1"),)),
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
    return list(folder.iterdir())


def chosen(peer: Peer, environment: pytest.MonkeyPatch) -> None:
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


async def kept() -> list[Block]:
    """Two turns of three rounds and two, with a plan, a source, a reaction and a second epoch."""
    script: list[Entry] = [
        Say("One.", Call("w.look", text="tea"), Call("react.plan", mode="new", steps=["look"])),
        Say("Two.", Call("w.look", text="milk"), Call("w.find", url="https://a.b")),
        "Three of them.",
        Call("react.hide", path="tc:turn_1.c3.result", replacement="milk"),
        "As I said.",
    ]
    async with at_work(ScriptedModel(script), workbench()) as talk:
        await talk.say("How many?")
        await talk.feedback("turn_1", "ok", text="thanks")
        await talk.say("Really?")
        return list(await talk.blocks())


def changed(blocks: list[Block], change: Callable[[Body], Body]) -> list[ReplayedRound]:
    """The rounds of a conversation in whose log the bodies were changed."""
    return list(
        replayed_rounds(
            Timeline([structs.replace(block, body=change(block.body)) for block in blocks])
        )
    )


def first(rounds: list[ReplayedRound]) -> tuple[str, Divergence]:
    """The first that diverges, by its ref."""
    found = next(
        replayed_round for replayed_round in rounds if replayed_round.divergence is not None
    )
    assert found.divergence is not None
    return found.request.block.ref, found.divergence


async def test_each_round_of_a_log_that_nobody_touched_is_rendered_as_it_was() -> None:
    rounds = changed(await kept(), lambda body: body)
    assert [item.request.block.turn for item in rounds] == [1, 1, 1, 2, 2]
    assert [item.request.round_start.epoch for item in rounds] == [1, 1, 1, 1, 2]
    assert {replayed_round.divergence for replayed_round in rounds} == {None}


async def test_the_files_of_a_workspace_are_rendered_as_they_were() -> None:
    writes = [
        Call("react.write", path=path, content=text)
        for path, text in (("files/a.txt", "a"), ("outputs/b.txt", "bb"), ("files/a.txt", "aaa"))
    ]
    script: list[Entry] = [*writes, "Done.", writes[0], "Done."]
    async with at_work(script, properties={"react.workspace": "latest"}) as talk:
        await talk.say("Write.")
        await talk.say("Again.")
        rounds = changed(list(await talk.blocks()), lambda body: body)
    assert [replayed_round.divergence for replayed_round in rounds] == [None] * 6
    assert "[WORKSPACE] 2 files, 5 bytes" in rounds[3].request.round_start.tail


async def test_a_changed_result_is_found_by_the_digests_before_and_after_it() -> None:
    def change(body: Body) -> Body:
        if not isinstance(body, ToolResult) or "milk" not in body.text:
            return body
        return structs.replace(body, text="seen cream")

    rounds = changed(await kept(), change)
    ref, found = first(rounds)
    assert (ref, found.part) == ("ar:turn_1.react.round.start.3", "messages")
    wrong = next(
        replayed_round for replayed_round in rounds if replayed_round.divergence is not None
    )
    assert wrong.suspects == ("tc:turn_1.c3.call", "tc:turn_1.c3.result", "tc:turn_1.c4.result")
    assert [replayed_round.divergence is None for replayed_round in rounds] == [
        True,
        True,
        False,
        False,
        True,
    ]


async def test_a_changed_question_is_missed_by_the_round_after_the_one_that_took_it() -> None:
    def change(body: Body) -> Body:
        return structs.replace(body, text="How few?") if isinstance(body, UserPrompt) else body

    ref, found = first(changed(await kept(), change))
    assert (ref, found.part, found.first) == ("ar:turn_1.react.round.start.2", "messages", 1)


@pytest.mark.parametrize("part", ["system", "tools", "renderer"])
async def test_a_changed_text_or_version_is_named(part: str) -> None:
    def change(body: Body) -> Body:
        if not isinstance(body, RoundStart):
            return body
        match part:
            case "system":
                return structs.replace(body, system=body.system and "Be lazy.")
            case "tools":
                return structs.replace(body, tools=body.tools and "[]")
            case _:
                return structs.replace(body, renderer=body.renderer - 1)

    ref, found = first(changed(await kept(), change))
    assert (ref, found.part) == ("ar:turn_1.react.round.start.1", part)


async def test_a_changed_plan_is_found_by_the_tail_that_showed_it() -> None:
    def change(body: Body) -> Body:
        if not isinstance(body, Plan):
            return body
        return structs.replace(body, snapshot=structs.replace(body.snapshot, steps=("lurk",)))

    ref, found = first(changed(await kept(), change))
    assert (ref, found.part) == ("ar:turn_1.react.round.start.2", "tail")
    assert (found.recorded, found.rendered) == ("□ [1] look", "□ [1] lurk")


async def test_a_text_that_is_not_kept_is_a_divergence_without_a_digest() -> None:
    def change(body: Body) -> Body:
        return structs.replace(body, system="") if isinstance(body, RoundStart) else body

    _, found = first(changed(await kept(), change))
    assert (found.part, found.rendered) == ("system", "")


@pytest.mark.parametrize(("calls", "rounds"), [(0, "1"), (2, "1 to 3")])
async def test_a_round_that_is_not_there_is_told_with_those_that_are(
    calls: int, rounds: str
) -> None:
    script: list[Entry] = [*[Call("w.look", text="tea")] * calls, "Done."]
    _, blocks = await run_turn(ScriptedModel(script), workbench(), text="Look!")
    timeline = Timeline(blocks)
    with pytest.raises(LooplineError, match=f"turn_1 has no round 9: it has {rounds}$"):
        request_of_round(timeline, 1, 9)
