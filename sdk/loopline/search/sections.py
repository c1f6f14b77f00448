"""Splits files into chunks: at Markdown or reStructuredText headings, at Python definitions, or after some lines.

Files are read line by line and are not parsed, so a syntax error does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from loopline.refs import split_lines
from loopline.search.index import Chunk, Kind

TARGET_CHARACTERS = 2_000
SECTION_LIMIT = 2_500
TINY_CHARACTERS = 300
WINDOW_LINES = 60
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
_DEFINITION = re.compile(r"[ \t]*(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_TOKEN = re.compile(
    r'#|"""|\'\'\'|(?<!\\)(?:"(?:[^"\\\n]|\\.)*+"|\'(?:[^\'\\\n]|\\.)*+\'|"|\')',
)
_QUOTES = ('"""', "'''")
# A line that begins with one of these continues the statement above, or is nested in it.
_CONTINUING = frozenset(("", " ", "\t", "\n", "\r", "\f", ")", "]", "}"))
_BLANKS = frozenset((" ", "\t"))


@dataclass(frozen=True, slots=True)
class TextSection:
    """A title, and the lines from `start` to `end`, counted from 0; `end` is excluded."""

    title: str
    start: int
    end: int


def split_section(lines: list[str], section: TextSection) -> list[TextSection]:
    """Split a section of more than `SECTION_LIMIT` characters into sections of about `TARGET_CHARACTERS`.

    The sections end between paragraphs. A paragraph of more than `SECTION_LIMIT` characters is split between lines. A last
    section of fewer than `TINY_CHARACTERS` characters is joined to the section before it. A shorter section is returned
    unchanged as the only item; for a section without lines the list is empty.
    """
    size = sum(map(len, lines[section.start : section.end]))
    if size <= SECTION_LIMIT:
        return [section] if section.start < section.end else []
    sections: list[TextSection] = []
    start = section.start
    size_so_far = 0
    for first, last, length in _paragraphs(lines, section.start, section.end):
        if size_so_far and size_so_far + length > TARGET_CHARACTERS:
            sections.append(TextSection(section.title, start, first))
            start = first
            size_so_far = 0
        size_so_far += length
        if size_so_far > SECTION_LIMIT:
            sections += windows(lines, TextSection(section.title, start, last))
            start = last
            size_so_far = 0
    if start < section.end:
        sections.append(TextSection(section.title, start, section.end))
    if len(sections) > 1 and 0 < size_so_far < TINY_CHARACTERS:
        tail = sections.pop()
        sections[-1] = TextSection(tail.title, sections[-1].start, tail.end)
    return sections


def _paragraphs(lines: list[str], start: int, end: int) -> list[tuple[int, int, int]]:
    """Return the first line, the end line and the characters of each paragraph, with the blank lines after it."""
    paragraphs: list[tuple[int, int, int]] = []
    first = start
    size = 0
    blank = False
    for index in range(start, end):
        line = lines[index]
        empty = not line or line.isspace()
        if blank and not empty:
            paragraphs.append((first, index, size))
            first = index
            size = 0
        blank = empty
        size += len(line)
    if first < end:
        paragraphs.append((first, end, size))
    return paragraphs


