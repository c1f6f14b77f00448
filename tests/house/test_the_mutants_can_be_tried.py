"""The command of mutants works: what was named can still be made, a draw is the same again, a trial tells."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.bench.mutants.mutations import drawn, mutants, sources_of
from tests.bench.mutants.named import NAMED, AnchorGone, Named
from tests.bench.mutants.trial import Copy, Coverage, tried
from tests.docs.pages import ROOT
from tests.house.tree import SDK
from tests.support.rows import each_row

LAW = "tests/laws/test_plans.py"


@each_row(NAMED)
def test_a_named_mutant_can_still_be_made(named: Named) -> None:
    mutant = named.mutant(SDK)
    source = (SDK / mutant.path).read_bytes()
    assert mutant.applied(source) != source
    ast.parse(mutant.applied(source))


def test_a_mutant_whose_anchor_is_gone_says_so() -> None:
    with pytest.raises(AnchorGone, match=r"0 times in timeline/plan\.py"):
        Named("gone", "timeline/plan.py", "this stands nowhere", "").mutant(SDK)


def test_a_draw_is_the_same_again_and_every_mutant_is_a_change_that_can_be_read() -> None:
    sources = sources_of(SDK, ["timeline"])
    some = drawn(sources, 50, seed=7)
    assert some == drawn(sources, 50, seed=7)
    assert some != drawn(sources, 50, seed=8)
    for mutant in some:
        changed = mutant.applied(sources[mutant.path])
        assert changed != sources[mutant.path]
        ast.parse(changed)


def test_docstrings_annotations_errors_and_protocols_are_left_alone() -> None:
    source = b'''"""Module."""
def f(a: int = 1) -> "x < 2":
    """Say a < b."""
    if not a:
        raise ValueError(f"{1 < 2}")
    return a + 2
class P(Protocol):
    def g(self) -> int:
        return 1
'''
    assert [(mutant.operator, mutant.text) for mutant in mutants("m.py", source)] == [
        ("constant", "2"),
        ("negation", "not (not a)"),
        ("negation", "(a)"),
        ("dropped return", "return None"),
        ("arithmetic", "((a) - (2))"),
        ("constant", "3"),
    ]


@pytest.mark.campaign
def test_a_trial_tells_a_mutant_that_a_law_kills_from_one_that_nothing_tests(
    tmp_path: Path,
) -> None:
    copy = Copy(ROOT, tmp_path)
    (mutant,) = (item.mutant(SDK) for item in NAMED if item.fault.startswith("a mark of the step"))
    before = (copy.package / mutant.path).read_bytes()
    names = {LAW: [f"{mutant.path}:{mutant.function}"]}
    killed = tried(copy, mutant, Coverage(names).of(mutant.path, mutant.function))
    assert (killed.outcome, killed.by.partition("::")[0]) == ("killed", LAW)
    assert tried(copy, mutant, []).outcome == "untested"
    assert copy.trial(mutant.path, before, [LAW], 120.0).outcome == "survived"
    assert (copy.package / mutant.path).read_bytes() == before
