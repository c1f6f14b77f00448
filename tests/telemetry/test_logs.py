"""A record of the logger `loopline` says in which turn it was made."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult, tool
from loopline.cli.options import JsonLines
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.doors.command import Loopline
from tests.support.child_runs import Cast, bundle

logger = logging.getLogger("loopline")


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def places(self) -> list[tuple[object, ...]]:
        """The conversation, turn and round of each."""
        found = [vars(record) for record in self.records]
        return [(record["conversation"], record["turn_id"], record["round"]) for record in found]

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What the logger is told at INFO."""
    handler, level = Kept(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


@tool(effect="read")
def threaded() -> str:
    """Log from a thread."""
    logger.info("from a thread")
    return "done"


@tool(effect="read")
async def awaited() -> str:
    """Log from the loop."""
    logger.info("from the loop")
    return "done"


TOOLS_SPECS = [{"module": __name__, "alias": "log"}]


class Logging(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        logger.info("from a workflow")
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


logs = Bundle(id="logs", workflow=Logging)


async def test_a_record_says_in_which_round_of_which_turn_it_was_made(kept: Kept) -> None:
    model = ScriptedModel([Call("log.awaited"), Call("log.threaded"), "Done.", "Again."])
    async with Harness.open(logs, store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("go")
        await harness.conversation("c").say("go")
        logger.info("from outside")
    told = dict(zip(kept.messages, kept.places, strict=True))
    assert told["from the loop"] == ("c", "turn_1", 1)
    assert told["from a thread"] == ("c", "turn_1", 2)
    assert told["from a workflow"] == ("c", "turn_2", 0)
    assert told["from outside"] == ("", "", 0)


async def test_the_records_of_a_child_run_are_its_own(kept: Kept) -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("go")
    assert [
        (place[0], message.split(" ", 2)[2].split(":")[0])
        for place, message in zip(kept.places, kept.messages, strict=True)
    ] == [
        ("c", "begins"),
        ("c", "round 1"),
        ("c~c1", "begins"),
        ("c~c1", "round 1"),
        ("c~c1", "ends"),
        ("c", "c1 kin.ask"),
        ("c", "round 2"),
        ("c", "ends"),
    ]


async def test_a_turn_says_how_it_gets_on(kept: Kept) -> None:
    model = Cast({"go": [Call("kin.question", text="Which?"), "Done."]})
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("go")
        await harness.conversation("c").resume({"c1": "this"})
    assert [message.removeprefix("c turn_1 ") for message in kept.messages] == [
        "begins: kin with cast",
        "round 1: tool_use, 1 calls, 10 + 5 tokens",
        "c1 waits for the user: question",
        "c1 kin.question: ok in 0 ms",
        "round 2: stop, 0 calls, 10 + 5 tokens",
        "ends: complete after 2 rounds, 0 ms",
    ]
    assert vars(kept.records[3])["status"] == "ok"


async def test_above_info_a_turn_says_nothing(kept: Kept) -> None:
    logger.setLevel(logging.WARNING)
    async with Harness.open(
        logs, store="memory:", model=ScriptedModel(["Done."]), clock=FakeClock()
    ) as harness:
        await harness.conversation("c").say("go")
    assert kept.messages == []


def test_a_record_is_one_line_of_json() -> None:
    try:
        raise ValueError("broken\nin two lines")
    except ValueError as error:
        record = logging.makeLogRecord(
            {
                "name": "loopline",
                "levelname": "ERROR",
                "msg": "%s\nbroke",
                "args": ("it",),
                "created": 0.5,
                "exc_info": (ValueError, error, error.__traceback__),
                "turn_id": "turn_1",
                "conversation": "",
                "tool": Path("x"),
            }
        )
    line = JsonLines().format(record)
    assert "\n" not in line
    value = json.loads(line)
    assert value.pop("error").endswith("ValueError: broken\nin two lines")
    assert value == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "ERROR",
        "logger": "loopline",
        "message": "it\nbroke",
        "turn_id": "turn_1",
        "tool": "x",
    }


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_command_logs_lines_of_json_when_it_answers_in_json(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path, {"LOOPLINE_STORE": "memory:"})
    assert loopline("new", "shop").code == 0
    ran = loopline("run", "shop", "Hello?", "-c", "talk", "-v", "--json")
    assert ran.value["turn_id"] == "turn_1"
    reported_lines = [line for line in lines(ran.err) if line["level"] == "INFO"]
    assert {(record["conversation"], record["turn_id"]) for record in reported_lines} == {
        ("talk", "turn_1")
    }
    assert reported_lines[-1]["reason"] == ran.value["exit_reason"]


def test_the_command_logs_lines_of_text_otherwise(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path, {"LOOPLINE_STORE": "memory:"})
    assert loopline("new", "shop").code == 0
    errors = loopline("run", "shop", "Hello?", "-c", "talk", "-v").err
    assert "INFO loopline: talk turn_1 begins: shop with offline" in errors.splitlines()
    assert "INFO" not in loopline("run", "shop", "Hello?", "-c", "talk").err
