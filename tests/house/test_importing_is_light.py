"""Importing loopline costs little and does nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from loopline import BaseWorkflow, Bundle, Harness
from loopline.cli.app import LazyCommand, app
from loopline.testing import Say, ScriptedModel
from tests.support.rows import each_row

HEAVY = {
    *{"aiosqlite", "click", "git", "httpx", "httpx2", "mcp", "numpy", "pydantic", "pydantic_ai"},
    *{"opentelemetry", "rich", "sqlalchemy", "sqlite3", "torch", "yaml"},
    *{"loopline.cli", "loopline.store", "loopline.providers", "loopline.testing"},
}
ASK_FOR_ALL = "import loopline; [getattr(loopline, name) for name in loopline.__all__]"
"""Public names are loaded when they are asked for: all of them together are what must be light."""
LIST_WHAT_LOADS = f"import sys; before = set(sys.modules); {ASK_FOR_ALL}; print('loaded', *set(sys.modules) - before)"


MODULES_OF_READ = 85
"""How many modules of the package a process has loaded that reads a ref from a store."""

RUN_COMMAND = """
import atexit, sys
from loopline.cli import main
atexit.register(lambda: print("\\nloaded", *sys.modules))
main()
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the code in a new Python, in an empty folder that is also its home."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=folder,
        env={"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "LOOPLINE_STORE": "memory:"},
        capture_output=True,
        text=True,
        check=True,
    )


def loaded_by(*arguments: str, folder: Path) -> set[str]:
    """The modules that a process of the command has loaded when it ends."""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", RUN_COMMAND, *arguments],
        cwd=folder,
        env={"HOME": str(folder), "LOOPLINE_STORE": "sqlite:///talk.db"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.rpartition("\nloaded ")[2].split())


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = set(run(LIST_WHAT_LOADS, tmp_path).stdout.split())
    assert "loopline" in loaded
    assert loaded & HEAVY == set()


def test_help_loads_only_the_names_of_the_commands(tmp_path: Path) -> None:
    assert {
        name for name in loaded_by("--help", folder=tmp_path) if name.startswith("loopline")
    } == {
        *{"loopline", "loopline.cli", "loopline.cli.app"},
        *{"loopline.cli.app", "loopline.cli.parameters"},
    }


async def test_read_loads_no_other_command_and_no_adapter_but_the_store(tmp_path: Path) -> None:
    bundle = Bundle(id="guide", workflow=BaseWorkflow)
    async with Harness.open(
        bundle, store=f"sqlite:///{tmp_path}/talk.db", model=ScriptedModel([Say("Hello.")])
    ) as harness:
        await harness.conversation("c1").say("Hello?")
    loaded = await asyncio.to_thread(loaded_by, "read", "ar:turn_1.user.prompt", folder=tmp_path)
    assert {name for name in loaded if name.startswith("loopline.cli.")} == {
        *{"loopline.cli.app", "loopline.cli.parameters"},
        *{"loopline.cli.reader", "loopline.cli.options"},
        *{"loopline.cli.reader", "loopline.cli.terminal"},
    }
    rooms = {name.split(".")[1] for name in loaded if name.startswith("loopline.")}
    unused = {"bundle", "conversations", "events", "files", "knowledge", "memory", "prompt"}
    unused |= {"react", "search", "skills", "tools"}
    assert rooms & unused == set()
    assert len([name for name in loaded if name.startswith("loopline")]) <= MODULES_OF_READ
    technologies = {"bridge", "mcp", "offline", "providers", "store", "telemetry", "web"}
    assert rooms & technologies == {"store"}
    heavy = {"git", "httpx2", "jsonschema", "numpy", "pydantic"}
    heavy |= {"rich.markdown", "sqlalchemy", "yaml"}
    assert loaded & heavy == set()


def commands(group: click.Group) -> Iterator[LazyCommand]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            assert isinstance(command, LazyCommand)
            yield command


@each_row([*commands(app)])
def test_the_help_of_a_command_says_what_its_function_does(command: LazyCommand) -> None:
    assert command.help == command.load().help


def test_a_name_that_is_not_public_is_no_attribute(tmp_path: Path) -> None:
    code = (
        "import loopline; print(hasattr(loopline, 'Loopline'), dir(loopline) == loopline.__all__)"
    )
    assert run(code, tmp_path).stdout == "False True\n"


def test_importing_prints_nothing(tmp_path: Path) -> None:
    ran = run(ASK_FOR_ALL, tmp_path)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_importing_writes_nothing(tmp_path: Path) -> None:
    run(ASK_FOR_ALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_registers_and_starts_nothing(tmp_path: Path) -> None:
    state = "(threading.active_count(), logging.root.handlers, warnings.filters, signals(), dict(os.environ))"
    code = f"""
import logging, os, signal, threading, warnings
def signals():
    return [signal.getsignal(number) for number in signal.valid_signals()]
def state():
    return repr({state})
before = state()
{ASK_FOR_ALL}
print(before == state())
"""
    assert run(code, tmp_path).stdout == "True\n"