def windows(lines: list[str], section: TextSection) -> list[TextSection]:
    """Split a section into parts of at most `WINDOW_LINES` lines and about `SECTION_LIMIT` characters, in order."""
    sections: list[TextSection] = []
    start = section.start
    size = 0
    for index in range(section.start, section.end):
        length = len(lines[index])
        if index > start and (size + length > SECTION_LIMIT or index - start >= WINDOW_LINES):
            sections.append(TextSection(section.title, start, index))
            start = index
            size = 0
        size += length
    if start < section.end:
        sections.append(TextSection(section.title, start, section.end))
    return sections


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. Its first line is `start`, counted from 0, and `body` is the first line after it."""

    start: int
    body: int
    level: int
    text: str


def markdown_sections(name: str, lines: list[str]) -> list[TextSection]:
    """Return a section for each heading outside fenced code. Front matter is part of the first section."""
    body, title = _front_matter(lines)
    return _heading_sections(
        title or name, _markdown_headings(lines, body), lines, named=bool(title)
    )


def _heading_sections(
    title: str, headings: list[Heading], lines: list[str], *, named: bool
) -> list[TextSection]:
    """Return a section with `title` for the text before the first heading, then a section for each heading.

    The title of a section joins the headings of all levels above it. A heading directly followed by a deeper heading gets
    no section; its line belongs to the section of the deeper heading. With `named`, `title` is the first part of titles.
    """
    sections: list[TextSection] = []
    open_levels: list[Heading] = []
    start = 0
    label = title
    for index, heading in enumerate(headings):
        if heading.start > start and not _only_headings(lines, start, heading, headings, index):
            sections.append(TextSection(label, start, heading.start))
            start = heading.start
        while open_levels and open_levels[-1].level >= heading.level:
            open_levels.pop()
        open_levels.append(heading)
        texts = [open_heading.text for open_heading in open_levels if open_heading.text]
        if named and texts[:1] != [title]:
            texts.insert(0, title)
        label = SEPARATOR.join(texts) or title
    if start < len(lines):
        sections.append(TextSection(label, start, len(lines)))
    return sections


def _only_headings(
    lines: list[str], start: int, heading: Heading, headings: list[Heading], index: int
) -> bool:
    """Return True if the lines between `start` and the heading have only shallower headings, labels and blank lines."""
    if index and headings[index - 1].level >= heading.level:
        return False
    body = headings[index - 1].body if index else start
    return all(line.isspace() or _LABEL.match(line) for line in lines[body : heading.start])


def _front_matter(lines: list[str]) -> tuple[int, str]:
    """Return the index of the line after the front matter, and its title; 0 and "" without front matter."""
    if not lines or lines[0].lstrip("\ufeff").rstrip() not in ("---", "+++"):
        return 0, ""
    fence = lines[0].lstrip("\ufeff").rstrip()
    title = ""
    for index in range(1, len(lines)):
        line = lines[index].rstrip()
        if line in (fence, "..."):
            return index + 1, title
        if match := _FRONT_TITLE.match(line):
            title = _unquote(match[1].strip())
    return 0, ""


def _markdown_headings(lines: list[str], body: int) -> list[Heading]:
    """Return the headings from line `body` on, in order: ATX and underlined ones, without lines in code fences."""
    headings: list[Heading] = []
    fence = ""
    for index in range(body, len(lines)):
        line = lines[index] if index else lines[index].lstrip("\ufeff")
        first = line.lstrip(" ")[:1]
        if fence or first in ("`", "~"):
            fence = fence_after(fence, line)
        elif first == "#":
            if match := _ATX.match(line):
                text = _plain_markdown(strip_closing_marks(line[match.end() :].strip()))
                headings.append(Heading(index, index + 1, len(match[1]), text))
        elif first in ("=", "-") and index > body and (match := _SETEXT.match(line)):
            above = lines[index - 1]
            alone = (
                index - 1 == body
                or lines[index - 2].isspace()
                or (bool(headings) and headings[-1].body == index - 1)
            )
            if alone and not above.isspace() and not _NOT_PARAGRAPH.match(above):
                level = 1 if match[1] else 2
                headings.append(Heading(index - 1, index + 1, level, _plain_markdown(above)))
    return headings


def fence_after(fence: str, line: str) -> str:
    """Return the code fence that is open after the line, given the fence open before it; empty if none is open."""
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


def _rst_headings(lines: list[str]) -> list[Heading]:
    """Return the headings in order, with the labels above them; each new style of underline is one level deeper."""
    headings: list[Heading] = []
    styles: list[tuple[str, bool]] = []
    for index in range(1, len(lines)):
        line = lines[index]
        # The comparison of two characters is cheap, and excludes most lines before the pattern is tried.
        if len(line) < 4 or line[0] != line[1] or not _RULE.match(line):
            continue
        text = lines[index - 1].rstrip()
        overline = index > 1 and lines[index - 2].rstrip() == line.rstrip()
        if not _underlines(line.rstrip(), text, indented=overline):
            continue
        if headings and headings[-1].body > index - 1:
            continue
        style = (line[0], overline)
        if style not in styles:
            styles.append(style)
        start = _include_labels(lines, index - (2 if overline else 1), headings)
        title = _plain_rst(text)
        headings.append(Heading(start, index + 1, styles.index(style) + 1, title))
    return headings


def _underlines(rule: str, text: str, *, indented: bool) -> bool:
    if not text or (text[0] in " \t" and not indented) or _RULE.match(text):
        return False
    return len(rule) >= min(len(text.strip()), 8) and not text.startswith((".. ", "|", "+-"))


def _include_labels(lines: list[str], start: int, headings: list[Heading]) -> int:
    """Return the index of the first label directly above a heading at line `start`, or `start` without labels."""
    lower_bound = headings[-1].body if headings else 0
    index = start
    first = start
    while index > lower_bound:
        index -= 1
        if _LABEL.match(lines[index]):
            first = index
        elif not lines[index].isspace():
            break
    return first


def _plain_rst(text: str) -> str:
    text = _ROLE.sub(lambda match: _role_text(match[1]), text.strip())
    return _MARKUP.sub("", text).strip() or text


def _role_text(role: str) -> str:
    """Return the visible text of a role: `text` for `text <target>`."""
    shown, opening, target = role.rpartition("<")
    return shown.rstrip() if opening and target.find(">") == len(target) - 1 else role


def strip_closing_marks(heading: str) -> str:
    """Remove the closing `#` characters of a heading."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else heading


