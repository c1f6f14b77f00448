"""The `native` protocol: the provider's own tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from loopline.models import (
    AssistantMessage,
    Message,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    well_formed,
    well_formed_object,
)
from loopline.prompt.protocols.decision import (
    Answer,
    Calls,
    ChannelText,
    DecodedReply,
    Malformed,
    Piece,
    Splitter,
)


class Native:
    """The provider's own tool calls."""

    name: Literal["native"] = "native"
    stop: tuple[str, ...] = ()

    def splitter(self) -> Splitter:
        """Return a splitter that takes all text for the answer, which it is unless calls follow."""
        return PlainSplitter()

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Return "": the tools travel beside the text."""
        del tools
        return ""

    def render_calls(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """Return notes and calls."""
        return AssistantMessage(text=notes, calls=tuple(calls))

    def render_answer(self, text: str) -> AssistantMessage:
        """Return the text."""
        return AssistantMessage(text=text)

    def render_result(self, message: ToolMessage) -> Message:
        """Return the message unchanged."""
        return message

    def decode(self, reply: Reply) -> DecodedReply:
        """Return the calls if there are any and all are complete, else the answer."""
        text = well_formed(reply.text)
        if reply.problem:
            return Malformed(text, well_formed(reply.problem))
        if reply.calls:
            return Calls(text.strip(), tuple(map(_sound, reply.calls)))
        if not text.strip():
            return Malformed(text, "The reply was empty: call a tool or answer.")
        return Answer("", text)


class PlainSplitter:
    """A splitter that takes all text for the answer."""

    def __init__(self) -> None:
        self._answer = ChannelText()

    def feed(self, text: str) -> list[Piece]:
        """Return what the next piece of the reply adds to the answer."""
        ready = self._answer.add(text)
        return [("answer", ready)] if ready else []

    def close(self) -> list[Piece]:
        """Return nothing: only white space is held back."""
        return []


def _sound(call: ToolCall) -> ToolCall:
    arguments = well_formed_object(call.arguments)
    return ToolCall(
        name=well_formed(call.name), arguments=arguments, provider_id=well_formed(call.provider_id)
    )
