"""Why a patch does not fit: which hunk, what stands in the file in its place, and the place that is nearest."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from loopline.errors import ToolError
from loopline.timeline.workspace_paths import parse_path

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@|@@")
SHOWN_LINES = 12
LINE_CHARACTERS = 160
MAX_EXPLAINED = 3
_SAME_LINES = 200
"""How many places of one line are looked at."""


@dataclass(slots=True)
class Hunk:
    """A hunk: its header, where in the patch and in the file it stands, and the lines that it expects there."""

    header: str
    patch_line: int
    start: int
    expected: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class FilePatch:
    """The hunks for one file, by the name it had before."""

    name: str
    hunks: list[Hunk] = field(default_factory=list[Hunk])


def parse_patch(diff: bytes, strip: int) -> list[FilePatch]:
    """Return the files of a diff with their hunks, read leniently."""
    files: list[FilePatch] = []
    lines = diff.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        if line.startswith("--- ") and following.startswith("+++ "):
            files.append(FilePatch(_name(line, following, strip)))
        elif files and (match := _HUNK.match(line)):
            files[-1].hunks.append(Hunk(line, number, int(match[1] or 1)))
        elif files and files[-1].hunks and _is_expected(line, following):
            files[-1].hunks[-1].expected.append(line[1:])
    return files


def _is_expected(line: str, following: str) -> bool:
    is_header = line.startswith(("+++ ", "diff --git ", "index ", "\\"))
    return not is_header and (line.startswith((" ", "-")) or (not line and bool(following)))


def _name(old: str, new: str, strip: int) -> str:
    named = [line[4:].partition("\t")[0].strip() for line in (old, new)]
    name = named[1] if named[0] == "/dev/null" else named[0]
    return "/".join(name.split("/")[strip:])


def explain(diff: bytes, strip: int, files: Mapping[str, bytes | None], message: str) -> str:
    """Return why the patch was refused, for the model that wrote it; `message` is what Git said."""
    reasons = [reason for file in parse_patch(diff, strip) for reason in _reasons(file, files)]
    if not reasons:
        return f"the patch does not apply: {message}; nothing was changed"
    remainder = f"\n({len(reasons) - MAX_EXPLAINED} more)" if len(reasons) > MAX_EXPLAINED else ""
    shown = "\n\n".join(reasons[:MAX_EXPLAINED])
    return f"the patch does not apply, and nothing was changed.\n{shown}{remainder}"


def _reasons(file: FilePatch, files: Mapping[str, bytes | None]) -> Iterator[str]:
    try:
        path = str(parse_path(file.name))
    except ToolError:
        return
    data = files.get(path)
    changes_lines = any(hunk.expected for hunk in file.hunks)
    if data is None:
        if changes_lines:
            existing_names = [name for name, content in files.items() if content is not None]
            nearest = get_close_matches(path, existing_names, n=3, cutoff=0.3)
            hint = f"; near it are {', '.join(nearest)}" if nearest else ""
            yield f"{path} does not exist{hint}: react.checkout brings files of older turns"
        return
    if not changes_lines:
        yield f"{path} exists already, and the patch would make it new: write a diff of what stands there"
        return
    lines = data.decode("utf-8", "replace").split("\n")
    for number, hunk in enumerate(file.hunks, 1):
        if not _stands(hunk.expected, lines):
            yield "\n".join(_mismatch(path, number, len(file.hunks), hunk, lines))


def _stands(expected: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether the lines of a hunk stand in the file, one after the other."""
    if not expected:
        return True
    size = len(expected)
    wanted = list(expected)
    return any(
        lines[start] == wanted[0] and list(lines[start : start + size]) == wanted
        for start in range(len(lines) - size + 1)
    )


def _mismatch(
    path: str, number: int, count: int, hunk: Hunk, lines: Sequence[str]
) -> Iterator[str]:
    yield f"Hunk {number} of {count} for {path} does not fit (line {hunk.patch_line} of the patch: {_short(hunk.header)})"
    start = _nearest(hunk, lines)
    if start is None:
        yield f"None of the {len(hunk.expected)} lines that it expects stands in {path}, which has {len(lines)} lines"
        return
    for offset, wanted in enumerate(hunk.expected):
        place = start + offset
        actual = lines[place] if 0 <= place < len(lines) else None
        if actual != wanted:
            yield f"it expects: {_short(wanted)!r}"
            what = "the file has ended" if actual is None else repr(_short(actual))
            yield f"line {place + 1} is: {what}"
            break
    first = max(start, 0)
    shown = list(lines[first : first + min(len(hunk.expected), SHOWN_LINES)])
    yield f"The nearest place is lines {first + 1} to {first + len(shown)}:"
    yield from (f"{first + index + 1}: {_short(line)}" for index, line in enumerate(shown))


def _nearest(hunk: Hunk, lines: Sequence[str]) -> int | None:
    """Return the line, from 0, at which most lines of the hunk stand in their order; None if none does."""
    places = defaultdict[str, list[int]](list)
    expected_lines = {line.strip() for line in hunk.expected if line.strip()}
    for index, line in enumerate(lines):
        stripped = line.strip()
        if stripped in expected_lines and len(places[stripped]) < _SAME_LINES:
            places[stripped].append(index)
    votes = Counter[int]()
    for offset, line in enumerate(hunk.expected):
        votes.update(place - offset for place in places.get(line.strip(), ()))
    if not votes:
        return _similar(hunk, lines)
    most = max(votes.values())
    candidates = [start for start, count in votes.items() if count == most]
    return min(candidates, key=lambda start: abs(start - (hunk.start - 1)))


def _similar(hunk: Hunk, lines: Sequence[str]) -> int | None:
    """Return where a line stands that resembles one of the hunk, near the place that it names."""
    around = range(max(hunk.start - 100, 0), min(hunk.start + 100, len(lines)))
    texts = {lines[index]: index for index in around if lines[index].strip()}
    for offset, line in enumerate(hunk.expected):
        near = get_close_matches(line, texts, n=1, cutoff=0.6) if line.strip() else []
        if near:
            return texts[near[0]] - offset
    return None


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"
