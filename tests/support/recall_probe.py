"""A long conversation in which facts are planted, and what its last prompt still holds of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from loopline import Bundle, Harness, tool
from loopline.models import Prompt
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block

PROJECTS = ("Larkspur", "Heron", "Tamarind", "Osprey", "Juniper", "Basalt", "Meridian", "Cobalt")
THINGS = ("gate code", "serial number", "launch date", "depot address", "battery type", "tax rate")
PLACES = ("user.prompt", "result", "call", "react.notes.1", "assistant.completion.1")
FILLER = (
    *("the", "of", "a", "report", "page", "section", "also", "then", "where", "which", "other"),
    *("status", "ok", "value", "list", "row", "column", "item", "table", "entry", "checked"),
    *("again", "before", "after", "during", "under", "over", "and", "or", "not", "any", "each"),
    *("some", "more", "less"),
)
WINDOW, OUTPUT_LIMIT = 32_000, 8_000


@dataclass(frozen=True)
class Fact:
    """What was said once, in one block, and never again."""

    turn: int
    place: str
    project: str
    thing: str
    value: str

    @property
    def sentence(self) -> str:
        return f"the {self.thing} of {self.project} {self.turn} is {self.value}"

    @property
    def ref(self) -> str:
        if self.place in ("result", "call"):
            return f"tc:turn_{self.turn}.c{self.turn}.{self.place}"
        return f"ar:turn_{self.turn}.{self.place}"


def facts(turns: int, seed: int = 7) -> list[Fact]:
    random = Random(seed)
    return [
        Fact(
            turn=turn,
            place=PLACES[turn % len(PLACES)],
            project=random.choice(PROJECTS),
            thing=random.choice(THINGS),
            value=f"{random.randint(1000, 9999)}-{random.choice('ABCDEFG')}{turn}",
        )
        for turn in range(1, turns + 1)
    ]


def filler(words: int, seed: int) -> str:
    random = Random(seed)
    return " ".join(random.choice(FILLER) for _ in range(words))


_planted: dict[int, Fact] = {}


@tool(effect="read")
async def register(number: int) -> str:
    """Look a number up."""
    fact = _planted.get(number)
    text = f" It says that {fact.sentence}." if fact and fact.place == "result" else ""
    return f"{filler(70, number)}.{text} {filler(70, number + 1)}."


@tool(effect="write", key="{name}")
async def write(name: str, text: str) -> str:
    """Write a note."""
    return f"{name}: {len(text)} characters"


desk = Bundle(id="desk", tools=[register, write], limits={"plans": True})


@dataclass(frozen=True)
class Held:
    """How a last prompt has the facts: word for word, by ref beside words, or not at all."""

    word_for_word: int
    by_ref: int
    lost: tuple[Fact, ...]

    @property
    def share(self) -> float:
        has = self.word_for_word + self.by_ref
        return has / (has + len(self.lost))


@dataclass(frozen=True)
class Lived:
    requests: Sequence[Prompt]
    blocks: Sequence[Block]
    planted: Sequence[Fact]

    @property
    def held(self) -> Held:
        """What the last prompt holds."""
        text = str(self.requests[-1])
        lines = text.splitlines()
        word_for_word = by_ref = 0
        lost = list[Fact]()
        for fact in self.planted:
            if fact.value in text:
                word_for_word += 1
            elif any(_says(line, fact) for line in lines):
                by_ref += 1
            else:
                lost.append(fact)
        return Held(word_for_word, by_ref, tuple(lost))


def _says(line: str, fact: Fact) -> bool:
    words = (fact.ref, fact.project, fact.thing.split()[-1])
    return all(word in line for word in words)


def live(turns: int, *, window: int = WINDOW, store: str = "memory:") -> Lived:
    """So many turns, each with a call and an answer, and a fact in one of its blocks."""
    planted = facts(turns)
    _planted.update({fact.turn: fact for fact in planted})
    script = [entry for fact in planted for entry in _turn(fact)]
    model = ScriptedModel(script, window=window, output_limit=OUTPUT_LIMIT)

    async def run() -> Lived:
        async with Harness.open(desk, store=store, model=model, clock=FakeClock()) as harness:
            talk = harness.conversation("c")
            for fact in planted:
                text = f" Know that {fact.sentence}." if fact.place == "user.prompt" else ""
                result = await talk.say(f"Go on with part {fact.turn} of the work.{text}")
                assert result.ok, result.error
            return Lived(model.requests, await talk.blocks(), planted)

    return asyncio.run(run())


def _turn(fact: Fact) -> list[Entry]:
    notes = f"I see that {fact.sentence}" if fact.place == "react.notes.1" else "Looking it up"
    call = Call("desk.register", number=fact.turn)
    if fact.place == "call":
        text = f"{filler(30, fact.turn)}; {fact.sentence}; {filler(10, fact.turn)}"
        call = Call("desk.write", name=f"part {fact.turn}", text=text)
    answer = f"So {fact.sentence}." if fact.place == "assistant.completion.1" else "That is done."
    return [Say(notes, call), answer]
