"""A process that submits messages: `racing_appends.py STORE LEDGER NAME MESSAGES CONVERSATIONS` ends once all are stored."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from tests.support.worker_process import submitter


async def _submit(store: str, ledger: Path, name: str, messages: int, conversations: int) -> None:
    chance = random.Random(name)
    async with submitter(store, ledger) as harness:
        texts = [f"call work.note text={name}-{n}" for n in range(messages)]
        talks = [harness.conversation(f"c{n}") for n in range(conversations)]
        for start in range(0, messages, 10):
            sent = [chance.choice(talks).submit(text) for text in texts[start : start + 10]]
            await asyncio.gather(*sent)


def main() -> None:
    store, ledger, name, messages, conversations = sys.argv[1:]
    asyncio.run(_submit(store, Path(ledger), name, int(messages), int(conversations)))


if __name__ == "__main__":
    main()
