"""Programs that fill their folders in ways that a look at them may miss, and what each holds at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopline.sandbox import Execution, ExecutionLimits, ProgramEnd, Sandbox, ServedCall, Session

LIMITS = ExecutionLimits(
    wall_seconds=60.0,
    memory_bytes=300_000_000,
    file_bytes=5_000_000,
    total_bytes=10_000_000,
    disk_bytes=20_000_000,
    disk_files=5_000,
)
PRELUDE = """
import os
HELD = 0

def tell(more):
    global HELD
    HELD += more
    print(HELD, flush=True)

def make(name):
    return os.open(name, os.O_RDWR | os.O_CREAT)

def fill(file):
    for _ in range(40):
        tell(os.write(file, b"x" * 100_000))

def nest(depth, name="d"):
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
"""
"""Each prints what it holds, as it gets it."""


@dataclass(frozen=True, slots=True)
class DiskProgram:
    """A program that fills its folders: what it counts, how much it would have, and the code with which it ends."""

    program: str
    would_have: int
    code: str = "disk_limit"

    @property
    def limit(self) -> int:
        return LIMITS.disk_bytes if self.would_have > 1_000_000 else LIMITS.disk_files


MB = 1_000_000
CORPUS: Mapping[str, DiskProgram] = {
    "plain files": DiskProgram("for n in range(40): fill(make(f'outputs/{n}'))", 160 * MB),
    "unlinked": DiskProgram(
        "for n in range(80):\n    file = make('outputs/x')\n    os.unlink('outputs/x')\n    fill(file)",
        320 * MB,
    ),
    "unlinked in the working folder": DiskProgram(
        "os.chdir(WORKDIR)\nfor n in range(100):\n    file = make('x')\n    os.unlink('x')\n    fill(file)",
        400 * MB,
    ),
    "both folders": DiskProgram(
        "for n in range(40): fill(make(f'{OUTPUT_DIR if n % 2 else WORKDIR}/{n}'))", 160 * MB
    ),
    "below a long path": DiskProgram(
        "nest(30, 'd' * 200)\nfor n in range(100): fill(make(str(n)))", 400 * MB
    ),
    "in a closed folder": DiskProgram(
        "os.mkdir('outputs/c')\nfiles = [make(f'outputs/c/{n}') for n in range(80)]\n"
        "os.chmod('outputs/c', 0)\nfor file in files: fill(file)",
        320 * MB,
    ),
    "hidden names": DiskProgram(
        "os.makedirs('files/.a/.b')\nfor n in range(60): fill(make(f'files/.a/.b/.{n}'))", 240 * MB
    ),
    "mapped": DiskProgram(
        "import mmap\nmaps = []\nfor n in range(60):\n    file = make('x')\n    os.unlink('x')\n"
        "    os.truncate(file, 4_000_000)\n    maps.append(mmap.mmap(file, 4_000_000))\n"
        "    for at in range(0, 4_000_000, 100_000):\n"
        "        maps[-1][at:at + 100_000] = b'x' * 100_000\n        tell(100_000)",
        240 * MB,
    ),
    "allocated": DiskProgram(
        "for n in range(60):\n    os.posix_fallocate(make(f'outputs/{n}'), 0, 4_000_000)\n    tell(4_000_000)",
        240 * MB,
    ),
    "many files": DiskProgram(
        "for n in range(30_000):\n    os.close(make(f'outputs/{n}'))\n    tell(1)", 30_000
    ),
    "many names of a file": DiskProgram(
        "make('outputs/a')\nfor n in range(30_000):\n    os.link('outputs/a', f'outputs/{n}')\n    tell(1)",
        30_000,
    ),
    "many links": DiskProgram(
        "for n in range(30_000):\n    os.symlink('x', f'outputs/{n}')\n    tell(1)", 30_000
    ),
    "sparse": DiskProgram(
        "for n in range(100):\n    os.truncate(make(f'outputs/{n}'), 4_900_000)\n    tell(1)",
        100,
        "",
    ),
    "twelve hundred folders": DiskProgram("nest(1_200)\ntell(1_200)", 1_200, ""),
    "four thousand folders": DiskProgram("nest(4_000)\ntell(4_000)", 4_000, ""),
    "folders that nobody may enter": DiskProgram(
        "for n in range(300):\n    os.makedirs(f'files/{n}/d/e')\n    os.close(make(f'files/{n}/d/f'))\n"
        "    os.chmod(f'files/{n}/d', 0)\n    os.chmod(f'files/{n}', 0)\ntell(1)",
        1,
        "",
    ),
}


def last_count(end: ProgramEnd) -> int:
    """What the program has held at its end, as it has told."""
    lines = end.user_out.split()
    return int(lines[-1]) if lines else 0


async def serve_nothing(tool: str, arguments: object) -> ServedCall:
    """Answer a call of a program that has no tools."""
    del arguments
    return ServedCall(False, None, tool)


async def fill_disk(sandbox: Sandbox, name: str) -> ProgramEnd:
    execution = Execution(
        execution_id="e",
        turn_id="turn_1",
        program=f"{PRELUDE}\n{CORPUS[name].program}",
        limits=LIMITS,
    )
    return await sandbox.run(execution, Session(serve=serve_nothing))
