"""The sections of a Python file, found line by line: nothing is parsed, so no syntax is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from loopline.search.headings import SEPARATOR
from loopline.search.sections import MOST_CHARACTERS, Section

_DEFINITION = re.compile(r"[ \t]*(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_TOKEN = re.compile(
    r'#|"""|\'\'\'|(?<!\\)(?:"(?:[^"\\\n]|\\.)*+"|\'(?:[^\'\\\n]|\\.)*+\'|"|\')',
)
_QUOTES = ('"""', "'''")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a block; `name` is `def f`, `class C`, or empty for anything else."""

    start: int
    name: str


def python_sections(name: str, lines: list[str]) -> list[Section]:
    """One section for each definition, each method of a long class, and what lies between."""
    return _block(name, "", lines, 0, len(lines), "")


def _block(
    rest: str, above: str, lines: list[str], start: int, end: int, indent: str
) -> list[Section]:
    """The sections of the lines; what is no definition is called `rest`."""
    found: list[Section] = []
    statements = _statements(lines, start, end, indent)
    for statement, after in zip_longest(statements, statements[1:]):
        edge = after.start if after else end
        if not statement.name:
            found.append(Section(rest, statement.start, edge))
            continue
        title = f"{above}{SEPARATOR}{statement.name}" if above else statement.name
        found += _definition(title, lines, Section(title, statement.start, edge))
    return found


def _definition(title: str, lines: list[str], section: Section) -> list[Section]:
    """The section itself, or the methods of a long class, the first with the head of the class."""
    long = sum(map(len, lines[section.start : section.end])) > MOST_CHARACTERS
    if not long or not title.rpartition(SEPARATOR)[2].startswith("class "):
        return [section]
    body, indent = _body(lines, section)
    inner = _block(title, title, lines, body, section.end, indent) if indent else []
    if not inner:
        return [section]
    return [Section(inner[0].title, section.start, inner[0].end), *inner[1:]]


def _body(lines: list[str], section: Section) -> tuple[int, str]:
    """Where the body of a class begins and how far it is indented."""
    head = section.start
    while not (match := _DEFINITION.match(lines[head])):
        head += 1
    own = len(match[0]) - len(match[0].lstrip())
    for place in range(head + 1, section.end):
        line = lines[place]
        depth = len(line) - len(line.lstrip())
        if not line.isspace() and line.lstrip()[:1] not in "#)" and depth > own:
            return place, line[:depth]
    return section.end, ""


def _statements(lines: list[str], start: int, end: int, indent: str) -> list[Statement]:
    """Where definitions begin, with the comments and decorators above them, and other runs.

    Neighbouring statements that are no definitions are one run. Blank lines belong to what is above.
    """
    found: list[Statement] = []
    lead = Lead()
    for place, first in _beginnings(lines, start, end, indent):
        if first in "#@":
            lead.extend(place, first)
        elif first == " ":
            lead.interrupt()
        else:
            match = _DEFINITION.match(lines[place]) if first in "adc" else None
            name = f"{match[1]} {match[2]}" if match else ""
            if name or not found or found[-1].name:
                found.append(Statement(lead.taken(place), name))
            lead = Lead()
    if start == end:
        return []
    # Whatever comes before the first statement is read with it.
    return [Statement(start, found[0].name), *found[1:]] if found else [Statement(start, "")]


class Lead:
    """The comments and decorators that a definition begins with."""

    def __init__(self) -> None:
        self._place = -1
        self._decorated = False

    def extend(self, place: int, first: str) -> None:
        """One more line of them, in the block's own indentation."""
        self._place = place if self._place < 0 else self._place
        self._decorated = self._decorated or first == "@"

    def interrupt(self) -> None:
        """Deeper code: it continues a decorator, but a comment before it was no beginning."""
        if not self._decorated:
            self._place = -1

    def taken(self, place: int) -> int:
        """Where the definition at `place` really begins."""
        return place if self._place < 0 else self._place


def _beginnings(lines: list[str], start: int, end: int, indent: str) -> Iterator[tuple[int, str]]:
    """Each line outside triple quotes that is not blank, with the first character it has here.

    That is a space for deeper code, whatever its indentation.
    """
    depth = len(indent)
    quote = ""
    for place in range(start, end):
        line = lines[place]
        inside = quote
        if quote or '"""' in line or "'''" in line:
            quote = _quote_after(line, quote)
        if inside or not line.startswith(indent):
            continue
        first = line[depth : depth + 1]
        if first not in _CONTINUING:
            yield place, first
        elif first in " \t" and not line.isspace():
            yield place, " "


# What cannot begin a statement: the line goes on with the one above, or is nested in it.
_CONTINUING = frozenset(("", " ", "\t", "\n", "\r", "\f", ")", "]", "}"))


def _quote_after(line: str, quote: str) -> str:
    """The triple quote that is open after the line, given the one before it."""
    if quote:
        place = line.find(quote)
        return quote if place < 0 else _quote_after(line[place + 3 :], "")
    place = 0
    while token := _TOKEN.search(line, place):
        if token[0] == "#":
            return ""
        place = token.end()
        if token[0] in _QUOTES:
            closing = line.find(token[0], place)
            if closing < 0:
                return token[0]
            place = closing + 3
    return ""
