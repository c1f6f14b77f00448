"""Law 8, by what the model was sent, where the answer is written by a request of its own."""

from __future__ import annotations

import pytest

from loopline.react import PRESETS, Limits
from tests.support.inputs_in_requests import misplaced
from tests.support.interruption_scenario import Interruption, Kind, told

KINDS: tuple[Kind, ...] = ("steer", "followup", "recall")
THEN = "and now?"
LIMITS = {
    "as it is": Limits(answer_mode="synthesize"),
    "without a round left": Limits(answer_mode="synthesize", max_iterations=3),
}
LAST_STEPS = 40
"""How many steps before its end a turn is interrupted at, in which the last decision and the answer are."""


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("preset", [preset.name for preset in PRESETS])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_input_is_in_the_requests_of_the_round_that_takes_it_or_is_late(
    kind: Kind, preset: str, limits: str
) -> None:
    names = [preset.name for preset in PRESETS]
    last = (await told([], LIMITS[limits], preset=preset)).steps
    first = last - LAST_STEPS + names.index(preset)
    problems = dict[int, list[str]]()
    for step in range(first, last, len(names)):
        one = Interruption(step, kind, elsewhere=step % 2 == 0, seconds=step % 5)
        story = await told([one], LIMITS[limits], preset=preset, then=THEN)
        problems[step] = misplaced(story)
    assert {step: found for step, found in problems.items() if found} == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_for_the_answer_that_a_steer_cuts_off_loses_nothing(kind: Kind) -> None:
    """One is added just before the request, the other comes while the model writes."""
    limits = Limits(answer_mode="synthesize")
    last = (await told([], limits, preset="fim")).steps
    problems = dict[int, list[str]]()
    for step in range(last - 16, last, 2):
        both = [Interruption(step, kind, seconds=3), Interruption(step + 5, "steer")]
        problems[step] = misplaced(await told(both, limits, preset="fim", then=THEN))
    assert {step: found for step, found in problems.items() if found} == {}
