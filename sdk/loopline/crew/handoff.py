"""Handoffs: what an agent hands back at the end of its run, read from its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from loopline.models import Json, JsonObject, extract_json

Confidence = Literal["high", "medium", "low"]

SUFFIX = """End with what you hand back, in this form, and nothing behind it:
<handoff>
summary: the result, in a few sentences
findings:
- each finding, with the [[S:n]] of its source
sources: the refs or numbers of what it rests on
confidence: high, medium or low
gaps:
- what is still unknown, if anything
</handoff>"""
"""What an agent is told below its own instructions."""

_BLOCK = re.compile(r"<handoff\b[^>]{0,200}>(.*?)(?:</handoff\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(
    r"[ \t]*(?:\*\*|#{1,6}[ \t]+)?(summary|(?:key[ _])?findings|sources|confidence|gaps)"
    r"(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(.*)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"(?:[-*•]|\d{1,3}[.)])[ \t]+")
_MARK = re.compile(r"(?<![\w\])])\[(\d{1,6})\](?!\()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """What an agent hands back. If it `is_raw` there was no handoff block, and the summary is its whole answer."""

    summary: str
    findings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    gaps: tuple[str, ...] = ()
    is_raw: bool = False

    def __str__(self) -> str:
        if self.is_raw:
            return f"{self.summary}\n(no handoff block: this is the raw answer, confidence low)"
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"summary: {self.summary}"
        for name, items in (("findings", self.findings), ("gaps", self.gaps)):
            if items:
                yield f"{name}:"
                yield from (f"- {item}" for item in items)
        if self.sources:
            yield f"sources: {', '.join(self.sources)}"
        yield f"confidence: {self.confidence}"

    def with_positions(self, total: int, offset: int) -> Handoff:
        """Return the handoff with `[[S:@n]]` for each mark `[n]` of its sources, which begin behind `offset` others."""
        shifted = partial(with_marks, total=total, offset=offset, form="[[S:@{}]]")
        return replace(
            self,
            summary=shifted(self.summary),
            findings=tuple(map(shifted, self.findings)),
            sources=tuple(map(shifted, self.sources)),
            gaps=tuple(map(shifted, self.gaps)),
        )


def with_marks(text: str, *, total: int, offset: int, form: str) -> str:
    """Return the text with each mark `[n]` of its sources in another form, behind `offset` other sources."""

    def shifted(match: re.Match[str]) -> str:
        number = int(match[1])
        return form.format(number + offset) if 0 < number <= total else match[0]

    return _MARK.sub(shifted, text)


def parse_handoff(answer: str) -> Handoff:
    """Return the last handoff block of an answer; without one its whole text, flagged."""
    blocks = list(_BLOCK.finditer(answer))
    if not blocks:
        return Handoff(summary=answer.strip(), confidence="low", is_raw=True)
    inner = blocks[-1][1].strip()
    if inner.startswith(("{", "```")):
        handoff = _from_json(extract_json(inner))
    else:
        handoff = _from_lines(inner)
    if handoff is None:
        text = inner or answer.strip()
        return Handoff(summary=text, confidence="low", is_raw=True)
    return handoff


def _from_lines(text: str) -> Handoff | None:
    parts, current = dict[str, list[str]](), ""
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            current = label[1].lower().replace("key ", "").replace("key_", "")
            parts.setdefault(current, [])
            line = label[2]
        if current and line.strip():
            parts[current].append(line)
    if "summary" not in parts:
        return None
    summary = "\n".join(parts["summary"]).strip()
    texts: dict[str, Json] = {name: _items(lines) for name, lines in parts.items()}
    return _handoff(summary, texts)


def _items(lines: list[str]) -> list[Json]:
    """Return the items of a list; a line without a bullet goes on the one before it."""
    items: list[str] = []
    for line in map(str.strip, lines):
        bullet = _BULLET.match(line)
        if bullet is not None or not items:
            items.append(line[bullet.end() :] if bullet else line)
        else:
            items[-1] = f"{items[-1]} {line}"
    return [*items]


def _from_json(value: JsonObject | None) -> Handoff | None:
    if value is None:
        return None
    match {"summary": None, **value}:
        case {"summary": str(summary)}:
            return _handoff(summary, value)
        case _:
            return None


def _handoff(summary: str, fields: dict[str, Json]) -> Handoff | None:
    if not summary.strip():
        return None
    unset: dict[str, Json] = dict.fromkeys(("findings", "sources", "confidence", "gaps"), None)
    named = {name.lower().replace("key ", "").replace("key_", ""): fields[name] for name in fields}
    lists = {name: _texts(value) for name, value in {**unset, **named}.items()}
    return Handoff(
        summary=summary.strip(),
        findings=lists["findings"],
        sources=_split(lists["sources"]),
        confidence=_confidence(" ".join(lists["confidence"])),
        gaps=tuple(gap for gap in lists["gaps"] if gap.lower().strip(".") != "none"),
    )


def _texts(value: Json) -> tuple[str, ...]:
    match value:
        case None:
            return ()
        case list():
            return tuple(text for item in value for text in _texts(item))
        case _:
            text = str(value).strip()
            return (text,) if text else ()


def _split(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sources of a list, or of one line with commas."""
    if len(items) != 1:
        return items
    return tuple(part.strip() for part in items[0].split(",") if part.strip())


def _confidence(text: str) -> Confidence:
    word = text.strip().lower()
    for level in ("high", "medium", "low"):
        if word.startswith(level):
            return level
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        return "medium"
    return "high" if share >= 0.75 else "medium" if share >= 0.4 else "low"
