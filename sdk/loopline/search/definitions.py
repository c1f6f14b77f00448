"""The sections of a Python file, found line by line: nothing is parsed, so no syntax is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loopline.search.headings import SEPARATOR
from loopline.search.sections import MOST_CHARACTERS, Section

_DEFINITION = re.compile(r"[ \t]*(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_TOKEN = re.compile(
    r'#|"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|"|\'',
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
    edges = [statement.start for statement in statements[1:]] + [end]
    for statement, edge in zip(statements, edges, strict=True):
        if not statement.name:
            found.append(Section(rest, statement.start, edge))
            continue
        title = f"{above}{SEPARATOR}{statement.name}" if above else statement.name
        found += _definition(title, lines, Section(title, statement.start, edge))
    return found


def _definition(title: str, lines: list[str], section: Section) -> list[Section]:
    if not title.rpartition(SEPARATOR)[2].startswith("class "):
        return [section]
    if sum(map(len, lines[section.start : section.end])) <= MOST_CHARACTERS:
        return [section]
    body, indent = _body(lines, section)
    if not indent:
        return [section]
    inner = _block(title, title, lines, body, section.end, indent)
    return [Section(title, section.start, inner[0].start), *inner] if inner else [section]


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
    depth = len(indent)
    quote = ""
    lead = -1
    for place in range(start, end):
        line = lines[place]
        inside, quote = bool(quote), _quote_after(line, quote)
        if inside or not line.startswith(indent):
            continue
        first = line[depth : depth + 1]
        if first in _CONTINUING:
            continue
        if first in "#@":
            lead = place if lead < 0 else lead
            continue
        match = _DEFINITION.match(line) if first in "adc" else None
        name = f"{match[1]} {match[2]}" if match else ""
        begin = lead if 0 <= lead and (name or not found) else place
        lead = -1
        if name or not found or found[-1].name:
            found.append(Statement(begin, name))
    if start < end and (not found or found[0].start > start):
        found.insert(0, Statement(start, ""))
    return found


# What cannot begin a statement: the line goes on with, or is nested in, the one above.
_CONTINUING = frozenset(("", " ", "\t", "\n", "\r", "\f", ")", "]", "}"))


def _quote_after(line: str, quote: str) -> str:
    """The triple quote that is open after the line, given the one before it."""
    if quote:
        place = line.find(quote)
        return quote if place < 0 else _quote_after(line[place + 3 :], "")
    if '"""' not in line and "'''" not in line:
        return ""
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
