"""Every event of the seeds is told as its row on the page says and has a test, or the page says why not."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from loopline.events import DialectName
from loopline.models import Json, JsonObject
from tests.docs.pages import ROOT
from tests.house.tree import functions
from tests.support.rows import each_row

PAGE = ROOT / "docs" / "internals" / "dialect-events.md"
GOLDEN = ROOT / "tests" / "dialects" / "golden"
EVENTS: dict[str, tuple[str, ...]] = {
    "fim": (
        *("step", "thinking", "iteration", "answer", "compact", "phase", "inject", "done", "end"),
        *("awaiting_confirmation", "post_processing", "suggestions", "resume_done"),
    ),
    "nadoo": (
        *("node_started", "agent_iteration", "agent_tool_call", "agent_tool_result", "llm_token"),
        *("llm_finished", "node_finished", "context_trimmed", "question_asked"),
    ),
    "chatcli": (
        *("log", "agent turn", "tool_call", "tool result", "AgentEvent", "Started", "Completed"),
        *("Failed", "message", "mailbox", "permission_request"),
    ),
    "beakr": (
        *("channel", "messages", "turn", "pending_tools", "input_tokens", "output_tokens"),
        *("stop_reason", "llm_response", "token", "notice", "ask_user", "end"),
    ),
    "kdcube": (
        *("chat_start", "chat_step", "chat_delta", "chat_complete", "chat_error", "chat_service"),
        *("conv_status", "ready", "server_shutdown", "chat.start", "chat.step", "chat.delta"),
        *("chat.complete", "chat.error", "chat.conversation.title", "chat.conversation.accepted"),
        *("chat.conversation.turn.completed", "chat.turn.summary", "chat.followups", "chat.files"),
        *("chat.citations", "accounting.usage", "solver.react.decision", "rate_limit.*"),
        *("gateway.*", "queue.continuation.accepted", "conv.status"),
    ),
}
"""What each seed calls its events, their types, channels and messages."""
NAMES = [(seed, name) for seed, names in EVENTS.items() for name in names]
_UNSAID = re.compile(r"\| (\w+) \| (`[^{}]+`) \| ([^|]+) \|")
_ROW = re.compile(r"\| (\w+) \| `(\w+)` \| `\{(.*)\}` \| \[(.+)\]\((.+)\) \|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event: whose, its keys with the values that are always these, and the test that holds it."""

    seed: str
    event: str
    keys: dict[str, str]
    sentence: str
    path: Path

    def __str__(self) -> str:
        return f"{self.seed} {self.event} {self.keys}"

    def is_told_by(self, record: JsonObject) -> bool:
        """Whether the record is of this event and has all its keys."""
        if record["event"] != self.event:
            return False
        return all(has(record["data"], key, value) for key, value in self.keys.items())


def has(data: Json, key: str, value: str) -> bool:
    """Whether there is something at the end of the path; with a value, exactly that text."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return not value or data == value


def rows() -> list[Row]:
    """The rows of the page's table."""
    found = [_ROW.fullmatch(line) for line in PAGE.read_text("utf-8").splitlines()]
    return [_row(*match.groups()) for match in found if match is not None]


def _row(seed: str, event: str, keys: str, sentence: str, path: str) -> Row:
    pairs = [part.partition(": ") for part in keys.split(", ") if part]
    return Row(
        seed=seed,
        event=event,
        keys={key: value for key, _, value in pairs},
        sentence=sentence,
        path=(PAGE.parent / path).resolve(),
    )


def unsaid() -> list[tuple[str, str]]:
    """The events that the page says are not told of."""
    found = [_UNSAID.fullmatch(line) for line in PAGE.read_text("utf-8").splitlines()]
    return [
        (match[1], name) for match in found if match for name in re.findall("`([^`]+)`", match[2])
    ]


@cache
def written(seed: str) -> list[JsonObject]:
    """The records of the seed's golden."""
    lines = (GOLDEN / f"{seed}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


ROWS = rows()


@each_row(ROWS)
def test_an_event_of_a_seed_is_told_with_its_keys(row: Row) -> None:
    assert any(row.is_told_by(record) for record in written(row.seed))


@each_row(ROWS)
def test_an_event_of_a_seed_has_a_test(row: Row) -> None:
    name = f"test_{row.sentence.replace(' ', '_')}"
    assert name in [function.name for function in functions(row.path)]


@each_row(NAMES)
def test_every_event_of_a_seed_has_a_row_or_a_reason_why_it_has_none(seed: str, name: str) -> None:
    told = [row for row in ROWS if row.seed == seed and name in {row.event, *row.keys.values()}]
    assert bool(told) != ((seed, name) in unsaid())


def test_no_row_of_the_table_is_lost() -> None:
    counted = Counter(row.seed for row in ROWS)
    assert counted == {"fim": 15, "nadoo": 9, "chatcli": 9, "beakr": 11, "kdcube": 11}


def test_nothing_else_is_said_to_be_left_out() -> None:
    assert {*unsaid()} <= {*NAMES}
    assert {*EVENTS, "plain", "ag-ui", "vercel"} == set(get_args(DialectName))


@pytest.mark.parametrize(
    ("data", "there"),
    [({"a": {"b": "x"}}, True), ({"a": {"b": "y"}}, False), ({"a": "x"}, False), ({}, False)],
)
def test_a_key_that_is_not_there_is_noticed(data: JsonObject, there: bool) -> None:
    assert has(data, "a.b", "x") is there
