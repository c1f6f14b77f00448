"""Models over HTTP, by the APIs of their providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopline.adapters.providers.anthropic_messages import AnthropicMessages
from loopline.adapters.providers.failures import Credentials
from loopline.adapters.providers.http import HttpTransport
from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.openai_chat import OpenAiChat
from loopline.adapters.providers.openai_responses import OpenAiResponses
from loopline.models import Api, Capabilities, ModelFacts, ReplyLimits, Timeouts

__all__ = ["Credentials", "HttpTransport", "http_model"]

_CLASSES: Mapping[Api, Callable[..., HttpModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}


def http_model(
    name: str,
    *,
    model: str,
    url: str,
    credentials: Credentials,
    facts: ModelFacts,
    capabilities: Capabilities,
    http: HttpTransport,
    timeouts: Timeouts | None,
    reply_limits: ReplyLimits | None = None,
) -> HttpModel:
    """Return the model, which is asked by the API that its facts name."""
    return _CLASSES[facts.api](
        name,
        model=model,
        url=url,
        credentials=credentials,
        capabilities=capabilities,
        http=http,
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
    )
