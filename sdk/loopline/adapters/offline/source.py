"""Source code cut into sentences: its docstrings and comments are prose, the rest is code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loopline.adapters.offline.prose import Sentence, sentences

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
