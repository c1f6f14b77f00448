"""Two versions of a bundle on one store, in two processes that are killed: `python -m tests.bench.two_versions`.

Only the second version has a guard. Each process sends its messages to the same conversations, and after a kill the next
process of that version goes on. An independent check reads the log and the ledger of the tool: no order that was sent
through the second version runs without its approval, and none runs twice.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loopline import Harness, LooplineError
from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.models import Prompt
from loopline.store import SqlLog
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.bench.program import read_options, say
from tests.support.ledgers import add_line, lines_of

Version = Literal["1", "2"]
CONVERSATIONS = 5
ROOT = Path(__file__).resolve().parents[2]
BUNDLE = """
from pathlib import Path
from loopline import BaseWorkflow, Bundle, tool
from loopline.guards import ask_before

LEDGER = Path(__file__).with_name("ledger")

@tool(effect="write", key="orders")
def order(message: str) -> str:
    \"\"\"Order what the message asks for.\"\"\"
    with LEDGER.open("a") as ledger:
        ledger.write(f"{VERSION} {message}\\n")
    return "ordered"

class Flow(BaseWorkflow):
    guards = GUARDS

bundle = Bundle(id="tea", version=VERSION, workflow=Flow, tools=[order])
"""
GUARDS: dict[Version, str] = {"1": "()", "2": '(ask_before(["tea.order"]),)'}


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def write_bundles(folder: Path) -> None:
    for version, guards in GUARDS.items():
        head = f"VERSION, GUARDS_TEXT = {version!r}, {guards!r}\n"
        text = head + BUNDLE.replace("GUARDS\n", f"{guards}\n")
        (folder / f"tea_{version}.py").write_text(text, "utf-8")


def reply(request: Prompt) -> Say | str:
    """Return the call that the newest message asks for, or the answer once it has its result."""
    texts = [line for line in f"{request.messages[-1]}".splitlines() if "order " in line]
    if not texts:
        return "Done."
    return Say("", Call("tea.order", message=texts[-1].split("order ")[-1].strip()))


async def work(folder: Path, version: Version, turns: int) -> None:
    """Send the messages of a version that were not sent before, and approve of what asks."""
    done = folder / f"sent_{version}"
    script: list[Entry] = [reply] * 100_000
    model = ScriptedModel(script, strict=False)
    store = f"sqlite:///{folder}/store.db"
    async with Harness.open(folder / f"tea_{version}.py", store=store, model=model) as harness:
        for outcome in await harness.carry_on():
            if outcome.status == "waiting":
                await approve(harness.conversation(outcome.conversation.name))

        async def send(number: int) -> None:
            talk = harness.conversation(f"c{number % CONVERSATIONS}")
            add_line(done, f"{number}")
            result = await talk.say(f"order v{version}-{number}")
            if result.pending:
                await approve(talk)

        sent = set(map(int, done.read_text().split())) if done.exists() else set[int]()
        waiting = [number for number in range(turns) if number not in sent]
        for first in range(0, len(waiting), CONVERSATIONS):
            await asyncio.gather(*map(send, waiting[first : first + CONVERSATIONS]))


async def approve(talk: Conversation[object]) -> None:
    """Approve of the calls that wait, unless a later message has ended their turn."""
    timeline = await talk.blocks()
    answered = {block.body.call_id for block in timeline if isinstance(block.body, tl.UserAnswer)}
    asked = [block.body.call_id for block in timeline if isinstance(block.body, tl.ToolPending)]
    for call_id in asked:
        if call_id not in answered:
            try:
                await talk.resume({call_id: True})
            except LooplineError:
                continue


def drive(folder: Path, turns: int, kills: int, seed: int) -> Report:
    """Run both processes to their end, and kill each of them so often."""
    write_bundles(folder)
    start(folder, "1", 0).wait()  # versions are ordered by when the store first saw them
    draw, report = random.Random(seed), Report()
    left: dict[Version, int] = {"1": kills, "2": kills}
    running: dict[Version, subprocess.Popen[bytes]] = {}
    for version in left:
        running[version] = start(folder, version, turns)
    while running:
        time.sleep(draw.uniform(0.3, 1.5))
        for version, process in list(running.items()):
            if process.poll() == 0:
                del running[version]
            elif process.poll() is not None:
                report.wrong.append(f"version {version} ended with {process.returncode}")
                del running[version]
        alive: list[Version] = [version for version in running if left[version]]
        if alive:
            version = draw.choice(alive)
            running[version].kill()
            running[version].wait()
            left[version] -= 1
            report.counts["kills"] += 1
            running[version] = start(folder, version, turns)
    asyncio.run(check(folder, report))
    return report


def start(folder: Path, version: Version, turns: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.bench.two_versions", "--work", version]
    return subprocess.Popen([*words, f"{folder}", f"{turns}"], cwd=ROOT)


async def check(folder: Path, report: Report) -> None:
    """Read the log and the ledger, and add what is wrong."""
    ledger = lines_of(folder / "ledger")
    for line, times in Counter(line.split()[1] for line in ledger).items():
        if times > 1:
            report.wrong.append(f"{line} was ordered {times} times")
    for line in ledger:
        version, message = line.split()
        report.counts[f"orders of version {message[1]} run by version {version}"] += 1
        if message.startswith("v2") and version != "2":
            report.wrong.append(f"{message} was run by version {version}")
    async with await SqlLog.open(f"sqlite:///{folder}/store.db", read_only=True) as log:
        for summary in await log.conversations():
            check_conversation(await log.read(summary.conversation), report)


def check_conversation(blocks: Sequence[tl.Block], report: Report) -> None:
    """Add what is wrong in a conversation: each turn of the second version has its header, each order its approval."""
    senders: dict[int, str] = {}
    approved: set[str] = set()
    asked: set[str] = set()
    orders = {block.body.call_id for block in blocks if isinstance(block.body, tl.ToolCalled)}
    for block in blocks:
        match block.body:
            case tl.UserPrompt(sender=sender):
                senders[block.turn] = sender.version if sender else ""
                report.counts[f"turns of version {senders[block.turn]}"] += 1
            case tl.TurnHeader(version=version):
                if version < senders[block.turn]:
                    report.wrong.append(f"{block.ref} has the earlier version {version}")
            case tl.ToolPending(call_id=call_id):
                asked.add(call_id)
            case tl.UserAnswer(call_id=call_id, value=True):
                approved |= {call_id} & asked
            case tl.ToolStarted(call_id=call_id):
                if senders[block.turn] == "2" and call_id in orders - approved:
                    report.wrong.append(f"{block.ref} began without its approval")
            case _:
                pass


def main() -> int:
    """Kill each of the two processes `--kills` times, or be the process of a version."""
    match sys.argv[1:]:
        case ["--work", "1" | "2" as version, folder, turns]:
            asyncio.run(work(Path(folder), version, int(turns)))
            return 0
        case _:
            given = read_options(__doc__, turns=200, kills=20, seed=0)
    with tempfile.TemporaryDirectory() as name:
        report = drive(Path(name), given.turns, given.kills, given.seed)
    for what, count in sorted(report.counts.items()):
        say(f"{count:6} {what}")
    say("\n".join([f"{len(report.wrong):6} wrong", *report.wrong]))
    return min(len(report.wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
