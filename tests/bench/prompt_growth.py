"""What every prompt carries of a long conversation: a plan and a note in each of thousands of turns.

`python -m tests.bench.prompt_growth [--json] [--turns N]`: 3,000 turns with a plan and a note each in a window of
8,000 tokens, once with the plans completed and once with all left open, and 300 turns with four open plans of
40 steps. Sizes are in tokens,
times are CPU time. It takes some minutes.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from tests.bench.program import print_table, read_options, say_json
from tests.support.prompt_growth import Carried, Diary, keep

TURNS = 3_000
PLACES = (10, 100, 1_000, 3_000)


@dataclass(frozen=True)
class Row:
    what: str
    turns: int
    errors: int
    budget: int
    largest_request: int
    carried: dict[int, int]
    ms_a_turn: dict[int, float]
    summaries: int


def measured(what: str, lived: Carried) -> Row:
    turns = lived.diary.turns
    places = [place for place in PLACES if place < turns] + [turns]
    return Row(
        what=what,
        turns=turns,
        errors=len(lived.errors),
        budget=lived.budget,
        largest_request=lived.largest,
        carried={place: lived.around(place) for place in places},
        ms_a_turn={place: round(lived.milliseconds(place), 1) for place in places},
        summaries=lived.summaries,
    )


def main() -> None:
    options = read_options(__doc__, turns=TURNS, json=False)
    turns: int = options.turns
    diaries = {
        "plans completed": Diary(turns),
        "plans left open": Diary(turns, left_open=True),
        "four plans of 40 steps": Diary(min(turns, 300), steps=40, standing=4),
    }
    rows = list[Row]()
    for what, diary in diaries.items():
        sys.stderr.write(f"{diary.turns} turns, {what}\n")
        lived = asyncio.run(keep(diary))
        for error in lived.errors[:3]:
            sys.stderr.write(f"{error}\n")
        rows.append(measured(what, lived))
    if options.json:
        say_json(rows)
        return
    print_table(
        ("what", "errors", "largest of budget", "carried at turn", "CPU ms a turn at"),
        (
            (
                f"{row.turns:,} turns, {row.what}",
                f"{row.errors}",
                f"{row.largest_request:,} of {row.budget:,}",
                ", ".join(f"{at:,}: {tokens:,}" for at, tokens in row.carried.items()),
                ", ".join(f"{at:,}: {ms}" for at, ms in row.ms_a_turn.items()),
            )
            for row in rows
        ),
    )


if __name__ == "__main__":
    main()
