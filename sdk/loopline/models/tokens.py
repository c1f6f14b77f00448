"""How many tokens a text may cost, before any provider has said."""

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
    UserMessage,
    is_beside,
)

_PLAIN = (string.ascii_letters + " ").encode()


def estimate(text: str) -> int:
    """An estimate on the safe side: four letters or spaces to a token, and two bytes of all else.

    Digits, punctuation and other scripts are what tokenizers split finest; a Chinese character of
    three bytes counts for one and a half.
    """
    data = text.encode("utf-8", "surrogatepass")
    other = len(data.translate(None, _PLAIN))
    return -(-(len(data) - other) // 4) + -(-other // 2)


def fitting(entries: Sequence[str], limit: int | None) -> list[str]:
    """Return the first entries that together cost at most `limit` tokens, each on lines of its own."""
    if limit is None:
        return list(entries)
    totals = accumulate(estimate(f"{entry}\n") for entry in entries)
    return [entry for entry, total in zip(entries, totals, strict=True) if total <= limit]


def cost(message: Message, written: str = "") -> int:
    """What a message costs, as it is sent: with its files, or as its provider gets it back.

    `written` is its repr, where that is at hand.
    """
    match message:
        case UserMessage(passing=True):
            return 0  # the provider has forgotten it
        case AssistantMessage(text=text, calls=calls, echo=ReasoningReplay() as echo):
            beside = estimate(text) if is_beside(echo) else 0
            return beside + estimate(str(echo)) + sum(estimate(repr(call)) for call in calls)
        case _:
            return estimate(written or repr(message)) + cost_of_files(message)


def cost_of_prompt(prompt: Prompt) -> int:
    """Return what a whole request costs, by the same estimate."""
    tools: list[Json] = [
        {"name": one.name, "description": one.description, "parameters": one.parameters}
        for one in prompt.tools
    ]
    texts = [prompt.system, prompt.tail, *([dumps(tools)] if tools else [])]
    return sum(map(cost, prompt.messages)) + sum(map(estimate, texts))


def cost_of_files(message: Message) -> int:
    """What the files cost that the model is given with a message."""
    match message:
        case UserMessage(attachments=attachments):
            return sum(attached.tokens for attached in attachments)
        case _:
            return 0
