"""Models over HTTP, on the wires that their vendors speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopline.adapters.providers.anthropic_messages import AnthropicMessages
from loopline.adapters.providers.failures import Credentials
from loopline.adapters.providers.http import HttpTransport
from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.openai_chat import OpenAiChat
from loopline.adapters.providers.openai_responses import OpenAiResponses
from loopline.models import Capabilities, ModelFacts, ReplyLimits, Timeouts

_KINDS: Mapping[str, Callable[..., HttpModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}


def model_of(
    name: str,
    *,
    model: str,
    url: str,
    account: Credentials,
    facts: ModelFacts,
    capabilities: Capabilities,
    http: HttpTransport,
    timeouts: Timeouts | None,
    reply_limits: ReplyLimits | None = None,
) -> HttpModel:
    """The model as its facts say that it wants to be asked."""
    return _KINDS[facts.api](
        name,
        model=model,
        url=url,
        account=account,
        capabilities=capabilities,
        http=http,
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
    )
