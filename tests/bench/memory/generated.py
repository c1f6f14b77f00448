"""Generated conversations of ten users, with the facts of `facts.yaml` planted in some of their turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import yaml
from pydantic import BaseModel, TypeAdapter

from loopline.memory import Owner
from loopline.timeline import Block, Body, Completion, MemoryLog, UserPrompt
from tests.support.past_turns import NOW, OWNERS, blocks_of

FACTS = Path(__file__).with_name("facts.yaml")
TURNS = 4
OTHER_TALK = """
Write a poem about the sea.|Waves come and go.
Translate good morning into French.|Bonjour.
Summarize this article for me.|It says that prices rise.
Give me five names for a shop.|Corner, Harbour, Lantern, Maple and Pine.
Why is the sky blue?|Air scatters short waves more than long ones.
Check the spelling of this letter.|There are no mistakes.
Explain recursion to a child.|A doll in a doll in a doll.
What is the capital of Peru?|Lima.
Suggest a film for tonight.|A comedy from the sixties.
How long do I boil an egg?|Seven minutes.
Make the text shorter, please.|Done.
Which planet is the largest?|Jupiter.
Draft an invitation to the picnic.|You are welcome on Saturday.
Convert ten miles to kilometres.|About sixteen.
List the months with thirty days.|April, June, September, November.
Tell me a joke about programmers.|There are ten kinds of people.
Sort these numbers for me.|One, two, three.
Thank you, go on.|With pleasure.
Could you say that again?|Of course.
Is there a shorter way?|There is.
How do magnets work?|Their fields add up.
Who painted the Night Watch?|Rembrandt.
Plan a week of lunches.|Soup on Monday, salad on Tuesday.
What does idempotent mean?|Twice is the same as once.
"""
ACKNOWLEDGED = ["Noted.", "I have written that down.", "Good to know.", "All right.", "I see."]


class Fact(BaseModel):
    """What a user tells, and a question in other words."""

    tells: str
    asks: str


@dataclass(frozen=True)
class PlantedFact:
    """A fact that one user told in a turn of a conversation; `name` is a made-up word of nobody else."""

    owner: Owner
    conversation: str
    turn: int
    ts: datetime
    tells: str
    asks: str
    name: str


@dataclass(frozen=True)
class Generated:
    log: MemoryLog
    facts: Sequence[PlantedFact]


async def generate(users: int, conversations: int, seed: int) -> Generated:
    """Return a log with so many conversations of each user; every user tells each fact at most once."""
    random, log, planted = Random(seed), MemoryLog(), list[PlantedFact]()
    facts = TypeAdapter(list[Fact]).validate_python(yaml.safe_load(FACTS.read_text()))
    names = _names(random)
    for owner in OWNERS[:users]:
        told = random.sample(facts, min(len(facts), conversations * 2 // 3))
        for number in range(conversations):
            fact = told[number] if number < len(told) else None
            key = owner.key(f"talk{number}")
            blocks, turn = _conversation(random, fact, name := next(names))
            await log.restore(key, blocks)
            if fact is not None:
                ts = next(block.ts for block in blocks if block.turn == turn)
                tells = fact.tells.format(name=name)
                planted.append(PlantedFact(owner, key.name, turn, ts, tells, fact.asks, name))
    return Generated(log, planted)


def _names(random: Random) -> Iterator[str]:
    texts = set[str]()
    while True:
        name = "".join(random.choice("bdfgklmnprtvz") + random.choice("aeiou") for _ in range(4))
        if name not in texts:
            texts.add(name)
            yield name.capitalize()


def _conversation(random: Random, fact: Fact | None, name: str) -> tuple[list[Block], int]:
    talk = [line.split("|") for line in OTHER_TALK.strip().splitlines()]
    turns: list[list[Body]] = [
        [UserPrompt(text=asks), Completion(text=answers)]
        for asks, answers in random.sample(talk, TURNS)
    ]
    turn = random.randrange(TURNS)
    if fact is not None:
        prompt = UserPrompt(text=fact.tells.format(name=name))
        turns[turn] = [prompt, Completion(text=random.choice(ACKNOWLEDGED))]
    started = NOW - timedelta(days=random.randrange(1, 300))
    return blocks_of(turns, started), turn + 1
