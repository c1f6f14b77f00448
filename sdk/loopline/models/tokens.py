"""Estimates of tokens, for texts, messages and prompts that no provider has counted yet."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import accumulate

from loopline.models.json import Json, dumps
from loopline.models.prompt import (
    AssistantMessage,
    Message,
    Prompt,
    ReasoningReplay,
    ToolMessage,
    UserMessage,
    is_beside,
)

_PLAIN = (string.ascii_letters + " ").encode()


def estimate(text: str) -> int:
    """Return a safe estimate: four letters or spaces to a token, and two bytes of everything else.

    Digits, punctuation and other scripts are what tokenizers split finest; a Chinese character of
    three bytes counts for one and a half.
    """
    data = text.encode("utf-8", "surrogatepass")
    dense = len(data.translate(None, _PLAIN))
    return -(-(len(data) - dense) // 4) + -(-dense // 2)


def fitting(entries: Sequence[str], limit: int | None) -> list[str]:
    """Return the first entries that together cost at most `limit` tokens, each on lines of its own."""
    if limit is None:
        return list(entries)
    totals = accumulate(estimate(f"{entry}\n") for entry in entries)
    return [entry for entry, total in zip(entries, totals, strict=True) if total <= limit]


def cost(message: Message) -> int:
    """Return the tokens of a message as it is sent: with its files, or as its provider gets it back."""
    return cost_of_text(message, repr(message)) + cost_of_files(message)


def cost_of_text(message: Message, written: str) -> int:
    """Return the tokens of a message without its files; `written` is its repr."""
    match message:
        case UserMessage(passing=True):
            return 0  # the provider has forgotten it
        case AssistantMessage(text=text, calls=calls, echo=ReasoningReplay() as echo):
            text_tokens = estimate(text) if is_beside(echo) else 0
            return text_tokens + estimate(str(echo)) + sum(estimate(repr(call)) for call in calls)
        case _:
            return estimate(written)


def cost_of_prompt(prompt: Prompt) -> int:
    """Return the tokens of a request, by the same estimate."""
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in prompt.tools
    ]
    texts = [prompt.system, prompt.tail, *([dumps(tools)] if tools else [])]
    return sum(map(cost, prompt.messages)) + sum(map(estimate, texts))


def cost_of_files(message: Message) -> int:
    """Return the tokens of the files that the model is given with a message."""
    match message:
        case UserMessage(attachments=attachments) | ToolMessage(attachments=attachments):
            return sum([attached.tokens for attached in attachments]) if attachments else 0
        case _:
            return 0
