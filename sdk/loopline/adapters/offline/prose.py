"""Documents cut into sentences: reStructuredText, Markdown or plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Form = Literal["prose", "item", "row", "code"]

_RULE = re.compile(r"^\s*([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_BORDER = re.compile(
    r"^\s*+(?:\+[-=+]{3,}+|[=\-]{2,}+(?:\s+[=\-]{2,}+)++|\|?\s*+:?-{3,}+:?\s*+(?:\|\s*+:?-++:?\s*+)*+\|?)\s*$"
)
_ATX = re.compile(r"^\s{0,3}#{1,6}\s+(.*)$")
_DIRECTIVE = re.compile(r"^(\s*)\.\. ([\w:.+-]+?)::\s*(.*)$")
_MARKUP = re.compile(r"^\s*\.\.(?:\s|$)")
_FIELD = re.compile(r"^(\s*):([^:`]{1,60}):(?:\s+(.*))?$")
_BULLET = re.compile(r"^(\s*)(?:[-*+•]|\(?(?:\d{1,3}|#|[a-zA-Z])[.)])\s+(\S.*)$")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")
_COMMAND = re.compile(r"^\s*(?:\$|>>>|\.\.\.|%)\s")
_CODE_DIRECTIVES = frozenset(
    re.split(
        r"\s+",
        """code code-block sourcecode console parsed-literal literalinclude highlight toctree image
    figure math productionlist testcode testoutput doctest index raw graphviz digraph graph
    csv-table list-table only automodule autoclass autofunction module currentmodule
    contents""",
    )
)
_END = re.compile(r"[.!?][\"'”\u2019)\]*`]*(?=\s+[\"'“\u2018(\[*`:\w])")
_NO_END = re.compile(
    r"(?:^|[\s(\[])(?:e\.g|i\.e|etc|vs|cf|resp|approx|incl|No|Fig|Eq|Sec|Ch|Dr|Mr|Mrs|Ms|St|[A-Z])\.$"
)
_LONGEST_HEADING = 120


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with white space collapsed.

    `block` numbers the paragraph or item it stands in; `heading` is what stands above: headings,
    defined terms, directives.
    """

    text: str
    form: Form
    block: int
    heading: str = ""


@dataclass(slots=True)
class _Reading:
    """What is open while the lines of a document are read."""

    heading: str = ""
    context: tuple[tuple[int, str], ...] = ()
    lines: tuple[str, ...] = ()
    form: Form = "prose"
    indent: int = 0
    literal: int | None = None
    fence: str = ""
    table: bool = False


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    form: Form
    heading: str


def sentences(text: str) -> list[Sentence]:
    """The sentences of a document, in order; code comes line by line, headings not at all."""
    found: list[Sentence] = []
    for number, block in enumerate(_blocks(text.expandtabs(4).split("\n"))):
        parts = [block.text] if block.form in ("code", "row") else split(block.text)
        found += [Sentence(part, block.form, number, block.heading) for part in parts]
    return found


def split(paragraph: str) -> list[str]:
    """The sentences of a paragraph that holds nothing but text."""
    text = " ".join(paragraph.split())
    found: list[str] = []
    start = 0
    for match in _END.finditer(text):
        piece = text[start : match.end()]
        follows = text[match.end() :].lstrip()[:1]
        if follows.islower() or _NO_END.search(text[start : match.start() + 1]):
            continue
        found.append(piece.strip())
        start = match.end()
    found.append(text[start:].strip())
    return [piece for piece in found if piece]


def _blocks(lines: list[str]) -> Iterator[_Block]:
    state = _Reading()
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else ""
        yield from _line(state, line, following)
    yield from _close(state)


def _line(state: _Reading, line: str, following: str) -> Iterator[_Block]:
    """One line: most kinds of line end the block that is open."""
    if state.fence or _FENCE.match(line):
        yield from _fenced(state, line)
    elif not line.strip():
        yield from _close(state)
        state.table = False
    elif _in_literal(state, line):
        yield from _close(state)
        yield _Block(line.strip(), "code", _heading(state))
    else:
        yield from _marked(state, line, following)


def _fenced(state: _Reading, line: str) -> Iterator[_Block]:
    yield from _close(state)
    mark = _FENCE.match(line)
    if mark and (not state.fence or line.strip().startswith(state.fence)):
        state.fence = "" if state.fence else mark[1]
    elif line.strip():
        yield _Block(line.strip(), "code", _heading(state))


