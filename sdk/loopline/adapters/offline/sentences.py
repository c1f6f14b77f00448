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


_OPEN = re.compile(r"^\s*[rRbBuUfF]{0,2}(\"\"\"|'''|/\*\*?)")
_QUOTE = re.compile(r"\"\"\"|'''")
_COMMENT = re.compile(r"^\s*(?:#+:?|//[/!]?|--|;+)(?: (.*)|$)")
_NAME = re.compile(r"^\s*(?:async\s+)?(?:def|class|func|fn|function)\s+(\w+)")
_CODE = re.compile(r"[=(){}\[\]]|:$|^(?:def|class|import|from|return|@)\b")
_STAR = re.compile(r"^\s*\*\s?")
_CLOSERS = {'"""': '"""', "'''": "'''", "/**": "*/", "/*": "*/"}
_MOST_LINES = 8
_BLOCK_STEP = 10_000


def code_sentences(text: str) -> list[Sentence]:
    """The sentences of a source file, in order; a statement is one, marked as code."""
    found: list[Sentence] = []
    for number, (kind, name, part) in enumerate(_parts(text.split("\n"))):
        base = number * _BLOCK_STEP
        if kind == "code":
            found.append(Sentence(" ".join(part.split()), "code", base, name))
            continue
        for each in sentences(part):
            heading = f"{name} / {each.heading}" if name and each.heading else name or each.heading
            found.append(Sentence(each.text, each.form, base + each.block, heading))
    return found


def _parts(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Runs of lines as `prose` or `code`, each with the name of the definition it stands in."""
    place, name = 0, ""
    if inside := _begins_inside(lines):
        yield "prose", name, "\n".join(lines[:inside]).replace('"""', " ").replace("'''", " ")
        place = inside
    while place < len(lines):
        end, kind, text = _run(lines, place)
        if text.strip():
            yield kind, name, text
        if named := _NAME.match(lines[place]):
            name = named[1]
        place = end


def _run(lines: list[str], place: int) -> tuple[int, str, str]:
    """Where the run that begins at `place` ends, its kind, and its text."""
    if opened := _OPEN.match(lines[place]):
        return _docstring(lines, place, opened)
    if _COMMENT.match(lines[place]):
        return _comment(lines, place)
    return _statement(lines, place)


def _docstring(lines: list[str], place: int, opened: re.Match[str]) -> tuple[int, str, str]:
    closer = _CLOSERS[opened[1]]
    first = lines[place][opened.end() :]
    if closer in first:
        return place + 1, "prose", first.partition(closer)[0].strip()
    body: list[str] = []
    end = place + 1
    while end < len(lines) and closer not in lines[end]:
        body.append(lines[end])
        end += 1
    last = lines[end].partition(closer)[0] if end < len(lines) else ""
    text = "\n".join(_dedented([*body, last]))
    return end + 1, "prose", f"{first.strip()}\n{text}" if first.strip() else text


def _comment(lines: list[str], place: int) -> tuple[int, str, str]:
    body: list[str] = []
    while place < len(lines) and (match := _COMMENT.match(lines[place])):
        body.append(match[1] or "")
        place += 1
    return place, "prose", "\n".join(body)


def _statement(lines: list[str], place: int) -> tuple[int, str, str]:
    """A statement with the lines its brackets hold open."""
    end, depth = place, 0
    while end < len(lines) and end - place < _MOST_LINES:
        line = lines[end]
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        end += 1
        if depth <= 0:
            break
    return end, "code", "\n".join(lines[place:end])


def _begins_inside(lines: list[str]) -> int:
    """The line after a docstring that was open before the first line; 0 when none was."""
    for place, line in enumerate(lines):
        if _NAME.match(line) and place == 0:
            return 0
        quotes = _QUOTE.findall(line)
        if quotes:
            closes = len(quotes) % 2 == 1 and not _OPEN.match(line)
            alone = line.strip() in ('"""', "'''") and place > 0 and _is_text(lines[:place])
            return place + 1 if closes or alone else 0
    return 0


def _is_text(lines: list[str]) -> bool:
    """Whether lines look like sentences rather than like code."""
    said = [line.strip() for line in lines if line.strip()]
    code = sum(bool(_CODE.search(s)) for s in said)
    return bool(said) and code * 3 <= len(said)


def _dedented(lines: list[str]) -> list[str]:
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    least = min(depths, default=0)
    return [
        _STAR.sub("", line[least:]) if line[:least].isspace() else line[least:] for line in lines
    ]
