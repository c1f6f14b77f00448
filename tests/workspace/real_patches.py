"""Unified diffs that Git makes of real texts, what `git apply` makes of them, and how they can be broken."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loopline.errors import ToolError
from loopline.files import apply_patch
from loopline.timeline import WorkspacePath

Tree = Mapping[str, bytes]
"""Files by their path below `files/`."""
LIMIT = 50_000_000


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, input=stdin, capture_output=True
    )


def write_tree(folder: Path, tree: Tree) -> None:
    for path, data in tree.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def git_diff(before: Tree, after: Tree, *options: str) -> bytes:
    """Return what `git diff` says of two trees."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "repository"
        folder.mkdir()
        for arguments in (["init", "-q"], ["config", "core.autocrlf", "false"]):
            _git(folder, *arguments)
        write_tree(folder, before)
        _git(folder, "add", "-A", "-f")
        tree = _git(folder, "write-tree").stdout.strip().decode()
        for path in before:
            (folder / path).unlink()
        write_tree(folder, after)
        _git(folder, "add", "-A", "-f")
        return _git(folder, "diff", "--cached", "--binary", "--no-color", *options, tree).stdout


def git_apply(before: Tree, patch: bytes) -> dict[str, bytes] | None:
    """Return the tree that `git apply` makes, None if it refuses the patch."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "tree"
        folder.mkdir()
        write_tree(folder, before)
        applied = _git(folder, "apply", "--whitespace=nowarn", "-", stdin=patch)
        return read_tree(folder) if applied.returncode == 0 else None


def our_apply(before: Tree, patch: bytes) -> dict[str, bytes]:
    """Return the tree that the workspace makes of the patch.

    Raises:
        ToolError: it is refused.
    """

    def read(path: WorkspacePath) -> bytes | None:
        return before.get(path.path) if path.area == "files" else None

    after = dict(before)
    for file in apply_patch(patch, read, LIMIT):
        after.pop(file.path.path, None)
        if file.after is not None:
            after[file.path.path] = file.after
    return after


@dataclass(frozen=True, slots=True)
class Breakage:
    """A patch that was broken in one way."""

    how: str
    patch: bytes


def broken(patch: bytes, lot: random.Random) -> Iterator[Breakage]:
    """Yield the patch with one line of context changed, left out, or taken from elsewhere."""
    lines = patch.split(b"\n")
    context = [
        number
        for number, line in enumerate(lines)
        if line.startswith(b" ") and line.strip() and number > 4
    ]
    if not context:
        return
    place = lot.choice(context)
    changed = lines[place] + b" # what nobody wrote"
    yield Breakage("a line of context is another", _joined(lines, place, [changed]))
    yield Breakage(
        "a line of context is not there", _joined(lines, place, [b" never here", lines[place]])
    )
    removed = [
        number
        for number, line in enumerate(lines)
        if line.startswith(b"-") and line[1:].strip() and not line.startswith(b"---")
    ]
    if removed:
        spot = lot.choice(removed)
        yield Breakage(
            "a removed line is another",
            _joined(lines, spot, [b"-was never here " + lines[spot][1:]]),
        )


def _joined(lines: list[bytes], place: int, new: list[bytes]) -> bytes:
    return b"\n".join([*lines[:place], *new, *lines[place + 1 :]])


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was said of a broken patch: whether it names the file and the place."""

    text: str
    is_placed: bool


def refusal(before: Tree, patch: bytes) -> Refusal | None:
    """Return how the workspace refuses a patch, None if it does not."""
    try:
        our_apply(before, patch)
    except ToolError as error:
        text = str(error)
        return Refusal(text, "Hunk " in text and "files/" in text)
    return None
