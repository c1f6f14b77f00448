"""Patches: unified diffs, applied by `git apply` to the files of a workspace, all of a diff or nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loopline.errors import ToolError
from loopline.files.folder import Folder
from loopline.files.patch_mismatch import explain, parse_patch
from loopline.timeline.workspace_paths import WorkspacePath, parse_path

PATCH_BYTES = 4_000_000
WAIT_SECONDS = 60.0
_HEADER = re.compile(rb"^(?:---|\+\+\+) (.+?)(?:\t.*)?\r?$", re.M)
_MOVED = re.compile(rb"^(?:rename|copy) (?:from|to) (.+?)\r?$", re.M)
_GIT_HEADER = re.compile(rb"^diff --git (.+)$", re.M)
_PREFIXED = re.compile(rb'^(?:--- |\+\+\+ )"?([ab])/', re.M)
_BARE_HUNK = re.compile(rb"\A\s*@@ ")
_LINE = re.compile(r"line (\d+)")
_NO_FILE = b"/dev/null"
_ESCAPE = re.compile(rb'\\([abfnrtv"\\]|[0-7]{3})')
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b'"': b'"',
    b"\\": b"\\",
}

ReadFile = Callable[[WorkspacePath], bytes | None]
"""Returns the bytes of a file, None if there is none."""


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """A file that a patch changes: its bytes before and after, None where there is no file, and whether it is then a program."""

    path: WorkspacePath
    before: bytes | None
    after: bytes | None
    executable: bool = False


def apply_patch(
    patch: bytes,
    read: ReadFile,
    limit: int,
    path: str = "",
    is_program: Callable[[WorkspacePath], bool] = lambda _: False,
) -> list[PatchedFile]:
    """Return the files that a unified diff changes; blocks while Git applies it.

    `is_program` says which files are executable before. `path` is the file of a diff that begins with its first hunk and names none. The numbers in the headers of hunks may
    be wrong: lines are counted, and a hunk is looked for where its context stands.

    Raises:
        ToolError: it is no unified diff, or a part of it fits nowhere; the message says which, and what stands there.
    """
    diff = _whole_diff(patch, path)
    strip = _strip_level(diff, read)
    with TemporaryDirectory(prefix="loopline-patch-", ignore_cleanup_errors=True) as name:
        root = Path(name) / "tree"
        root.mkdir()
        names = _touched(diff, strip, root)
        before = {git_name: read(where) for git_name, where in names.items()}
        with Folder(root) as folder:
            for git_name, data in before.items():
                if data is not None:
                    folder.write(git_name, data, executable=is_program(names[git_name]))
            _apply(diff, strip, root, before, names)
            changed = [
                _patched(folder, git_name, names[git_name], data, limit)
                for git_name, data in before.items()
            ]
    return [
        file
        for file in changed
        if file.before != file.after
        or (file.after is not None and file.executable != is_program(file.path))
    ]


def _patched(
    folder: Folder, name: str, path: WorkspacePath, before: bytes | None, limit: int
) -> PatchedFile:
    after = folder.read(name, limit)
    return PatchedFile(path, before, after, after is not None and folder.is_executable(name))


def _whole_diff(patch: bytes, path: str) -> bytes:
    """Return the diff with the headers that Git needs.

    Raises:
        ToolError: it is no unified diff, or too long.
    """
    if len(patch) > PATCH_BYTES:
        raise ToolError(f"the patch has {len(patch):,} bytes, and may have {PATCH_BYTES:,}")
    diff = patch if patch.endswith(b"\n") else patch + b"\n"
    if _BARE_HUNK.match(diff):
        if not path:
            raise ToolError("the patch names no file: give its path, or begin it with --- and +++")
        name = str(parse_path(path)).encode()
        return b"--- a/%s\n+++ b/%s\n%s" % (name, name, diff.lstrip())
    if not (_HEADER.search(diff) or _GIT_HEADER.search(diff)):
        raise ToolError(
            "this is no unified diff: it begins with --- a/path, +++ b/path and @@ -1,3 +1,4 @@; "
            "react.write takes the whole text of a file"
        )
    return diff


def _strip_level(diff: bytes, read: ReadFile) -> int:
    """Return how many names Git strips: 1 where the paths begin with a/ and b/, as it writes them itself."""
    if _GIT_HEADER.search(diff):
        return 1
    headers = [name for name in map(_unquoted, _HEADER.findall(diff)) if name != _NO_FILE]
    if not all(name.startswith((b"a/", b"b/")) for name in headers):
        return 0
    for name in headers:  # a folder may be called a or b
        path = _workspace_path(name)
        if path is not None and read(path) is not None:
            return 0
    return 1


def _unquoted(name: bytes) -> bytes:
    """Return a name as it is: Git quotes one that has unusual characters."""
    if not (name.startswith(b'"') and name.endswith(b'"') and len(name) > 1):
        return name

    def character(match: re.Match[bytes]) -> bytes:
        text = match[1]
        return bytes([int(text, 8) & 0xFF]) if len(text) == 3 else _ESCAPES[text]

    return _ESCAPE.sub(character, name[1:-1])


def _workspace_path(name: bytes) -> WorkspacePath | None:
    try:
        return parse_path(name.decode())
    except (ToolError, UnicodeDecodeError):
        return None


def _touched(diff: bytes, strip: int, root: Path) -> Mapping[str, WorkspacePath]:
    """Return the files that the diff names as Git reads it, each with its path in the workspace.

    Raises:
        ToolError: Git cannot read the diff, or one of the names is no path of a workspace.
    """
    counted = _git(diff, strip, root, "--numstat", "-z")
    if counted.returncode != 0:
        counted = _git(diff, strip, root, "--numstat", "-z", "--recount")
    if counted.returncode != 0:
        raise ToolError(_unreadable(diff, counted.stderr))
    names: dict[str, WorkspacePath] = {}
    for row in filter(None, counted.stdout.split(b"\0")):
        name = _decoded(row.split(b"\t", 2)[-1])
        path = parse_path(name)
        if path in names.values() and name not in names:
            raise ToolError(f"the patch names {path} in two ways: name it once")
        names[name] = path
    written = [(name, strip) for name in _HEADER.findall(diff)]
    moved = [(name, max(strip - 1, 0)) for name in _MOVED.findall(diff)]
    for header, count in [*written, *moved]:  # the old names, which Git does not list
        old_name = b"/".join(_unquoted(header).split(b"/")[count:])
        old_path = _workspace_path(old_name)
        if old_path is not None and old_path not in names.values():
            names[old_name.decode()] = old_path
    return names


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"the patch names {name!r}, which is not UTF-8") from error


def _apply(
    diff: bytes,
    strip: int,
    root: Path,
    before: Mapping[str, bytes | None],
    names: Mapping[str, WorkspacePath],
) -> None:
    """Apply the diff in the folder, exactly as it is written or else with its lines counted again.

    Raises:
        ToolError: it does not fit; nothing was changed.
    """
    exact = _git(diff, strip, root)
    if exact.returncode == 0:
        return
    counted = _git(diff, strip, root, "--recount")
    if counted.returncode == 0:
        return
    texts = {str(names[name]): data for name, data in before.items()}
    raise ToolError(explain(diff, strip, texts, _message(exact.stderr)))


def _unreadable(diff: bytes, stderr: bytes) -> str:
    message = _message(stderr).partition(" (allow with")[0]
    match = _LINE.search(message)
    lines = diff.splitlines()
    line = int(match[1]) if match else 0
    quoted = (
        f"; its line {line} is {lines[line - 1].decode('utf-8', 'replace')[:200]!r}"
        if 0 < line <= len(lines)
        else ""
    )
    hunks = sum(len(file.hunks) for file in parse_patch(diff, 0))
    hint = "" if hunks else "; a hunk begins with a line such as @@ -1,3 +1,4 @@"
    return f"Git cannot read the patch: {message}{quoted}{hint}; nothing was changed"


def _message(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors[:3] or lines[:2]) or "git apply failed"


def _git(diff: bytes, strip: int, root: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run `git apply` in a folder that no repository is above, without anybody's configuration.

    Raises:
        ToolError: there is no Git, or it takes too long.
    """
    command = ["git", "apply", "--whitespace=nowarn", f"-p{strip}", *options, "-"]
    environment = dict(_environment(root))
    try:
        return subprocess.run(
            command,
            input=diff,
            cwd=root,
            env=environment,
            capture_output=True,
            timeout=WAIT_SECONDS,
        )
    except FileNotFoundError as error:
        raise ToolError("a patch is applied by git, which is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError("git took too long to apply the patch: make it smaller") from error


def _environment(root: Path) -> Iterator[tuple[str, str]]:
    for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH"):
        if name in os.environ:
            yield name, os.environ[name]
    yield "GIT_CEILING_DIRECTORIES", str(root.resolve().parent)
    yield "GIT_CONFIG_GLOBAL", os.devnull
    yield "GIT_CONFIG_NOSYSTEM", "1"
    yield "GIT_ATTR_NOSYSTEM", "1"
    yield "HOME", str(root.parent)
    yield "LC_ALL", "C.UTF-8"
