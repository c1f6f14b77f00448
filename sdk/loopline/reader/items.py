"""What a reading gives: an item for each ref asked for, and a status over all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal, cast

from loopline.errors import RefError
from loopline.knowledge import Passage
from loopline.models import Json, JsonObject, dumps
from loopline.models.tokens import estimate
from loopline.refs import Characters, KnowledgeRef, Lines, Span, SpannedRef, parse, with_span
from loopline.search import split_lines
from loopline.timeline import (
    ArtifactKept,
    Block,
    Checkpoint,
    Completion,
    CustomEvent,
    Decision,
    Draft,
    Exit,
    Feedback,
    Hide,
    Imported,
    ModelOverflowed,
    ModelSwitched,
    Notes,
    Notice,
    Plan,
    PlanAck,
    PlanHistory,
    RangeSummary,
    RoundStart,
    RunChild,
    Source,
    SourceAdded,
    SystemMessage,
    TextKept,
    Thinking,
    Timeline,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolsSelected,
    ToolStarted,
    TurnHeader,
    Unknown,
    UserAnswer,
    UserAttachment,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserSteer,
    UserStop,
    attachments,
    encode,
    encode_full,
    summary_text,
)

Status = Literal["ok", "cut", "missing", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One ref, read.

    `ref` is pinned wherever the name that was `asked` for moves. `message` says what was cut and which
    ref restores it, or why there is nothing and what was possible. `data` are the bytes of an attached
    file, whose `text` is its text form, or a line that says what it is.
    """

    ref: str
    requested: str
    status: Status
    text: str = ""
    mime: str = "text/plain"
    title: str = ""
    message: str = ""
    source: Source | None = None
    keep: bool = False
    data: bytes = field(default=b"", repr=False)

    @property
    def readable(self) -> bool:
        """Whether there is something to read."""
        return self.status in ("ok", "cut")

    @property
    def sha256(self) -> str:
        """The digest of the text, in hexadecimal."""
        return sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """The items of one reading, in the order asked; iterating gives them."""

    items: Sequence[Item]
    exists_in_visible_context: Sequence[str] = ()

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def paths(self) -> list[str]:
        """The refs that were read."""
        return [item.ref for item in self.items if item.readable]

    @property
    def missing(self) -> list[str]:
        """The refs that gave nothing."""
        return [item.requested for item in self.items if not item.readable]

    @property
    def total_tokens(self) -> int:
        """An estimate of the tokens that the texts cost."""
        return sum(estimate(item.text) for item in self.items)

    def status(self) -> JsonObject:
        """The status that precedes the texts."""
        paths: list[Json] = [
            {"path": item.ref, "tokens": estimate(item.text)}
            for item in self.items
            if item.readable
        ]
        return {
            "paths": paths,
            "missing": list[Json](self.missing),
            "total_tokens": self.total_tokens,
            "exists_in_visible_context": list[Json](self.exists_in_visible_context),
        }


MARKDOWN = "text/markdown"
JSON = "application/json"


def text_of(block: Block) -> tuple[str, str]:
    """The text of a block and its MIME type."""
    match block.body:
        case UserAttachment(text=text, mime=mime) as file:
            return text or attachments.describe(file), mime
        case (
            UserPrompt(text=text)
            | UserFollowup(text=text)
            | UserSteer(text=text)
            | Completion(text=text)
            | Draft(text=text)
            | Notes(text=text)
            | Thinking(text=text)
        ):
            return text, MARKDOWN
        case TextKept(text=text, mime=mime) | ArtifactKept(text=text, mime=mime):
            return text, mime
        case ToolCalled(tool=tool, arguments=arguments):
            return dumps({"tool": tool, "arguments": arguments}), JSON
        case RangeSummary():
            return summary_text(block.body), MARKDOWN
        case (
            ToolResult(text=text)
            | Notice(text=text)
            | PlanHistory(text=text)
            | SystemMessage(text=text)
        ):
            return text, "text/plain"
        case Feedback(reaction=reaction, text=text):
            return f"{reaction or 'taken back'}\n{text}".strip(), "text/plain"
        case Plan(snapshot=snapshot):
            fields = cast("dict[str, JsonObject]", json.loads(encode_full(block.body)))
            return dumps({"snapshot": {**fields["snapshot"], "status": snapshot.status}}), JSON
        case (
            TurnHeader()
            | UserStop()
            | UserAnswer()
            | UserRecalled()
            | RoundStart()
            | Decision()
            | ModelSwitched()
            | ModelOverflowed()
            | ToolStarted()
            | ToolPending()
            | RunChild()
            | ToolsSelected()
            | PlanAck()
            | Hide()
            | Checkpoint()
            | Imported()
            | SourceAdded()
            | CustomEvent()
            | Exit()
            | Unknown()
        ):
            return encode(block.body)[2], JSON  # as it is stored


