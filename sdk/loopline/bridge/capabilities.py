"""Capabilities of a model of pydantic-ai, from the model catalogue or from its profile."""

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
"""Providers that expect plain thinking in the field in which they sent it; their profiles do not say so."""


def _read_profile(model: Model, name: str, default: object = None) -> object:
    """Return an entry of the model's profile in pydantic-ai. A fallback model has no profile, so it gets the default."""
    try:
        profile: Mapping[str, object] = model.profile
    except NotImplementedError:
        return default
    return profile.get(name, default)


def facts_of(model: Model) -> ModelFacts:
    """Return the facts of a model from the catalogue, or else from its profile, or else the minimal facts.

    Attachments are not taken from a profile, because profiles claim them for every model.
    """
    facts = find_model_facts(model.model_id)
    if facts is not UNKNOWN and facts is not FAMILIES.get(f"{model.system}:"):
        return facts
    window = _read_profile(model, "context_window")
    return ModelFacts(
        window=window if isinstance(window, int) and window else UNKNOWN.window,
        tool_call=bool(_read_profile(model, "supports_tools", default=True)),
        tool_choice=bool(_read_profile(model, "supports_forced_tool_choice")),
        json_mode=bool(_read_profile(model, "supports_json_object_output")),
        json_schema=bool(_read_profile(model, "supports_json_schema_output")),
        schema_beside_tools=bool(_read_profile(model, "google_supports_tool_combination")),
        thinking="plain" if _read_profile(model, "supports_thinking") else "none",
    )


def capabilities_of(model: Model, facts: ModelFacts) -> Capabilities:
    """Return the capabilities that the loop uses.

    The tail is kept or dropped: pydantic-ai supports neither cleared tails nor tails inside a tool result.
    """
    takes_schema = bool(_read_profile(model, "supports_json_schema_output"))
    return replace(
        facts.capabilities(ATTACHMENTS["openai" if model.system == "openai" else "anthropic"]),
        json_schema=facts.json_schema and takes_schema,
        schema_beside_tools=facts.schema_beside_tools and takes_schema,
        tail="kept" if _binds_thinking(model) else "dropped",
    )


def _binds_thinking(model: Model) -> bool:
    """Return whether thinking of the model is valid only after the same prefix."""
    if isinstance(model, FallbackModel):
        return any(map(_binds_thinking, model.models))
    tail = find_model_facts(model.model_id).tail
    binds = bool(_read_profile(model, "anthropic_binds_thinking_blocks"))
    return binds or tail in ("kept", "cleared")


def thinking_fields_of(model: Model) -> frozenset[str]:
    """Return the names of the fields in which the model expects its plain thinking again; an empty set if it does not.

    `content` stands for thinking between tags in the text.
    """
    if _read_profile(model, "openai_chat_send_back_thinking_parts") == "tags":
        return _REASONING | {"content"}
    if field := _read_profile(model, "openai_chat_thinking_field"):
        return frozenset({str(field)})
    return _REASONING if model.system in _REPLAYED_AS_SENT else frozenset()


def output_limit_of(model: Model) -> int | None:
    """Return the output limit in a model's settings, in tokens, or None if it is not set."""
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
"""Settings that require stored responses."""


def stores_by_default(model: Model) -> bool:
    """Return whether the provider stores responses by default, and no setting requires that it does.

    Only `OpenAIResponsesModel` does. It is compared by name, because its package may not be installed.
    """
    responses = any(base.__name__ == "OpenAIResponsesModel" for base in type(model).__mro__)
    return responses and not _STORED_RESPONSE_SETTINGS & set(model.settings or ())


class CacheSettings(ModelSettings, total=False):
    """Settings of some providers that cache the system text."""

    anthropic_cache_instructions: bool
    bedrock_cache_instructions: bool
    openai_cache_instructions: bool
    openai_prompt_cache_options: dict[str, str]
    openrouter_cache_instructions: bool


_OPENAI = CacheSettings(
    openai_cache_instructions=True,
    openai_prompt_cache_options={"mode": "explicit"},  # the default mode would cache the tail too
)
_CACHE_SETTINGS: Mapping[str, CacheSettings] = {
    "anthropic": CacheSettings(anthropic_cache_instructions=True),
    "azure": _OPENAI,
    "bedrock": CacheSettings(bedrock_cache_instructions=True),
    "openai": _OPENAI,
    "openrouter": CacheSettings(openrouter_cache_instructions=True),
}


def cache_marks_of(model: Model) -> CacheMarks:
    """Return the positions at which a model accepts cache points.

    OpenRouter accepts them only in user messages with other content.
    """
    if not _read_profile(model, "supports_cache"):
        return "none"
    return "with words" if model.system == "openrouter" else "anywhere"


def cache_settings_of(model: Model) -> ModelSettings | None:
    """Return the settings that cache the system text, or None if the model does not accept cache points."""
    return None if cache_marks_of(model) == "none" else _CACHE_SETTINGS.get(model.system)
