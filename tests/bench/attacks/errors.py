"""Writes that fail under a store: with EIO in its log or its file, cut short, or not synced, at a drawn statement.

In every episode a process appends to two conversations, or runs turns, while one failure after the other is injected.
After each failure the store is compared with what was acknowledged: as the process reads it, and as another process
finds a copy of its files, which is what a crash at that moment would leave.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from loopline import Harness
from loopline.errors import StoreError, StoreFailed, StoreFull
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.store_threads import LOG_ROWS
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import Block, ConversationKey, Entry
from tests.bench.attacks.disks import judge
from tests.bench.attacks.outcome import Outcome, Tally
from tests.crashes.processes import HERE, THERE, prompt, url
from tests.support.failing_disks import failing, no_growth, unsynced
from tests.support.ledgers import lines_of
from tests.support.playground import bundle
from tests.support.sqlite_connections import each_connection

SIZES = (20, 2_000, 20_000, 40_000)
"""Characters of a text; a text above 32 KB is a blob."""
BEFORE = "EIO was told as a full disk"
Failure = Callable[[Path], AbstractContextManager[None]]


def _log_of(store: Path) -> Path:
    return store.with_name(f"{store.name}-wal")


@contextmanager
def _failing_files(store: Path) -> Generator[None]:
    with failing(store), failing(_log_of(store)):
        yield


def draw_failure(random: Random) -> tuple[str, Failure]:
    more_bytes = random.randint(0, 60_000)
    failures: Mapping[str, Failure] = {
        "EIO in the log": lambda store: failing(_log_of(store)),
        "EIO in both files": _failing_files,
        "cut short": lambda store: no_growth(_log_of(store), more_bytes),
        "not synced": unsynced,
    }
    # A failed sync ends the episode's log, so it is drawn less often.
    (name,) = random.choices(list(failures), weights=(4, 4, 4, 1))
    return name, failures[name]


@dataclass(slots=True)
class Injection:
    """Begins a failure before the n-th statement of the store's connections, and ends it on `stop`."""

    store: Path
    _pending: Failure | None = None
    _remaining: int = 0
    _active: ExitStack = field(default_factory=ExitStack)

    def arm(self, failure: Failure, at: int) -> None:
        """Let the failure begin before the statement with that number, from 0."""
        self._pending = failure
        self._remaining = at

    def stop(self) -> None:
        """End the failure, or withdraw it if it has not begun."""
        self._pending = None
        self._active.close()

    def before_statement(self, _: str) -> None:
        failure = self._pending
        self._remaining -= 1
        if failure is not None and self._remaining < 0:
            self._pending = None
            self._active.enter_context(failure(self.store))


@contextmanager
def injected(store: Path) -> Generator[Injection]:
    """Have the statements of all connections that are opened within watched by an injection."""
    injection = Injection(store)
    with each_connection(lambda each: each.set_trace_callback(injection.before_statement)):
        try:
            yield injection
        finally:
            injection.stop()


def expect_named(tally: Tally, name: str, error: StoreError) -> None:
    tally.done[name] += 1
    match error:
        case StoreFull():
            is_named = name == "cut short"
        case StoreFailed():
            is_named = name != "cut short"
        case _:  # SQLite reports a disk that fails to read as a damaged file
            is_named = name.startswith("EIO") and "or its disk failed to read" in str(error)
    tally.expect(is_named, f"{name} is told as {type(error).__name__}: {error}")
    tally.expect(str(error).startswith(("/", "blob /")), f"{name} names no file")


async def append_while_writes_fail(store: Path, random: Random) -> Tally:
    """Append to two conversations while writes fail, and compare the store after each failure."""
    tally, acknowledged = Tally(), dict[ConversationKey, list[Block]]()
    blobs = FileBlobs.for_store(store)
    for _ in range(random.randint(1, 3)):
        with injected(store) as injection:
            async with await SqlLog.open(url(store), blobs=blobs) as log:
                failed = False
                while not failed:
                    failed = await append_beside(log, injection, acknowledged, tally, random)
                for conversation, blocks in acknowledged.items():
                    tally.add(await judge(store, conversation, blocks))
    return tally


