"""Every event of the seeds' tables is on its page, is told as its row says, and has a test."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopline.events import DIALECTS
from loopline.models import Json, JsonObject
from tests.docs.pages import ROOT
from tests.house.tree import functions

PAGE = ROOT / "docs" / "sdk" / "events-README.md"
GOLDEN = ROOT / "tests" / "dialects" / "golden"
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
    pairs = [one.partition(": ") for one in keys.split(", ") if one]
    return Row(
        seed=seed,
        event=event,
        keys={key: value for key, _, value in pairs},
        sentence=sentence,
        path=(PAGE.parent / path).resolve(),
    )


def written(seed: str) -> list[JsonObject]:
    """The records of the seed's golden."""
    lines = (GOLDEN / f"{seed}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_event_of_a_seed_is_told_with_its_keys(row: Row) -> None:
    assert any(row.is_told_by(record) for record in written(row.seed))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_event_of_a_seed_has_a_test(row: Row) -> None:
    name = f"test_{row.sentence.replace(' ', '_')}"
    assert name in [function.name for function in functions(row.path)]


def test_the_table_has_every_event_of_every_seed() -> None:
    counted = Counter(row.seed for row in ROWS)
    assert counted == {"fim": 15, "nadoo": 9, "chatcli": 9, "beakr": 11, "kdcube": 11}
    assert {*counted, "plain"} == set(DIALECTS)


@pytest.mark.parametrize(
    ("data", "there"),
    [({"a": {"b": "x"}}, True), ({"a": {"b": "y"}}, False), ({"a": "x"}, False), ({}, False)],
)
def test_a_key_that_is_not_there_is_noticed(data: JsonObject, there: bool) -> None:
    assert has(data, "a.b", "x") is there
