"""Interruptions as hypothesis draws them: any kind, at any step, here or elsewhere, under any limits."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from loopline.react import Limits
from tests.support.interruption_scenario import Fault, Interruption

MOST_STEPS = 175
"""The steps of a story that nobody interrupts."""


@dataclass(frozen=True)
class Drawn:
    """What the user does in a story, its limits, and where its first model gives way to another, and how."""

    interruptions: tuple[Interruption, ...]
    limits: Limits
    fault: tuple[int, Fault] | None


def _together(some: tuple[Limits, ...]) -> Limits:
    limits: Limits = {}
    for item in some:
        limits = {**limits, **item}
    return limits


interruptions: SearchStrategy[Interruption] = st.builds(
    Interruption,
    step=st.integers(1, MOST_STEPS),
    kind=st.sampled_from(["steer", "steer", "followup", "followup", "stop", "wait"]),
    elsewhere=st.booleans(),
    seconds=st.sampled_from([0.01, 0.1, 86_400.0]),
)
limits: SearchStrategy[Limits] = st.tuples(
    st.sampled_from([Limits(), *(Limits(max_iterations=count) for count in (1, 2, 3, 5))]),
    st.sampled_from([Limits(), Limits(), *(Limits(deadline_seconds=s) for s in (0.02, 0.1))]),
    st.sampled_from([Limits(), Limits(max_tokens=3_000), Limits(max_tokens=30_000)]),
    st.sampled_from([Limits(), Limits(on_exhausted="summary"), Limits(on_exhausted="partial")]),
    st.sampled_from([Limits(), Limits(), Limits(answer_mode="synthesize")]),
    st.sampled_from([Limits(), Limits(min_rounds=3), Limits(early_stop=False, max_iterations=6)]),
).map(_together)
faults: SearchStrategy[Fault] = st.sampled_from(["refuses", "times out"])
drawn: SearchStrategy[Drawn] = st.builds(
    Drawn,
    st.lists(interruptions, min_size=1, max_size=4).map(tuple),
    limits,
    st.none() | st.tuples(st.integers(0, 4), faults),
)