async def append_beside(
    log: SqlLog,
    injection: Injection,
    acknowledged: dict[ConversationKey, list[Block]],
    tally: Tally,
    random: Random,
) -> bool:
    """Append beside one failure; return whether the store must be opened again."""
    name, failure = draw_failure(random)
    for conversation in (HERE, THERE):
        blocks = acknowledged.setdefault(conversation, [])
        blocks += await log.append(conversation, drawn_entries(random), seen=len(blocks))
    injection.arm(failure, random.randint(0, 12))
    batches = [(place, drawn_entries(random)) for place in random.choices((HERE, THERE), k=3)]
    appends = [
        log.append(place, entries, seen=len(acknowledged[place])) for place, entries in batches
    ]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    injection.stop()
    for (place, _), outcome in zip(batches, outcomes, strict=True):
        match outcome:
            case StoreError():
                expect_named(tally, name, outcome)
            case BaseException():
                raise outcome
            case _:
                # Appends of one tick each return what came before them too.
                acknowledged[place] += [b for b in outcome if b.seq > len(acknowledged[place])]
    if name == "not synced" and any(isinstance(outcome, StoreError) for outcome in outcomes):
        await judge_latched(log, acknowledged, tally)
        return True
    for place, blocks in acknowledged.items():
        stored = list(await log.read(place))
        tally.expect(stored == blocks, f"{name}: what is read is not what was acknowledged")
        tally.add(await judge_copy(injection.store, place, blocks))
    return False


async def judge_latched(
    log: SqlLog, acknowledged: dict[ConversationKey, list[Block]], tally: Tally
) -> None:
    """Expect that after a failed sync everything is stored and nothing more is; count what is stored as acknowledged."""
    for place, blocks in acknowledged.items():
        stored = list(await log.read(place))
        tally.expect(stored[: len(blocks)] == blocks, "acknowledged block lost")
        acknowledged[place] = stored
    try:
        await log.append(HERE, [prompt("refused")], seen=0)
        tally.expect(False, "appended after a failed sync")
    except StoreFailed:
        tally.done["refused after a failed sync"] += 1


def drawn_entries(random: Random) -> Sequence[Entry]:
    """Draw what is appended at once; now and then so many rows that the log is moved into the file."""
    number = LOG_ROWS if random.random() < 0.1 else random.randint(1, 4)
    size = 20 if number == LOG_ROWS else random.choice(SIZES)
    return [prompt("x" * size) for _ in range(number)]


async def judge_copy(store: Path, conversation: ConversationKey, blocks: list[Block]) -> Tally:
    """Compare a copy of the files, which no process has closed, with what was acknowledged."""
    with TemporaryDirectory() as folder:
        files = [path for path in store.parent.glob(f"{store.name}*") if path.suffix != ".db-shm"]
        # Another process copies: closing a file releases the locks that this process has on it.
        copying = ["cp", "-r", *map(str, files), folder]
        await asyncio.to_thread(partial(subprocess.run, copying, check=True))
        copy = Path(folder) / store.name
        async with await SqlLog.open(url(copy), blobs=FileBlobs.for_store(copy)) as log:
            found = [block.seq for block in await log.read(conversation)]
    tally = Tally()
    tally.expect(
        found == [block.seq for block in blocks], "a crash after the failure loses or adds"
    )
    return tally


async def talk_while_writes_fail(store: Path, ledger: Path, random: Random) -> Tally:
    """Run turns while writes fail; each message after a failure is answered, and no effect is made twice."""
    tally, answered = Tally(), 0
    size = random.choice(SIZES)
    note = Call("play.note", name="n", ledger=str(ledger))
    turn: list[ScriptEntry] = [Say("", note, Call("play.look", text="x" * size)), "Done."]
    for _ in range(random.randint(1, 3)):
        with injected(store) as injection:
            model = ScriptedModel(turn * 1_000, strict=False)
            async with Harness.open(bundle, store=url(store), model=model) as harness:
                await harness.carry_on()
                talk = harness.conversation(HERE.name)
                is_latched = False
                while not is_latched:
                    name, failure = draw_failure(random)
                    injection.arm(failure, random.randint(0, 60))
                    try:
                        answered += (await talk.say("go " + "y" * size)).ok
                    except StoreError as error:
                        expect_named(tally, name, error)
                        is_latched = name == "not synced"
                    injection.stop()
                    if not is_latched:
                        await harness.carry_on()
                        result = await talk.say("go on")
                        tally.expect(
                            result.ok, f"after {name} a turn ended as {result.exit_reason}"
                        )
                        answered += result.ok
                remaining = list(await talk.blocks())
        tally.add(await judge(store, HERE, remaining))
    tally.done["turns answered"] += answered
    keys = [line.split()[0] for line in await asyncio.to_thread(lines_of, ledger)]
    tally.expect(len(keys) == len(set(keys)) >= answered, "effect twice or lost")
    return tally


def fail_writes(episodes: int, seed: int) -> Outcome:
    """Run so many episodes, half of them appends and half of them turns."""
    tally = Tally()
    logging.getLogger("loopline").addHandler(logging.NullHandler())
    for number in range(episodes):
        random = Random(f"{seed}/{number}")
        with TemporaryDirectory() as name:
            store = Path(name) / "talk.db"
            if number % 2:
                episode = talk_while_writes_fail(store, Path(name) / "ledger", random)
            else:
                episode = append_while_writes_fail(store, random)
            tally.add(asyncio.run(episode))
        tally.done["episodes"] += 1
    return tally.outcome("writes fail", BEFORE)
