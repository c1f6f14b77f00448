"""The sections of a document: Markdown (ATX and setext headings) and reStructuredText."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loopline.search.sections import Section

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
