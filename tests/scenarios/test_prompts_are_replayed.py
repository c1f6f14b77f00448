"""Every prompt of a kept conversation is rendered again; where one is another, it is told which part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from loopline import LooplineError
from loopline.prompt import Divergence, ReplayedRound, replayed_rounds, request_of_round
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Body, Plan, RoundStart, Timeline, ToolResult, UserPrompt
from tests.support.workbench import at_work, workbench


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
    async with at_work(ScriptedModel(script), workbench()) as talk:
        await talk.say("Look!")
        timeline = Timeline(await talk.blocks())
    with pytest.raises(LooplineError, match=f"turn_1 has no round 9: it has {rounds}$"):
        request_of_round(timeline, 1, 9)
