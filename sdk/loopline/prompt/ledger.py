"""The ledger of a summary: a line for each block, whose words say what it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loopline.models import dumps
from loopline.models.tokens import estimate
from loopline.prompt.clipping import LONG_ARGUMENTS, TEXT_LIMIT, short
from loopline.prompt.distilling import bare, distilled, is_strong, rarity
from loopline.timeline import (
    ArtifactKept,
    Block,
    Completion,
    Draft,
    Feedback,
    LedgerLine,
    Notes,
    ToolCalled,
    ToolResult,
    UserAttachment,
    UserFollowup,
    UserInput,
    UserPrompt,
    UserSteer,
    attachments,
    memory_notes,
    plan,
)

Rank = Literal[0, 1, 2]

WIDTHS: tuple[tuple[int, Rank], ...] = (
    (160, 0),
    (120, 0),
    (90, 1),
    (70, 1),
    (60, 2),
    (50, 2),
    (42, 2),
    (36, 2),
)
"""Characters that a line's words may have, and the least rank of a line, tried until all lines fit."""


@dataclass(frozen=True, slots=True)
class Told:
    """A block that a ledger has to name.

    Of rank 2 are what users said, and whatever has numbers, names or paths of its own; of rank 1 other
    results; of rank 0 other words of the model. `about` is how a result came about.
    """

    seq: int
    ref: str
    text: str
    rank: Rank = 2
    about: str = ""

    @property
    def whole(self) -> str:
        """All that a line is distilled from."""
        return f"{self.about} {self.text}" if self.about else self.text


def told(blocks: Iterable[Block]) -> list[Told]:
    """What these blocks say that cannot be worked out from the others, in order."""
    calls: dict[str, ToolCalled] = {}
    known: set[str] = set()
    turn = 0
    found = list[Told]()
    for block in blocks:
        if block.turn != turn:
            turn, known = block.turn, set[str]()
        if isinstance(block.body, ToolCalled):
            calls[block.body.call_id] = block.body
            known |= set(map(bare, _values(block.body).split()))
        for one in _of(block, calls):
            words = one.text.split()
            new = {bare(word) for word in words} - known
            strong = any(
                bare(word) in new and is_strong(word, first=place == 0)
                for place, word in enumerate(words)
            )
            if strong or one.rank or 3 * len(new) > len(words):
                found.append(replace(one, rank=2) if strong else one)
            known |= new
    return found


def _values(call: ToolCalled) -> str:
    return " ".join(f"{name}={value} {value}" for name, value in call.arguments.items())


def _of(block: Block, calls: dict[str, ToolCalled]) -> Iterator[Told]:
    match block.body:
        case UserPrompt() | UserFollowup() | UserSteer() | UserAttachment() as said:
            yield Told(block.seq, block.ref, _said(said))
        case ToolCalled(tool=tool, arguments=arguments):
            if len(dumps(arguments)) > LONG_ARGUMENTS:
                values = " ".join(f"{name}={value}" for name, value in arguments.items())
                yield Told(block.seq, block.ref, f"{tool} {values}")
        case ToolResult(call_id=call_id, tool=tool, text=text):
            call = calls.get(call_id)
            about = f"{tool}({short(call.arguments) if call else ''})"
            yield Told(block.seq, block.ref, text, 1, about)
        case Completion(text=text) | Draft(text=text):
            yield Told(block.seq, block.ref, text, 0)
        case Notes(text=text):
            rest = _beside_marks(text)
            if rest:
                yield Told(block.seq, block.ref, rest, 0)
        case ArtifactKept(name=name, text=text):
            yield Told(block.seq, block.ref, f"{name}: {text}")
        case Feedback(reaction=reaction, text=text):
            yield Told(block.seq, block.ref, f"feedback {reaction}: {text}")
        case _:
            pass


def _said(body: UserInput | UserAttachment) -> str:
    match body:
        case UserAttachment():
            return f"{attachments.described(body)} {body.text[:TEXT_LIMIT]}"
        case _:
            return body.text


def _beside_marks(notes: str) -> str:
    """The lines that are neither marks of a plan nor memory notes, which survive by themselves."""
    lines = [line for line in notes.splitlines() if not memory_notes.read(line)]
    return " ".join(line for line in lines if not plan.read_mark(line)).strip()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lines that fit, and how many had no room."""

    lines: tuple[LedgerLine, ...]
    dropped: int = 0


def ledger(before: Sequence[LedgerLine], new: Sequence[Told], room: int) -> Ledger:
    """The lines of an earlier ledger and of further blocks, in words as few as `room` tokens ask for.

    When even few words are too many, lines of a low rank go first, then those that say least that no
    other line says.
    """
    every = [Told(0, line.ref, line.words, line.rank) for line in before] + list(new)
    rare = rarity([one.whole for one in every])
    lines = list[LedgerLine]()
    for width, rank in WIDTHS:
        lines = [
            LedgerLine(ref=one.ref, words=distilled(one.whole, width, rare), rank=one.rank)
            for one in every
            if one.rank >= rank
        ]
        if cost(lines) <= room:
            return Ledger(tuple(lines))
    kept, total = set(range(len(lines))), cost(lines)
    for place in sorted(kept, key=lambda place: (_news(lines[place].words, rare), place)):
        if total <= room:
            break
        kept.remove(place)
        total -= cost([lines[place]])
    return Ledger(tuple(lines[place] for place in sorted(kept)), len(lines) - len(kept))


def _news(words: str, rare: Mapping[str, float]) -> float:
    """How much a line says that others do not."""
    return sum(rare.get(word, 1.0) for word in set(map(bare, words.split())))


def cost(lines: Sequence[LedgerLine]) -> int:
    """What these lines cost in a prompt, in tokens."""
    return sum(estimate(f"{line.ref} {line.words}") + 1 for line in lines)
