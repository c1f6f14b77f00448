"""Documents and source files as sentences.

Documents are reStructuredText, Markdown or plain text. Of source code the docstrings and comments are prose, and the
remaining lines are code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loopline.offline.english import word_set

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
_ADMONITIONS = ("note", "warning", "tip", "important", "caution", "attention", "hint")
_CODE_DIRECTIVES = word_set(
    """code code-block sourcecode console parsed-literal literalinclude highlight toctree image
    figure math productionlist testcode testoutput doctest index raw graphviz digraph graph
    csv-table list-table only automodule autoclass autofunction module currentmodule contents"""
)
_END = re.compile(r"[.!?][\"'”\u2019)\]*`]*(?=\s+[\"'“\u2018(\[*`:\w])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:e\.g|i\.e|etc|vs|cf|resp|approx|incl|No|Fig|Eq|Sec|Ch|Dr|Mr|Mrs|Ms|St|[A-Z])\.$"
)
_HEADING_CHARACTERS = 120

_OPEN = re.compile(r"^\s*[rRbBuUfF]{0,2}(\"\"\"|'''|/\*\*?)")
_QUOTE = re.compile(r"\"\"\"|'''")
_COMMENT = re.compile(r"^\s*(?:#+:?|//[/!]?|--|;+)(?: (.*)|$)")
_DEFINITION = re.compile(r"^\s*(?:async\s+)?(?:def|class|func|fn|function)\s+(\w+)")
_CODE = re.compile(r"[=(){}\[\]]|:$|^(?:def|class|import|from|return|@)\b")
_STAR = re.compile(r"^\s*\*\s?")
_CLOSERS = {'"""': '"""', "'''": "'''", "/**": "*/", "/*": "*/"}
_STATEMENT_LINES = 8
_BLOCK_STEP = 10_000


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with white space collapsed.

    `block` numbers the paragraph or item that the sentence belongs to. `heading` joins the headings, defined terms and
    directives above it.
    """

    text: str
    form: Form
    block: int
    heading: str = ""


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a document in order: code line by line, headings not at all."""
    return [
        Sentence(part, block.form, number, block.heading)
        for number, block in enumerate(_blocks(text.expandtabs(4).split("\n")))
        for part in ([block.text] if block.form in ("code", "row") else _split(block.text))
    ]


def code_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a source file in order; each statement is one sentence, marked as code."""
    result: list[Sentence] = []
    for number, (kind, name, part) in enumerate(_runs(text.split("\n"))):
        base = number * _BLOCK_STEP
        if kind == "code":
            result.append(Sentence(" ".join(part.split()), "code", base, name))
            continue
        for inner in sentences(part):
            heading = " / ".join(filter(None, (name, inner.heading)))
            result.append(Sentence(inner.text, inner.form, base + inner.block, heading))
    return result


