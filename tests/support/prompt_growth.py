"""Conversations with a plan and a note in every turn, and what of them every later prompt carries."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from loopline import BaseWorkflow, Bundle, Harness, models
from loopline.models.prompt import cost, estimate
from loopline.testing import FakeClock
from loopline.timeline import Block, Plan, RoundStart, TimelineLog

OUTPUT_LIMIT = 2_000
_PLAN_IDS = re.compile(r"^plan_id=(\S+)", re.M)
_CURRENT = re.compile(r"^plan_id=(\S+) \(current\)\n((?:(?!plan_id=).*\n?)*)", re.M)
_NEXT = re.compile(r"^[□…] \[([0-9]+)\]", re.M)


@dataclass(frozen=True)
class Diary:
    """What the model does in every turn.

    Each turn begins a plan of `steps` and ticks all its steps, unless it is `left_open`. With `standing`
    plans the first turn begins so many, and each later turn ticks the next step of the current one.
    """

    turns: int
    window: int = 8_000
    steps: int = 6
    words: int = 8
    left_open: bool = False
    standing: int = 0


@dataclass
class Carried:
    """What the requests carried: for each turn the tokens of all that stands for past turns, and of ANNOUNCE."""

    diary: Diary
    budget: int
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    seconds: dict[int, float] = field(default_factory=dict[int, float])
    largest: int = 0
    errors: list[str] = field(default_factory=list[str])
    closed: int = 0
    summaries: int = 0

    def around(self, turn: int) -> int:
        """The most that was carried in that turn and the nine before."""
        return max(self.tokens.get(number, 0) for number in range(turn - 9, turn + 1))

    def milliseconds(self, turn: int) -> float:
        """The mean CPU time of a turn over the fifty up to that one."""
        times = [self.seconds[n] for n in range(max(turn - 49, 1), turn + 1)]
        return 1_000 * sum(times) / len(times)


class Diarist:
    """A model that keeps the diary, going by nothing but what ANNOUNCE shows."""

    name = "diarist"

    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        self.capabilities: models.Capabilities = models.Capabilities(
            window=diary.window, output_limit=OUTPUT_LIMIT
        )
        self.turn = 0
        self.round = 0
        self.carried = 0
        self.closing = False

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        if prompt.purpose == "summary":
            yield models.Reply(text=f"Goal: keep the diary. {self.turn} turns are over.")
            return
        self.carried = max(self.carried, carried_tokens(prompt))
        self.round += 1
        if self.closing:
            yield self._close(prompt.tail)
        elif self.diary.standing:
            yield self._tick(prompt.tail)
        else:
            yield self._plan()

    def _plan(self) -> models.Reply:
        diary, note = self.diary, f"[D] decision {self.turn} is {self.turn * 7919 % 9973}-x"
        if self.round == 1:
            return models.Reply(text=note, calls=(begun(self.turn, diary),))
        done = "\n".join(f"✓ [{n}]" for n in range(1, diary.steps + (not diary.left_open)))
        return models.Reply(text=f"{done}\nTurn {self.turn} is over.")

    def _tick(self, tail: str) -> models.Reply:
        if self.turn == 1 and self.round <= self.diary.standing:
            return models.Reply(text="", calls=(begun(self.round, self.diary),))
        current = _CURRENT.search(tail)
        if current is None:
            return models.Reply(text="", calls=(begun(self.turn, self.diary),))
        coming = _NEXT.search(current[2])
        assert coming is not None, tail
        return models.Reply(text=f"✓ [{coming[1]}]\nTurn {self.turn} is over.")

    def _close(self, tail: str) -> models.Reply:
        open_plans = _PLAN_IDS.findall(tail)
        if not open_plans:
            return models.Reply(text="All plans are closed.")
        call = models.ToolCall(
            name="react.plan", arguments={"mode": "close", "plan_id": open_plans[-1]}
        )
        return models.Reply(text="", calls=(call,))


def begun(number: int, diary: Diary) -> models.ToolCall:
    steps = [
        f"{place} of {number}: {'look at the page ' * (diary.words // 4)}"
        for place in range(1, diary.steps + 1)
    ]
    return models.ToolCall(name="react.plan", arguments={"mode": "new", "steps": [*steps]})


def carried_tokens(prompt: models.Prompt) -> int:
    """The tokens of what stands for past turns: summary, plans, reactions, and of the tail."""
    stands = [message for message in prompt.messages if _is_carried(message)]
    return sum(map(cost, stands)) + estimate(prompt.tail)


def _is_carried(message: object) -> bool:
    match message:
        case models.UserMessage(text=text):
            return "]\n[SUMMARY]" in text or "]\n[EARLIER PLANS]" in text
        case _:
            return False


async def keep(diary: Diary, store: str | TimelineLog = "memory:") -> Carried:
    """Live the diary, and at its end close all the plans that are announced."""
    model = Diarist(diary)
    lived = Carried(diary, diary.window - OUTPUT_LIMIT)
    harness = Harness.open(
        Bundle(id="diary", workflow=BaseWorkflow, limits={"plans": True}),
        store=store,
        model=model,
        clock=FakeClock(),
    )
    async with harness:
        talk = harness.conversation("c")
        for number in range(1, diary.turns + 1):
            model.turn, model.round, model.carried = number, 0, 0
            begins = time.process_time()
            result = await talk.say(f"Go on with day {number}.", max_iterations=20)
            lived.seconds[number] = time.process_time() - begins
            lived.tokens[number] = model.carried
            if not result.ok:
                lived.errors.append(f"turn {number}: {result.error}")
        model.closing = True
        if diary.standing:
            result = await talk.say("Close every plan.", max_iterations=20)
            if not result.ok:
                lived.errors.append(f"closing: {result.error}")
        blocks: Sequence[Block] = await talk.blocks()
    lived.largest = max(b.body.tokens for b in blocks if isinstance(b.body, RoundStart))
    lived.summaries = sum(block.type == "conv.range.summary" for block in blocks)
    plans = [block.body.snapshot for block in blocks if isinstance(block.body, Plan)]
    lived.closed = sum(snapshot.closed_ts is not None for snapshot in plans)
    return lived
