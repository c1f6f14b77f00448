"""Law 8, by what the model was sent, where the answer is written by a request of its own."""

from __future__ import annotations

from typing import get_args

import pytest

from loopline.react import Limits, PresetName
from tests.support.examples import sampled
from tests.support.inputs_in_requests import misplaced
from tests.support.interruption_scenario import Interruption, Kind, told

PRESET_NAMES: tuple[PresetName, ...] = get_args(PresetName)
KINDS: tuple[Kind, ...] = ("steer", "followup", "recall")
THEN = "and now?"
LIMITS = {
    "as it is": Limits(answer_mode="synthesize"),
    "without a round left": Limits(answer_mode="synthesize", max_iterations=3),
}
LAST_STEPS = 18
"""How many steps before its end a turn is interrupted at: those of the last decision and the answer."""


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("preset", sampled(PRESET_NAMES, 2))
async def test_an_input_is_in_the_requests_of_the_round_that_takes_it_or_is_late(
    preset: PresetName, limits: str
) -> None:
    """Each preset has every third step; `python -m tests.bench.interruptions` has all of them."""
    last = (await told([], LIMITS[limits], preset=preset)).steps
    place = PRESET_NAMES.index(preset)
    problems = dict[int, list[str]]()
    for number, step in enumerate(range(last - LAST_STEPS + place % 3, last, 3)):
        kind = KINDS[(number + place) % len(KINDS)]
        one = Interruption(step, kind, elsewhere=step % 2 == 0, seconds=step % 5)
        story = await told([one], LIMITS[limits], preset=preset, then=THEN)
        problems[step] = misplaced(story)
    assert {step: found for step, found in problems.items() if found} == {}


async def test_a_request_for_the_answer_that_a_steer_cuts_off_loses_nothing() -> None:
    """A followup comes just before the request, and a steer while the model writes."""
    limits = Limits(answer_mode="synthesize")
    last = (await told([], limits, preset="fim")).steps
    problems = dict[int, list[str]]()
    for step in range(last - 16, last - 2, 2):
        both = [Interruption(step, "followup"), Interruption(step + 5, "steer")]
        problems[step] = misplaced(await told(both, limits, preset="fim", then=THEN))
    assert {step: found for step, found in problems.items() if found} == {}
