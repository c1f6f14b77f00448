"""Turns whose process was killed: they are lived to their end by another, and what must hold of them then."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from loopline import Store
from loopline import timeline as tl
from loopline.models import AssistantMessage, Message, ToolMessage
from loopline.prompt import Native, View
from tests.support import crashing_turns
from tests.support.crashing_turns import CrashingTurn
from tests.support.forked_processes import forked
from tests.support.ledgers import lines_of

SHORT, LONG, CLIENT = [1, 4], [1, 4, 1, 1], [4, 1]
"""How many calls each round makes, where it makes any."""
SUMMARY = "Goal: go on.\nNext steps: answer."


def run(crashing_turn: CrashingTurn) -> tuple[int | None, str, Counter[str]]:
    """Return how a process that runs the turn ends, what it says of it, and the points it has passed."""
    process = forked.Process(target=crashing_turns.run, args=(crashing_turn,))
    process.start()
    process.join()
    path = Path(crashing_turn.folder, "said")
    if not path.exists():
        return process.exitcode, "", Counter()
    reason, passed = json.loads(path.read_text())
    return process.exitcode, reason, Counter(passed)


async def stored(crashing_turn: CrashingTurn) -> tuple[list[tl.Block], dict[str, str]]:
    """The blocks, and what each is read as by its ref."""
    if not await asyncio.to_thread(crashing_turn.path.exists):
        return [], {}
    async with Store.open(f"sqlite:///{crashing_turn.path}", read_only=True) as store:
        talk = store.conversation(crashing_turn.conversation)
        blocks = list(await talk.blocks())
        reading = await talk.read([block.ref for block in blocks])
        return blocks, {item.requested: item.text for item in reading}


def check(blocks: list[tl.Block], folder: Path, batches: list[int]) -> None:
    """The laws that hold of the turn, in whatever way it came to its end."""
    assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
    calls = [block.body.call_id for block in blocks if isinstance(block.body, tl.ToolCalled)]
    results = [block.body for block in blocks if isinstance(block.body, tl.ToolResult)]
    starts = [block.body.call_id for block in blocks if isinstance(block.body, tl.ToolStarted)]
    assert calls == [f"c{number}" for number in range(1, sum(batches) + 1)]
    assert sorted(result.call_id for result in results) == calls
    assert len(starts) == len(set(starts))
    seqs = [
        block.seq for block in blocks if isinstance(block.body, tl.UserPrompt | tl.UserFollowup)
    ]
    taken = [seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
    assert taken == seqs
    attached = [(b.seq, b.body.size) for b in blocks if isinstance(b.body, tl.UserAttachment)]
    assert attached == [(seqs[0] + 1, len(crashing_turns.FILE.data))]
    terms = [block.term for block in blocks if block.term]
    assert terms == sorted(terms)
    assert isinstance(blocks[-1].body, tl.Exit)
    assert tl.Timeline(blocks).resumable == []
    check_ledger(results, folder / "ledger")
    check_pairs(View(Native(), blocks).messages, calls, batches)


def check_pairs(messages: list[Message], calls: list[str], batches: list[int]) -> None:
    """Each round that is still shown has its results directly after its calls, in their order."""
    shown = list[str]()
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.calls:
            results = messages[place + 1 :][: len(message.calls)]
            shown += [message.call_id for message in results if isinstance(message, ToolMessage)]
            assert len(message.calls) in batches
    assert shown == calls[len(calls) - len(shown) :] != []
    assert len(shown) == sum(isinstance(message, ToolMessage) for message in messages)


def check_ledger(results: list[tl.ToolResult], ledger: Path) -> None:
    """Each write has one line, or none and a result that says that it was interrupted."""
    lines = lines_of(ledger)
    writes = [result for result in results if result.tool == "dying.note"]
    noted = [line.split()[0] for line in lines]
    assert len(noted) == len(set(noted))
    assert {write.call_id for write in writes if write.status == "ok"} <= set(noted)
    assert {write.status for write in writes} <= {"ok", "interrupted"}
    assert sum(result.status == "interrupted" for result in results) <= 2


def check_client(blocks: list[tl.Block], folder: Path) -> None:
    """Each call of the client has the result that it sent, which it made once."""
    results = [block.body for block in blocks if isinstance(block.body, tl.ToolResult)]
    sent = {result.call_id: result.text for result in results if result.tool == "where"}
    assert sent == {call_id: f'{{"at":"{call_id} at home"}}' for call_id in ("c1", "c3", "c5")}
    assert (folder / "client").read_text("utf-8").splitlines() == [
        f"{call_id} at home" for call_id in sent
    ]
    assert all(result.status == "ok" for result in results if result.tool != "dying.note")


def check_long(blocks: list[tl.Block], summary: str) -> None:
    """One summary, each question answered once, and its answer used."""
    bodies = [block.body for block in blocks]
    texts = [body.text for body in bodies if isinstance(body, tl.RangeSummary)]
    assert texts == [summary]
    call_ids = [body.call_id for body in bodies if isinstance(body, tl.ToolPending)]
    answered = [body.call_id for body in bodies if isinstance(body, tl.UserAnswer)]
    assert call_ids == answered
    used = {body.call_id: body.status for body in bodies if isinstance(body, tl.ToolResult)}
    assert len([item for item in call_ids if used[item] == "interrupted"]) <= 1
