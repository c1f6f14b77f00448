"""How long the event loop is kept from its next task, and texts that try to keep it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from time import process_time

BEAT_SECONDS = 0.002


class Stalls:
    """The processor's time that the process spent between two tasks of the loop, at the longest.

    A loop that waits spends none, however busy the machine is. What another thread does while it
    holds the interpreter counts, for it keeps the loop waiting too.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    async def watch(self) -> None:
        """Look at the clock again and again, until cancelled."""
        before = process_time()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = process_time()
            self.longest_seconds = max(self.longest_seconds, now - before)
            before = now


@asynccontextmanager
async def watched() -> AsyncGenerator[Stalls]:
    """Watch the running loop; what the process holds already is nothing that is collected meanwhile."""
    stalls = Stalls()
    gc.freeze()
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(2 * BEAT_SECONDS)
    try:
        yield stalls
    finally:
        await asyncio.sleep(2 * BEAT_SECONDS)
        watching.cancel()
        gc.unfreeze()


def _repeated(word: str) -> Callable[[int], str]:
    return lambda length: word * (length // len(word))


def _json_rows(length: int) -> str:
    row = {"id": 7, "name": "a name", "values": [1, 2, 3], "text": "some words"}
    return json.dumps([row] * (length // 70))


def _deep_json(length: int) -> str:
    return "[" * (length // 2) + "]" * (length // 2)


TEXTS: Mapping[str, Callable[[int], str]] = {
    "letters": _repeated("a"),
    "runs of letters": _repeated("a" * 4_000 + " "),
    "base64": _repeated("aB3/" * 1_500 + "\n"),
    "words": _repeated("some words of a text "),
    "numbers": _repeated("1,2.3:"),
    "paths": _repeated("a/b.c-d_e/"),
    "names": _repeated("AaBb_"),
    "spaces": lambda length: f"a{' ' * length}b",
    "new lines": lambda length: "a" + "\n" * length + "b",
    "long lines": _repeated("x" * 200_000 + "\n"),
    "citations": _repeated("[[S:1]] "),
    "brackets": _repeated("[["),
    "backticks": _repeated("`"),
    "backticks in lines": _repeated("```\n`` "),
    "marks": _repeated("✓ 1\n"),
    "tags": _repeated("<channel:answer>"),
    "objects begun": _repeated('{"a":'),
    "quotes": _repeated('"\\'),
    "JSON": _json_rows,
    "deep JSON": _deep_json,
    "letters of many bytes": _repeated("é漢😀"),
    "sources": _repeated("[[S:1]] a title\n"),
}
"""What a stranger may send, by what it is; each is made in a length."""