def _unquote(title: str) -> str:
    """Remove a quote at the start and a quote at the end of the text."""
    start = title[:1] in ("'", '"')
    end = len(title) - (title[-1:] in ("'", '"'))
    return title[start:end].strip()


@dataclass(frozen=True, slots=True)
class PythonStatement:
    """A statement of a block at line `start`. `name` is `def f` or `class C`; it is empty for other statements."""

    start: int
    name: str


def _python_sections(
    other_title: str, parent_title: str, lines: list[str], start: int, end: int, indent: str
) -> list[TextSection]:
    """Return a section for each definition in a block, for each method of a long class, and for the code between them.

    Code between definitions has the title `other_title`. The titles of definitions begin with `parent_title`.
    """
    sections: list[TextSection] = []
    statements = _statements(lines, start, end, indent)
    for statement, after in zip_longest(statements, statements[1:]):
        edge = after.start if after else end
        if not statement.name:
            sections.append(TextSection(other_title, statement.start, edge))
            continue
        title = f"{parent_title}{SEPARATOR}{statement.name}" if parent_title else statement.name
        sections += _definition(title, lines, TextSection(title, statement.start, edge))
    return sections


def _definition(title: str, lines: list[str], section: TextSection) -> list[TextSection]:
    """Return a definition as one section, or a class of more than `SECTION_LIMIT` characters as several sections.

    Those are a section for each of its methods and for the code between them; the first one also contains the head of the
    class. A long function, and a class without an indented body, stays one section.
    """
    long = sum(map(len, lines[section.start : section.end])) > SECTION_LIMIT
    if not long or not title.rpartition(SEPARATOR)[2].startswith("class "):
        return [section]
    body, indent = _body(lines, section)
    inner = _python_sections(title, title, lines, body, section.end, indent) if indent else []
    if not inner:
        return [section]
    return [TextSection(inner[0].title, section.start, inner[0].end), *inner[1:]]


def _body(lines: list[str], section: TextSection) -> tuple[int, str]:
    """Return the index of the first line of the body of a class, and the indentation of the body."""
    head = section.start
    while not (match := _DEFINITION.match(lines[head])):
        head += 1
    own = len(match[0]) - len(match[0].lstrip())
    for index in range(head + 1, section.end):
        line = lines[index]
        depth = len(line) - len(line.lstrip())
        if not line.isspace() and line.lstrip()[:1] not in "#)" and depth > own:
            return index, line[:depth]
    return section.end, ""


def _statements(lines: list[str], start: int, end: int, indent: str) -> list[PythonStatement]:
    """Return the definitions of a block, and one statement for each run of other code between them.

    A definition starts at the comments and decorators above it. Blank lines belong to the code above them.
    """
    statements: list[PythonStatement] = []
    lead: int | None = None  # the first of the comments and decorators above the current line
    is_decorated = False
    for index, first in _first_characters(lines, start, end, indent):
        if first in "#@":
            lead = index if lead is None else lead
            is_decorated = is_decorated or first == "@"
        elif first == " ":
            # Deeper code continues a decorator. A comment above other deeper code is not part of a definition.
            lead = lead if is_decorated else None
        else:
            match = _DEFINITION.match(lines[index]) if first in "adc" else None
            name = f"{match[1]} {match[2]}" if match else ""
            if name or not statements or statements[-1].name:
                statements.append(PythonStatement(index if lead is None else lead, name))
            lead = None
            is_decorated = False
    if start == end:
        return []
    # The lines before the first statement belong to it.
    first_name = statements[0].name if statements else ""
    return [PythonStatement(start, first_name), *statements[1:]]


