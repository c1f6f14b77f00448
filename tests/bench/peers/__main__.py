"""`python -m tests.bench.peers` runs the same tasks in six libraries, each in an environment of its own.

It needs `uv` and a package registry, takes some minutes, and prints a table for docs/comparison.md. A library that
cannot be installed is skipped by name. `--environments` keeps the environments in a folder; `--only` runs the programs
of one library. Every program asks a model on this machine, so no key is needed; what it prints and writes is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopline.models import dumps
from loopline.models.prompt import estimate
from tests.bench.peers.model import ANSWER, MINUTES, WITH_SETTINGS, TeaModel
from tests.bench.peers.programs import (
    HERE,
    LIBRARIES,
    TASKS,
    Program,
    Task,
    killed_inside,
    programs,
)
from tests.docs.pages import ROOT
from tests.support.ledgers import lines_of
from tests.support.peers.http_server import Peer, Request, serving

LIMIT_SECONDS = 300
READ = ("instructions", "input", "messages", "tools", "text", "response_format")
"""The fields of a request that a model reads."""
COUNTED: tuple[Task, ...] = ("hello", "approval", "typed")
"""The tasks whose tokens the second table shows."""
SHOWN = {
    "loopline": ("loopline",),
    "pydantic_ai": ("pydantic-ai-slim", "dbos"),
    "langgraph": ("langgraph", "langchain"),
    "agno": ("agno",),
    "adk": ("google-adk", "litellm"),
    "openai_agents": ("openai-agents",),
}
"""The packages whose versions the table names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a program: why it did not do its task (empty if it did), its orders, all it printed, and the tokens it sent."""

    program: Program
    problem: str
    orders: int
    printed: str
    tokens: int

    @property
    def cell(self) -> str:
        """Return lines / names, or that it failed."""
        return f"{self.program.lines} / {len(self.program.names)}" if not self.problem else "fails"

    @property
    def end(self) -> str:
        """Return the last lines that it printed."""
        return "\n".join(self.printed.splitlines()[-20:])


async def make(library: str, folder: Path) -> Path:
    """Return the folder of programs of the library's environment, made if it is not there."""
    commands = folder / library / "bin"
    if not commands.exists():
        uv = shutil.which("uv")
        if uv is None:
            raise RuntimeError("there is no uv on the PATH: the README has a line that installs it")
        expected_texts = ["-r", str(HERE / library / "requirements.txt")]
        if library == "loopline":
            expected_texts = [str(ROOT)]
        await check_call(uv, "venv", "-q", "-p", sys.executable, str(folder / library))
        # In the folder of the environments, because in the repository its pins would hold for the other libraries.
        there = ("--directory", str(folder))
        await check_call(
            uv, "pip", "install", "-q", *there, "-p", str(commands / "python"), *expected_texts
        )
    return commands


async def make_all(libraries: Iterable[str], folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the folder of programs of each environment, and a line for each library that cannot be had."""
    commands, skipped = dict[str, Path](), list[str]()
    for library in libraries:
        try:
            commands[library] = await make(library, folder)
        except RuntimeError as error:
            shutil.rmtree(folder / library, ignore_errors=True)
            skipped.append(f"skipped: {LIBRARIES[library]}: {error}".strip())
    return commands, skipped


async def check_call(*command: str) -> None:
    """Run the command; a failure is a `RuntimeError` with what it printed."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {printed.decode(errors='replace')}")


