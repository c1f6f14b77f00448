"""Parts of a file, and how a long part is cut where its paragraphs end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

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


SEPARATOR = " \u203a "  # a small angle, as in `Caching` then `Per-site cache`
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_SETEXT = re.compile(r" {0,3}(?:(=+)|(-+))[ \t]*\r?\n?\Z")
_NOT_PARAGRAPH = re.compile(r"\s*(?:[-*+>|#]|\d+[.)]|<|```|~~~)|\t| {4}")
_FRONT_TITLE = re.compile(r"title\s*[:=](.*)")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\((?:[^()]|\([^()]*\))*+\)|\[[^\[\]]*\])")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`~?([^`]*)`")
_ANCHOR = re.compile(r"\{#[^{}]*\}\Z")
_EMPHASIS = re.compile(r"[`*]|(?<!\w)_++|(?<!_)_++(?!\w)")
_MARKUP = re.compile(r"`+|\*\*?|\\")
_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*\Z")
_LABEL = re.compile(r"\.\. (?:_[^:]+:|index::)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at a line, counted from 0; `body` is the first line after it."""

    start: int
    body: int
    level: int
    text: str


def markdown_sections(name: str, lines: list[str]) -> list[Section]:
    """One section for each heading outside fenced code; front matter belongs to the first."""
    body, title = _front_matter(lines)
    return _sections(title or name, _markdown_headings(lines, body), lines, named=bool(title))


def restructured_sections(name: str, lines: list[str]) -> list[Section]:
    """One section for each underlined title, with the labels that stand before it."""
    return _sections(name, _restructured_headings(lines), lines, named=False)


def _sections(
    title: str, headings: list[Heading], lines: list[str], *, named: bool
) -> list[Section]:
    """The text before the first heading under `title`, then a section for each heading.

    A heading with nothing below it but a deeper one is read together with that one.
    """
    found: list[Section] = []
    open_levels: list[Heading] = []
    start = 0
    label = title
    for place, heading in enumerate(headings):
        if heading.start > start and not _only_headings(lines, start, heading, headings, place):
            found.append(Section(label, start, heading.start))
            start = heading.start
        while open_levels and open_levels[-1].level >= heading.level:
            open_levels.pop()
        open_levels.append(heading)
        texts = [one.text for one in open_levels if one.text]
        if named and texts[:1] != [title]:
            texts.insert(0, title)
        label = SEPARATOR.join(texts) or title
    if start < len(lines):
        found.append(Section(label, start, len(lines)))
    return found


def _only_headings(
    lines: list[str], start: int, heading: Heading, headings: list[Heading], place: int
) -> bool:
    if place and headings[place - 1].level >= heading.level:
        return False
    body = headings[place - 1].body if place else start
    return all(line.isspace() or _LABEL.match(line) for line in lines[body : heading.start])


def _front_matter(lines: list[str]) -> tuple[int, str]:
    """The line after the front matter and the title it gives; 0 and nothing without one."""
    if not lines or lines[0].lstrip("\ufeff").rstrip() not in ("---", "+++"):
        return 0, ""
    fence = lines[0].lstrip("\ufeff").rstrip()
    title = ""
    for place in range(1, len(lines)):
        line = lines[place].rstrip()
        if line in (fence, "..."):
            return place + 1, title
        if match := _FRONT_TITLE.match(line):
            title = _unquoted(match[1].strip())
    return 0, ""


def _markdown_headings(lines: list[str], body: int) -> list[Heading]:
    found: list[Heading] = []
    fence = ""
    for place in range(body, len(lines)):
        line = lines[place] if place else lines[place].lstrip("\ufeff")
        first = line.lstrip(" ")[:1]
        if fence or first in ("`", "~"):
            fence = _fence_after(fence, line)
        elif first == "#":
            if match := _ATX.match(line):
                text = _plain_markdown(_unclosed(line[match.end() :].strip()))
                found.append(Heading(place, place + 1, len(match[1]), text))
        elif first in ("=", "-") and place > body and (match := _SETEXT.match(line)):
            above = lines[place - 1]
            alone = place - 1 == body or lines[place - 2].isspace() or _heads(found, place - 1)
            if alone and not above.isspace() and not _NOT_PARAGRAPH.match(above):
                level = 1 if match[1] else 2
                found.append(Heading(place - 1, place + 1, level, _plain_markdown(above)))
    return found


def _heads(found: list[Heading], place: int) -> bool:
    return bool(found) and found[-1].body == place


def _fence_after(fence: str, line: str) -> str:
    """The code fence that is open after the line, given the one before it."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    mark = match[1]
    if not fence:
        opens = mark[0] == "~" or "`" not in line[match.end() :]
        return mark if opens else ""
    closes = mark.startswith(fence) and not line[match.end() :].strip()
    return "" if closes else fence


def _plain_markdown(text: str) -> str:
    text = _LINK.sub(r"\1", text.strip())
    text = _ANCHOR.sub("", text).rstrip()
    return _EMPHASIS.sub("", text).strip() or text


def _restructured_headings(lines: list[str]) -> list[Heading]:
    found: list[Heading] = []
    styles: list[tuple[str, bool]] = []
    for place in range(1, len(lines)):
        line = lines[place]
        # Three equal characters at the beginning: cheap to see, and most lines have not.
        if len(line) < 4 or line[0] != line[1] or not _RULE.match(line):
            continue
        text = lines[place - 1].rstrip()
        overline = place > 1 and lines[place - 2].rstrip() == line.rstrip()
        if not _underlines(line.rstrip(), text, indented=overline):
            continue
        if found and found[-1].body > place - 1:
            continue
        style = (line[0], overline)
        if style not in styles:
            styles.append(style)
        start = _with_labels(lines, place - (2 if overline else 1), found)
        title = _plain_restructured(text)
        found.append(Heading(start, place + 1, styles.index(style) + 1, title))
    return found


def _underlines(rule: str, text: str, *, indented: bool) -> bool:
    if not text or (text[0] in " \t" and not indented) or _RULE.match(text):
        return False
    return len(rule) >= min(len(text.strip()), 8) and not text.startswith((".. ", "|", "+-"))


def _with_labels(lines: list[str], start: int, found: list[Heading]) -> int:
    """Where a heading begins when the labels right above it are counted in."""
    least = found[-1].body if found else 0
    place, first = start, start
    while place > least:
        place -= 1
        if _LABEL.match(lines[place]):
            first = place
        elif not lines[place].isspace():
            break
    return first


def _plain_restructured(text: str) -> str:
    text = _ROLE.sub(lambda match: _without_target(match[1]), text.strip())
    return _MARKUP.sub("", text).strip() or text


def _without_target(role: str) -> str:
    """Return what a role shows: `text <target>` shows the text."""
    shown, opening, target = role.rpartition("<")
    return shown.rstrip() if opening and target.find(">") == len(target) - 1 else role


def _unclosed(heading: str) -> str:
    """Return a heading's text without the run of `#` that may close it."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else heading


def _unquoted(title: str) -> str:
    """Return the text without a quote at its beginning and one at its end."""
    start = title[:1] in ("'", '"')
    end = len(title) - (title[-1:] in ("'", '"'))
    return title[start:end].strip()


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
