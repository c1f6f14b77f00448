"""A conversation with blocks of most types, lived once, and its document."""

from __future__ import annotations

from functools import cache

from tests.support.scenario import (
    Act,
    Judged,
    Kind,
    Said,
    Scenario,
    ScenarioRun,
    Shown,
    run_scenario,
)
from tests.support.scenario_strategies import PHOTO, REPORT, call, find, look

LIFE = Scenario(
    turns=(
        Said(
            "look at src/heron.py",
            (
                Act(
                    "[D] SQLite it is", (call("react.plan", mode="new", steps=["look", "answer"]),)
                ),
                Act("✓ [1] seen", (look(6_000, 1), find(1, 300)), followup="also this"),
                Act("", (call("life.write", name="a", text="x" * 40),), pause=400.0),
                Act("", (look(20_000, 2), call("life.fail", message="no"))),
            ),
            answer="It is [[S:1]].",
            files=(PHOTO, REPORT),
        ),
        Said(
            "go on",
            (
                Act("", (look(6_000, 3), find(2, 2_000)), hides=Shown(1)),
                Act(""),
                Act("", (look(20_000, 4),), followup="take this back", recalled=True),
                Act("", (look(20_000, 5),)),
            ),
            answer="See [[S:2,7]].",
            judged=(Judged(1, "ok", "short"),),
        ),
        Said("and then", (Act("", (look(20_000, 6),), steer="stop that"),), reopened=True),
    ),
    models=(Kind(name="one", window=8_000), Kind(name="two")),
    summaries=("Goal: go on.\nNext steps: answer.",),
)


@cache
def lived() -> ScenarioRun:
    return run_scenario(LIFE)
