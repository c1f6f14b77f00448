"""Models that are called over HTTP, through the APIs of their providers."""

from __future__ import annotations

from collections.abc import Mapping

from loopline.models import Api
from loopline.providers.anthropic_messages import AnthropicMessages
from loopline.providers.failures import Credentials
from loopline.providers.http import HttpModel, HttpTransport
from loopline.providers.openai_chat import OpenAiChat
from loopline.providers.openai_responses import OpenAiResponses

__all__ = ["HTTP_MODELS", "Credentials", "HttpTransport"]

HTTP_MODELS: Mapping[Api, type[HttpModel]] = {
    "chat": OpenAiChat,
    "responses": OpenAiResponses,
    "messages": AnthropicMessages,
}
"""The class of models for each API."""
