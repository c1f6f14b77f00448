"""Patches: unified diffs, applied to the files of a workspace by `git apply`, completely or not at all."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from loopline.errors import ToolError
from loopline.files.attachment import MB
from loopline.files.folder import Folder
from loopline.timeline.workspace_paths import WorkspacePath, parse_path

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@|@@")
SHOWN_LINES = 12
LINE_CHARACTERS = 160
MAX_EXPLAINED = 3
_SAME_LINES = 200
"""The number of occurrences of the same line that are considered in the search for the nearest place."""
_PLACED_LINES = 2_000
"""The number of lines of a hunk that are considered in the search for the nearest place."""
_SIMILAR_LINES = 50
"""The number of lines of a hunk that are compared with similar lines."""
_COMPARED_BYTES = 500 * MB
"""The number of bytes that are compared to explain a patch: for each hunk the size of its file."""


@dataclass(slots=True)
class Hunk:
    """A hunk: its header, its line number in the patch, its first line in the file, and the lines that it expects there."""

    header: str
    patch_line: int
    start: int
    expected: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class FilePatch:
    """The hunks for one file; `name` is the old name, or the new one of a file that is created."""

    name: str
    hunks: list[Hunk] = field(default_factory=list[Hunk])


def parse_patch(diff: bytes, strip: int) -> list[FilePatch]:
    """Parse a diff, for error messages; lines that do not fit are skipped. `strip` names are removed from each path."""
    files: list[FilePatch] = []
    lines = diff.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        if line.startswith("--- ") and following.startswith("+++ "):
            files.append(FilePatch(_parse_name(line, following, strip)))
        elif files and (match := _HUNK.match(line)):
            files[-1].hunks.append(Hunk(line, number, int(match[1] or 1)))
        elif files and files[-1].hunks and _is_expected(line, following):
            files[-1].hunks[-1].expected.append(line[1:])
    return files


def _is_expected(line: str, following: str) -> bool:
    is_header = line.startswith(("+++ ", "diff --git ", "index ", "\\"))
    return not is_header and (line.startswith((" ", "-")) or (not line and bool(following)))


def _parse_name(old: str, new: str, strip: int) -> str:
    old_name, new_name = [line[4:].partition("\t")[0].strip() for line in (old, new)]
    name = new_name if old_name == "/dev/null" else old_name
    return "/".join(name.split("/")[strip:])


def explain(diff: bytes, strip: int, files: Mapping[str, bytes | None], message: str) -> str:
    """Return an error message for a patch that does not apply, with at most `MAX_EXPLAINED` of the differences.

    `files` are the bytes of the files by path, None for a file that does not exist. `message` is the error of Git;
    it is used if no difference is found. The comparison ends before the file with which it would exceed `_COMPARED_BYTES`.
    """
    mismatches = _all_mismatches(parse_patch(diff, strip), files)
    reasons = list(islice(mismatches, MAX_EXPLAINED))
    if not reasons:
        return f"the patch does not apply: {message}; nothing was changed"
    remainder = "\n(there are more)" if next(mismatches, None) is not None else ""
    shown = "\n\n".join(reasons)
    return f"the patch does not apply, and nothing was changed.\n{shown}{remainder}"


def _all_mismatches(
    patched: Sequence[FilePatch], files: Mapping[str, bytes | None]
) -> Iterator[str]:
    """Yield the mismatches of each file until `_COMPARED_BYTES` are compared.

    For a file that is missing, or that exists already and would be created, yield one error. A file with a name that is
    not a path of the workspace is skipped.
    """
    compared = 0
    for file in patched:
        try:
            path = str(parse_path(file.name))
        except ToolError:
            continue
        data = files.get(path)
        compared += len(data or b"") * (1 + len(file.hunks))
        if compared > _COMPARED_BYTES:
            return
        yield from _mismatches(file, path, data, files)


def _mismatches(
    file: FilePatch, path: str, data: bytes | None, files: Mapping[str, bytes | None]
) -> Iterator[str]:
    """Yield a text for each hunk that does not occur in the file, or for a file that is missing or exists already."""
    changes_lines = any(hunk.expected for hunk in file.hunks)
    if data is None:
        if changes_lines:
            existing_names = [name for name, content in files.items() if content is not None]
            nearest = get_close_matches(path, existing_names, n=3, cutoff=0.3)
            hint = f"; near it are {', '.join(nearest)}" if nearest else ""
            yield f"{path} does not exist{hint}: react.checkout brings files of older turns"
        return
    if not changes_lines:
        yield f"{path} exists already, and the patch would create it: write a diff of its lines"
        return
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    enclosed = f"\n{text}\n"
    for number, hunk in enumerate(file.hunks, 1):
        # The search for a text is fast for any text, which a comparison of lists at each line is not.
        if hunk.expected and "\n".join(["", *hunk.expected, ""]) not in enclosed:
            yield "\n".join(_describe_mismatch(path, number, len(file.hunks), hunk, lines))


def _describe_mismatch(
    path: str, number: int, count: int, hunk: Hunk, lines: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of an error for a hunk that does not fit, the hunk `number` of `count` for the file `path`.

    They are its position in the patch, its first line that differs, and up to 12 lines of the file from the nearest
    place on. If no line of the hunk is similar to the file, the error says that instead.
    """
    yield f"Hunk {number} of {count} for {path} does not fit (line {hunk.patch_line} of the patch: {_shorten(hunk.header)})"
    start = _nearest(hunk, lines)
    if start is None:
        yield f"None of the {len(hunk.expected)} lines that it expects is in {path}, which has {len(lines)} lines"
        return
    for index, expected in enumerate(hunk.expected, start):
        actual = lines[index] if 0 <= index < len(lines) else None
        if actual == expected:
            continue
        yield f"it expects: {_shorten(expected)!r}"
        if index < 0:
            yield "the file begins with a later line of the hunk"
        else:
            found = "the file has ended" if actual is None else repr(_shorten(actual))
            yield f"line {index + 1} is: {found}"
        break
    first = max(start, 0)
    shown = lines[first : first + min(len(hunk.expected), SHOWN_LINES)]
    yield f"The nearest place is lines {first + 1} to {first + len(shown)}:"
    yield from (f"{number}: {_shorten(line)}" for number, line in enumerate(shown, first + 1))


