"""The runner of a program dies at any append: its calls are made once, have one result, and it is not run again."""

from __future__ import annotations

from collections import Counter

import pytest

from loopline import Harness, LooplineError, tool
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import MemoryLog, ProxiedCall, ProxiedResult, ToolResult
from tests.support.crashing_log import CrashingLog
from tests.support.programs import bundle

ORDERS: list[str] = []
PROGRAM = 'for name in ("green", "black"): await tools.call("shop.order", name=name)'


@tool(effect="write")
def order(name: str) -> str:
    """Order a kind of tea."""
    ORDERS.append(name)
    return f"ordered {name}"


@pytest.mark.parametrize("kept", range(3, 11))
async def test_a_program_that_was_cut_off_is_not_run_again(kept: int) -> None:
    ORDERS.clear()
    log, memory = CrashingLog(stored := MemoryLog()), stored
    call = Call("exec.python", contract=[], program=PROGRAM)
    log.left = kept
    try:
        async with Harness.open(
            bundle(order),
            store=log,
            model=ScriptedModel([call, "Done."], strict=False),
            clock=FakeClock(),
        ) as harness:
            await harness.conversation("c").say("go")
    except LooplineError:  # the runner is dead
        before = list(ORDERS)
        async with Harness.open(
            bundle(order),
            store=memory,
            model=ScriptedModel(["Done."], strict=False),
            clock=FakeClock(),
        ) as harness:
            talk = harness.conversation("c")
            await talk.resume()
            bodies = [block.body for block in await talk.blocks()]
        begun = any(
            isinstance(body, ToolResult) and "not run again" in body.text for body in bodies
        )
        assert not begun or before == ORDERS
        calls = [body.call_id for body in bodies if isinstance(body, ProxiedCall)]
        results = [body.call_id for body in bodies if isinstance(body, ProxiedResult)]
        assert Counter(calls) == Counter(results)
        for body in bodies:
            if isinstance(body, ToolResult) and "not run again" in body.text:
                assert body.status == "error"
                assert all(f"tc:turn_1.{call_id}.result" in body.text for call_id in calls)
    assert max(Counter(ORDERS).values(), default=0) <= 1
