"""A worker in a process of its own, which tests kill: `worker_process.py STORE LEDGER` says that it runs, and runs turns.

The tool `work.note` appends a line to the file LEDGER, with the time that it takes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loopline import Bundle, Harness, LooplineError, ToolContext, tool
from loopline.harness import Worker, WorkerLimits, open_turns, open_worker
from loopline.testing import FakeClock
from tests.support.echo_model import EchoModel

ROOT = Path(__file__).resolve().parents[2]
NOTE_SECONDS = 0.02


def work(ledger: Path) -> Bundle:
    """The bundle whose tool has an effect that can be counted."""

    @tool(effect="write", key="ledger")
    async def note(text: str, context: ToolContext) -> str:
        """Note a text."""
        descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, f"{context.conversation} {text}\n".encode())
        finally:
            os.close(descriptor)
        await asyncio.sleep(NOTE_SECONDS)
        return f"noted {text}"

    return Bundle(id="work", instructions="You help.", tools=[note])


def submitter(store: str, ledger: Path, clock: FakeClock | None = None) -> Harness:
    """A harness that submits turns of `work`, as a server with workers does."""
    return Harness.open(
        work(ledger), store=store, model=EchoModel(), submits_only=True, clock=clock
    )


class NotStarted(Exception):
    """A worker ended instead of running."""


@asynccontextmanager
async def running(worker: Worker) -> AsyncGenerator[None]:
    """Let the worker run turns in this process inside the context."""
    run = asyncio.create_task(worker.run())
    yield
    await worker.drain(5)
    await run


@contextmanager
def worker_process(
    store: str, ledger: Path, *, drain: float = 5.0, limits: str = "8,0,0"
) -> Generator[subprocess.Popen[str]]:
    """Start a worker, which runs when this returns; it is killed at the end of the context.

    `limits` are the turns of the worker, of a tenant and of a user.

    Raises:
        NotStarted: it could not start, such as while another process locks the store.
    """
    with subprocess.Popen(
        [sys.executable, "-m", __name__, store, str(ledger), str(drain), limits],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "running\n":
                raise NotStarted
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


async def put_back_dead_letters(harness: Harness) -> None:
    """Wait until no turn is open; put back each that is a dead letter."""
    while open_now := await open_turns(harness.log):
        for turn in open_now:
            if turn.state == "dead":
                key = turn.conversation
                try:
                    await harness.conversation(key.name, tenant=key.tenant).retry()
                except LooplineError as error:
                    if "cut off too often" not in str(error):  # the next message has ended it
                        raise
        await asyncio.sleep(0.2)


async def _run(store: str, ledger: Path, drain: float, limits: WorkerLimits) -> None:
    async with open_worker(
        [work(ledger)], store=store, model=EchoModel(pause=0.005), worker_limits=limits
    ) as worker:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        sys.stdout.write("running\n")
        sys.stdout.flush()
        await worker.run()
        await worker.drain(drain)


def main() -> None:
    store, ledger, drain, limits = sys.argv[1:]
    turns, tenant, user = map(int, limits.split(","))
    chosen = WorkerLimits(turns=turns, tenant_turns=tenant, user_turns=user)
    asyncio.run(_run(store, Path(ledger), float(drain), chosen))


if __name__ == "__main__":
    main()
