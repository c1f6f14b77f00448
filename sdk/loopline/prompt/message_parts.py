"""A message as digests and providers see it: its full content as text, and the number of its parts."""

from __future__ import annotations

from loopline.models import AssistantMessage, Message, ReasoningReplay, ToolMessage, UserMessage


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
