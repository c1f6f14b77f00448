"""Passages of a knowledge space: read from it, or from the log that keeps what was shown."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from loopline.knowledge import Passage
from loopline.reader.reading import Item
from loopline.reader.texts import MARKDOWN, fitted, part
from loopline.refs import KnowledgeRef, Lines, parse
from loopline.search import split_lines
from loopline.timeline import Source, Timeline


def passage_source(passage: Passage) -> Source:
    """A passage as something citable."""
    return Source(
        url=passage.ref,
        title=passage.title,
        source_type="file",
        path=passage.path,
        commit=passage.commit,
        lines=passage.lines if passage.lines != (0, 0) else None,
    )


def read_passage(passage: Passage, asked: str, whole: str, room: int) -> Item:
    """What fits of a passage; `whole` is its text, or the whole file where that is too long."""
    mime = MARKDOWN if passage.path.endswith((".md", ".markdown")) else "text/plain"
    name = parse(passage.ref)
    if len(passage.text) <= room or not isinstance(name, KnowledgeRef):
        text = passage.text[:room]
        item = Item(ref=passage.ref, asked=asked, status="ok", text=text, mime=mime)
        if len(passage.text) > room:
            item = replace(item, status="cut", message=f"cut: the whole is {passage.ref}")
    else:
        item = fitted(name, asked, whole, mime, room)
    shown = parse(item.ref)
    lines = passage.lines
    if isinstance(shown, KnowledgeRef) and isinstance(shown.span, Lines):
        lines = (shown.span.first, shown.span.last)
    source = passage_source(replace(passage, ref=item.ref, lines=lines))
    return replace(item, title=passage.title, source=source, keep=bool(item.text))


def kept_passage(timeline: Timeline, ref: KnowledgeRef, room: int) -> Item | None:
    """A passage that the log itself keeps: the very one, or one that encloses the lines."""
    if ref.commit is None:
        return None
    asked = str(ref)
    if asked in timeline.kept:
        return _kept_item(timeline, asked, asked, timeline.kept[asked].text, room)
    digest = timeline.shown.get(asked)
    for name, kept in timeline.kept.items():
        if digest is not None and sha256(kept.text.encode()).hexdigest() == digest:
            return _kept_item(timeline, asked, name, kept.text, room)
        text = _enclosed(name, kept.text, ref)
        if text is not None:
            return _kept_item(timeline, asked, name, text, room)
    return None


def _kept_item(timeline: Timeline, asked: str, name: str, text: str, room: int) -> Item:
    source, title = timeline.pool.find(name), timeline.kept[name].title
    if len(text) > room:
        message = f"cut: {len(text) - room} of {len(text)} characters, which had no room here"
        shown = text[:room]
        return Item(ref=asked, asked=asked, status="cut", text=shown, title=title, message=message)
    return Item(ref=asked, asked=asked, status="ok", text=text, title=title, source=source)


def _enclosed(name: str, text: str, wanted: KnowledgeRef) -> str | None:
    if not name.startswith("ks:") or not isinstance(wanted.span, Lines):
        return None
    kept = parse(name)
    if not isinstance(kept, KnowledgeRef):
        return None
    if (kept.path, kept.commit) != (wanted.path, wanted.commit):
        return None
    whole = Lines(1, len(split_lines(text)))
    span = kept.span if isinstance(kept.span, Lines) else whole
    if not span.first <= wanted.span.first <= wanted.span.last <= span.last:
        return None
    first = wanted.span.first - span.first + 1
    return part(text, Lines(first, wanted.span.last - span.first + 1))