def _nearest(hunk: Hunk, lines: Sequence[str]) -> int | None:
    """Return the index in `lines` for the first line of the hunk at which the most lines match; None without such a place.

    Whitespace at both ends of a line is ignored. Each line of the hunk votes for the starts at which it would match. If two
    starts have equal votes, the start nearest to the line number in the header wins. If no line matches, the first line of
    the hunk that resembles a line within 100 lines of that number decides. The index is negative if the hunk would begin
    before the first line. Only the first `_PLACED_LINES` lines of the hunk vote.
    """
    places = defaultdict[str, list[int]](list)
    expected_lines = {line.strip() for line in hunk.expected if line.strip()}
    for index, line in enumerate(lines):
        stripped = line.strip()
        if stripped in expected_lines and len(places[stripped]) < _SAME_LINES:
            places[stripped].append(index)
    votes = Counter[int]()
    for offset, line in enumerate(hunk.expected[:_PLACED_LINES]):
        votes.update(place - offset for place in places.get(line.strip(), ()))
    if not votes:
        return _similar(hunk, lines)
    most = max(votes.values())
    candidates = [start for start, count in votes.items() if count == most]
    return min(candidates, key=lambda start: abs(start - (hunk.start - 1)))


def _similar(hunk: Hunk, lines: Sequence[str]) -> int | None:
    """Return the start of the hunk by its first line that resembles a line of the file; None if no line does.

    Only lines of the file within 100 lines of the line number in the header are compared.
    """
    around = range(max(hunk.start - 100, 0), min(hunk.start + 100, len(lines)))
    texts = {_shorten(lines[index]): index for index in around if lines[index].strip()}
    for offset, line in enumerate(hunk.expected[:_SIMILAR_LINES]):
        near = get_close_matches(_shorten(line), texts, n=1, cutoff=0.6) if line.strip() else []
        if near:
            return texts[near[0]] - offset
    return None


