"""A model that answers at once with what it was told, and calls a tool when it is told to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from loopline import models

CALL = re.compile(r"call (\w+(?:\.\w+)?) (\w+)=(.+)")


class EchoModel:
    """Answers `You said: …` in pieces; `call shop.book name=tea` calls that tool once, and says its result.

    After each piece it waits `pause` seconds. Without a pause a turn may end before a reader has seen any piece.
    """

    name = "echo"
    capabilities = models.Capabilities(window=1_000_000, tool_call=True)

    def __init__(self, *, pause: float = 0.0) -> None:
        self._pause = pause

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        reply = answered(prompt)
        for start in range(0, len(reply.text), 10):
            yield models.TextDelta(text=reply.text[start : start + 10])
            if self._pause:
                await asyncio.sleep(self._pause)
        yield reply


def answered(prompt: models.Prompt) -> models.Reply:
    for message in reversed(prompt.messages):
        match message:
            case models.ToolMessage(text=text):
                return models.Reply(text=f"The tool said: {text}")
            case models.UserMessage(text=text, passing=False):
                said = text.partition("\n")[2] if text.startswith("[ar:") else text
                match = CALL.search(said)
                if match is None:
                    return models.Reply(text=f"You said: {said}")
                call = models.ToolCall(name=match[1], arguments={match[2]: match[3]})
                return models.Reply(calls=(call,), stop_reason="tool_use")
            case models.UserMessage() | models.AssistantMessage():
                pass
    return models.Reply(text="Nobody said anything.")
