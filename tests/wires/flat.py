"""A request flattened to its parts, as a provider's cache sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loopline.adapters.wires.anthropic_messages import AnthropicMessages
from loopline.adapters.wires.failing import Account
from loopline.adapters.wires.http import Http
from loopline.adapters.wires.openai_chat import OpenAiChat
from loopline.adapters.wires.openai_responses import OpenAiResponses
from loopline.adapters.wires.wired import WireModel
from loopline.models import Abilities, Prompt

KEY = "sk-secret-of-mine"
WIRES: Mapping[str, Callable[..., WireModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}


def wired(
    wire: str, url: str = "http://localhost:1", abilities: Abilities | None = None
) -> WireModel:
    """A model on that wire."""
    account = Account(f"{wire}:m", "THE_KEY", KEY)
    return WIRES[wire](
        f"{wire}:m",
        model="m",
        url=url,
        account=account,
        abilities=abilities or Abilities(),
        http=Http(),
    )


def sent(wire: str, prompt: Prompt) -> dict[str, Any]:
    """The request that travels, read again."""
    body: dict[str, Any] = json.loads(wired(wire).body(prompt))
    return body


def parts(body: dict[str, Any]) -> list[str]:
    """Tools, system, then each role with each of its content parts; without markers."""
    return [json.dumps(_bare(one), sort_keys=True) for one in _parts(body)]


def markers(body: dict[str, Any]) -> list[int]:
    """Behind which of the parts a marker stands."""
    return [number for number, one in enumerate(_parts(body)) if _is_marked(one)]


def _parts(body: dict[str, Any]) -> Iterator[Any]:
    yield from body.get("tools", [])
    for system in ("system", "instructions"):
        value = body.get(system, [])
        yield from value if isinstance(value, list) else [value]
    for message in [*body.get("messages", []), *body.get("input", [])]:
        content = message.get("content")
        if isinstance(content, list):
            yield from ([message["role"], block] for block in content)
        else:
            yield message


def _bare(one: Any) -> Any:
    if isinstance(one, dict):
        return {name: _bare(value) for name, value in one.items() if name != "cache_control"}
    return [_bare(item) for item in one] if isinstance(one, list) else one


def _is_marked(one: Any) -> bool:
    block = one[1] if isinstance(one, list) else one
    return isinstance(block, dict) and "cache_control" in block
