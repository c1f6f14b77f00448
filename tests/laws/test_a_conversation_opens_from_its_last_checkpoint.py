"""Opening from a checkpoint: what is run, read and folded is what the whole would give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from msgspec import structs

from loopline import Harness
from loopline import timeline as tl
from loopline.clock import SystemClock
from loopline.conversations.turns import Request, Turns
from loopline.models import Prompt
from loopline.reader import ConversationView, Reader, view_conversation
from loopline.testing import Call, FakeClock
from tests.support.corpus import RunOnce, over_corpus, scenarios
from tests.support.resumed_conversations import (
    HERE,
    LONG,
    Script,
    ScriptedSteps,
    Step,
    run_script,
    scripts,
    timeless,
)
from tests.support.resumed_conversations import bundle as desk

CutLife: TypeAlias = tuple[Script, float]
FORK = tl.ConversationKey(name="fork")
LOOK = Step("", [Call("desk.look", text=LONG)], "", 0.0)
CITE = Step(
    "✓ [1] seen", [Call("react.read", paths=["so:sources_pool[1]", "tc:turn_1.c1.call"])], "", 1.5
)


def checkpoints(blocks: Sequence[tl.Block]) -> list[tl.Checkpoint]:
    return [block.body for block in blocks if isinstance(block.body, tl.Checkpoint)]


cut_lives = st.tuples(scripts, st.floats(0, 1))
"""What happens in a conversation, and the share of its blocks after which it is cut."""
over_lives = over_corpus(cut_lives, 25)


def live_afresh(drawn: CutLife) -> tuple[Sequence[tl.Block], Sequence[Prompt]]:
    """Return the blocks and the requests of a script whose turns each have a process of their own."""

    async def run() -> tuple[Sequence[tl.Block], Sequence[Prompt]]:
        log, model = await run_script(drawn[0], afresh=True)
        return await log.read(HERE), model.requests

    return asyncio.run(run())


lived_afresh = RunOnce(live_afresh)


def place_of(drawn: CutLife, blocks: Sequence[tl.Block]) -> int:
    return max(int(drawn[1] * len(blocks)), 1)


async def stored(log: tl.MemoryLog, blocks: Sequence[tl.Block]) -> tl.MemoryLog:
    await log.restore(HERE, blocks)
    return log


@over_lives
def test_turns_record_the_same_whether_the_whole_was_read_or_what_a_checkpoint_needs(
    drawn: CutLife,
) -> None:
    async def run() -> None:
        whole, asked = await run_script(drawn[0], afresh=False)
        assert timeless(parts) == timeless(await whole.read(HERE))
        assert requests == asked.requests

    parts, requests = lived_afresh(drawn)
    asyncio.run(run())


@over_lives
def test_every_ref_reads_the_same_whether_the_whole_was_read_or_what_a_checkpoint_needs(
    drawn: CutLife,
) -> None:
    async def run() -> None:
        refs = [block.ref for block in blocks]
        refs += [ref.rpartition(".")[0] for ref in refs if ref.startswith("ar:")]
        refs += ["so:sources_pool[1-9]", "ar:turn_99.x", "tc:turn_1.c99.result", "ar:turn_1.x.7"]
        refs += ["artifact:conv.timeline.v1", "artifact:conv:sources_pool", "ks:a.md@0123456"]
        log = await stored(tl.MemoryLog(), blocks)
        assert await read(ConversationView(tl.Timeline(blocks)), refs) == await read(
            await part(log), refs
        )

    blocks, _ = lived_afresh(drawn)
    asyncio.run(run())


async def part(log: tl.TimelineLog) -> ConversationView:
    timeline = await tl.open_timeline(log, HERE)
    return ConversationView(timeline, history=tl.History(log, HERE, timeline))


async def read(here: ConversationView, refs: Sequence[str]) -> list[tuple[str, str, str, str]]:
    reading = await Reader(conversation=here).read(refs)
    return [(item.ref, item.status, item.text, item.message) for item in reading]


@over_lives
def test_folds_from_a_checkpoint_are_the_folds_of_the_whole(drawn: CutLife) -> None:
    async def run() -> None:
        log = await stored(tl.MemoryLog(), blocks)
        check_folds(tl.Timeline(blocks), await tl.open_timeline(log, HERE))
        position = place_of(drawn, blocks)
        await log.fork(HERE, FORK, position)
        check_folds(tl.Timeline(blocks[:position]), await tl.open_timeline(log, FORK))

    blocks, _ = lived_afresh(drawn)
    asyncio.run(run())


class Hiding(tl.MemoryLog):
    whole: tl.ConversationKey = tl.ConversationKey(name="whole")

    async def read(self, conversation: tl.ConversationKey, **options: Any) -> Sequence[tl.Block]:
        if conversation == self.whole and "conv.checkpoint" in options.get("types", ()):
            return []
        return await super().read(conversation, **options)


@over_lives
def test_a_turn_after_a_cut_anywhere_is_the_same_from_a_checkpoint_as_from_the_whole(
    drawn: CutLife,
) -> None:
    blocks, _ = lived_afresh(drawn)

    async def run() -> None:
        log = Hiding(FakeClock())
        await stored(log, blocks)
        position = place_of(drawn, blocks)
        sequences = list[Sequence[Prompt]]()
        for name in ("part", log.whole.name):
            fork = tl.ConversationKey(name=name)
            await log.fork(HERE, fork, position)
            model = ScriptedSteps(log, [LOOK, CITE], conversation=fork)
            harness = Harness.open(desk, store=log, model=model, clock=FakeClock())
            async with harness:
                await harness.conversation(name).say("and now?")
            sequences.append([structs.replace(request, cache_key="") for request in model.requests])
        part, whole = [
            timeless(await log.read(tl.ConversationKey(name=n))) for n in ("part", "whole")
        ]
        assert part == whole
        assert sequences[0] == sequences[1]

    asyncio.run(run())


def check_folds(whole: tl.Timeline, part: tl.Timeline) -> None:
    assert part.base == whole.checkpoint
    assert list(part.plans.latest.items()) == list(whole.plans.latest.items())
    assert (part.pool, part.kept_texts, part.pending) == (
        whole.pool,
        whole.kept_texts,
        whole.pending,
    )
    assert (part.calls, part.known_texts) == (whole.calls, whole.known_texts)
    assert (part.last_round, part.checkpoint) == (whole.last_round, whole.checkpoint)
    assert (part.seq, part.reactions.newest_seq) == (whole.seq, whole.reactions.newest_seq)
    assert part.reactions.user_reactions == whole.reactions.user_reactions
    assert part.resumable == whole.resumable
    assert [item.number for item in part.queued] == [item.number for item in whole.queued]


@over_lives
def test_a_checkpoint_comes_with_the_round_whose_prompt_needs_no_more(drawn: CutLife) -> None:
    blocks, _ = lived_afresh(drawn)
    for before, block in pairwise(blocks):
        if isinstance(block.body, tl.Checkpoint):
            assert isinstance(before.body, tl.RoundStart)
            assert before.body.window is not None
            assert block.body.covers <= before.body.window.start


@pytest.mark.corpus
@pytest.mark.campaign
def test_the_corpus_has_checkpoints_and_cuts_before_and_behind_them() -> None:
    flags = set[bool]()
    for drawn in scenarios(cut_lives, 25):
        blocks, _ = lived_afresh(drawn)
        for block in blocks:
            if isinstance(block.body, tl.Checkpoint):
                flags.add(block.seq < place_of(drawn, blocks))
    assert flags == {True, False}


class Counting(tl.MemoryLog):
    rows: int = 0

    async def read(self, conversation: tl.ConversationKey, **options: Any) -> Sequence[tl.Block]:
        items = await super().read(conversation, **options)
        self.rows += len(items)
        return items


async def old(turns: int) -> Counting:
    """A conversation of so many turns, summed up again and again."""
    log = Counting()
    await run_script([[LOOK]] * turns, afresh=True, log=log)
    return log


async def test_what_is_read_to_open_does_not_depend_on_what_was_before_the_checkpoint() -> None:
    log = await old(80)
    blocks = await log.read(HERE)
    read = dict[int, int]()
    for end in [block.seq for block in blocks if block.type == "react.exit"]:
        fork = tl.ConversationKey(name=f"up to {end}")
        await log.fork(HERE, fork, end)
        log.rows = 0
        timeline = await tl.open_timeline(log, fork)
        assert log.rows == len(timeline.blocks) + bool(timeline.base.covers)
        read[timeline.blocks[-1].turn] = log.rows
    first, last = ([read[turn] for turn in range(a, a + 20)] for a in (20, 61))
    assert max(last) <= max(first) < 80
    assert len(blocks) > 500


async def test_an_old_call_is_read_without_the_rest_of_the_conversation() -> None:
    log = await old(80)
    log.rows = 0
    here = await view_conversation(log, HERE)
    reading = await Reader(conversation=here).read(["tc:turn_1.c1.result"])
    assert [item.text for item in reading] == [f"seen {LONG}"]
    assert log.rows < 100


async def test_one_who_waited_hears_of_a_turn_that_ended_before_the_checkpoint() -> None:
    log = await old(20)
    timeline = await tl.open_timeline(log, HERE)
    assert 3 not in timeline.turns

    async def choose(timeline: tl.Timeline) -> int:
        return 3

    request = Request(conversation=HERE, choose=choose)
    result = await Turns(log, SystemClock()).run(request)
    assert (result.turn_id, result.answer, result.ok) == ("turn_3", "It is so [[S:1]].", True)


@pytest.mark.parametrize(
    ("made", "base"),
    [
        (tl.Checkpoint(covers=2, types=("user.prompt", "react.dream")), 0),
        (tl.Checkpoint(covers=2, types=("user.prompt",)), 2),
        (tl.Checkpoint(covers=3), 0),
        (tl.Unknown(stored_type="conv.checkpoint", version=2, stored="{}"), 0),
    ],
)
async def test_a_checkpoint_that_is_not_understood_is_none(made: tl.Body, base: int) -> None:
    log = tl.MemoryLog()
    entry = tl.Entry(body=tl.UserPrompt(text="one"), turn=tl.NEW_TURN)
    result = tl.Entry(body=tl.ToolResult(call_id="c1", tool="t", text="x"), turn=1)
    async with log.lease(HERE) as term:
        entries = [entry, result, tl.Entry(body=made, turn=1)]
        await log.append(HERE, entries, seen=0, term=term)
    timeline = await tl.open_timeline(log, HERE)
    assert timeline.base.covers == base
    assert len(timeline.blocks) == 3 - base
