"""The providers by name: their base URLs, the variables of their settings, and their APIs.

Read on 2026-11-20: the quickstarts and API references of OpenAI, Anthropic, Groq, DeepSeek,
OpenRouter and Ollama. The variables of OpenAI, Anthropic and Groq are those of their own libraries;
the other variables of a base URL follow that pattern. A base URL is everything before
`/chat/completions`, `/responses` or `/v1/messages`; that of Groq's own library lacks `/openai/v1`.

The APIs of OpenAI take the key as `Authorization: Bearer`, that of Anthropic as `x-api-key` beside
`anthropic-version: 2023-06-01`. The environment is not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from loopline.errors import ModelError

ApiVendor = Literal["openai", "anthropic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A provider of models; `key_variable` is empty if it needs no key."""

    name: str
    base_url: str
    key_variable: str
    url_variable: str
    api_vendor: ApiVendor = "openai"


def _vendor(name: str, base_url: str, settings: str, *, needs_key: bool = True) -> Vendor:
    """Return a provider with OpenAI's API, the variables of whose settings begin with `settings`."""
    return Vendor(
        name=name,
        base_url=base_url,
        key_variable=f"{settings}_API_KEY" if needs_key else "",
        url_variable=f"{settings}_BASE_URL",
    )


_ALL = (
    _vendor("openai", "https://api.openai.com/v1", "OPENAI"),
    _vendor("openai-chat", "https://api.openai.com/v1", "OPENAI"),
    replace(_vendor("anthropic", "https://api.anthropic.com", "ANTHROPIC"), api_vendor="anthropic"),
    _vendor("groq", "https://api.groq.com/openai/v1", "GROQ"),
    _vendor("deepseek", "https://api.deepseek.com", "DEEPSEEK"),
    _vendor("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER"),
    _vendor("ollama", "http://localhost:11434/v1", "OLLAMA", needs_key=False),
)
VENDORS: Mapping[str, Vendor] = MappingProxyType({vendor.name: vendor for vendor in _ALL})
"""The providers by their names."""


OFFLINE = "offline"
"""The model string of the built-in reader, which is no language model and needs no network."""
BRIDGED = "pydantic-ai:"
"""The prefix of model strings that are asked by way of pydantic-ai, whoever the provider is."""


def public_url(url: str) -> str:
    """Return the URL without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if url else ""


def find_vendor(name: str) -> Vendor:
    """Return the provider of a model string such as `groq:openai/gpt-oss-20b`.

    Raises:
        ModelError: the string names no provider, or an unknown one.
    """
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in VENDORS:
        prefixes = ", ".join(f"{vendor}:" for vendor in VENDORS)
        raise ModelError(f"no model {name!r}: write {OFFLINE}, or begin it with {prefixes}")
    return VENDORS[provider]