def _first_characters(
    lines: list[str], start: int, end: int, indent: str
) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is not blank and not in triple quotes, and its first character in this block.

    The character is a space for deeper code of any indentation. Of several deeper lines in a row, only the first is
    yielded.
    """
    depth = len(indent)
    quote = ""
    deeper = False
    for index in range(start, end):
        line = lines[index]
        if quote or '"""' in line or "'''" in line:
            inside, quote = quote, _quote_after(line, quote)
            if inside:
                continue
        first = line[depth : depth + 1]
        if first in _CONTINUING:  # true for most lines, so it is tested first
            if deeper or first not in _BLANKS or line.isspace() or not line.startswith(indent):
                continue
            deeper = True
            yield index, " "
        elif line.startswith(indent):
            deeper = False
            yield index, first


def _quote_after(line: str, quote: str) -> str:
    """Return the triple quote that is open after the line, given the quote open before it; empty if none is open."""
    if quote:
        index = line.find(quote)
        return quote if index < 0 else _quote_after(line[index + 3 :], "")
    index = 0
    while token := _TOKEN.search(line, index):
        if token[0] == "#":
            return ""
        index = token.end()
        if token[0] in _QUOTES:
            closing = line.find(token[0], index)
            if closing < 0:
                return token[0]
            index = closing + 3
    return ""


REMEMBERED_PATHS = 50_000
"""The paths whose kind is cached, because a space sorts all its files each time its commit changes."""
# Part of the signature of an index: increment it when the same text is split differently.
CHUNKS_VERSION = 1

PROSE = frozenset({"md", "markdown", "mdx", "rst", "txt", "adoc", "asciidoc", "org", "textile"})
_SOURCE = """
py pyi pyx js mjs cjs jsx ts tsx vue svelte java kt kts scala go rs c h cc cpp cxx hpp hh cs fs m mm
swift rb php pl pm lua r jl ex exs erl hs ml clj dart sh bash zsh fish ps1 sql proto graphql tf nix
zig html htm css scss less toml yaml yml ini cfg dockerfile makefile mk cmake gradle
"""
SOURCE = frozenset(_SOURCE.split())
_TESTS = re.compile(
    r"(?:^|/)(?:tests?|testing|__tests__|spec|specs|fixtures)/|(?:^|/)test_[^/]*$|_test\.\w+$"
)
_FAR = re.compile(
    r"(?:^|/)(?:locale|locales|i18n|vendor|node_modules|dist|third_party|_vendor)/|\.egg-info/|\.min\."
)


def chunk(path: str, text: str) -> list[Chunk]:
    """Split the text of a file into chunks with titles. The texts of the chunks, joined, are the text."""
    lines = split_lines(text)
    kind = kind_of(path)
    parts = [piece for section in sections(path, lines) for piece in split_section(lines, section)]
    return [
        Chunk(
            path=path,
            title=piece.title,
            text="".join(lines[piece.start : piece.end]),
            lines=(piece.start + 1, piece.end),
            kind=kind,
        )
        for piece in parts
    ]


@lru_cache(maxsize=REMEMBERED_PATHS)
def kind_of(path: str) -> Kind:
    """Return the kind of a file, judged by its path.

    Vendored, translated and minified files are "other", then files of tests are "tests". The extension decides of the rest;
    a file of settings, such as YAML, is "source".
    """
    if _FAR.search(path):
        return "other"
    if _TESTS.search(path):
        return "tests"
    ending = _ending(path)
    if ending in PROSE:
        return "prose"
    return "source" if ending in SOURCE else "other"


def sections(path: str, lines: list[str]) -> list[TextSection]:
    """Return the sections of a file, by the rules for its extension."""
    name = path.rpartition("/")[2]
    match _ending(path):
        case "md" | "markdown" | "mdx":
            return markdown_sections(name, lines)
        case "rst" | "txt":
            return _heading_sections(name, _rst_headings(lines), lines, named=False)
        case "py" | "pyi" | "pyx":
            return _python_sections(name, "", lines, 0, len(lines), "")
        case _:
            return windows(lines, TextSection(name, 0, len(lines)))


def _ending(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return name.rpartition(".")[2]
