"""Every test that the command of attacks runs by name is there, and what breaks is told."""

from __future__ import annotations

import ast

from tests.bench.attacks.attempts import TRIED, outcome
from tests.bench.attacks.outcome import Tally
from tests.bench.rounds import ROOT


def functions(file: str) -> set[str]:
    parsed = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in parsed.body if isinstance(node, kinds)}


def test_every_attack_that_a_test_makes_has_its_test() -> None:
    missing = [
        f"{file}::{name}"
        for row in TRIED
        for file, names in row.tests
        for name in names
        if name not in functions(file)
    ]
    assert missing == []


def test_an_attempt_that_got_through_or_was_not_made_does_not_hold() -> None:
    row = TRIED[0]
    ((file, names),) = row.tests
    held = {(file, name): [True, True] for name in names}
    assert outcome(row, held).holds
    assert not outcome(row, {**held, (file, names[0]): [True, False]}).holds
    assert not outcome(row, dict(list(held.items())[1:])).holds


def test_a_campaign_in_which_something_broke_does_not_hold() -> None:
    tally = Tally()
    tally.done["kills"] = 3
    assert tally.outcome("a", "").holds
    tally.expect(False, "acknowledged block lost", 2)
    row = tally.outcome("a", "")
    assert (row.holds, row.now) == (False, "3 kills; 2 × acknowledged block lost")
