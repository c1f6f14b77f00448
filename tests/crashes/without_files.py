"""What works again after a moment without a free descriptor: `python -m tests.crashes.without_files FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

from mcp.shared.auth import OAuthToken

from loopline.clock import boot_id
from loopline.errors import LooplineError
from loopline.knowledge.git import GitRepository
from loopline.mcp.oauth import TokenFile
from loopline.memory import Owner
from loopline.memory.turn_file import MemoryFile
from loopline.server import ApiKeys, Principal, add_key
from loopline.store import SqlLog
from loopline.store.blobs import LARGE_BYTES, FileBlobs
from loopline.testing import FakeClock
from tests.crashes.processes import HERE, THERE, prompt, say, url
from tests.crashes.scarce_resources import no_free_descriptor
from tests.support.git_repositories import commit

TASKS = "tests.crashes.without_files"


async def key_file(folder: Path) -> Callable[[], Awaitable[object]]:
    file = folder / "keys.json"
    keys = ApiKeys.read(file)
    key = add_key(file, Principal(user="ann"))

    async def authenticate() -> object:
        return (await keys.authenticate(key)).user

    return authenticate


async def sign_in(folder: Path) -> Callable[[], Awaitable[object]]:
    tokens = TokenFile(folder / "tokens", FakeClock(), lambda _: None)
    await tokens.set_tokens(OAuthToken(access_token="secret", token_type="Bearer"))

    async def renew() -> object:
        stored = await tokens.get_tokens()
        await tokens.set_server(None)
        return stored is not None

    return renew


async def boot(folder: Path) -> Callable[[], Awaitable[object]]:
    del folder
    boot_id.cache_clear()

    async def read() -> object:
        return bool(boot_id())

    return read


async def store(folder: Path) -> Callable[[], Awaitable[object]]:
    async def open_store() -> object:
        async with await SqlLog.open(url(folder / "opened.db")) as log:
            return len(await log.append(HERE, [prompt("one")], seen=0))

    return open_store


async def blob(folder: Path) -> Callable[[], Awaitable[object]]:
    path = folder / "blobs.db"
    log = await SqlLog.open(url(path), blobs=FileBlobs.for_store(path))

    async def append() -> object:
        large, small = [prompt("x" * 2 * LARGE_BYTES)], [prompt("small")]
        appended = await log.append(HERE, large, seen=0)
        return len(appended) + len(await log.append(THERE, small, seen=0))

    return append


async def repository(folder: Path) -> Callable[[], Awaitable[object]]:
    commit(folder, {"a.md": "# Tea"})
    opened = await asyncio.to_thread(GitRepository.open, str(folder))

    async def resolve() -> object:
        return len(opened.resolve("HEAD"))

    return resolve


async def index(folder: Path) -> Callable[[], Awaitable[object]]:
    file = MemoryFile(folder / "index")

    async def indexed() -> object:
        try:
            return len(await file.read_progress(Owner(user="ann", tenant="t", project="p")))
        finally:
            await file.close()

    return indexed


PARTS = (key_file, sign_in, boot, store, blob, repository, index)


async def try_all(folder: Path) -> None:
    """Try each part while no file can be opened, and again; say what comes of it both times."""
    held = list[object]()  # so that nothing is closed meanwhile
    for part in PARTS:
        below = folder / part.__name__
        below.mkdir()
        attempt, outcomes = await part(below), list[object]()
        held.append(attempt)
        for scarcity in (no_free_descriptor, nullcontext):
            try:
                with scarcity():
                    outcomes.append(await attempt())
            except (LooplineError, OSError) as error:
                outcomes.append(type(error).__name__)
        say(part.__name__, *outcomes)


if __name__ == "__main__":
    asyncio.run(try_all(Path(sys.argv[1])))
