"""The items of a reading: the text of each ref, truncated to fit, and the status of all items."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, cast

from msgspec import structs

from loopline import refs
from loopline import timeline as tl
from loopline.errors import RefError
from loopline.models import Json, JsonObject, dumps
from loopline.models.prompt import estimate

if TYPE_CHECKING:
    from loopline.knowledge import Passage

Status = Literal["ok", "cut", "missing", "gone"]
MARKDOWN = "text/markdown"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A requested ref with its text.

    `ref` is the pinned form of the `requested` ref. The `message` of a "cut" item names the ref of the remaining text;
    the message of a "missing" or "gone" item says why, and what can be read instead. `data` are the bytes of a file; its
    `text` is the text form, or a line that describes it. `keep` says that the text must be stored when it is shown, and
    `kept` is the body that stores it, so that the ref can be read when its origin is gone. `cites` are the sources of
    the text's unbound citations, by number.
    """

    ref: str
    requested: str
    status: Status
    text: str = ""
    mime: str = "text/plain"
    title: str = ""
    message: str = ""
    source: tl.Source | None = None
    keep: bool = False
    kept: tl.TextKept | None = field(default=None, repr=False)
    cites: Mapping[int, tl.Source] = field(default_factory=dict[int, tl.Source], repr=False)
    data: bytes = field(default=b"", repr=False)

    @property
    def readable(self) -> bool:
        """Whether the item has a text."""
        return self.status in ("ok", "cut")

    @property
    def sha256(self) -> str:
        """The sha256 of the text, in hexadecimal."""
        return sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """The items of a reading, in the order of the request; a reading can be iterated and indexed.

    `exists_in_visible_context` are requested refs whose text the prompt already shows.
    """

    items: Sequence[Item]
    exists_in_visible_context: Sequence[str] = ()

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, position: int) -> Item:
        return self.items[position]

    @property
    def paths(self) -> list[str]:
        """The refs of the items with a text."""
        return [item.ref for item in self.items if item.readable]

    @property
    def missing(self) -> list[str]:
        """The requested refs of the items without a text."""
        return [item.requested for item in self.items if not item.readable]

    @property
    def total_tokens(self) -> int:
        """An estimate of the tokens of all texts."""
        return sum(estimate(item.text) for item in self.items)

    def status(self) -> JsonObject:
        """Return the status object that the model receives before the texts."""
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


MarkdownBody = (
    tl.UserPrompt
    | tl.UserFollowup
    | tl.UserSteer
    | tl.Completion
    | tl.Draft
    | tl.Notes
    | tl.Thinking
)
PlainBody = (
    tl.ToolResult
    | tl.ProxiedResult
    | tl.BackgroundResult
    | tl.Notice
    | tl.PlanHistory
    | tl.SystemMessage
    | tl.Lesson
)
TextBody = (
    tl.UserAttachment
    | tl.FileAdded
    | tl.TextKept
    | tl.ArtifactKept
    | tl.ToolCalled
    | tl.ProxiedCall
    | tl.RangeSummary
    | tl.Feedback
    | tl.Plan
)
"""The bodies that have a text, but not in the field `text` alone."""
_MARKDOWN = tl.BodyUnion[MarkdownBody](MarkdownBody)
_PLAIN = tl.BodyUnion[PlainBody](PlainBody)
_TEXTS = tl.BodyUnion[TextBody](TextBody)


def text_of(block: tl.Block) -> tuple[str, str]:
    """Return the text of a block and its MIME type; of most body types the text is the JSON of the body."""
    body = block.body
    if _MARKDOWN.has(body):
        return body.text, MARKDOWN
    if _PLAIN.has(body):
        return body.text, "text/plain"
    if _TEXTS.has(body):
        return _render_text(body)
    # Version 2 of a RoundStart is stored without the names of fields, so version 1 is shown.
    named = structs.replace(body, version=1) if isinstance(body, tl.RoundStart) else body
    return tl.encode(named)[2], JSON


