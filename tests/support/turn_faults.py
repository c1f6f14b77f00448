"""What is wrong with a conversation whose runners were killed, stopped, cut off or replaced meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loopline.timeline import Block, Exit, RoundStart, ToolStarted, UserPrompt


def find_faults(
    texts: Sequence[str], blocks: Sequence[Block], *, untaken: int = 0, unended: int = 0
) -> list[str]:
    """Return what is wrong with a conversation to which these messages were sent, and no others.

    Every message has its turn, which ran once, in order, under one runner at a time. So many messages may be without a
    round that takes them, and so many of the last turns without an end.
    """
    bodies = [block.body for block in blocks]
    prompts = [block.seq for block in blocks if isinstance(block.body, UserPrompt)]
    taken = [seq for body in bodies if isinstance(body, RoundStart) for seq in body.takes]
    ends = [block.turn for block in blocks if isinstance(block.body, Exit)]
    terms = [block.term for block in blocks if block.term]
    starts = Counter(body.call_id for body in bodies if isinstance(body, ToolStarted))
    rules = {
        "the seqs have a gap": [block.seq for block in blocks] == [*range(1, len(blocks) + 1)],
        "the messages are others": [b.text for b in bodies if isinstance(b, UserPrompt)]
        == [*texts],
        "a message was taken twice or out of order": taken == sorted({*taken} & {*prompts}),
        "a message was not taken": len({*prompts} - {*taken}) <= untaken,
        "turns did not end once, in order": ends == [*range(1, len(ends) + 1)],
        "a turn did not end, or there is one too many": 0 <= len(texts) - len(ends) <= unended,
        "a term fell": terms == sorted(terms),
        "a call began twice": max(starts.values(), default=0) <= 1,
    }
    return [fault for fault, holds in rules.items() if not holds]
