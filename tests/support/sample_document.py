"""A conversation with blocks of most types, lived once, and its document."""

from __future__ import annotations

from functools import cache

from tests.support import scenario
from tests.support.scenario_strategies import PHOTO, REPORT, call, find, look

LIFE = scenario.Scenario(
    turns=(
        scenario.Said(
            "look at src/heron.py",
            (
                scenario.Act(
                    "[D] SQLite it is", (call("react.plan", mode="new", steps=["look", "answer"]),)
                ),
                scenario.Act("✓ [1] seen", (look(6_000, 1), find(1, 300)), followup="also this"),
                scenario.Act("", (call("life.write", name="a", text="x" * 40),), pause=400.0),
                scenario.Act("", (look(20_000, 2), call("life.fail", message="no"))),
            ),
            answer="It is [[S:1]].",
            files=(PHOTO, REPORT),
        ),
        scenario.Said(
            "go on",
            (
                scenario.Act("", (look(6_000, 3), find(2, 2_000)), hides=scenario.Shown(1)),
                scenario.Act(""),
                scenario.Act("", (look(20_000, 4),), followup="take this back", recalled=True),
                scenario.Act("", (look(20_000, 5),)),
            ),
            answer="See [[S:2,7]].",
            judged=(scenario.Judged(1, "ok", "short"),),
        ),
        scenario.Said(
            "and then", (scenario.Act("", (look(20_000, 6),), steer="stop that"),), reopened=True
        ),
    ),
    models=(scenario.Kind(name="one", window=8_000), scenario.Kind(name="two")),
    summaries=("Goal: go on.\nNext steps: answer.",),
)


@cache
def lived() -> scenario.ScenarioRun:
    return scenario.run_scenario(LIFE)
