"""Models over HTTP, by the APIs of their providers."""

from __future__ import annotations

from collections.abc import Mapping

from loopline.adapters.providers.anthropic_messages import AnthropicMessages
from loopline.adapters.providers.failures import Credentials
from loopline.adapters.providers.http import HttpTransport
from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.openai_chat import OpenAiChat
from loopline.adapters.providers.openai_responses import OpenAiResponses
from loopline.models import Api

__all__ = ["HTTP_MODELS", "Credentials", "HttpTransport"]

HTTP_MODELS: Mapping[Api, type[HttpModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}
"""The class of the models that are asked by each API."""