def _split(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph of plain text."""
    text = " ".join(paragraph.split())
    pieces: list[str] = []
    start = 0
    for match in _END.finditer(text):
        following = text[match.end() :].lstrip()[:1]
        if following.islower() or _ABBREVIATION.search(text[start : match.start() + 1]):
            continue
        pieces.append(text[start : match.end()].strip())
        start = match.end()
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece]


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    form: Form
    heading: str


def _blocks(lines: list[str]) -> Iterator[_Block]:
    parser = _BlockParser()
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        yield from parser.read(line, following)
    yield from parser.close()


@dataclass(slots=True)
class _BlockParser:
    """The blocks of a document, and what is open at the current line."""

    heading: str = ""
    context: tuple[tuple[int, str], ...] = ()
    lines: tuple[str, ...] = ()
    form: Form = "prose"
    indent: int = 0
    literal: int | None = None
    fence: str = ""
    table: bool = False

    def read(self, line: str, following: str) -> Iterator[_Block]:
        """Read a line; most kinds of line end the open block."""
        if self.fence or _FENCE.match(line):
            yield from self._read_fenced(line)
        elif not line.strip():
            yield from self.close()
            self.table = False
        elif self._is_literal(line):
            yield from self._single(line.strip(), "code")
        else:
            yield from self._read_marked(line, following)

    def close(self) -> Iterator[_Block]:
        """End the open block; one that ends in `::` announces a literal block."""
        text = " ".join(line for line in self.lines if line)
        if text.endswith("::"):
            self.literal = self.indent
            text = text.removesuffix("::").rstrip()
            text = f"{text}:" if text else ""
        form = self.form
        self.lines, self.form = (), "prose"
        if text:
            yield self._block(text, form)

    def _block(self, text: str, form: Form) -> _Block:
        headings = (self.heading, *(text for _, text in self.context))
        return _Block(text, form, " / ".join(filter(None, headings)))

    def _single(self, text: str, form: Form) -> Iterator[_Block]:
        """End the open block and yield one of this text alone."""
        yield from self.close()
        yield self._block(text, form)

    def _read_fenced(self, line: str) -> Iterator[_Block]:
        yield from self.close()
        mark = _FENCE.match(line)
        if mark and (not self.fence or line.strip().startswith(self.fence)):
            self.fence = "" if self.fence else mark[1]
        elif line.strip():
            yield self._block(line.strip(), "code")

    def _is_literal(self, line: str) -> bool:
        """Return whether the line belongs to the literal block that an earlier line announced."""
        if self.literal is None:
            return False
        if _indent(line) > self.literal:
            return True
        self.literal = None
        return False

    def _read_marked(self, line: str, following: str) -> Iterator[_Block]:
        """Read a line that may begin a heading, a directive, an item, a row or a definition."""
        if _BORDER.match(line) or _RULE.match(line):
            yield from self.close()
            self.table = bool(_BORDER.match(line))
        elif heading := self._heading(line, following):
            yield from self.close()
            self.heading, self.context = heading, ()
        elif _MARKUP.match(line):
            yield from self.close()
            self._read_directive(line)
        elif _COMMAND.match(line):
            yield from self._single(line.strip(), "code")
        elif self._is_row(line):
            yield from self._single(_cells(line), "row")
        else:
            yield from self._read_text(line, following)

    def _read_text(self, line: str, following: str) -> Iterator[_Block]:
        indent = _indent(line)
        if bullet := _BULLET.match(line):
            yield from self.close()
            self._leave(indent)
            self.form, self.indent, self.lines = "item", indent, (bullet[2],)
        elif field := _FIELD.match(line):
            yield from self.close()
            self._enter(indent, field[2])
            self.form, self.indent, self.lines = "item", indent, (field[3] or "",)
        elif self._is_definition(line, following):
            yield from self.close()
            self._enter(indent, line.strip())
        else:
            if self.lines and indent < self.indent:
                yield from self.close()
            if not self.lines:
                self._leave(indent)
                self.form, self.indent = "prose", indent
            self.lines = (*self.lines, line.strip())

    def _heading(self, line: str, following: str) -> str:
        if atx := _ATX.match(line):
            return atx[1].rstrip("#").rstrip()
        text = line.strip()
        underlined = _RULE.match(following) and len(following.strip()) >= min(len(text), 8)
        plain = len(text) <= _HEADING_CHARACTERS and not _BULLET.match(line)
        return text if underlined and plain and not self.lines else ""

    def _read_directive(self, line: str) -> None:
        """Read a directive: it names what is below it, or announces code. Other markup says nothing."""
        indent = _indent(line)
        self._leave(indent)
        directive = _DIRECTIVE.match(line)
        if directive is None or directive[2] in _CODE_DIRECTIVES:
            self.literal = indent
            return
        name, argument = directive[2], directive[3]
        if name in _ADMONITIONS and argument:
            self.lines, self.indent = (argument,), indent
            return
        self._enter(indent, f"{name.rpartition(':')[2]} {argument}".strip())

    def _is_definition(self, line: str, following: str) -> bool:
        """Return whether the line is a term with its definition indented below."""
        if self.lines or len(line.strip()) > _HEADING_CHARACTERS or not following.strip():
            return False
        return _indent(following) > _indent(line) and not line.rstrip().endswith((".", ",", "::"))

    def _enter(self, indent: int, text: str) -> None:
        self._leave(indent)
        self.context = (*self.context, (indent, text))

    def _leave(self, indent: int) -> None:
        """Leave the terms and directives that text at this indent is no longer below."""
        self.context = tuple(level for level in self.context if level[0] < indent)

    def _is_row(self, line: str) -> bool:
        """Return whether the line is a row: between bars, or in columns below the border of a simple table."""
        bars = line.strip().startswith("|") and line.count("|") > 1
        return bars or (self.table and bool(_COLUMNS.search(line.strip())))


def _cells(line: str) -> str:
    text = line.strip().strip("|")
    cells = text.split("|") if "|" in text else _COLUMNS.split(text)
    return " | ".join(cell.strip() for cell in cells if cell.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _runs(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield runs of lines as `prose` or `code`, each with the name of its definition."""
    start, name = _docstring_end(lines), ""
    if start:
        yield "prose", name, "\n".join(lines[:start]).replace('"""', " ").replace("'''", " ")
    while start < len(lines):
        if opening := _OPEN.match(lines[start]):
            end, kind, text = _docstring(lines, start, opening)
        elif _COMMENT.match(lines[start]):
            end, kind, text = _comment(lines, start)
        else:
            end, kind, text = _statement(lines, start)
        if text.strip():
            yield kind, name, text
        if definition := _DEFINITION.match(lines[start]):
            name = definition[1]
        start = end


def _docstring(lines: list[str], start: int, opening: re.Match[str]) -> tuple[int, str, str]:
    closer = _CLOSERS[opening[1]]
    first = lines[start][opening.end() :]
    if closer in first:
        return start + 1, "prose", first.partition(closer)[0].strip()
    body: list[str] = []
    end = start + 1
    while end < len(lines) and closer not in lines[end]:
        body.append(lines[end])
        end += 1
    last = lines[end].partition(closer)[0] if end < len(lines) else ""
    text = "\n".join(_dedented([*body, last]))
    return end + 1, "prose", f"{first.strip()}\n{text}" if first.strip() else text


def _comment(lines: list[str], start: int) -> tuple[int, str, str]:
    body: list[str] = []
    while start < len(lines) and (match := _COMMENT.match(lines[start])):
        body.append(match[1] or "")
        start += 1
    return start, "prose", "\n".join(body)


def _statement(lines: list[str], start: int) -> tuple[int, str, str]:
    """Return a statement with the lines that its brackets hold open."""
    end, depth = start, 0
    while end < len(lines) and end - start < _STATEMENT_LINES:
        line = lines[end]
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        end += 1
        if depth <= 0:
            break
    return end, "code", "\n".join(lines[start:end])


def _docstring_end(lines: list[str]) -> int:
    """Return the line after a docstring that is open before the first line, or 0 if there is none."""
    for index, line in enumerate(lines):
        if index == 0 and _DEFINITION.match(line):
            return 0
        quotes = _QUOTE.findall(line)
        if quotes:
            closes = len(quotes) % 2 == 1 and not _OPEN.match(line)
            alone = line.strip() in ('"""', "'''") and index > 0 and _is_text(lines[:index])
            return index + 1 if closes or alone else 0
    return 0


def _is_text(lines: list[str]) -> bool:
    """Return whether lines look like sentences rather than like code."""
    texts = [line.strip() for line in lines if line.strip()]
    return bool(texts) and sum(bool(_CODE.search(text)) for text in texts) * 3 <= len(texts)


def _dedented(lines: list[str]) -> list[str]:
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    return [
        _STAR.sub("", line[indent:]) if line[:indent].isspace() else line[indent:] for line in lines
    ]
