"""Generated conversations of several users, each with facts that only its user told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from loopline.memory import Owner
from loopline.timeline import Block, Body, Completion, ConversationKey, Notes, UserPrompt

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OWNERS = [
    Owner(user=f"user{number % 5}", tenant=f"tenant{number // 5}", project="p")
    for number in range(10)
]
"""Ten users; each name is that of two, in different tenants."""
THINGS = (
    *("bicycle", "kitchen", "garden", "printer", "holiday"),
    *("budget", "novel", "orchestra", "marathon", "greenhouse"),
)
SMALL_TALK = [
    "How is the weather?",
    "Thank you, go on.",
    "Please list three ideas.",
    "Is that all?",
]


@dataclass(frozen=True)
class Planted:
    """A fact that an owner told in a turn of a conversation, and nobody else."""

    owner: Owner
    conversation: str
    turn: int
    thing: str
    name: str


def blocks_of(turns: Sequence[Sequence[Body]], started: datetime) -> list[Block]:
    """The blocks of a conversation: each turn some bodies, an hour after the one before."""
    bodies = [(number, body) for number, turn in enumerate(turns, 1) for body in turn]
    return [
        Block(
            seq=seq,
            turn=turn,
            round=0,
            n=1 + sum(type(b) is type(body) for t, b in bodies[: seq - 1] if t == turn),
            ts=started + timedelta(hours=turn),
            term=1,
            body=body,
        )
        for seq, (turn, body) in enumerate(bodies, 1)
    ]


def conversations(
    count: int, seed: int = 7
) -> Iterator[tuple[ConversationKey, list[Block], Planted]]:
    """So many conversations, a tenth for each owner, with four turns and one fact in each."""
    random = Random(seed)
    for number in range(count):
        owner, thing = OWNERS[number % len(OWNERS)], random.choice(THINGS)
        name = "".join(random.choice("bdfgklmnprtvz") + random.choice("aeiou") for _ in range(5))
        told = random.randrange(4)
        turns: list[list[Body]] = [
            [
                UserPrompt(text=random.choice(SMALL_TALK)),
                Completion(text=f"Here is a reply of {random.randrange(1000)} words."),
            ]
            for _ in range(4)
        ]
        turns[told] = [
            UserPrompt(text=f"Remember that my {thing} goes by the code {name}."),
            Completion(text=f"I shall remember {name} for the {thing}."),
        ]
        if number % 3 == 0:
            turns[told].insert(1, Notes(text=f"[P] the {thing} is {name}"))
        key = owner.key(f"talk{number // len(OWNERS)}")
        started = NOW - timedelta(days=random.randrange(1, 300))
        yield key, blocks_of(turns, started), Planted(owner, key.name, told + 1, thing, name)
