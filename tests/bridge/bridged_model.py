"""Models of pydantic-ai's classes at servers of ours, and one that says what it was asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic_ai import ModelMessage, ModelSettings
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider

from loopline.bridge.bridged_model import BridgedModel
from loopline.models import Prompt
from tests.providers.flat_request import KEY
from tests.providers.local_model import asked
from tests.providers.test_requests import PROMPT
from tests.support.peers.http_server import Peer

CLASSES: Mapping[str, str] = {
    "messages": "claude-sonnet-5",
    "chat": "gpt-5",
    "responses": "gpt-5.6",
}
"""The classes by the wire that they speak, each with a model."""


def asking(peer: Peer, wire: str, model: str = "", settings: ModelSettings | None = None) -> Model:
    """The class of that wire, which asks this server."""
    name = model or CLASSES[wire]
    if wire == "messages":
        anthropic_provider = AnthropicProvider(base_url=peer.url, api_key=KEY)
        return AnthropicModel(name, provider=anthropic_provider, settings=settings)
    provider = OpenAIProvider(base_url=f"{peer.url}/v1", api_key=KEY)
    if wire == "openrouter":
        router = OpenRouterProvider(openai_client=provider.client)
        return OpenRouterModel(name, provider=router, settings=settings)
    if wire == "chat":
        return OpenAIChatModel(name, provider=provider, settings=settings)
    return OpenAIResponsesModel(name, provider=provider, settings=settings)


@asynccontextmanager
async def bridged_at(
    peer: Peer, wire: str, model: str = "", settings: ModelSettings | None = None
) -> AsyncGenerator[BridgedModel, None]:
    """A model of ours by way of that class."""
    asked = asking(peer, wire, model, settings)
    bridged_model = BridgedModel(f"{wire}:m", asked)
    try:
        yield bridged_model
    finally:
        await bridged_model.close(failed=False)
        if isinstance(asked, OpenRouterModel):  # it was given a client, which is ours to close
            await asked.client.close()


async def body_of(
    server: AbstractAsyncContextManager[Peer],
    wire: str,
    model: str = "",
    prompt: Prompt = PROMPT,
    settings: ModelSettings | None = None,
) -> Any:
    """Ask a server of that wire by way of that class, and return the body of the request that it got."""
    async with server as peer, bridged_at(peer, wire, model, settings) as bridged:
        await asked(bridged, prompt)
    return peer.requests[0].body


class Listener:
    """A model of pydantic-ai that keeps what it was asked."""

    def __init__(self, *, cached: bool = False) -> None:
        self.messages: list[list[ModelMessage]] = []
        self.asked: list[AgentInfo] = []
        profile = ModelProfile(supports_cache=cached, supports_json_object_output=True)
        self.model = FunctionModel(stream_function=self._hear, profile=profile)

    async def _hear(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        self.messages.append(messages)
        self.asked.append(info)
        yield "Done."

    async def ask(self, *prompts: Prompt) -> None:
        """Ask it by way of the bridge."""
        bridged = BridgedModel("heard", self.model)
        for prompt in prompts:
            async for _ in bridged.stream(prompt):
                pass
