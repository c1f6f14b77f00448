"""Another process over the store of a story, which interrupts it as it is told, a line for each.

`python -m tests.support.second_process` reads `[store, step, kind]` and says the place and the turn of what it said.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from loopline import Harness
from loopline.conversations import Receipt
from loopline.models import Json, dumps
from loopline.store import SqlLog
from tests.support import interruption_scenario

ROOT = Path(__file__).resolve().parents[2]


class Another:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def interrupt(
        self, now: interruption_scenario.Interruption, store: str
    ) -> Receipt | None:
        value = json.loads(await asyncio.to_thread(self._told, dumps([store, now.step, now.kind])))
        return Receipt(*value) if value else None

    def _told(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def outside() -> Generator[Another, None, None]:
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is there
        yield Another(process)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


async def _interrupt(store: str, now: interruption_scenario.Interruption) -> list[Json]:
    scene = interruption_scenario.Scene(clock=interruption_scenario.OwnClock())
    async with (
        await SqlLog.open(store) as log,
        Harness.open(
            interruption_scenario.story, store=log, model=interruption_scenario.tellers(scene)
        ) as harness,
    ):
        said = await interruption_scenario.interrupted(now, harness.conversation("c"), scene)
        return [said.seq, said.turn] if said else []


def main() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()
    for line in sys.stdin:
        store, step, kind = json.loads(line)
        said = asyncio.run(_interrupt(store, interruption_scenario.Interruption(step, kind)))
        sys.stdout.write(f"{dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