def _in_literal(state: _Reading, line: str) -> bool:
    """Whether the line belongs to the literal block that an earlier line announced."""
    if state.literal is None:
        return False
    if _indent(line) > state.literal:
        return True
    state.literal = None
    return False


def _marked(state: _Reading, line: str, following: str) -> Iterator[_Block]:
    """A line that may begin something: a heading, a directive, an item, a row, a definition."""
    if _BORDER.match(line) or _RULE.match(line):
        yield from _close(state)
        state.table = bool(_BORDER.match(line))
    elif heading := _heading_at(state, line, following):
        yield from _close(state)
        state.heading, state.context = heading, ()
    elif _MARKUP.match(line):
        yield from _close(state)
        _directive(state, line)
    elif _COMMAND.match(line):
        yield from _close(state)
        yield _Block(line.strip(), "code", _heading(state))
    elif _is_row(state, line):
        yield from _close(state)
        yield _Block(_cells(line), "row", _heading(state))
    else:
        yield from _text(state, line, following)


def _text(state: _Reading, line: str, following: str) -> Iterator[_Block]:
    indent = _indent(line)
    if bullet := _BULLET.match(line):
        yield from _close(state)
        _leave(state, indent)
        state.form, state.indent, state.lines = "item", indent, (bullet[2],)
    elif field := _FIELD.match(line):
        yield from _close(state)
        _leave(state, indent)
        state.context = (*state.context, (indent, field[2]))
        state.form, state.indent, state.lines = "item", indent, (field[3] or "",)
    elif _defines(state, line, following):
        yield from _close(state)
        _leave(state, indent)
        state.context = (*state.context, (indent, line.strip()))
    else:
        if state.lines and indent < state.indent:
            yield from _close(state)
        if not state.lines:
            _leave(state, indent)
            state.form, state.indent = "prose", indent
        state.lines = (*state.lines, line.strip())


def _close(state: _Reading) -> Iterator[_Block]:
    """End the open block; one that ends in `::` announces a literal block."""
    text = " ".join(line for line in state.lines if line)
    if text.endswith("::"):
        state.literal = state.indent
        text = text.removesuffix("::").rstrip()
        text = f"{text}:" if text else ""
    indent, form = state.indent, state.form
    state.lines, state.form, state.indent = (), "prose", indent
    if text:
        yield _Block(text, form, _heading(state))


def _heading_at(state: _Reading, line: str, following: str) -> str:
    if atx := _ATX.match(line):
        return atx[1].rstrip("#").rstrip()
    text = line.strip()
    underlined = bool(_RULE.match(following)) and len(following.strip()) >= min(len(text), 8)
    if underlined and not state.lines and len(text) <= _LONGEST_HEADING and not _BULLET.match(line):
        return text
    return ""


def _directive(state: _Reading, line: str) -> None:
    """A directive names what stands below it, or announces code; other markup says nothing."""
    indent = _indent(line)
    _leave(state, indent)
    directive = _DIRECTIVE.match(line)
    if directive is None or directive[2] in _CODE_DIRECTIVES:
        state.literal = indent
        return
    name, rest = directive[2], directive[3]
    if name in ("note", "warning", "tip", "important", "caution", "attention", "hint") and rest:
        state.lines, state.indent = (rest,), indent
        return
    state.context = (*state.context, (indent, f"{name.rpartition(':')[2]} {rest}".strip()))


def _defines(state: _Reading, line: str, following: str) -> bool:
    """Whether the line is a term with its definition indented below."""
    if state.lines or len(line.strip()) > _LONGEST_HEADING or not following.strip():
        return False
    return _indent(following) > _indent(line) and not line.rstrip().endswith((".", ",", "::"))


def _leave(state: _Reading, indent: int) -> None:
    """Text no further in than a term or directive is no longer below it."""
    state.context = tuple(each for each in state.context if each[0] < indent)


def _heading(state: _Reading) -> str:
    return " / ".join(
        part for part in (state.heading, *(text for _, text in state.context)) if part
    )


def _is_row(state: _Reading, line: str) -> bool:
    """Whether the line is a row: between bars, or in columns below the border of a simple table."""
    bars = line.strip().startswith("|") and line.count("|") > 1
    return bars or (state.table and bool(_COLUMNS.search(line.strip())))


def _cells(line: str) -> str:
    text = line.strip().strip("|")
    cells = text.split("|") if "|" in text else _COLUMNS.split(text)
    return " | ".join(cell.strip() for cell in cells if cell.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