def _shorten(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"


PATCH_BYTES = 4_000_000
WAIT_SECONDS = 60.0
GIT_BYTES = 512 * MB
"""The memory of Git, which holds all files that a patch makes; a small patch may copy or unpack much larger ones."""
_HEADER = re.compile(rb"^(?:---|\+\+\+) (.+?)(?:\t.*)?\r?$", re.M)
_MOVED = re.compile(rb"^(?:rename|copy) (?:from|to) (.+?)\r?$", re.M)
_COPIED = re.compile(rb"^copy from (.+?)\r?$", re.M)
_GIT_HEADER = re.compile(rb"^diff --git (.+)$", re.M)
_BARE_HUNK = re.compile(rb"\A\s*@@ ")
_LINE = re.compile(r"line (\d{1,9})\b")
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
"""Returns the bytes of a file; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """A file that a patch changes: its bytes before and after, None if it does not exist, and whether it is executable after."""

    path: WorkspacePath
    before: bytes | None
    after: bytes | None
    executable: bool = False


def apply_patch(
    patch: bytes,
    read: ReadFile,
    limit: int,
    path: str = "",
    is_executable: Callable[[WorkspacePath], bool] = lambda _: False,
    tree_limit: int = 64 * MB,
) -> list[PatchedFile]:
    """Apply a unified diff to copies of the files, and return the files that it changes; blocks while Git runs.

    `read` and `is_executable` describe the files before. `limit` is the largest size of a file in bytes, and `tree_limit`
    is that of all changed files. `path` is the file of a diff without a header, which begins with its first hunk. The line
    numbers in hunk headers may be wrong, because Git searches for the lines of a hunk. A file whose lines all end in CRLF
    keeps them if the diff has only LF.

    Raises:
        ToolError: the patch is not a unified diff, has more than `PATCH_BYTES` bytes, names a path outside of the
            workspace, makes the files too large, or does not apply; then the message names the hunk and the lines that
            differ. Or Git is not installed, or takes more than `WAIT_SECONDS` or `GIT_BYTES`.
    """
    diff = _complete_diff(patch, path)
    strip = _strip_level(diff, read)
    with TemporaryDirectory(prefix="loopline-patch-", ignore_cleanup_errors=True) as name:
        root = Path(name) / "tree"
        root.mkdir()
        names = _read_names(diff, strip, root)
        before = {git_name: read(file_path) for git_name, file_path in names.items()}
        _check_size(_copied_bytes(diff, before, names), tree_limit)
        with Folder(root) as folder:
            for git_name, data in before.items():
                if data is not None:
                    folder.write(git_name, data, executable=is_executable(names[git_name]))
            with_crlf = _apply(diff, strip, root, folder, before, names)
            patched: list[PatchedFile] = []
            changed_bytes = 0
            for git_name, data in before.items():
                after = folder.read(git_name, limit)
                if after is not None and git_name in with_crlf:
                    after = after.replace(b"\n", b"\r\n")
                if after is not None and after != data:
                    changed_bytes += len(after)
                    _check_size(changed_bytes, tree_limit)
                executable = after is not None and folder.is_executable(git_name)
                patched.append(PatchedFile(names[git_name], data, after, executable))
    return [
        file
        for file in patched
        if file.before != file.after
        or (file.after is not None and file.executable != is_executable(file.path))
    ]


def _complete_diff(patch: bytes, path: str) -> bytes:
    """Return the diff with a final line break, and with a header if it begins with its first hunk.

    Raises:
        ToolError: the patch is not a unified diff, is too long, or does not name a file.
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
            "this is not a unified diff: it must begin with --- a/path, +++ b/path and @@ -1,3 +1,4 @@; "
            "react.write writes the whole text of a file"
        )
    return diff


def _strip_level(diff: bytes, read: ReadFile) -> int:
    """Return the option `-p` of Git: 1 to remove the prefixes a/ and b/ from the paths, otherwise 0."""
    if _GIT_HEADER.search(diff):
        return 1
    headers = [name for name in map(_unquote, _HEADER.findall(diff)) if name != _NO_FILE]
    if not all(name.startswith((b"a/", b"b/")) for name in headers):
        return 0
    for name in headers:  # the name of a folder may be a or b
        path = _workspace_path(name)
        if path is not None and read(path) is not None:
            return 0
    return 1


def _unquote(name: bytes) -> bytes:
    """Decode a name that Git has quoted because of unusual characters; other names are returned unchanged."""
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


def _read_names(diff: bytes, strip: int, root: Path) -> Mapping[str, WorkspacePath]:
    """Return the path in the workspace of each file that the diff names, by the name that Git reads.

    Raises:
        ToolError: Git cannot read the diff, or a name is not a path of a workspace.
    """
    counted = _git(diff, strip, root, "--numstat", "-z")
    if counted.returncode != 0:
        counted = _git(diff, strip, root, "--numstat", "-z", "--recount")
    if counted.returncode != 0:
        raise ToolError(_describe_unreadable(diff, counted.stderr))
    names: dict[str, WorkspacePath] = {}
    for row in filter(None, counted.stdout.split(b"\0")):
        encoded = row.split(b"\t", 2)[-1]
        try:
            name = encoded.decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"the patch names {encoded!r}, which is not UTF-8") from error
        path = parse_path(name)
        if path in names.values() and name not in names:
            raise ToolError(f"the patch names {path} in two ways: name it once")
        names[name] = path
    # The option --numstat lists only new names; old names are read from the headers.
    headers = [(name, strip) for name in _HEADER.findall(diff)]
    headers += [(name, max(strip - 1, 0)) for name in _MOVED.findall(diff)]
    for header, count in headers:
        old_name = b"/".join(_unquote(header).split(b"/")[count:])
        old_path = _workspace_path(old_name)
        if old_path is not None and old_path not in names.values():
            names[old_name.decode()] = old_path
    return names


