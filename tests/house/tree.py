"""The files of the repository, and the Python among them as syntax trees."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT

SDK = ROOT / "sdk" / "loopline"


@cache
def kept_files() -> list[Path]:
    """Every file that is committed, or would be if everything new were added now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    named = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sorted(path for path in named if path.is_file())


def python_files(*folders: str) -> list[Path]:
    """The kept Python files below these top folders."""
    return [
        path
        for path in kept_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8", "replace")


@cache
def tree(path: Path) -> ast.Module:
    """The file as a syntax tree."""
    return ast.parse(text_of(path), filename=str(path))


@cache
def functions(path: Path) -> Sequence[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in the file, methods and inner ones too."""
    nodes = ast.walk(tree(path))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def place(path: Path, line: int) -> str:
    """A file and line as an editor opens it."""
    return f"{path.relative_to(ROOT).as_posix()}:{line}"
