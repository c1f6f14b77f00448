"""A conversation with an Anthropic-like peer, sent as JSON and kept as it came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from anthropic import AsyncAnthropic
from anthropic.types import Message

from loopline.models.json import Json, JsonObject
from tests.peers.clients import CLAUDE
from tests.support.peers.anthropic_like import MESSAGES


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def result(call: str) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": call, "content": "Two."}


@dataclass
class Talk:
    """A conversation as it is sent, and the client that sends it."""

    client: AsyncAnthropic
    body: JsonObject

    @property
    def messages(self) -> list[JsonObject]:
        return cast("list[JsonObject]", self.body["messages"])

    def block(self, message: int, at: int) -> JsonObject:
        return cast("list[JsonObject]", self.messages[message]["content"])[at]

    async def send(self) -> Message:
        return await self.client.post(MESSAGES, body=self.body, cast_to=Message)

    async def go_on(self, *blocks: Json) -> Message:
        """Say something, and keep the answer as it came."""
        self.messages.append({"role": "user", "content": [*blocks]})
        message = await self.send()
        answered = [cast("Json", block.to_dict()) for block in message.content]
        self.messages.append({"role": "assistant", "content": answered})
        return message


def opening(client: AsyncAnthropic) -> Talk:
    """A conversation in which nothing is said yet."""
    tool: JsonObject = {"name": "read", "input_schema": {"type": "object"}}
    system: list[Json] = [text("You read.")]
    body: JsonObject = {"model": CLAUDE, "max_tokens": 100, "tools": [tool], "system": system}
    return Talk(client, {**body, "messages": []})
