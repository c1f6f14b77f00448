"""Sentences of documents and of source files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

_FENCED = re.compile(r"^ *(```|~~~).*?(?:^ *\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"[-=~^\"'`#*+.:_| ]{3,}")
_NOT_PROSE = re.compile(r"#{1,6}\s|\.\.(?:\s|$)|(?:\$|>>>|\.\.\.|%)\s")
# Directives with code, and comments: the indented lines below them are not prose.
_HIDDEN = re.compile(r"\.\.\s+(?:code\S*|console|parsed-literal|image|figure|doctest|[^:]*$|_)")
_ITEM = re.compile(r"(?:[-*+•]|\(?(?:\d{1,3}|[#a-zA-Z])[.)]|:[^:`]{1,60}:)\s+(\S.*)")
_COLUMNS = re.compile(r"(?<=[^\s.!?:]) {2,}(?=\S)|^\| | \| ")
_SENTENCE_END = re.compile(r"[.!?][\"'”\u2019)\]*`]*(?=\s+[\"'“\u2018(\[*`:\w])")
_ABBREVIATION = re.compile(r"(?:^|[\s(\[])(?:e\.g|i\.e|etc|vs|cf|resp|approx|No|Fig|[A-Z])\.$")
_SOURCE_PROSE = re.compile(
    r"\"\"\"(.*?)(?:\"\"\"|\Z)|'''(.*?)(?:'''|\Z)|/\*(.*?)(?:\*/|\Z)|((?:^[ \t]*(?:#|//|--)[^\n]*\n?)+)",
    re.MULTILINE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"^[ \t]*(?:#+:?|//[/!]?|--|\*)[ \t]?", re.MULTILINE)


def split_sentences(text: str, *, is_source: bool = False) -> list[str]:
    """Return the sentences of a document, or of the docstrings and comments of a source file, each on one line.

    Headings and code are left out. A row of a table is one sentence, its cells separated by ` | `.
    """
    if is_source:
        text = "\n\n".join(_source_prose(text))
    sentences: list[str] = []
    for paragraph in _paragraphs(text):
        line = " ".join(paragraph.split())
        start = 0
        for match in _SENTENCE_END.finditer(line):
            end = match.end()
            if line[end + 1].islower() or _ABBREVIATION.search(line[start : match.start() + 1]):
                continue
            sentences.append(line[start:end].strip())
            start = end
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _source_prose(text: str) -> Iterator[str]:
    """Yield the docstrings and comments of a source file, or of a part that begins in a docstring."""
    before, quotes, after = text.partition('"""')
    is_end = quotes and not after.partition("\n")[0].strip()
    if is_end and before.rstrip()[-1:] not in ("", *":=([,"):
        text = f'"""{text}'
    for match in _SOURCE_PROSE.finditer(text):
        docstring = match[1] or match[2]
        yield cleandoc(docstring or _COMMENT_MARK.sub("", match[3] or match[4] or ""))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and table rows of a document.

    A paragraph ends at a line with another indentation; a list item may go on in deeper lines.
    """
    paragraph: list[str] = []
    paragraph_indent = 0
    is_item = False
    code_indent: int | None = None  # below this line, deeper lines are code
    for line in [*_FENCED.sub("", text).expandtabs(4).split("\n"), ""]:
        words = line.strip()
        indent = len(line) - len(line.lstrip())
        is_code = code_indent is not None and (not words or indent > code_indent)
        if not is_code:
            code_indent = indent if words.endswith("::") or _HIDDEN.match(words) else None
        is_rule = _RULE.fullmatch(words) is not None
        is_prose = bool(words) and not (is_code or is_rule or _NOT_PROSE.match(words))
        item = _ITEM.fullmatch(words)
        is_row = not item and _COLUMNS.search(words)
        is_aligned = indent == paragraph_indent or (is_item and indent > paragraph_indent)
        if paragraph and (item or is_row or not is_prose or not is_aligned):
            if not (is_rule and len(paragraph) == 1):  # a rule below one line makes it a heading
                yield " ".join(paragraph)
            paragraph = []
        if is_prose and is_row:
            yield _COLUMNS.sub(" | ", words).strip(" |")
        elif is_prose:
            if not paragraph:
                paragraph_indent = indent
                is_item = item is not None
            paragraph.append((item[1] if item else words).replace("::", ":"))
