"""Blocks as text: what `react.read` gives for each kind of them, and parts of a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

from loopline.errors import RefError
from loopline.models import JsonObject, dumps
from loopline.reader.reading import Item
from loopline.refs import Characters, Lines, Span, Spanned, spanned
from loopline.search import split_lines
from loopline.timeline import (
    ArtifactKept,
    Block,
    Body,
    Completion,
    Draft,
    Feedback,
    Notes,
    Notice,
    Plan,
    PlanHistory,
    RangeSummary,
    SystemMessage,
    TextKept,
    Thinking,
    ToolCalled,
    ToolResult,
    UserAttachment,
    UserFollowup,
    UserPrompt,
    UserSteer,
    attachments,
    encode,
    encode_whole,
    summary_text,
)

MARKDOWN = "text/markdown"
JSON = "application/json"


def text_of(block: Block) -> tuple[str, str]:
    """The text of a block and its MIME type."""
    match block.body:
        case UserPrompt(text=text) | UserFollowup(text=text) | UserSteer(text=text):
            return text, MARKDOWN
        case UserAttachment(text=text, mime=mime) as file:
            return text or attachments.described(file), mime
        case Completion(text=text) | Draft(text=text) | Notes(text=text) | Thinking(text=text):
            return text, MARKDOWN
        case TextKept(text=text, mime=mime) | ArtifactKept(text=text, mime=mime):
            return text, mime
        case ToolCalled(tool=tool, arguments=arguments):
            return dumps({"tool": tool, "arguments": arguments}), JSON
        case RangeSummary():
            return summary_text(block.body), MARKDOWN
        case ToolResult(text=text) | Notice(text=text) | PlanHistory(text=text):
            return text, "text/plain"
        case SystemMessage(text=text):
            return text, "text/plain"
        case Feedback(reaction=reaction, text=text):
            return f"{reaction or 'taken back'}\n{text}".strip(), "text/plain"
        case body:
            return _json_of(body), JSON


def _json_of(body: Body) -> str:
    """A body as it is stored; a plan whole, with the status that follows from it."""
    match body:
        case Plan(snapshot=snapshot):
            fields = cast("dict[str, JsonObject]", json.loads(encode_whole(body)))
            return dumps({"snapshot": {**fields["snapshot"], "status": snapshot.status}})
        case _:
            return encode(body)[2]


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


def fitted(name: Spanned, asked: str, whole: str, mime: str, room: int) -> Item:
    """What fits of the part that `name` names, as an item whose ref names just what it shows.

    Raises:
        RefError: the span begins beyond the end of the text.
    """
    if room < 1:
        message = f"cut: no room was left for it; read {name} by itself"
        return Item(ref=str(name), asked=asked, status="cut", mime=mime, message=message)
    found = fit(whole, name.span, room)
    if found.rest is None:
        return Item(ref=str(name), asked=asked, status="ok", text=found.text, mime=mime)
    return Item(
        ref=str(spanned(name, found.span)),
        asked=asked,
        status="cut",
        text=found.text,
        mime=mime,
        message=f"{found.message}; the rest is {spanned(name, found.rest)}",
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
