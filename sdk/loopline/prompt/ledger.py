"""The ledger of a summary: a line for each block, whose words say what it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from loopline.models import JsonObject, dumps
from loopline.models.tokens import estimate
from loopline.timeline import (
    ArtifactKept,
    Block,
    Completion,
    Feedback,
    LedgerLine,
    Notes,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    memory_notes,
    plan,
)

WIDTHS = (160, 120, 90, 70, 55, 40, 30)
"""Characters that a line's words may have, tried until all lines fit."""
_LONG_ARGUMENTS = 120
_SAID = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Told:
    """A block that a ledger has to name; `primary` ones are dropped last."""

    ref: str
    text: str
    primary: bool = True


def told(blocks: Iterable[Block]) -> list[Told]:
    """What these blocks say that cannot be worked out from the others, in order."""
    calls: dict[str, ToolCalled] = {}
    known: set[str] = set()
    turn = 0
    found = list[Told]()
    for block in blocks:
        if block.turn != turn:
            turn, known = block.turn, set()
        if isinstance(block.body, ToolCalled):
            calls[block.body.call_id] = block.body
        for one in _of(block, calls):
            words = set(_SAID.findall(one.text.casefold()))
            if one.primary or len(words - known) > len(words) // 3:
                found.append(one)
            known |= words
    return found


def _of(block: Block, calls: dict[str, ToolCalled]) -> Iterator[Told]:
    match block.body:
        case UserPrompt(text=text) | UserFollowup(text=text):
            yield Told(block.ref, text)
        case ToolCalled(arguments=arguments) if len(dumps(arguments)) > _LONG_ARGUMENTS:
            yield Told(block.ref, f"{block.body.tool} {dumps(arguments)}")
        case ToolResult(call_id=call_id, tool=tool, text=text):
            call = calls.get(call_id)
            yield Told(block.ref, f"{tool}({_short(call.arguments) if call else ''}) {text}")
        case Completion(text=text):
            yield Told(block.ref, text, primary=False)
        case Notes(text=text):
            rest = _beside_marks(text)
            if rest:
                yield Told(block.ref, rest, primary=False)
        case ArtifactKept(name=name, text=text):
            yield Told(block.ref, f"{name}: {text}")
        case Feedback(reaction=reaction, text=text):
            yield Told(block.ref, f"feedback {reaction}: {text}")
        case _:
            pass


def _short(arguments: JsonObject) -> str:
    shown = dumps(arguments)
    return shown[1:-1] if len(shown) <= _LONG_ARGUMENTS else ", ".join(arguments)


def _beside_marks(notes: str) -> str:
    """The lines that are neither marks of a plan nor memory notes, which survive by themselves."""
    lines = [line for line in notes.splitlines() if not memory_notes.read(line)]
    return " ".join(line for line in lines if not plan.split_marks(line)[0]).strip()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lines that fit, and how many older ones had no room."""

    lines: tuple[LedgerLine, ...]
    dropped: int = 0


def ledger(before: Sequence[LedgerLine], new: Sequence[Told], room: int) -> Ledger:
    """The lines of an earlier ledger and of further blocks, in words as few as `room` tokens ask for.

    When even few words are too many, lines that others nearly say go first, then the oldest.
    """
    every = [Told(line.ref, line.words) for line in before] + list(new)
    rare = _rarity(every)
    for width in WIDTHS:
        lines = [LedgerLine(ref=one.ref, words=distilled(one.text, width, rare)) for one in every]
        if _cost(lines) <= room:
            return Ledger(tuple(lines))
    primary = [
        LedgerLine(ref=one.ref, words=distilled(one.text, WIDTHS[-1], rare))
        for one in every
        if one.primary
    ]
    costs = [_cost([line]) for line in primary]
    total, first = sum(costs), 0
    while total > room and first < len(primary):
        total -= costs[first]
        first += 1
    return Ledger(tuple(primary[first:]), first)


def distilled(text: str, width: int, rare: dict[str, float]) -> str:
    """The words of a text that say most of what it is, in their order, in about `width` characters."""
    words = text.split()
    whole = " ".join(words)
    if len(whole) <= width:
        return whole
    weights = [_weight(word, place, rare) for place, word in enumerate(words)]
    order = sorted(range(len(words)), key=lambda place: (-weights[place], place))
    chosen, left = set[int](), width
    seen = set[str]()
    for place in order:
        word = words[place]
        if len(word) + 1 <= left and word.casefold() not in seen:
            chosen.add(place)
            seen.add(word.casefold())
            left -= len(word) + 1
    return " ".join(words[place] for place in sorted(chosen)) or whole[:width]


def _weight(word: str, place: int, rare: dict[str, float]) -> float:
    """How much a word says: numbers, names and paths most, what every block says least."""
    bare = word.strip(".,;:!?()[]{}\"'`")
    kind = 0.3 if len(bare) <= 3 else 1.0
    if any(char.isdigit() for char in bare):
        kind = 4.0
    elif any(char in bare for char in "/_.@"):
        kind = 3.0
    elif place and bare[:1].isupper():
        kind = 2.5
    early = 1.5 if place < 8 else 1.0
    return kind * early * rare.get(bare.casefold(), 1.0)


def _rarity(every: Sequence[Told]) -> dict[str, float]:
    """For each word the logarithm of how few of the texts hold it."""
    counts: Counter[str] = Counter()
    for one in every:
        counts.update({word.strip(".,;:!?()[]{}\"'`").casefold() for word in one.text.split()})
    return {word: log((len(every) + 1) / count) + 0.1 for word, count in counts.items()}


def _cost(lines: Sequence[LedgerLine]) -> int:
    return sum(estimate(f"{line.ref} {line.words}") + 1 for line in lines)