def part(text: str, span: Span | None) -> str:
    """The lines or characters of a text that a span names; one that goes beyond the end ends there.

    Raises:
        RefError: the span begins beyond the end; the message says how long the text is.
    """
    match span:
        case None:
            return text
        case Lines(first=first, last=last):
            lines = split_lines(text)
            if first > len(lines):
                raise RefError(f"there are {len(lines)} lines, so not {span}")
            return "".join(lines[first - 1 : last])
        case Characters(first=first, last=last):
            if first > len(text):
                raise RefError(f"there are {len(text)} characters, so not {span}")
            return text[first - 1 : last]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What fits of a text: the part, its span, and the span of the rest, None when all fits."""

    text: str
    span: Span | None
    rest: Span | None = None
    message: str = ""


def fit(whole: str, span: Span | None, limit: int) -> Fitted:
    """What of the part that `span` names fits into `limit` characters: whole lines, if any fit.

    Raises:
        RefError: the span begins beyond the end of the text.
    """
    text = part(whole, span)
    if len(text) <= limit:
        return Fitted(text, span)
    first_line, first_character = _start(whole, span)
    count = f"cut: %s of {len(text)} characters"
    kept = text[: text.rfind("\n", 0, limit) + 1]
    if kept and not isinstance(span, Characters):
        last = first_line + len(split_lines(text)) - 1
        next_line = first_line + kept.count("\n")
        shown: Span = Lines(first_line, next_line - 1)
        rest: Span = Lines(next_line, last)
    else:
        kept = text[:limit]
        next_character = first_character + len(kept)
        shown = Characters(first_character, max(next_character - 1, first_character))
        rest = Characters(next_character, first_character + len(text) - 1)
    return Fitted(kept, shown, rest, count % (len(text) - len(kept)))


def fitted(name: SpannedRef, asked: str, whole: str, mime: str, room: int) -> Item:
    """What fits of the part that `name` names, as an item whose ref names just what it shows.

    Raises:
        RefError: the span begins beyond the end of the text.
    """
    if room < 1:
        message = f"cut: no room was left for it; read {name} by itself"
        return Item(ref=str(name), requested=asked, status="cut", mime=mime, message=message)
    found = fit(whole, name.span, room)
    if found.rest is None:
        return Item(ref=str(name), requested=asked, status="ok", text=found.text, mime=mime)
    return Item(
        ref=str(with_span(name, found.span)),
        requested=asked,
        status="cut",
        text=found.text,
        mime=mime,
        message=f"{found.message}; the rest is {with_span(name, found.rest)}",
    )


def _start(whole: str, span: Span | None) -> tuple[int, int]:
    """The line and the character at which a span begins, both counted from 1."""
    match span:
        case Lines(first=first):
            return first, sum(map(len, split_lines(whole)[: first - 1])) + 1
        case Characters(first=first):
            return whole.count("\n", 0, first - 1) + 1, first
        case None:
            return 1, 1


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
        item = Item(ref=passage.ref, requested=asked, status="ok", text=text, mime=mime)
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
    if asked in timeline.kept_texts:
        return _kept_item(timeline, asked, asked, timeline.kept_texts[asked].text, room)
    digest = timeline.shown_texts.get(asked)
    for name, kept in timeline.kept_texts.items():
        if digest is not None and sha256(kept.text.encode()).hexdigest() == digest:
            return _kept_item(timeline, asked, name, kept.text, room)
        text = _enclosed(name, kept.text, ref)
        if text is not None:
            return _kept_item(timeline, asked, name, text, room)
    return None


def _kept_item(timeline: Timeline, asked: str, name: str, text: str, room: int) -> Item:
    source, title = timeline.pool.find(name), timeline.kept_texts[name].title
    if len(text) > room:
        message = f"cut: {len(text) - room} of {len(text)} characters, which had no room here"
        shown = text[:room]
        return Item(
            ref=asked, requested=asked, status="cut", text=shown, title=title, message=message
        )
    return Item(ref=asked, requested=asked, status="ok", text=text, title=title, source=source)


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
