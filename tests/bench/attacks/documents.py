"""Documents that somebody tampered with, imported: each is refused by an error of the tree or does no harm.

What is accepted is read by every ref, exported, and a turn is run on it. A document may take two seconds of the
processor; the process that imports it is ended by the system when it takes more, and killed when it says nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from loopline import Harness, Store
from loopline.errors import BundleError, LooplineError, StoreVersion
from loopline.models import JsonObject
from loopline.testing import ScriptedModel
from loopline.timeline import Block
from tests.bench.attacks.outcome import Outcome, Tally
from tests.support.damaged_documents import damaged
from tests.support.forked_processes import forked
from tests.support.memory_folders import quick_folder
from tests.support.playground import bundle
from tests.support.sample_document import lived

MOST_SECONDS = 2.0
MOST_WAIT_SECONDS = 60.0
"""So long one document is waited for, on a machine that is busy with other things too."""
RESIDENT = "resident"
"""A conversation that is in the store before, and unchanged after."""
BEFORE = "19,200: 4 errors not of the tree, a hang"


@dataclass(frozen=True, slots=True)
class Import:
    """What came of one document: refused, used, or what broke; and the processor's time it took."""

    seed: int
    end: str
    seconds: float


async def state(store: Store) -> list[tuple[str, int]]:
    return [(summary.conversation.name, summary.head) async for summary in store.conversations()]


async def use(harness: Harness, store: Store, document: JsonObject, name: str) -> str:
    """Import the document under a name and use what was accepted; whether it was used or refused, or what broke.

    An error of the tree may refuse an import, and nothing after it may blame the bundle. Blocks of types that this
    version does not know are kept and read; no turn is run on them.
    """
    before = await state(store)
    try:
        talk = await harness.load(document, name=name)
    except LooplineError:
        return "refused" if await state(store) == before else "refused and stored"
    try:
        await talk.read([block.ref for block in await talk.blocks()])
        await talk.export()
        await talk.say("go on")
    except StoreVersion:
        return "read, of types that are not known here"
    except BundleError as error:
        return f"BundleError of no bundle: {error}"
    except LooplineError as error:
        return f"accepted, then refused as {type(error).__name__}"
    finally:
        await store.forget(name, cascade=True)
    return "used"


async def import_each(
    original: JsonObject, seeds: Sequence[int], folder: Path, output: Connection
) -> None:
    url = f"sqlite:///{folder}/{seeds[0]}.db"
    model = ScriptedModel(["Done."] * (len(seeds) + 1), strict=False)
    async with Harness.open(bundle, store=url, model=model) as harness, Store.open(url) as store:
        await harness.conversation(RESIDENT).say("hello")
        before = await store.conversation(RESIDENT).blocks()
        for seed in seeds:
            document = damaged(original, Random(seed))
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            began = time.process_time()
            (end,) = await asyncio.gather(
                use(harness, store, document, f"d{seed}"), return_exceptions=True
            )
            seconds = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            text = end if isinstance(end, str) else f"error not of the tree: {end!r}"
            output.send((seed, text, seconds))
        whole = await unchanged(store, before)
    output.send((-1, "store unchanged" if whole else "store changed", 0.0))


async def unchanged(store: Store, before: Sequence[Block]) -> bool:
    """Whether the store holds what it held before, and audits clean."""
    blocks = await store.conversation(RESIDENT).blocks()
    faults = [fault for audit in await store.audit() for fault in audit.faults]
    return list(blocks) == list(before) and not faults


def run_imports(seeds: Sequence[int], folder: Path, output: Connection) -> None:
    """Import the documents in this process, which ends by a signal when one takes too long."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    asyncio.run(import_each(lived().document, seeds, folder, output))


def outcomes_of(seeds: Sequence[int], folder: Path) -> list[Import]:
    """Import the documents in another process; where one ends it, a new one goes on behind it."""
    imports = list[Import]()
    remaining_seeds = list(seeds)
    while remaining_seeds:
        reader, writer = forked.Pipe(duplex=False)
        process = forked.Process(target=run_imports, args=(remaining_seeds, folder, writer))
        process.start()
        writer.close()
        try:
            while reader.poll(MOST_WAIT_SECONDS):
                seed, end, seconds = reader.recv()
                imports.append(Import(seed, end, seconds))
                remaining_seeds = remaining_seeds[1:] if seed >= 0 else remaining_seeds
            process.kill()  # it waits for ever, which takes no time of the processor
        except EOFError:
            pass
        process.join()
        if remaining_seeds:
            hung = process.exitcode in (-signal.SIGPROF, -signal.SIGKILL)
            imports.append(
                Import(remaining_seeds[0], "hang" if hung else "process died", MOST_SECONDS)
            )
            remaining_seeds = remaining_seeds[1:] if hung else []
    return imports


def tamper(documents: int, seed: int, jobs: int) -> Outcome:
    seeds = range(seed, seed + documents)
    with quick_folder() as folder, ThreadPoolExecutor(jobs) as pool:
        parts = [seeds[number::jobs] for number in range(jobs)]
        whole = pool.map(partial(outcomes_of, folder=folder), parts)
        found = [entry for part in whole for entry in part]
    tally = Tally()
    for item in found:
        match item.end:
            case "refused" | "used" | "read, of types that are not known here":
                tally.done[item.end] += 1
            case "store unchanged":
                pass
            case _:
                tally.broken[f"{item.end} (seed {item.seed})"] += 1
    longest = max(entry.seconds for entry in found)
    tally.done["ms the longest"] = round(longest * 1000)
    return tally.outcome(f"{documents:,} tampered documents are imported", BEFORE)
