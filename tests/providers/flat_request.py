"""A request flattened to its parts, as a provider's cache sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from loopline.models import Capabilities, Json, JsonObject, ModelFacts, Prompt
from loopline.models.json import as_list, as_object
from loopline.providers.anthropic_messages import AnthropicMessages
from loopline.providers.failures import Credentials
from loopline.providers.http import HttpModel, HttpTransport
from loopline.providers.openai_chat import OpenAiChat
from loopline.providers.openai_responses import OpenAiResponses

KEY = "sk-secret-of-mine"
WIRES: Mapping[str, Callable[..., HttpModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}


def account_of(wire: str) -> Credentials:
    """Who asks on that wire."""
    return Credentials(f"{wire}:m", "THE_KEY", KEY, "anthropic" if wire == "messages" else "openai")


def wired(
    wire: str,
    url: str = "http://localhost:1",
    capabilities: Capabilities | None = None,
    facts: ModelFacts | None = None,
    model: str = "m",
) -> HttpModel:
    """A model on that wire."""
    account = account_of(wire)
    return WIRES[wire](
        f"{wire}:{model}",
        model=model,
        url=url,
        credentials=account,
        capabilities=capabilities or Capabilities(),
        http=HttpTransport(),
        facts=facts,
    )


def sent(wire: str, prompt: Prompt) -> JsonObject:
    """The request that travels, read again."""
    body: JsonObject = json.loads(wired(wire).body(prompt))
    return body


def parts(body: JsonObject) -> list[str]:
    """Tools, system, then each role with each of its content parts; without markers."""
    return [json.dumps(_bare(item), sort_keys=True) for item in _parts(body)]


def markers(body: JsonObject) -> list[int]:
    """Behind which of the parts a marker stands."""
    return [
        number for number, item in enumerate(_parts(body)) if "cache_control" in json.dumps(item)
    ]


def _parts(body: JsonObject) -> Iterator[Json]:
    yield from as_list(body.get("tools"))
    for name in ("system", "instructions"):
        system = body.get(name)
        yield from system if isinstance(system, list) else [system] if system else []
    for message in map(as_object, [*as_list(body.get("messages")), *as_list(body.get("input"))]):
        content = message.get("content")
        if isinstance(content, list):
            yield from ([message["role"], block] for block in content)
        elif "output" in message:
            texts = message["output"]
            alone: list[Json] = [{"type": "input_text", "text": texts}]
            for text in texts if isinstance(texts, list) else alone:
                yield [message["call_id"], text]
        else:
            yield message


def _bare(one: Json) -> Json:
    match one:
        case dict():
            return {name: _bare(value) for name, value in one.items() if name != "cache_control"}
        case list():
            return [_bare(item) for item in one]
        case _:
            return one
