"""Law 16: no sum of a turn and its child runs exceeds its limits in tokens, cost and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from loopline import Harness
from loopline.errors import ModelRateLimited, ModelStreamBroken, ModelTimedOut
from loopline.models import Capabilities, Json, Prompt, ToolCall, Usage
from loopline.react import Limits
from loopline.testing import FakeClock
from tests.support import child_runs
from tests.support.billed_model import PRICE, BillingModel, Move
from tests.support.examples import examples

FALSE_REPORTS = (Usage(), Usage(input_tokens=-(10**6)), Usage(output_tokens=10**30))
DEAR = replace(PRICE, input=4.0, output=20.0)


@dataclass(frozen=True)
class Life:
    """A turn: what its runs do, whoever comes to it first, in which window, and under which limits."""

    moves: Sequence[Move]
    window: int
    limits: Limits


def calls(name: str, *arguments: Mapping[str, Json]) -> Move:
    return Move(
        calls=tuple(ToolCall(name=name, arguments=dict(argument)) for argument in arguments)
    )


def crew(size: int) -> Move:
    return calls("kin.panel", {"tasks": [f"part {n}" for n in range(size)]})


def beside(size: int) -> Move:
    return calls("kin.ask", *({"task": f"share {n}"} for n in range(size)))


sizes = st.integers(1, 4)
looks = st.sampled_from([0, 2_000, 6_000, 12_000]).map(
    lambda n: calls("play.look", {"text": "x" * n})
)
answers = st.builds(Move, text=st.just("So."), words=st.sampled_from([0, 50, 1_000, 30_000]))
broken = st.builds(
    Move,
    text=st.just("So"),
    words=st.sampled_from([0, 300]),
    fails=st.sampled_from([ModelStreamBroken("broken"), ModelTimedOut("late")]),
)
turned_away = st.just(Move(fails=ModelRateLimited("later", retry_after=1.0), works=False))
odd = st.sampled_from([Move(), Move(text="No.", refuses=True), Move(text='{"tool'), Move(words=9)])
questions = st.just(calls("kin.question", {"text": "Which?"}))
crews = sizes.map(crew)
plain = st.one_of([looks] * 3 + [crews] * 2 + [sizes.map(beside), answers, odd, questions])
moves = st.builds(
    replace,
    st.one_of([plain] * 4 + [broken, turned_away]),
    reported=st.sampled_from([None, None, None, *FALSE_REPORTS]),
    ticks=st.integers(0, 3),
    seconds=st.sampled_from([0.0, 0.0, 1.0, 40.0]),
)
limits = st.builds(
    Limits,
    deadline_seconds=st.sampled_from([None, 30.0, 120.0]),
    select_tools=st.booleans(),
    max_tokens=st.none() | st.integers(2_000, 40_000),
    max_cost=st.none() | st.floats(0.001, 0.1),
    max_iterations=st.integers(2, 8),
    answer_mode=st.sampled_from(["direct", "direct", "synthesize"]),
    on_exhausted=st.sampled_from(["force", "force", "summary", "partial"]),
    protocol=st.sampled_from(["native", "json", "tagged"]),
    model_retries=st.sampled_from([0, 3]),
)
lives = st.builds(
    Life, st.lists(moves, min_size=6, max_size=24), st.sampled_from([6_000, 6_000, 100_000]), limits
)


async def live(life: Life) -> tuple[BillingModel, ...]:
    """What each model of the chain was asked in the turn, which came to an end."""
    remaining_moves, clock = list(life.moves), FakeClock()

    def play(prompt: Prompt) -> Move:
        del prompt
        return remaining_moves.pop(0) if remaining_moves else Move(text="Done.")

    chain = tuple(
        BillingModel(
            play,
            name=name,
            capabilities=Capabilities(window=life.window, output_limit=1_500, price=price),
            clock=clock,
        )
        for name, price in (("cheap", PRICE), ("dear", DEAR))
    )
    async with Harness.open(
        child_runs.bundle, store="memory:", model=chain, clock=clock
    ) as harness:
        talk = harness.conversation("c")
        result = await talk.say("go", **life.limits)
        while result.exit_reason == "paused":
            result = await talk.resume({item.call_id: "this one" for item in result.pending})
        assert result.answer or result.exit_reason == "error"
    return chain


@examples(120)
@given(lives)
def test_a_turn_and_its_child_runs_keep_within_its_tokens_cost_and_time(life: Life) -> None:
    chain = asyncio.run(live(life))
    bills = [bill for model in chain for bill in model.bills]
    tokens, cost = life.limits.get("max_tokens"), life.limits.get("max_cost")
    deadline = life.limits.get("deadline_seconds")
    assert tokens is None or sum(model.tokens for model in chain) <= tokens
    assert cost is None or sum(model.cost for model in chain) <= cost
    assert deadline is None or all(bill.at < deadline for bill in bills)
