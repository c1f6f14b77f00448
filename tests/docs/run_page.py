"""Runs the examples of one page in order, once each, in one folder and one Python namespace.

`python -m tests.docs.run_page PAGE FOLDER RESULTS`, started at the root of the repository. Files
(`title=` fences) are written first; then RESULTS gets one JSON line for each example that came to an
end: the line of its fence and why it failed, or an empty text.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from tests.docs.pages import ROOT, Fence, fences

LIMIT_SECONDS = 300


class ExampleError(Exception):
    """A command did not do what its page shows."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console, and the output that the page shows for it."""

    command: str
    shows: str


class Outcome:
    """Holds why its block failed, whatever was raised there."""

    def __init__(self) -> None:
        self.failure = ""

    def __enter__(self) -> Outcome:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, ExampleError):
            self.failure = str(error)
        elif error is not None:
            self.failure = "".join(traceback.format_exception(error))
        return True


def run_page(path: Path, folder: Path, results: Path) -> None:
    """Write the page's files, run its examples, and note how each came out."""
    examples = fences(path)
    for fence in examples:
        write(fence, folder)
    module = sys.modules["__main__"] = ModuleType("__main__")
    with asyncio.Runner() as loop, results.open("a", encoding="utf-8") as notes:
        for fence in examples:
            os.chdir(folder)
            with Outcome() as outcome:
                run(fence, folder, module, loop)
            notes.write(json.dumps({"line": fence.line, "failure": outcome.failure}) + "\n")
            notes.flush()


def write(fence: Fence, folder: Path) -> None:
    """Write the file that a titled fence is."""
    if fence.title:
        target = folder / fence.title
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fence.text, "utf-8")


def run(fence: Fence, folder: Path, module: ModuleType, loop: asyncio.Runner) -> None:
    """Run one example. A Python file is only compiled: the page's other examples use it."""
    if fence.language == "python":
        code = compile_fence(fence)
        if fence.runs:
            execute(code, module, loop)
    elif fence.runs:
        run_console(fence, folder)


def compile_fence(fence: Fence) -> CodeType:
    """The fence's code; its lines are numbered as on the page, so that a traceback leads there."""
    source = "\n" * fence.line + fence.text
    flags = 0 if fence.title else ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(source, str(fence.path), "exec", flags=flags, dont_inherit=True)
    return code


def execute(code: CodeType, module: ModuleType, loop: asyncio.Runner) -> None:
    """Run the code in the page's namespace, and wait for it if it awaits at its top level."""
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(eval(code, vars(module)))
    else:
        exec(code, vars(module))


def run_console(fence: Fence, folder: Path) -> None:
    """Run the console's commands in turn.

    Raises:
        ExampleError: one printed something else, or exited with another code.
    """
    in_repository = "repo" in fence.words
    environment = os.environ | (
        {"LOOPLINE_STORE": f"sqlite:///{folder}/loopline.db"} if in_repository else {}
    )
    for step in steps(fence.text):
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=ROOT if in_repository else folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if done.returncode != fence.exit_code:
            raise ExampleError(
                f"$ {step.command}\nexited with {done.returncode}, not {fence.exit_code}\n"
                f"{done.stdout}{done.stderr}"
            )
        if step.shows and not shows(step.shows, done.stdout, done.stderr):
            raise ExampleError(
                f"$ {step.command}\nthe page shows:\n{step.shows}\n"
                f"it printed:\n{done.stdout}\nand on stderr:\n{done.stderr}"
            )


def steps(text: str) -> Iterator[Step]:
    r"""The commands of a console with what follows each; a command ending in `\` goes on below."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        end = next(at for at, line in enumerate(lines, 1) if not line.endswith("\\"))
        yield Step("\n".join(lines[:end]), "\n".join(lines[end:]).strip("\n"))


def shows(page: str, stdout: str, stderr: str) -> bool:
    """Whether the page shows the answer, or what a terminal shows: the progress before it."""
    return matches(page, stdout) or matches(page, stderr + stdout)


def matches(page: str, printed: str) -> bool:
    """Whether the lines are the same; `…` stands for anything in a line, alone for any lines."""
    expected_texts = [
        "(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + "\n"
        for line in page.splitlines()
    ]
    lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch("".join(expected_texts), lines) is not None


def main() -> None:
    """Run the page named on the command line; its folder is where its imports are found."""
    page, folder, results = (Path(word).resolve() for word in sys.argv[1:])
    sys.path[0] = str(folder)
    run_page(page, folder, results)


if __name__ == "__main__":
    main()
