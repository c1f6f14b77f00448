"""Law 8 by what a model was sent: an input is in the requests of the round that takes it, or in none.

It reads only the stored blocks and the requests, no fold of the package.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopline.timeline import Block, RoundStart, UserFollowup, UserPrompt, UserRecalled, UserSteer
from tests.support.interruption_scenario import Asked, Told


def misplaced(story: Told) -> list[str]:
    taken, recalled = fates(story.blocks)
    problems: list[str] = []
    for block in story.blocks:
        body = block.body
        if not isinstance(body, UserPrompt | UserFollowup | UserSteer):
            continue
        showing = [asked for asked in story.asked if body.text in str(asked.prompt.messages)]
        if block.seq in recalled:
            problems += [f"{body.text!r} was recalled, and is in a request"] if showing else []
        elif block.seq in taken:
            by = taken[block.seq]
            problems += [
                f"{body.text!r} was taken by the round at {by.seq}, and is not in the request of that at {asked.round_seq}"
                for asked in due(story, by)
                if asked not in showing
            ]
        is_added = block.turn == 1 and not isinstance(body, UserPrompt)
        if is_added and block.seq not in recalled and block.ref not in story.late:
            by_turn = taken[block.seq].turn if block.seq in taken else 0
            if by_turn != 1 and block.seq < ended(story.blocks):
                problems.append(f"{body.text!r} was taken by no round of its turn, and is not late")
    return problems


def fates(blocks: Sequence[Block]) -> tuple[dict[int, Block], set[int]]:
    """Return the round that took each input, by seq, and what was recalled before one did."""
    taken, recalled = dict[int, Block](), set[int]()
    for block in blocks:
        match block.body:
            case RoundStart(takes=takes):
                assert not taken.keys() & set(takes), "an input is taken twice"
                assert not recalled & set(takes), "a recalled input is taken"
                taken |= dict.fromkeys(takes, block)
            case UserRecalled(said=said):
                if said not in taken:
                    recalled.add(said)
            case _:
                pass
    return taken, recalled


def due(story: Told, by: Block) -> Sequence[Asked]:
    """Return the requests that must show what a round took: those of its turn since then, else the next one."""
    turns = {block.seq: block.turn for block in story.blocks}
    since = [asked for asked in story.asked if asked.round_seq >= by.seq]
    return [asked for asked in since if turns[asked.round_seq] == by.turn] or since[:1]


def ended(blocks: Sequence[Block]) -> int:
    return next(block.seq for block in blocks if block.type == "react.exit")
