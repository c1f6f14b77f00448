"""The ledger of a summary: a line for each block, whose words say what it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from loopline.models import dumps
from loopline.models.tokens import estimate
from loopline.prompt.clipping import LONG_ARGUMENTS, short
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
    UserFollowup,
    UserPrompt,
    memory_notes,
    plan,
)

WIDTHS = (160, 120, 90, 70, 60, 50, 40, 34)
"""Characters that a line's words may have, tried until all lines fit."""
_ALL_ABOVE = 70
"""The width from which on lines that others nearly say are left out."""


@dataclass(frozen=True, slots=True)
class Told:
    """A block that a ledger has to name; one that is not `primary` says little that is new."""

    seq: int
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
            words = one.text.split()
            new = {bare(word) for word in words} - known
            strong = any(bare(word) in new and is_strong(word) for word in words)
            if one.primary or strong:
                found.append(replace(one, primary=True))
            elif 3 * len(new) > len(words):
                found.append(one)
            known |= new
    return found


def _of(block: Block, calls: dict[str, ToolCalled]) -> Iterator[Told]:
    match block.body:
        case UserPrompt(text=text) | UserFollowup(text=text):
            yield Told(block.seq, block.ref, text)
        case ToolCalled(tool=tool, arguments=arguments):
            if len(dumps(arguments)) > LONG_ARGUMENTS:
                values = " ".join(f"{name}={value}" for name, value in arguments.items())
                yield Told(block.seq, block.ref, f"{tool} {values}")
        case ToolResult(call_id=call_id, tool=tool, text=text):
            call = calls.get(call_id)
            said = f"{tool}({short(call.arguments) if call else ''}) {text}"
            yield Told(block.seq, block.ref, said)
        case Completion(text=text) | Draft(text=text):
            yield Told(block.seq, block.ref, text, primary=False)
        case Notes(text=text):
            rest = _beside_marks(text)
            if rest:
                yield Told(block.seq, block.ref, rest, primary=False)
        case ArtifactKept(name=name, text=text):
            yield Told(block.seq, block.ref, f"{name}: {text}")
        case Feedback(reaction=reaction, text=text):
            yield Told(block.seq, block.ref, f"feedback {reaction}: {text}")
        case _:
            pass


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
    every = [Told(0, line.ref, line.words) for line in before] + list(new)
    rare = rarity([one.text for one in every])
    lines = list[LedgerLine]()
    for width in WIDTHS:
        shown = every if width >= _ALL_ABOVE else [one for one in every if one.primary]
        lines = [LedgerLine(ref=one.ref, words=distilled(one.text, width, rare)) for one in shown]
        if cost(lines) <= room:
            return Ledger(tuple(lines))
    costs = [cost([line]) for line in lines]
    total, first = sum(costs), 0
    while total > room and first < len(lines):
        total -= costs[first]
        first += 1
    return Ledger(tuple(lines[first:]), first)


def cost(lines: Sequence[LedgerLine]) -> int:
    """What these lines cost in a prompt, in tokens."""
    return sum(estimate(f"{line.ref} {line.words}") + 1 for line in lines)
