"""Opening from a checkpoint: what is run, read and folded is what the whole would give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings

from loopline.reader import Conversed, Reader
from loopline.timeline import Block, Checkpoint, Past, Timeline, opened
from tests.support.resumed import HERE, Step, lived, lives, timeless


def checkpoints(blocks: Sequence[Block]) -> list[Checkpoint]:
    return [block.body for block in blocks if isinstance(block.body, Checkpoint)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lives)
def test_turns_record_the_same_whether_the_whole_was_read_or_what_a_checkpoint_needs(
    life: list[list[Step]],
) -> None:
    async def run() -> None:
        whole, asked = await lived(life, afresh=False)
        parts, asked_afresh = await lived(life, afresh=True)
        assert timeless(await parts.read(HERE)) == timeless(await whole.read(HERE))
        assert asked_afresh.requests == asked.requests

    asyncio.run(run())


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lives)
def test_every_ref_reads_the_same_whether_the_whole_was_read_or_what_a_checkpoint_needs(
    life: list[list[Step]],
) -> None:
    async def run() -> None:
        log, _ = await lived(life, afresh=True)
        blocks = await log.read(HERE)
        refs = [block.ref for block in blocks]
        refs += [ref.rpartition(".")[0] for ref in refs if ref.startswith("ar:")]
        refs += ["so:sources_pool[1-9]", "ar:turn_99.x", "tc:turn_1.c99.result", "ar:turn_1.x.7"]
        refs += ["artifact:conv.timeline.v1", "artifact:conv:sources_pool", "ks:a.md@0123456"]
        part = await opened(log, HERE)
        past = Past(log, HERE, part)
        read = await Reader(here=Conversed(part, past=past)).read(refs)
        assert list(read) == list(await Reader(here=Conversed(Timeline(blocks))).read(refs))

    asyncio.run(run())


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lives)
def test_folds_from_a_checkpoint_are_the_folds_of_the_whole(life: list[list[Step]]) -> None:
    async def run() -> None:
        log, _ = await lived(life, afresh=True)
        blocks = await log.read(HERE)
        whole, part = Timeline(blocks), await opened(log, HERE)
        assert bool(part.base.covers) == bool(checkpoints(blocks))
        assert list(part.plans.latest.items()) == list(whole.plans.latest.items())
        assert (part.pool, part.kept, part.pending) == (whole.pool, whole.kept, whole.pending)
        assert (part.calls, part.known_texts) == (whole.calls, whole.known_texts)
        assert (part.last_round, part.checkpoint) == (whole.last_round, whole.checkpoint)
        assert part.reactions.users == whole.reactions.users
        assert part.reactions.newest == whole.reactions.newest
        assert [one.number for one in part.cut] == [one.number for one in whole.cut]
        assert [one.number for one in part.unbegun] == [one.number for one in whole.unbegun]

    asyncio.run(run())