def _render_text(body: TextBody) -> tuple[str, str]:
    """Return the text of a body and its MIME type; calls and plans as JSON, and a description for a binary file."""
    match body:
        case tl.UserAttachment(text=text, mime=mime):
            return text or tl.attachments.describe(body), mime
        case tl.FileAdded(text=text, mime=mime, size=size):
            return text if text or not size else tl.workspace.describe_file(body), mime
        case tl.TextKept(text=text, mime=mime) | tl.ArtifactKept(text=text, mime=mime):
            return text, mime
        case (
            tl.ToolCalled(tool=tool, arguments=arguments)
            | tl.ProxiedCall(tool=tool, arguments=arguments)
        ):
            return dumps({"tool": tool, "arguments": arguments}), JSON
        case tl.RangeSummary():
            return tl.summary_text(body), MARKDOWN
        case tl.Feedback(reaction=reaction, text=text):
            return f"{reaction or 'taken back'}\n{text}".strip(), "text/plain"
        case tl.Plan(snapshot=snapshot):
            fields = cast("dict[str, JsonObject]", json.loads(tl.encode_full(body)))
            return dumps({"snapshot": {**fields["snapshot"], "status": snapshot.status}}), JSON


def text_in(text: str, span: refs.Span | None) -> str:
    """Return the lines or characters of a text in the span; a span may end after the text.

    Raises:
        RefError: the span begins after the end; the message has the length of the text.
    """
    match span:
        case None:
            return text
        case refs.Lines(first=first, last=last):
            lines = refs.split_lines(text)
            if first > len(lines):
                raise RefError(f"there are {len(lines)} lines, so not {span}")
            return "".join(lines[first - 1 : last])
        case refs.Characters(first=first, last=last):
            if first > len(text):
                raise RefError(f"there are {len(text)} characters, so not {span}")
            return text[first - 1 : last]


def fit_item(ref: refs.SpannedRef, requested: str, text: str, mime: str, room: int) -> Item:
    """Return an item with the part of a text that `ref` names, truncated to `room` characters.

    A truncated part ends with a full line if at least one line fits. Its ref names the shown part, and its message has
    the ref of the remaining part.
    If `room` is below 1, the item is cut and without text.

    Raises:
        RefError: the span begins after the end of the text.
    """
    if room < 1:
        message = f"cut: the other texts used all the room; read {ref} alone"
        return Item(ref=str(ref), requested=requested, status="cut", mime=mime, message=message)
    part = text_in(text, ref.span)
    if len(part) <= room:
        return Item(ref=str(ref), requested=requested, status="ok", text=part, mime=mime)
    first_line, first_character = _start(text, ref.span)
    shown = part[: part.rfind("\n", 0, room) + 1]
    if shown and not isinstance(ref.span, refs.Characters):
        next_line = first_line + shown.count("\n")
        span: refs.Span = refs.Lines(first_line, next_line - 1)
        remaining: refs.Span = refs.Lines(next_line, first_line + len(refs.split_lines(part)) - 1)
    else:
        shown = part[:room]
        next_character = first_character + len(shown)
        span = refs.Characters(first_character, max(next_character - 1, first_character))
        remaining = refs.Characters(next_character, first_character + len(part) - 1)
    return Item(
        ref=str(refs.replace_span(ref, span)),
        requested=requested,
        status="cut",
        text=shown,
        mime=mime,
        message=f"cut: {len(part) - len(shown)} of {len(part)} characters; "
        f"the rest is {refs.replace_span(ref, remaining)}",
    )


def _start(text: str, span: refs.Span | None) -> tuple[int, int]:
    """Return the line and the character at which a span starts, both from 1."""
    match span:
        case refs.Lines(first=first):
            return first, sum(map(len, refs.split_lines(text)[: first - 1])) + 1
        case refs.Characters(first=first):
            return text.count("\n", 0, first - 1) + 1, first
        case None:
            return 1, 1


