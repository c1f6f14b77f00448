"""Lives in every protocol in which all may happen at once: steers, guards, pauses, limits, crashes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from loopline.models import ToolCall
from loopline.react import Limits
from tests.support.drawn_lives import (
    acts,
    call,
    failures,
    finds,
    fives,
    looks,
    malformed,
    others,
    plans,
    stalls,
    writes,
)
from tests.support.lives import Act, Kind, Life, Said

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
notes = st.sampled_from(["", "… [1] going", "✓ [1]", "thinking aloud\nof heron.py"])
steers = st.sampled_from(["", "", "", "", "rather this"])
busy: SearchStrategy[Act] = st.builds(Act, text=notes, calls=crowds, steer=steers)
early: SearchStrategy[Act] = st.builds(
    Act, text=st.sampled_from(["Early.", "✓ [1]\nEarly, by [[S:1]]."]), steer=steers
)
rounds = st.one_of([*[busy] * 16, *[acts] * 4, *[early] * 6, malformed, failures, stalls])
turns: SearchStrategy[Said] = st.builds(
    Said,
    text=st.sampled_from(["go on", "go on", "?go on", "@3000", "!"]),
    acts=st.lists(rounds, min_size=3, max_size=7).map(tuple),
    answer=st.sampled_from(["So it is.", "✓ [1]\nSo.", "See [[S:2,7]]."]),
    protocol=st.sampled_from(["native", "json", "tagged", "thought_action"]),
    pause=st.sampled_from([0.0, 10.0, 4_000.0]),
    between=st.sampled_from(["", "", "by the way"]),
    reopened=st.booleans(),
    dies_after=st.sampled_from([None] * 20 + list(range(3, 33, 3))),
    approves=st.booleans(),
    resumes=st.sampled_from([True, True, False]),
)

limits: SearchStrategy[list[Limits]] = st.tuples(
    st.sampled_from([Limits(max_iterations=most) for most in (1, 4, 6, 6, 9, 9)]),
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


def wild(turns: list[Said], limits: list[Limits], one: Kind, summary: str) -> Life:
    """A life of these turns under these limits."""
    together: Limits = {}
    for some in limits:
        together = {**together, **some}
    return Life(turns=tuple(turns), models=(one,), summaries=(summary,), limits=together)


roomy = st.sampled_from([Kind(window=window, counts=fives) for window in (14_000, 20_000, 60_000)])
wild_lives: SearchStrategy[Life] = st.builds(
    wild,
    st.lists(turns, min_size=1, max_size=3),
    limits,
    roomy,
    st.sampled_from(["Goal: go on.\nNext steps: answer.", "fail", ""]),
)


def _uncut(said: Said) -> Said:
    acts = tuple(
        replace(act, steer="", calls=tuple(one for one in act.calls if one.name != "life.stall"))
        for act in said.acts
    )
    return replace(said, acts=acts, dies_after=None)


def _without_cuts(life: Life) -> Life:
    return replace(life, turns=tuple(map(_uncut, life.turns)))


without_cuts: SearchStrategy[Life] = wild_lives.map(_without_cuts)
"""Lives in which every reply is heard to its end."""
