"""Capabilities of a model of pydantic-ai: from the model catalogue, else from its profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic_ai import ModelSettings
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from loopline.bridge.request import CacheMarks
from loopline.models import (
    ATTACHMENTS,
    FAMILIES,
    UNKNOWN,
    Capabilities,
    ModelFacts,
    find_model_facts,
)

_REASONING = frozenset({"reasoning", "reasoning_content"})
_REPLAYED_AS_SENT = frozenset({"cerebras", "crusoe"})
"""Providers that take plain thinking back in the field in which they sent it, which no profile names."""


def _profiled(model: Model, name: str, default: object = None) -> object:
    """Return what pydantic-ai says of a model; one that asks others in turn has no profile."""
    try:
        profile: Mapping[str, object] = model.profile
    except NotImplementedError:
        return default
    return profile.get(name, default)


def facts_of(model: Model) -> ModelFacts:
    """Return what is known of a model; neither table nor profile means that the least is promised.

    A profile does not say for sure whether a model takes files: it assumes so of any model.
    """
    facts = find_model_facts(model.model_id)
    if facts is not UNKNOWN and facts is not FAMILIES.get(f"{model.system}:"):
        return facts
    window = _profiled(model, "context_window")
    return ModelFacts(
        window=window if isinstance(window, int) and window else UNKNOWN.window,
        tool_call=bool(_profiled(model, "supports_tools", default=True)),
        tool_choice=bool(_profiled(model, "supports_forced_tool_choice")),
        json_mode=bool(_profiled(model, "supports_json_object_output")),
        json_schema=bool(_profiled(model, "supports_json_schema_output")),
        schema_beside_tools=bool(_profiled(model, "google_supports_tool_combination")),
        thinking="plain" if _profiled(model, "supports_thinking") else "none",
    )


def capabilities_of(model: Model, facts: ModelFacts) -> Capabilities:
    """Return what the loop may rely on.

    pydantic-ai has no way to have a tail cleared, nor to place it inside a tool result.
    """
    takes_schema = bool(_profiled(model, "supports_json_schema_output"))
    return replace(
        facts.capabilities(ATTACHMENTS["openai" if model.system == "openai" else "anthropic"]),
        json_schema=facts.json_schema and takes_schema,
        schema_beside_tools=facts.schema_beside_tools and takes_schema,
        tail="kept" if _binds_thinking(model) else "dropped",
    )


def _binds_thinking(model: Model) -> bool:
    """Return whether thinking is bound to everything before it."""
    if isinstance(model, FallbackModel):
        return any(map(_binds_thinking, model.models))
    tail = find_model_facts(model.model_id).tail
    binds = bool(_profiled(model, "anthropic_binds_thinking_blocks"))
    return binds or tail in ("kept", "cleared")


def thinking_fields_of(model: Model) -> frozenset[str]:
    """Return the fields whose plain thinking a model takes back, none if it takes none.

    `content` is thinking between tags in the text, which goes back between tags.
    """
    if _profiled(model, "openai_chat_send_back_thinking_parts") == "tags":
        return _REASONING | {"content"}
    if field := _profiled(model, "openai_chat_thinking_field"):
        return frozenset({str(field)})
    return _REASONING if model.system in _REPLAYED_AS_SENT else frozenset()


def output_limit_of(model: Model) -> int | None:
    """Return the output limit in a model's settings, in tokens; None if they do not say."""
    match model.settings:
        case {"max_tokens": int(limit)}:
            return limit
        case _:
            return None


_STORED_RESPONSE_SETTINGS = {
    "openai_background",
    "openai_conversation_id",
    "openai_previous_response_id",
}
"""Settings with which a request needs stored responses."""


def stores_by_default(model: Model) -> bool:
    """Return whether its provider stores each response unless a request says otherwise.

    OpenAI does so behind one class, which is recognised by its name: its package may not be installed.
    """
    responses = any(base.__name__ == "OpenAIResponsesModel" for base in type(model).__mro__)
    return responses and not _STORED_RESPONSE_SETTINGS & set(model.settings or ())


class CacheSettings(ModelSettings, total=False):
    """Settings of some providers that keep the system text in their caches."""

    anthropic_cache_instructions: bool
    bedrock_cache_instructions: bool
    openai_cache_instructions: bool
    openai_prompt_cache_options: dict[str, str]
    openrouter_cache_instructions: bool


_OPENAI = CacheSettings(
    openai_cache_instructions=True,
    openai_prompt_cache_options={"mode": "explicit"},  # else the tail is cached too
)
_CACHE_SETTINGS: Mapping[str, CacheSettings] = {
    "anthropic": CacheSettings(anthropic_cache_instructions=True),
    "azure": _OPENAI,
    "bedrock": CacheSettings(bedrock_cache_instructions=True),
    "openai": _OPENAI,
    "openrouter": CacheSettings(openrouter_cache_instructions=True),
}


def cache_marks_of(model: Model) -> CacheMarks:
    """Return where a model takes cache points.

    OpenRouter takes them only in user messages, and refuses one that stands alone.
    """
    if not _profiled(model, "supports_cache"):
        return "none"
    return "with words" if model.system == "openrouter" else "anywhere"


def cache_settings_of(model: Model) -> ModelSettings | None:
    """Return the settings that keep the system text in a cache, if the model takes cache points."""
    return None if cache_marks_of(model) == "none" else _CACHE_SETTINGS.get(model.system)