def passage_source(passage: Passage) -> tl.Source:
    """Return the source for citations of a passage. Its relevance is the score of the search, if that is from 0 to 1."""
    score = passage.score
    return tl.Source(
        url=passage.ref,
        title=passage.title,
        source_type="file",
        path=passage.path,
        commit=passage.commit,
        lines=passage.lines if passage.lines != (0, 0) else None,
        objective_relevance=round(score, 2) if score is not None and 0 <= score <= 1 else None,
    )


def passage_item(passage: Passage, requested: str, text: str, room: int) -> Item:
    """Return an item with a passage of knowledge, truncated to `room` characters.

    `text` is the text of the passage if it fits, else the text of its full file, whose lines the new ref counts.
    """
    mime = MARKDOWN if passage.path.endswith((".md", ".markdown")) else "text/plain"
    ref = refs.parse(passage.ref)
    if len(passage.text) <= room or not isinstance(ref, refs.KnowledgeRef):
        shown = passage.text[:room]
        item = Item(ref=passage.ref, requested=requested, status="ok", text=shown, mime=mime)
        if len(passage.text) > room:
            item = replace(item, status="cut", message=f"cut: the full text is {passage.ref}")
    else:
        item = fit_item(ref, requested, text, mime, room)
    shown_ref = refs.parse(item.ref)
    lines = passage.lines
    if isinstance(shown_ref, refs.KnowledgeRef) and isinstance(shown_ref.span, refs.Lines):
        lines = (shown_ref.span.first, shown_ref.span.last)
    source = passage_source(replace(passage, ref=item.ref, lines=lines))
    return replace(item, title=passage.title, source=source, keep=bool(item.text))


def find_kept_passage(timeline: tl.Timeline, ref: refs.KnowledgeRef, room: int) -> Item | None:
    """Return an item with a stored passage that has the requested ref or contains its lines; None without one.

    A ref without a commit is never found.
    """
    if ref.commit is None:
        return None
    requested = str(ref)
    if requested in timeline.kept_texts:
        text = timeline.kept_texts[requested].text
        return _make_kept_item(timeline, requested, requested, text, room)
    digest = timeline.shown_texts.get(requested)
    for name, kept_text in timeline.kept_texts.items():
        if digest is not None and sha256(kept_text.text.encode()).hexdigest() == digest:
            return _make_kept_item(timeline, requested, name, kept_text.text, room)
        text_of_lines = _select_lines(name, kept_text.text, ref)
        if text_of_lines is not None:
            return _make_kept_item(timeline, requested, name, text_of_lines, room)
    return None


def _make_kept_item(timeline: tl.Timeline, requested: str, name: str, text: str, room: int) -> Item:
    """Return an item with a kept text and its source; if longer than `room` characters, cut and without a source."""
    title = timeline.kept_texts[name].title
    item = Item(ref=requested, requested=requested, status="ok", text=text, title=title)
    if len(text) > room:
        message = f"cut: {len(text) - room} of {len(text)} characters, which did not fit here"
        return replace(item, status="cut", text=text[:room], message=message)
    return replace(item, source=timeline.pool.find(name))


def _select_lines(name: str, text: str, ref: refs.KnowledgeRef) -> str | None:
    """Return the lines of `ref` from the text stored under `name`, or None if it does not have them."""
    if not name.startswith("ks:") or not isinstance(ref.span, refs.Lines):
        return None
    kept_ref = refs.parse(name)
    if not isinstance(kept_ref, refs.KnowledgeRef) or (kept_ref.path, kept_ref.commit) != (
        ref.path,
        ref.commit,
    ):
        return None
    span = (
        kept_ref.span
        if isinstance(kept_ref.span, refs.Lines)
        else refs.Lines(1, len(refs.split_lines(text)))
    )
    if not span.first <= ref.span.first <= ref.span.last <= span.last:
        return None
    first = ref.span.first - span.first + 1
    return text_in(text, refs.Lines(first, ref.span.last - span.first + 1))
