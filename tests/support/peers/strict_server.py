"""An OpenAI-compatible server that takes nothing it need not take.

It refuses what real ones do: a user's message right behind a tool's (Mistral: mistral-common issue 169,
with its body), calls without answers and answers without calls, fields it does not know, empty content.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loopline.models.json import Json, JsonObject
from tests.support.peers.behaviors import Behaviour, answering
from tests.support.peers.http_server import Peer, Request, serving
from tests.support.peers.openai_like import CHAT, OpenAI, refusal
from tests.support.peers.openai_replies import Says
from tests.support.peers.streams import Reply, document


class Known(BaseModel):
    """Something of which every field is known."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Known):
    type: Literal["text"]
    text: str = Field(min_length=1)


class ImageUrl(Known):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Known):
    type: Literal["image_url"]
    image_url: ImageUrl


class Called(Known):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    arguments: str


class CallMade(Known):
    """A call in an assistant's message."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: Called


class Message(Known):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[CallMade] | None = Field(default=None, min_length=1)
    tool_call_id: str | None = None


class Function(Known):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Tool(Known):
    type: Literal["function"]
    function: Function


class StreamOptions(Known):
    """What a stream tells beside its text."""

    include_usage: bool = False


class Body(Known):
    """A request for a chat completion."""

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = Field(default=None, min_length=1)
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, object] | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    seed: int | None = None


class Strict(OpenAI):
    """OpenAI where nothing is let pass."""

    def refuses(self, asked: Request) -> Reply | None:
        """What breaks a rule; the responses' wire has none here."""
        elsewhere = super().refuses(asked)
        if elsewhere is not None or asked.path != CHAT:
            return elsewhere
        try:
            body = Body.model_validate(asked.body)
        except ValidationError as error:
            return document(_unknown_or_wrong(error), 400)
        for problem in problems(body):
            return document(problem, 400)
        return None


def _unknown_or_wrong(error: ValidationError) -> JsonObject:
    first = error.errors()[0]
    param = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return refusal(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    return refusal(f"Invalid '{param}': {first['msg']}.", param=param, code="invalid_value")


def problems(body: Body) -> Iterator[JsonObject]:
    """Why the request would be refused, the first reason first."""
    if body.stream_options is not None and not body.stream:
        param = "stream_options"
        yield refusal("'stream_options' is only allowed when 'stream' is set.", param=param)
    for at, message in enumerate(body.messages):
        if words := _misshapen(message):
            yield refusal(words, param=f"messages.[{at}]")
    yield from _order(body.messages)
    yield from _answers(body.messages)


def _misshapen(message: Message) -> str | None:
    says = message.content is not None and message.content not in ("", [])
    match message.role:
        case "assistant" if not says and not message.tool_calls:
            return "An assistant message has content or 'tool_calls'."
        case "assistant" if message.content == "":
            return "Empty content: leave it out of a message that has 'tool_calls'."
        case "tool" if message.tool_call_id is None:
            return "A tool message has a 'tool_call_id'."
        case "tool" if message.content is None:
            return "A tool message has content."
        case "system" | "developer" | "user" if not says:
            return f"Empty content is not allowed in a {message.role} message."
        case _:
            pass
    if message.tool_calls is not None and message.role != "assistant":
        return "Only an assistant message has 'tool_calls'."
    if message.tool_call_id is not None and message.role != "tool":
        return "Only a tool message has a 'tool_call_id'."
    return None


def _order(messages: Sequence[Message]) -> Iterator[JsonObject]:
    for before, after in pairwise(messages):
        if before.role == "tool" and after.role not in {"tool", "assistant"}:
            yield _misplaced(f"Unexpected role '{after.role}' after role 'tool'")
    if messages[-1].role == "assistant":
        yield _misplaced("Expected last role User or Tool for serving but got assistant")


def _misplaced(words: str) -> JsonObject:
    """A refusal in Mistral's form."""
    kind, code, param = "invalid_request_message_order", "3230", None
    body: dict[str, Json] = {"message": words, "type": kind, "param": param, "code": code}
    return {"object": "error", **body}


def _answers(messages: Sequence[Message]) -> Iterator[JsonObject]:
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        param = f"messages.[{at}]"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                words = f"'{message.tool_call_id}' answers no call of the message before."
                yield refusal(words, param=f"{param}.tool_call_id")
            else:
                open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            yield _unanswered(open_calls, param)
        open_calls = [call.id for call in message.tool_calls or []]
    if open_calls:
        yield _unanswered(open_calls, "messages")


def _unanswered(calls: Sequence[str], param: str) -> JsonObject:
    words = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to"
        f" each 'tool_call_id'. These had no response: {', '.join(calls)}"
    )
    return refusal(words, param=param)


@asynccontextmanager
async def strict(*behaviours: Behaviour[Says]) -> AsyncGenerator[Peer, None]:
    """One behaviour a request that is taken, in order; then the last one again and again."""
    async with serving(Peer(), answering(behaviours, Strict())) as peer:
        yield peer
