"""Two people approve a payment with edited arguments: wherever a process is killed, it is paid once, and as they approved."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from loopline.harness import Harness
from loopline.timeline import UserAnswer
from tests.crashes.killed_approvals import EDITED, bundle_of, ledger_of, model_of, pay_to_the_end
from tests.crashes.processes import finish, start, url

pytestmark = pytest.mark.campaign


async def check_and_do_the_rest(kind: str, folder: Path, point: int, said: set[str]) -> None:
    async with Harness.open(
        bundle_of(folder), store=url(folder / "talk.db"), model=model_of(kind)
    ) as harness:
        talk = harness.conversation("c")
        kept = [block.body for block in await talk.blocks(types="user.answer")]
        assert len(kept) >= len(said & {"edited", "approved"})
        assert len(await talk.blocks(types="react.exit")) >= ("approved" in said)
        await pay_to_the_end(talk, point)
        answers = [block.body for block in await talk.blocks(types="user.answer")]
        assert [(a.by, a.value) for a in answers if isinstance(a, UserAnswer)] == [
            ("ann", EDITED),
            ("bob", True),
        ]
    assert [line.rpartition(" ")[2] for line in await asyncio.to_thread(ledger_of, folder)] == [
        "30"
    ]


@pytest.mark.parametrize("kind", ["own", "child"])
def test_wherever_a_process_is_killed_the_approved_payment_is_made_once(
    quick_folder: Path, kind: str
) -> None:
    acknowledged = defaultdict[int, set[str]](set)
    for line in finish(start(kind, quick_folder, tasks="tests.crashes.killed_approvals")):
        number, what = line.split()
        acknowledged[int(number)].add(what)
    last = max(acknowledged)
    assert last > 30
    assert acknowledged[last] == {"asked", "edited", "approved"}
    for point in range(1, last + 1):
        folder = quick_folder / f"{point}"
        asyncio.run(check_and_do_the_rest(kind, folder, point, acknowledged[point]))
