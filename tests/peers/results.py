"""What a reply comes to, as a vendor's own client reads it and as we do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from loopline.models import Json, JsonObject, Prompt, Reply
from tests.peers.clients import HELLO, anthropic_at, openai_at
from tests.providers.flat_request import sent
from tests.providers.local_model import asked, model_at
from tests.support.peers.http_server import Peer


@dataclass(frozen=True, slots=True)
class Result:
    """What was said, what was called with what, and what it took."""

    text: str
    calls: tuple[tuple[str, Json], ...]
    input_tokens: int
    output_tokens: int


async def ours(peer: Peer, wire: str, prompt: Prompt) -> Reply:
    async with model_at(peer, wire) as model:
        return (await asked(model, prompt))[1]


def of_reply(reply: Reply) -> Result:
    rows = tuple((call.name, call.arguments) for call in reply.calls)
    return Result(reply.text, rows, reply.usage.input_tokens, reply.usage.output_tokens)


async def theirs(peer: Peer, wire: str, prompt: Prompt) -> Result:
    """What the vendor's client makes of the stream that answers the same request."""
    body = sent(wire, prompt)
    match wire:
        case "chat":
            return of_chat(await completion(peer, body))
        case "responses":
            return of_response(await response(peer, body))
        case _:
            return of_message(await message(peer, body))


async def completion(peer: Peer, body: JsonObject) -> ChatCompletion:
    """As OpenAI's client puts it together of the chunks."""
    async with (
        openai_at(peer) as client,
        client.chat.completions.stream(model="m", messages=[], extra_body=body) as stream,
    ):
        return await stream.get_final_completion()


async def response(peer: Peer, body: JsonObject) -> Response:
    """As OpenAI's client has it at the end of the events."""
    async with (
        openai_at(peer) as client,
        client.responses.stream(model="m", input="", extra_body=body) as stream,
    ):
        return await stream.get_final_response()


async def message(peer: Peer, body: JsonObject) -> Message:
    """As Anthropic's client puts it together of the events."""
    async with (
        anthropic_at(peer) as client,
        client.messages.stream(model="m", max_tokens=1, messages=HELLO, extra_body=body) as stream,
    ):
        return await stream.get_final_message()


def of_chat(completion: ChatCompletion) -> Result:
    message, usage = completion.choices[0].message, completion.usage
    calls = tuple(
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
        if call.type == "function"
    )
    took = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
    return Result(message.content or "", calls, *took)


def of_response(response: Response) -> Result:
    calls = tuple(
        (item.name, json.loads(item.arguments))
        for item in response.output
        if item.type == "function_call"
    )
    usage = response.usage
    took = (usage.input_tokens, usage.output_tokens) if usage else (0, 0)
    return Result(response.output_text, calls, *took)


def of_message(message: Message) -> Result:
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple(
        (block.name, _as_json(block.input)) for block in message.content if block.type == "tool_use"
    )
    return Result(text, calls, message.usage.input_tokens, message.usage.output_tokens)


def _as_json(given: Mapping[str, object]) -> Json:
    read: Json = json.loads(json.dumps(given))
    return read