def _copied_bytes(
    diff: bytes, before: Mapping[str, bytes | None], names: Mapping[str, WorkspacePath]
) -> int:
    """Return the sum of the sizes of the files that the diff copies, each as often as it is copied."""
    sizes = {names[git_name]: len(data) for git_name, data in before.items() if data is not None}
    copied_paths = map(_workspace_path, map(_unquote, _COPIED.findall(diff)))
    return sum(sizes.get(path, 0) for path in copied_paths if path is not None)


def _check_size(size: int, tree_limit: int) -> None:
    if size > tree_limit:
        raise ToolError(
            f"the patch makes files of {size:,} bytes or more, and the workspace may have {tree_limit:,}: "
            "nothing was changed"
        )


def _apply(
    diff: bytes,
    strip: int,
    root: Path,
    folder: Folder,
    before: Mapping[str, bytes | None],
    names: Mapping[str, WorkspacePath],
) -> Collection[str]:
    """Apply the diff in the folder: as it is, with the line counts of its hunk headers corrected, or to files with LF for CRLF.

    Return the names of the files in which CRLF was replaced by LF.

    Raises:
        ToolError: the diff does not apply; the message says why, and nothing was changed.
    """
    problem = _try_apply(diff, strip, root)
    if not problem:
        return ()
    with_lf = {
        name: data.replace(b"\r\n", b"\n")
        for name, data in before.items()
        if data is not None and data.count(b"\r\n") == data.count(b"\n") > 0
    }
    if with_lf and b"\r\n" not in diff and not _MOVED.search(diff):
        for name, data in with_lf.items():
            folder.write(name, data, executable=folder.is_executable(name))
        problem = _try_apply(diff, strip, root)
        if not problem:
            return with_lf
    files = {str(names[name]): data for name, data in {**before, **with_lf}.items()}
    raise ToolError(explain(diff, strip, files, problem))


def _try_apply(diff: bytes, strip: int, root: Path) -> str:
    """Apply the diff, or the diff with corrected line counts, and return ""; if both fail, return the error of the first."""
    exact = _git(diff, strip, root)
    if exact.returncode == 0 or _git(diff, strip, root, "--recount").returncode == 0:
        return ""
    return _message(exact.stderr)


def _describe_unreadable(diff: bytes, stderr: bytes) -> str:
    """Return the error for a diff that Git cannot read: Git's message, the line that it names, and a hint."""
    message = _message(stderr).partition(" (allow with")[0]
    match = _LINE.search(message)
    lines = diff.splitlines()
    number = int(match[1]) if match else 0
    line = ""
    if 0 < number <= len(lines):
        line = f"; its line {number} is {lines[number - 1].decode('utf-8', 'replace')[:200]!r}"
    has_hunks = any(file.hunks for file in parse_patch(diff, 0))
    hint = "" if has_hunks else "; a hunk begins with a line such as @@ -1,3 +1,4 @@"
    return f"Git cannot read the patch: {message}{line}{hint}; nothing was changed"


def _message(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors[:3] or lines[:2]) or "git apply failed"


def _git(diff: bytes, strip: int, root: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run `git apply` in a folder outside of repositories, without the configuration of the user and the machine.

    It has at most `GIT_BYTES` of memory, on systems that can limit it.

    Raises:
        ToolError: Git is not installed, or takes too long.
    """
    environment = dict(_environment(root))
    git = which("git", path=environment.get("PATH"))
    if git is None:
        raise ToolError("a patch is applied by git, which is not installed here")
    # `ulimit` fails if the limit is lower already.
    script = f'ulimit -v {GIT_BYTES // 1024} 2>/dev/null; exec "$0" "$@"'
    command = ["/bin/sh", "-c", script, git, "apply", "--whitespace=nowarn", f"-p{strip}"]
    command += [*options, "-"]
    try:
        return subprocess.run(
            command,
            input=diff,
            cwd=root,
            env=environment,
            capture_output=True,
            timeout=WAIT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError("git took too long to apply the patch: make it smaller") from error


def _environment(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the environment of Git: up to three variables of this process, and those that disable configuration."""
    for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH"):
        if name in os.environ:
            yield name, os.environ[name]
    yield "GIT_CEILING_DIRECTORIES", str(root.resolve().parent)
    yield "GIT_CONFIG_GLOBAL", os.devnull
    yield "GIT_CONFIG_NOSYSTEM", "1"
    yield "GIT_ATTR_NOSYSTEM", "1"
    yield "HOME", str(root.parent)
    yield "LC_ALL", "C.UTF-8"
