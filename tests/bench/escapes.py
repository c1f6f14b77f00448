"""Runs each program of the corpus of escapes alone, and prints what stopped it and how many got out."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loopline.sandbox import Sandbox
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon
from loopline.sandbox.fargate import FargateSandbox
from loopline.sandbox.process import BubblewrapSandbox
from tests.bench.program import read_options, say
from tests.support.docker_daemons import SETTINGS, docker_daemon
from tests.support.ecs_endpoint import TASKS, local_aws
from tests.support.escapes import NAMES, canaries, judge_all


async def measure(folder: Path, backend: str) -> int:
    """Print a line for each program; return how many got out."""
    with ExitStack() as stack:
        host = stack.enter_context(docker_daemon()) if backend != "process" else ""
        if backend == "fargate":
            os.environ.update(stack.enter_context(local_aws(host)).variables)
        return await _measured(folder, backend, host)


async def _measured(folder: Path, backend: str, host: str) -> int:
    runs, watched_folder = folder / "r", folder / "c"
    runs.mkdir()
    watched_folder.mkdir()
    match backend:
        case "docker":
            sandbox: Sandbox = DockerSandbox(SETTINGS, DockerDaemon(host), folder=runs)
        case "fargate":
            sandbox = FargateSandbox(TASKS, folder=runs)
        case _:
            sandbox = BubblewrapSandbox(folder=runs)
    with canaries(watched_folder) as watched:
        verdicts = await judge_all(sandbox, NAMES, watched, at_once=2)
    await sandbox.close()
    say("| program | stopped by |\n|---|---|")
    for verdict in verdicts:
        say(f"| {verdict.name} | {'**ESCAPED** ' if verdict.escaped else ''}{verdict.stopped_by} |")
    escaped = sum(verdict.escaped for verdict in verdicts)
    say(f"\n{escaped} of {len(verdicts)} got out; {watched.touched} canaries were touched")
    return escaped + watched.touched


def main() -> int:
    backend: str = read_options(__doc__, backend=("process", "docker", "fargate")).backend
    with tempfile.TemporaryDirectory(prefix="lx") as folder:
        return 1 if asyncio.run(measure(Path(folder), backend)) else 0


if __name__ == "__main__":
    sys.exit(main())
