"""A message as digests and providers see it: its full content as text, its tokens, and the number of its parts."""

from __future__ import annotations

from msgspec import Struct

from loopline.models import AssistantMessage, Message, ReasoningReplay, ToolMessage, UserMessage
from loopline.models.tokens import cost_of_files, cost_of_text, estimate


class MessageSize(Struct, frozen=True):
    """The full content of a message, its tokens with those of its files, the latter alone, and its parts."""

    content: str
    tokens: int
    file_tokens: int
    parts: int


def measure(message: Message) -> MessageSize:
    """Return the size of a message."""
    match message:
        case ToolMessage(attachments=()):
            content = repr(message)
            return MessageSize(content, estimate(content), 0, 1)
        case AssistantMessage(echo=None, text=text, calls=calls):
            content = repr(message)
            return MessageSize(content, estimate(content), 0, bool(text) + len(calls))
        case _:
            content, files = digest_text(message), cost_of_files(message)
            tokens = cost_of_text(message, content) + files
            return MessageSize(content, tokens, files, parts_of_message(message))


def digest_text(message: Message) -> str:
    """Return the full content of a message, for a digest."""
    match message:
        case AssistantMessage(echo=ReasoningReplay() as echo):
            return f"{message!r}{echo}"
        case _:
            return repr(message)


def parts_of_message(message: Message) -> int:
    """Return how many parts a message has, as providers count them: a text, a call, a result, a file."""
    match message:
        case AssistantMessage(echo=ReasoningReplay(parts=parts)):
            return len(parts)
        case AssistantMessage(text=text, calls=calls):
            return bool(text) + len(calls)
        case UserMessage(attachments=files) | ToolMessage(attachments=files):
            return 1 + (len(files) + sum([bool(file.data) for file in files]) if files else 0)
