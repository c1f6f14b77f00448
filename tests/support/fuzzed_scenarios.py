"""Scenarios in every protocol in which all may happen at once: steers, guards, pauses, limits, crashes.

Their chains are of models of different families, of which some refuse or time out; every turn has a plan and notes,
and where one waits for the user, it may do so for days.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from loopline.models import ToolCall
from loopline.react import Limits
from tests.support.scenario import Act, Kind, Said, Scenario
from tests.support.scenario_strategies import (
    TAILS,
    acts,
    call,
    failures,
    finds,
    fives,
    looks,
    malformed,
    new_plans,
    others,
    plans,
    stalls,
    writes,
)

guarded = st.sampled_from(
    [
        call("life.write", name="dear", text="asked about"),
        call("life.write", name="dear", text="and again"),
        call("life.write", name="forbidden", text="denied"),
        call("life.ask", question="Which one?"),
        call("life.secret"),
        call("life.linger"),
    ]
)
mixed = guarded | guarded | looks | writes | finds | plans | others
crowds: SearchStrategy[tuple[ToolCall, ...]] = st.lists(mixed, min_size=2, max_size=5).map(tuple)
notes = st.sampled_from(
    ["… [1] going", "✓ [1]", "thinking aloud\nof heron.py", "[D] SQLite it is\n[P] short answers"]
)
steers = st.sampled_from(["", "", "", "rather this"])
busy: SearchStrategy[Act] = st.builds(Act, text=notes, calls=crowds, steer=steers)
early: SearchStrategy[Act] = st.builds(
    Act, text=st.sampled_from(["Early.", "✓ [1]\nEarly, by [[S:1]]."]), steer=steers
)
declined = st.sampled_from([Act("I will", refuses=True), Act("I am", times_out=True)])
rounds = st.one_of(
    [*[busy] * 16, *[acts] * 4, *[early] * 6, *[declined] * 3, malformed, failures, stalls]
)
planned: SearchStrategy[Act] = st.builds(
    Act, text=notes, calls=st.tuples(new_plans, guarded | mixed)
)


def _led(first: Act, others: list[Act]) -> tuple[Act, ...]:
    return (first, *others)


turns: SearchStrategy[Said] = st.builds(
    Said,
    text=st.sampled_from(["go on", "go on", "?go on", "@3000", "!"]),
    acts=st.builds(_led, planned, st.lists(rounds, min_size=3, max_size=6)),
    model=st.sampled_from([0, 0, 0, 1]),
    answer=st.sampled_from(["So it is.", "✓ [1]\nSo.", "See [[S:2,7]]."]),
    protocol=st.sampled_from(["native", "json", "tagged", "thought_action"]),
    pause=st.sampled_from([0.0, 10.0, 4_000.0]),
    between=st.sampled_from(["", "", "by the way"]),
    reopened=st.booleans(),
    dies_after=st.sampled_from([None] * 20 + list(range(3, 33, 3))),
    approves=st.booleans(),
    resumes=st.sampled_from([True, True, True, False]),
    rests=st.sampled_from([0.0, 3 * 3_600.0, 3 * 86_400.0]),
    meanwhile=st.sampled_from(["", "", "by the way, hurry"]),
    rather=st.sampled_from(["", "", "", "rather that"]),
    answered_elsewhere=st.booleans(),
)

limits: SearchStrategy[list[Limits]] = st.tuples(
    st.sampled_from([Limits(max_iterations=count) for count in (1, 4, 6, 6, 9, 9)]),
    st.sampled_from(
        [
            Limits(),
            Limits(),
            Limits(early_stop=False),
            Limits(min_rounds=2),
            Limits(max_tokens=20_000),
        ]
    ),
    st.sampled_from([Limits(), Limits(answer_mode="synthesize")]),
    st.sampled_from([Limits(), Limits(on_exhausted="summary"), Limits(on_exhausted="partial")]),
    st.sampled_from([Limits(), Limits(parallel_tools=2), Limits(repairs=None)]),
).map(list)


def fuzzed_scenario(
    turns: list[Said], limits: list[Limits], kinds: list[Kind], summary: str, chained: bool
) -> Scenario:
    together: Limits = {}
    for limit in limits:
        together = {**together, **limit}
    names = ("one", "two", "three")
    models = tuple(replace(kind, name=name) for kind, name in zip(kinds, names, strict=False))
    return Scenario(tuple(turns), models, (summary,), together, chained)


roomy: SearchStrategy[Kind] = st.builds(
    Kind,
    window=st.sampled_from([14_000, 20_000, 60_000]),
    counts=st.just(fives),
    tail=st.sampled_from(TAILS),
    acts=st.sampled_from([True, True, False]),
    writes_json=st.booleans(),
    wire=st.sampled_from(["living", "other"]),
)
fuzzed_scenarios: SearchStrategy[Scenario] = st.builds(
    fuzzed_scenario,
    st.lists(turns, min_size=1, max_size=3),
    limits,
    st.lists(roomy, min_size=1, max_size=3) | st.lists(roomy, min_size=2, max_size=3),
    st.sampled_from(["Goal: go on.\nNext steps: answer.", "fail", ""]),
    st.sampled_from([True, True, True, False]),
)


def _uncut(said: Said) -> Said:
    acts = tuple(
        replace(
            act,
            steer="",
            times_out=False,
            calls=tuple(call for call in act.calls if call.name != "life.stall"),
        )
        for act in said.acts
    )
    return replace(said, acts=acts, dies_after=None)


def without_cuts(scenario: Scenario) -> Scenario:
    """The scenario with every reply heard to its end."""
    return replace(scenario, turns=tuple(map(_uncut, scenario.turns)))
