"""Parts of a file, and how a long part is cut where its paragraphs end."""

from __future__ import annotations

from dataclasses import dataclass

TARGET_CHARACTERS = 2_000
MOST_CHARACTERS = 2_500
TINY_CHARACTERS = 300
WINDOW_LINES = 60


@dataclass(frozen=True, slots=True)
class Section:
    """Lines `start` up to, but not with, `end`, counted from 0."""

    title: str
    start: int
    end: int


def pieces(lines: list[str], section: Section) -> list[Section]:
    """The section itself, or when it is long the runs of paragraphs it falls into."""
    size = sum(map(len, lines[section.start : section.end]))
    if size <= MOST_CHARACTERS:
        return [section] if section.start < section.end else []
    found: list[Section] = []
    start, held = section.start, 0
    for first, last, length in _paragraphs(lines, section.start, section.end):
        if held and held + length > TARGET_CHARACTERS:
            found.append(Section(section.title, start, first))
            start, held = first, 0
        held += length
        if held > MOST_CHARACTERS:
            found += _by_lines(lines, Section(section.title, start, last))
            start, held = last, 0
    if start < section.end:
        found.append(Section(section.title, start, section.end))
    return _without_a_tiny_end(found, held)


def windows(title: str, lines: list[str]) -> list[Section]:
    """Runs of at most `WINDOW_LINES` lines and about `MOST_CHARACTERS` characters."""
    return _by_lines(lines, Section(title, 0, len(lines)))


def _without_a_tiny_end(found: list[Section], held: int) -> list[Section]:
    if len(found) < 2 or not 0 < held < TINY_CHARACTERS:
        return found
    before, last = found[-2], found[-1]
    return [*found[:-2], Section(last.title, before.start, last.end)]


def _paragraphs(lines: list[str], start: int, end: int) -> list[tuple[int, int, int]]:
    """Start, end and characters of each run of lines that closes with its blank lines."""
    found: list[tuple[int, int, int]] = []
    first, size, blank = start, 0, False
    for place in range(start, end):
        line = lines[place]
        empty = not line or line.isspace()
        if blank and not empty:
            found.append((first, place, size))
            first, size = place, 0
        blank = empty
        size += len(line)
    if first < end:
        found.append((first, end, size))
    return found


def _by_lines(lines: list[str], section: Section) -> list[Section]:
    found: list[Section] = []
    start, size = section.start, 0
    for place in range(section.start, section.end):
        length = len(lines[place])
        if place > start and (size + length > MOST_CHARACTERS or place - start >= WINDOW_LINES):
            found.append(Section(section.title, start, place))
            start, size = place, 0
        size += length
    if start < section.end:
        found.append(Section(section.title, start, section.end))
    return found
