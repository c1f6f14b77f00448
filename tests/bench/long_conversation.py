"""What a long conversation in a small window keeps within reach, and what a provider's cache reads of it.

`python -m tests.bench.long_conversation [--json]`. 300 turns with a call and an answer each, and a fact
planted in one block of every turn: in what the user says, a result, an argument, a note or an answer.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass

from loopline.prompt import past_requests
from loopline.prompt.caching import AnthropicCache, OpenAICache, simulate
from loopline.timeline import RangeSummary, RoundStart, Timeline
from tests.bench.program import print_table, read_options, say_json
from tests.support.recall_probe import OUTPUT_LIMIT, live

TURNS = 300
WINDOWS = (32_000, 24_000, 16_000)
ROUNDS = 50


@dataclass(frozen=True)
class Row:
    """One conversation. Sizes are in tokens, shares from 0 to 1."""

    budget: int
    largest_request: int
    summaries: int
    word_for_word: int
    by_ref: int
    lost: int
    read_of_held_50_anthropic: float
    read_of_held_50_openai: float
    read_of_held: float
    read_of_all: float
    cost_factor: float
    ms_a_turn: float


def measured(window: int) -> Row:
    start = time.perf_counter()
    lived = live(TURNS, window=window)
    elapsed = time.perf_counter() - start
    starts = [block.body for block in lived.blocks if isinstance(block.body, RoundStart)]
    sent = [past_request.as_sent for past_request in past_requests(Timeline(lived.blocks))]
    every = simulate(sent, AnthropicCache())
    return Row(
        budget=window - OUTPUT_LIMIT,
        largest_request=max(start.tokens for start in starts),
        summaries=sum(isinstance(block.body, RangeSummary) for block in lived.blocks),
        word_for_word=lived.held.word_for_word,
        by_ref=lived.held.by_ref,
        lost=len(lived.held.lost),
        read_of_held_50_anthropic=simulate(sent[:ROUNDS], AnthropicCache()).read_of_held,
        read_of_held_50_openai=simulate(sent[:ROUNDS], OpenAICache()).read_of_held,
        read_of_held=every.read_of_held,
        read_of_all=every.read_of_all,
        cost_factor=every.cost_factor,
        ms_a_turn=elapsed / TURNS * 1_000,
    )


def main() -> None:
    options = read_options(__doc__, json=False)
    rows = list[Row]()
    for window in WINDOWS:
        sys.stderr.write(f"a window of {window:,} tokens\n")
        rows.append(measured(window))
    if options.json:
        say_json(rows)
        return
    figures = [asdict(row) for row in rows]
    print_table(
        ("what", *(f"budget {row.budget:,}" for row in rows)),
        (
            (name.replace("_", " "), *(_shown(each[name]) for each in figures))
            for name in figures[0]
            if name != "budget"
        ),
    )


def _shown(value: float) -> str:
    return f"{value:,}" if value == int(value) and value > 1 else f"{value:,.3f}"


if __name__ == "__main__":
    main()
