"""Blocks as text: what `react.read` gives for each kind of them, and parts of a text."""

from __future__ import annotations

from loopline.errors import RefError
from loopline.models import dumps
from loopline.refs import Characters, Lines, Span, Spanned, spanned
from loopline.timeline import (
    ArtifactKept,
    Block,
    Completion,
    Draft,
    Feedback,
    Notes,
    Notice,
    TextKept,
    Thinking,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    encode,
)

MARKDOWN = "text/markdown"
JSON = "application/json"


def text_of(block: Block) -> tuple[str, str]:
    """The text of a block and its MIME type."""
    match block.body:
        case UserPrompt(text=text) | UserFollowup(text=text):
            return text, MARKDOWN
        case Completion(text=text) | Draft(text=text) | Notes(text=text) | Thinking(text=text):
            return text, MARKDOWN
        case ToolResult(text=text) | Notice(text=text):
            return text, "text/plain"
        case TextKept(text=text, mime=mime) | ArtifactKept(text=text, mime=mime):
            return text, mime
        case ToolCalled(tool=tool, arguments=arguments):
            return dumps({"tool": tool, "arguments": arguments}), JSON
        case Feedback(reaction=reaction, text=text):
            return f"{reaction or 'taken back'}\n{text}".strip(), "text/plain"
        case body:
            return encode(body)[2], JSON


def part(text: str, span: Span | None) -> str:
    """The lines or characters of a text that a span names.

    Raises:
        RefError: the text is shorter than that; the message says how long it is.
    """
    match span:
        case None:
            return text
        case Lines(first=first, last=last):
            lines = split_lines(text)
            if last > len(lines):
                raise RefError(f"there are {len(lines)} lines, so not {span}")
            return "".join(lines[first - 1 : last])
        case Characters(first=first, last=last):
            if last > len(text):
                raise RefError(f"there are {len(text)} characters, so not {span}")
            return text[first - 1 : last]


def split_lines(text: str) -> list[str]:
    r"""The lines of a text with their ends; only "\n" ends a line."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def fit(whole: str, ref: Spanned, limit: int) -> tuple[str, str]:
    """What of the part that `ref` names fits into `limit` characters, and what to say of the rest.

    The message is empty when all of it fits; else it names the ref that restores the rest.

    Raises:
        RefError: the text is shorter than the span says.
    """
    text = part(whole, ref.span)
    if len(text) <= limit:
        return text, ""
    first_line, first_character = _start(whole, ref.span)
    kept = text[: text.rfind("\n", 0, limit) + 1]
    if kept and not isinstance(ref.span, Characters):
        last = first_line + len(split_lines(text)) - 1
        rest: Span = Lines(first_line + kept.count("\n"), last)
    else:
        kept = text[:limit]
        rest = Characters(first_character + len(kept), first_character + len(text) - 1)
    count = f"{len(text) - len(kept)} of {len(text)} characters"
    return kept, f"cut: {count}; the rest is {spanned(ref, rest)}"


def _start(whole: str, span: Span | None) -> tuple[int, int]:
    """The line and the character at which a span begins, both counted from 1."""
    match span:
        case Lines(first=first):
            return first, sum(map(len, split_lines(whole)[: first - 1])) + 1
        case Characters(first=first):
            return whole.count("\n", 0, first - 1) + 1, first
        case None:
            return 1, 1
