"""Events of tools and workflows on the command line: a quiet line while it runs, a line of the timeline if durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.command import Loopline, write

SHOP = '''from loopline import BaseWorkflow, Bundle, ToolContext, TurnPayload, tool


@tool(effect="read")
async def count(context: ToolContext) -> str:
    """Count."""
    await context.emit("counted", {"teas": 3})
    return "3"


class Shop(BaseWorkflow):
    tools = (count,)

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        await self.emit("opened", {"steer": "\\x1b[2J"}, durable=True)
        await self.emit("greeted")


bundle = Bundle(id="shop", workflow=Shop)
'''


@pytest.fixture
def shop(tmp_path: Path) -> Loopline:
    write(tmp_path, {"shop.py": SHOP})
    return Loopline(tmp_path)


def test_what_a_workflow_emits_is_a_quiet_line_and_if_durable_one_of_the_timeline(
    shop: Loopline,
) -> None:
    ran = shop("run", "shop.py", "How many?", "-c", "c")
    assert ran.err.splitlines()[1:3] == ['opened {"steer":"\\u001b[2J"}', "greeted"]
    assert "opened" not in ran.out
    (row,) = shop("timeline", "c", "--type", "event.custom").out.splitlines()
    assert row.split("\t")[3:5] == ["event.custom", "ar:turn_1.event.custom.1"]
    assert row.split("\t")[-1] == 'opened {"steer":"\\u001b[2J"}'
    (block,) = [block for block in shop.blocks("c") if block["type"] == "event.custom"]
    assert block["body"] == {"name": "opened", "data": {"steer": "\x1b[2J"}, "call_id": ""}


def test_what_a_tool_emits_is_a_quiet_line_of_the_tool_command(shop: Loopline) -> None:
    ran = shop("tool", "shop.py", "shop.count", "{}")
    assert (ran.code, ran.out, ran.err) == (0, "3\n", 'counted {"teas":3}\n')
