"""Models over HTTP, on the wires that their vendors speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopline.adapters.providers.anthropic_messages import AnthropicMessages
from loopline.adapters.providers.failures import Account
from loopline.adapters.providers.http import Http
from loopline.adapters.providers.http_model import WireModel
from loopline.adapters.providers.openai_chat import OpenAiChat
from loopline.adapters.providers.openai_responses import OpenAiResponses
from loopline.models import Abilities, ModelFacts, ReplyLimits, Timeouts

_KINDS: Mapping[str, Callable[..., WireModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}


def model_of(
    name: str,
    *,
    model: str,
    url: str,
    account: Account,
    facts: ModelFacts,
    abilities: Abilities,
    http: Http,
    timeouts: Timeouts | None,
    reply_limits: ReplyLimits | None = None,
) -> WireModel:
    """The model as its facts say that it wants to be asked."""
    return _KINDS[facts.api](
        name,
        model=model,
        url=url,
        account=account,
        abilities=abilities,
        http=http,
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
    )
