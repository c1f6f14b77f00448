"""The programs: one file for each library and task, in the style of its own documentation."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
SUFFIX = ".py.txt"
"""The programs are no modules here: the libraries that they import are not installed."""

Task = Literal[
    "hello", "settings", "typed", "approval", "edited", "client", "resume", "ten", "sent"
]
TASKS: dict[Task, str] = {
    "hello": "a question that one tool answers",
    "settings": "a temperature and a limit of tokens",
    "typed": "an answer as a value of a class",
    "approval": "a call that needs approval",
    "edited": "an approval that changes the arguments",
    "client": "a tool that the client runs",
    "resume": "continue after a kill of the process",
    "ten": "ten agents at once, and a kill in the middle",
    "sent": "print what the model was sent",
}
LIBRARIES = {
    "loopline": "Loopline",
    "pydantic_ai": "Pydantic AI",
    "langgraph": "LangGraph",
    "agno": "Agno",
    "adk": "ADK",
    "openai_agents": "OpenAI Agents",
}
_THEN = "# then: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One file; `dies_inside` says that its process dies in the very call that makes an order."""

    framework: str
    task: Task
    text: str
    dies_inside: bool = False

    @property
    def then(self) -> str:
        """Return the command after the first run, or an empty text."""
        first = self.text.splitlines()[0]
        return first.removeprefix(_THEN) if first.startswith(_THEN) else ""

    @property
    def lines(self) -> int:
        """Count the lines that hold code, and the command that follows as one."""
        lines = [line.strip() for line in self.text.splitlines()]
        return sum(bool(line) and not line.startswith("#") for line in lines) + bool(self.then)

    @property
    def names(self) -> list[str]:
        """List the names that are imported from outside the standard library."""
        return sorted(set(_imported(ast.parse(self.text))))


_WRITTEN = '    return "ordered"\n'
_DIES = '    if "again" not in sys.argv:\n        os.kill(os.getpid(), signal.SIGKILL)\n'


def killed_inside(program: Program) -> Program:
    """Return the program of `resume` whose process dies in the call that writes, after it has written."""
    text = program.text.replace(_WRITTEN, _DIES + _WRITTEN)
    return replace(program, text=text, dies_inside=True)


def programs() -> list[Program]:
    return [
        Program(framework=library, task=task, text=path.read_text("utf-8"))
        for task in TASKS
        for library in LIBRARIES
        if (path := HERE / library / f"{task}{SUFFIX}").exists()
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if not _is_standard(module):
                yield from (alias.name for alias in node.names)
            case ast.Import():
                yield from (alias.name for alias in node.names if not _is_standard(alias.name))
            case _:
                pass


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