async def run(program: Program, commands: Path, peer: Peer) -> Outcome:
    """Run the program in an empty folder, with the model's server as OpenAI."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"{program.task}.py").write_text(program.text, "utf-8")
        codes, printed = list[int](), list[str]()
        earlier = len(peer.requests)
        for command in filter(None, [f"python {program.task}.py", program.then]):
            code, told = await started(command, folder, environment(commands, folder, peer))
            codes.append(code)
            printed.append(told)
        book = folder / "orders.txt"
        orders = lines_of(book)
    problem = "; ".join(problems(program, codes, printed, orders))
    return Outcome(
        program=program,
        problem=problem,
        orders=len(orders),
        printed="\n".join(printed),
        tokens=sum(map(sent_tokens, peer.requests[earlier:])),
    )


def sent_tokens(request: Request) -> int:
    """Estimate the tokens of what a request gives the model to read, with the counter of this project."""
    read = {name: request.body[name] for name in READ if request.body.get(name)}
    return estimate(dumps(read)) if read else 0


async def started(command: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Run the command, answer its question with yes, and return its exit code with what it printed."""
    arguments = shlex.split(command)
    found = shutil.which(arguments[0], path=variables["PATH"]) or arguments[0]
    process = await asyncio.create_subprocess_exec(
        found, *arguments[1:], cwd=folder, env=variables, stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            told, _ = await process.communicate(b"y\n")
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"{command}: no end within {LIMIT_SECONDS} seconds"
    return process.returncode or 0, told.decode(errors="replace")


def environment(commands: Path, folder: Path, peer: Peer) -> dict[str, str]:
    """Return the variables of a program: the model's server, a home of its own, and no telemetry."""
    return {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{peer.url}/v1",
        "OPENAI_API_BASE": f"{peer.url}/v1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONUTF8": "1",
        "AGNO_TELEMETRY": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def problems(
    program: Program, codes: Sequence[int], printed: Sequence[str], orders: Sequence[str]
) -> Iterator[str]:
    expected = [-signal.SIGKILL, 0] if program.task in ("resume", "ten") else [0] * len(codes)
    if codes != expected:
        yield f"exit codes {codes}"
    wanted = {
        "hello": [ANSWER],
        "settings": [WITH_SETTINGS],
        "edited": [ANSWER],
        "client": ["locate", ANSWER],
        "ten": ["\n".join([ANSWER] * 10)],
        "typed": [str(MINUTES)],
        "approval": ["order", ANSWER],
        "resume": [ANSWER],
        "sent": ["You run a tea shop.", "What does sencha cost?", "sencha costs 7 euros"],
    }[program.task]
    for text in wanted:
        if text not in printed[-1]:
            yield f"{text!r} is not printed"
    expected_orders = {
        "approval": ["100 g of sencha"],
        "edited": ["50 g of sencha"],
        "resume": ["100 g of sencha"],
        "ten": ["100 g of sencha"] * 10,
    }
    wanted_orders = None if program.dies_inside else expected_orders.get(program.task)
    if wanted_orders is not None and orders != wanted_orders:
        yield f"{len(orders)} orders: {', '.join(dict.fromkeys(orders))}"


async def version(commands: Path, library: str) -> str:
    code = "import sys; from importlib.metadata import version; print(*(f'{p} {version(p)}' for p in sys.argv[1:]), sep=', ')"
    process = await asyncio.create_subprocess_exec(
        commands / "python", "-c", code, *SHOWN[library], stdout=PIPE
    )
    printed, _ = await process.communicate()
    return printed.decode().strip()


def table(outcomes: Sequence[Outcome], killed: Sequence[Outcome]) -> Iterator[str]:
    """Make the table: a row a task, a column a library, lines / imported names in each cell.

    The last row is the orders that each has made when the process died inside the call that makes one.
    """
    cells = {
        (outcome.program.task, outcome.program.framework): outcome.cell for outcome in outcomes
    }
    libraries = [library for library in LIBRARIES if any(library == key for _, key in cells)]
    yield " | ".join(["| task", *(LIBRARIES[library] for library in libraries)]) + " |"
    yield "|---" * (len(libraries) + 1) + "|"
    for task, text in TASKS.items():
        row = [cells.get((task, library), "–") for library in libraries]
        yield " | ".join([f"| {text}", *row]) + " |"
    orders = {
        item.program.framework: "fails" if item.problem else str(item.orders) for item in killed
    }
    row = [orders.get(library, "–") for library in libraries]
    yield " | ".join(["| orders after a kill inside the call", *row]) + " |"
    yield from tokens_table(outcomes, libraries)


def tokens_table(outcomes: Sequence[Outcome], libraries: Sequence[str]) -> Iterator[str]:
    """Make the table of the tokens that all requests of a program had together."""
    yield ""
    yield " | ".join(["| tokens sent", *(LIBRARIES[library] for library in libraries)]) + " |"
    yield "|---" * (len(libraries) + 1) + "|"
    sent = {(item.program.task, item.program.framework): item for item in outcomes}
    for task in COUNTED:
        found = [sent.get((task, library)) for library in libraries]
        row = [f"{item.tokens:,}" if item and not item.problem else "–" for item in found]
        yield " | ".join([f"| {TASKS[task]}", *row]) + " |"


async def main() -> None:
    """Make the environments, run the programs, and print the table and what went wrong."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.peers")
    options.add_argument("--environments", type=Path)
    options.add_argument("--only", choices=LIBRARIES)
    parse_args = options.parse_args()
    expected_programs = [
        program for program in programs() if parse_args.only in (None, program.framework)
    ]
    with tempfile.TemporaryDirectory() as new_folder:
        folder = (parse_args.environments or Path(new_folder)).resolve()
        commands, skipped = await make_all(
            dict.fromkeys(program.framework for program in expected_programs), folder
        )
        chosen = [program for program in expected_programs if program.framework in commands]
        outcomes, killed = list[Outcome](), list[Outcome]()
        # A program that is killed while it sends a request leaves half of it, which the server reports at its end.
        with suppress(asyncio.IncompleteReadError):
            async with serving(Peer(), TeaModel().respond) as peer:
                for program in chosen:
                    outcomes.append(await run(program, commands[program.framework], peer))
                    if program.task == "resume":
                        inside = killed_inside(program)
                        killed.append(await run(inside, commands[program.framework], peer))
        lines = [f"{LIBRARIES[name]}: {await version(commands[name], name)}" for name in commands]
    sys.stdout.write("\n".join([*table(outcomes, killed), "", *sorted(lines), *skipped, ""]))
    for item in [*outcomes, *killed]:
        if item.problem:
            sys.stdout.write(
                f"\n{item.program.framework} {item.program.task}: {item.problem}\n{item.end}\n"
            )


if __name__ == "__main__":
    asyncio.run(main())
