"""An OpenAI-like server that refuses a request in which a call lacks its result, or a result its call.

The words are those of OpenAI's responses, as public issues quote them (openai-agents-python 1061, continue 10092);
those about a duplicate or an empty id, and their use for chat completions, are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loopline.models.json import JsonObject, as_list, as_object
from tests.support.peers.behaviors import Behaviour, answering
from tests.support.peers.http_server import Peer, Request, serving
from tests.support.peers.openai_like import CHAT, OpenAI, refusal
from tests.support.peers.openai_replies import Says
from tests.support.peers.streams import Reply, document


@dataclass(frozen=True, slots=True)
class Paired:
    """The ids of calls and of results, in the order of the request."""

    calls: tuple[str, ...]
    results: tuple[str, ...]


class Pairing(OpenAI):
    """OpenAI, which looks at each id."""

    def refuses(self, asked: Request) -> Reply | None:
        elsewhere = super().refuses(asked)
        if elsewhere is not None:
            return elsewhere
        found = paired(asked)
        return next((document(refusal(words), 400) for words in _problems(found)), None)


def paired(asked: Request) -> Paired:
    if asked.path == CHAT:
        messages = list(map(as_object, as_list(asked.body.get("messages"))))
        new_items = [
            as_object(call) for message in messages for call in as_list(message.get("tool_calls"))
        ]
        came = [message for message in messages if message.get("role") == "tool"]
        return Paired(_ids(new_items, "id"), _ids(came, "tool_call_id"))
    items = list(map(as_object, as_list(asked.body.get("input"))))
    new_items = [item for item in items if item.get("type") == "function_call"]
    came = [item for item in items if item.get("type") == "function_call_output"]
    return Paired(_ids(new_items, "call_id"), _ids(came, "call_id"))


def _ids(parts: list[JsonObject], name: str) -> tuple[str, ...]:
    return tuple(str(part.get(name) or "") for part in parts)


def _problems(found: Paired) -> Iterator[str]:
    for call_id, times in Counter(found.calls).items():
        if times > 1 or not call_id:
            yield f"Duplicate or empty call id {call_id!r}."
        if call_id not in found.results:
            yield f"No tool output found for function call {call_id}."
    for call_id in found.results:
        if call_id not in found.calls:
            yield f"No tool call found for function call output with call_id {call_id}."


@asynccontextmanager
async def pairing(*behaviours: Behaviour[Says]) -> AsyncGenerator[Peer, None]:
    """One behaviour a request that is taken, in order; then the last one again and again."""
    async with serving(Peer(), answering(behaviours, Pairing())) as peer:
        yield peer
