"""The attacks that have a figure: how long the loop stood still, what ran, what was read, what passed unseen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from loopline import Harness, LooplineError, Store
from loopline.errors import AttachmentError
from loopline.files.formats import parse_pdf
from loopline.knowledge import KnowledgeConfig, KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from loopline.models import Json
from loopline.reader import DocumentError, read_document
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import SystemMessage, ToolStarted
from tests.bench.attacks.outcome import Outcome
from tests.bench.stalls import stall_ms
from tests.support import playground, scenario_bundle
from tests.support.event_loop_stalls import TEXTS, watched
from tests.support.forged_documents import approved, forged, guarded, naming, paused, rows
from tests.support.forked_processes import forked
from tests.support.git_repositories import commit
from tests.support.hostile_repositories import arm_fully, hostile_repository, snapshot
from tests.support.ledgers import lines_of
from tests.support.sample_files import small_and_large
from tests.support.scripted_conversation import talking
from tests.support.tampered_rows import make, trial

MOST_STALL_MS = 150
"""No work on the loop is to take above 50 ms; three times that, as on a machine that others use too."""
MB = 1_000_000
FLIPS = 60
STOPS = 40


async def text_of_letters(folder: Path) -> list[Outcome]:
    """Give the loop a long result of one letter, and of everything else that a stranger may send."""
    del folder
    one, four = [await stall_ms("result", TEXTS["letters"](size * MB)) for size in (1, 4)]
    every = {name: await stall_ms("result", text(MB)) for name, text in TEXTS.items()}
    worst = max(every, key=lambda name: every[name])
    return [
        stall("a result of 1 MB of one letter", "2,400 ms", one),
        stall("a result of 4 MB of one letter", "28,000 ms", four),
        stall(f"a result of 1 MB of {len(TEXTS)} kinds (worst: {worst})", "", every[worst]),
    ]


def stall(attack: str, before: str, milliseconds: float) -> Outcome:
    """Return a row of the longest stall of the event loop."""
    holds = milliseconds < MOST_STALL_MS
    return Outcome(f"{attack}: longest stall", before, f"{milliseconds:,.0f} ms", holds)


async def compaction(folder: Path) -> list[Outcome]:
    """Fill a window of a million tokens until it is summed up."""
    del folder
    looks = [Call("life.look", size=30_000, seed=number) for number in range(150)]
    model = ScriptedModel([*looks, "Done."], window=MB, output_limit=8_000, strict=False)
    async with talking(model, bundle=scenario_bundle.bundle) as talk, watched() as stalls:
        await talk.say("go", max_iterations=160)
        notices = [block.body for block in await talk.blocks(types="system.message")]
    row = stall("a window of 1M tokens is compacted", "4,000 ms", stalls.longest_seconds * 1000)
    fitted = [
        notice
        for notice in notices
        if isinstance(notice, SystemMessage) and notice.code == "compaction"
    ]
    return [row if fitted else Outcome(row.attack, row.before, "was not compacted", holds=False)]


async def many_calls(folder: Path) -> list[Outcome]:
    """Have a model make 8,000 calls in one reply."""
    del folder
    calls = [Call("play.alone", text=str(number)) for number in range(8_000)]
    async with talking([Say("", *calls), "Done."]) as talk, watched() as stalls:
        await talk.say("go")
        started = [block for block in await talk.blocks() if isinstance(block.body, ToolStarted)]
    return [
        stall("a reply of 8,000 calls", "6,800 ms", stalls.longest_seconds * 1000),
        none_of("a reply of 8,000 calls: calls run", "8,000", len(started)),
    ]


def none_of(attack: str, before: str, count: int) -> Outcome:
    return Outcome(attack, before, f"{count:,}", holds=count == 0)


async def large_number(folder: Path) -> list[Outcome]:
    """Import a summary of 2**53 turns."""
    document = await paused(folder / "other")
    body: dict[str, Json] = {"covers": 1, "first_turn": 1, "last_turn": 2**53, "text": "all"}
    forged(document, body, "conv.range.summary")
    rows(document)[-1]["ref"] = "su:turn_1.conv.range.summary.1"
    began = time.process_time()
    refused = False
    try:
        read_document(document)
    except DocumentError as error:
        refused = "last_turn" in str(error)
    seconds = time.process_time() - began
    now = f"{'refused' if refused else 'accepted'} in {seconds * 1000:.0f} ms"
    holds = refused and seconds < 2
    return [Outcome("an imported number of 2**53", "the process hangs", now, holds)]


async def forged_approval(folder: Path) -> list[Outcome]:
    """Import an approval that nobody gave, and carry its turn on in every way."""
    ledger = folder / "ledger"
    document = await approved(ledger)
    async with Harness.open(guarded, store="memory:", model=ScriptedModel(["So."])) as harness:
        talk = await harness.load(document)
        for values in (None, {"c1": True}):
            with suppress(LooplineError):
                await talk.resume(values)
        await harness.carry_on()
        await talk.say("go on")
    ran = len(await asyncio.to_thread(lines_of, ledger))
    planted = 0
    async with Store.open("memory:") as store:
        for name in ("main~c1", "main~c1.2"):
            with suppress(LooplineError):
                await store.load(document, name=name)
                planted += 1
    return [
        none_of("an imported approval: calls run", "1", ran),
        none_of("an import under a child run's name: accepted", "1", planted),
    ]


async def repository_of_an_import(folder: Path) -> list[Outcome]:
    """Import a document that names a repository of this machine, and read its files."""
    repository = folder / "private"
    head = await asyncio.to_thread(commit, repository, {"docs/secret.md": "# Keys\n\nhunter2\n"})
    document = await naming(repository)
    refs = ["ks:docs/secret.md", f"ks:docs/secret.md@{head}"]
    async with Store.open("memory:") as store:
        talk = await store.load(document)
        read = [item for item in await talk.read(refs) if "hunter2" in item.text]
    return [none_of("an import names a repository: files read", "2", len(read))]


async def programs_of_a_repository(folder: Path) -> list[Outcome]:
    """Open, search and read a repository that names a program wherever one may run."""
    hostile = await asyncio.to_thread(hostile_repository, folder)
    ran = folder / "ran"
    await asyncio.to_thread(arm_fully, hostile, ran)
    before = await asyncio.to_thread(snapshot, hostile)
    space = KnowledgeSpace(
        GitRepository.open(str(hostile)), FtsIndexes(None), KnowledgeConfig(repo=str(hostile))
    )
    await space.ensure()
    passages = await space.search("text")
    await space.read(passages[0].ref)
    await space.close()
    after = await asyncio.to_thread(snapshot, hostile)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    return [
        none_of(
            "a repository is opened: its programs run",
            "its filter",
            len(await asyncio.to_thread(lines_of, ran)),
        ),
        none_of("a repository is opened: its files changed", "", len(changed)),
    ]


async def small_pdfs(folder: Path) -> list[Outcome]:
    """Read PDFs of some KB that ask for much time, and for much memory."""
    del folder
    long = small_and_large(b"BT /F 1 Tf (a) Tj ET\n", 600_000)
    wide = small_and_large(b" " * 1_000, 50_000)
    loop = asyncio.get_running_loop()
    rows = list[Outcome]()
    for before, data in (("13 s here", long), ("333 MB here", wide)):
        with ProcessPoolExecutor(1, mp_context=forked) as pool:  # a new one: it is measured whole
            end = await loop.run_in_executor(pool, read_pdf, data)
        attack = f"a PDF of {len(data) // 1_000} KB is attached"
        rows.append(Outcome(attack, before, end.text, holds=end.seconds < 1 and end.mb < 64))
    return rows


@dataclass(frozen=True, slots=True)
class PdfEnd:
    """What reading a PDF took of the process that asked for it, and all that came of it in words."""

    text: str
    seconds: float
    mb: float


def read_pdf(data: bytes) -> PdfEnd:
    """Read a PDF with limits of 5 s and 256 MB."""
    before, end = getrusage(RUSAGE_SELF), "read"
    try:
        parse_pdf("a.pdf", data, 500, cpu_seconds=5, memory_bytes=256 * MB)
    except AttachmentError:
        end = "refused"
    own, other = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime - before.ru_utime - before.ru_stime
    mb = (own.ru_maxrss - before.ru_maxrss) / 1_000
    beside = f"{other.ru_utime + other.ru_stime:.1f} s, {other.ru_maxrss / 1_000:.0f} MB"
    text = f"{seconds:.1f} s, {mb:.0f} MB here; {end} with {beside} in a process of its own"
    return PdfEnd(text, seconds, mb)


async def flipped_bytes(folder: Path) -> list[Outcome]:
    """Change one value of a row, 60 times."""
    store = folder / "whole.db"
    head = await make(store)
    trials = [await trial(store, head, "altered", seed) for seed in range(FLIPS)]
    silent = sum(not audit.faults and not refused for audit, refused in trials)
    unheard = sum(not audit.faults for audit, _ in trials)
    return [
        none_of(f"a byte of a row is flipped, {FLIPS} times: read silently", "18", silent),
        none_of(f"a byte of a row is flipped, {FLIPS} times: not in the audit", "", unheard),
    ]


async def stop_in_the_queue(folder: Path) -> list[Outcome]:
    """Stop a conversation in which prompts wait, at many moments; each caller is given a result."""
    del folder
    raised = 0
    model = ScriptedModel(["Done."] * 1_000, strict=False)
    async with Harness.open(playground.bundle, store="memory:", model=model) as harness:
        for steps in range(STOPS):
            talk = harness.conversation(f"c{steps}")
            waiting = [asyncio.create_task(talk.say(f"go {number}")) for number in range(5)]
            for _ in range(steps + 1):
                await asyncio.sleep(0)
            await talk.stop()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            raised += sum(isinstance(end, BaseException) for end in ends)
    attack = f"5 prompts are stopped in the queue, at {STOPS} moments: callers that met an error"
    return [none_of(attack, "StoppedInQueue raised", raised)]


MEASURED: dict[str, Callable[[Path], Coroutine[None, None, list[Outcome]]]] = {
    "text of letters": text_of_letters,
    "large number": large_number,
    "repository of an import": repository_of_an_import,
    "forged approval": forged_approval,
    "programs of a repository": programs_of_a_repository,
    "compaction": compaction,
    "many calls": many_calls,
    "stop in the queue": stop_in_the_queue,
    "small pdfs": small_pdfs,
    "flipped bytes": flipped_bytes,
}


async def make_attack(attack: str, folder: Path) -> list[Outcome]:
    """Make an attack with an empty folder of its own; one that raises does not hold."""
    (rows,) = await asyncio.gather(MEASURED[attack](folder), return_exceptions=True)
    if isinstance(rows, BaseException):
        return [Outcome(attack, "", f"it raised {rows!r}", holds=False)]
    return rows
