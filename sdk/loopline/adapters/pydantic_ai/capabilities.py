"""What is known of a model of pydantic-ai: by our table where it has the family, else by its profile."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai import ModelSettings
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.profiles import ModelProfile

from loopline.adapters.pydantic_ai.request import CacheMarks
from loopline.models import (
    ATTACHMENTS,
    FAMILIES,
    UNKNOWN,
    Capabilities,
    ModelFacts,
    find_model_facts,
)


def profile_of(model: Model) -> ModelProfile:
    """The profile of a model; one that asks others in turn has none."""
    try:
        return model.profile
    except NotImplementedError:
        return ModelProfile()


def facts_of(model: Model) -> ModelFacts:
    """What is known of a model; of what neither table nor profile has, the least is promised.

    Whether it takes files a profile does not say for sure: it assumes so of any model.
    """
    known = find_model_facts(model.model_id)
    if known is not UNKNOWN and known is not FAMILIES.get(f"{model.system}:"):
        return known
    profile = profile_of(model)
    said: Mapping[str, object] = profile
    return ModelFacts(
        window=profile.get("context_window") or UNKNOWN.window,
        tool_call=profile.get("supports_tools", True),
        tool_choice=profile.get("supports_forced_tool_choice", False),
        json_mode=profile.get("supports_json_object_output", False),
        json_schema=profile.get("supports_json_schema_output", False),
        schema_beside_tools=bool(said.get("google_supports_tool_combination")),
        thinking="plain" if profile.get("supports_thinking", False) else "none",
    )


def capabilities_of(model: Model, known: ModelFacts) -> Capabilities:
    """What the loop may count on.

    There is no way here to say that a tail is cleared, nor to have it inside a result.
    """
    takes_schema = profile_of(model).get("supports_json_schema_output", False)
    return Capabilities(
        tool_call=known.tool_call,
        tool_choice=known.tool_choice,
        json_mode=known.json_mode,
        json_schema=known.json_schema and takes_schema,
        schema_beside_tools=known.schema_beside_tools and takes_schema,
        vision=known.vision,
        pdf=known.pdf,
        thinking=known.thinking != "none",
        tail="kept" if _is_bound(model) else "dropped",
        window=known.window,
        output_limit=known.output_limit,
        price=known.price,
        attachments=ATTACHMENTS["openai" if model.system == "openai" else "anthropic"],
    )


def _is_bound(model: Model) -> bool:
    """Whether its thinking is bound to all that stands before it."""
    if isinstance(model, FallbackModel):
        return any(map(_is_bound, model.models))
    said: Mapping[str, object] = profile_of(model)
    binds = bool(said.get("anthropic_binds_thinking_blocks"))
    return binds or find_model_facts(model.model_id).tail in ("kept", "cleared")


_REASONING = frozenset({"reasoning", "reasoning_content"})
_AS_IT_CAME = frozenset({"cerebras", "crusoe"})
"""Providers that take plain thinking back in the field in which they sent it, which no profile names."""


def thinking_fields_of(model: Model) -> frozenset[str]:
    """The fields whose plain thinking a model takes back, none where it takes none.

    `content` is thinking between tags in the text, which goes back between tags.
    """
    said: Mapping[str, object] = profile_of(model)
    field = str(said.get("openai_chat_thinking_field") or "")
    if said.get("openai_chat_send_back_thinking_parts") == "tags":
        return _REASONING | {"content"}
    if field:
        return frozenset({field})
    return _REASONING if model.system in _AS_IT_CAME else frozenset()


def most_of(model: Model) -> int | None:
    """The most that a model was made to write, in tokens; None where its settings do not say."""
    match model.settings:
        case {"max_tokens": int(most)}:
            return most
        case _:
            return None


_NEEDS_STORED = {"openai_background", "openai_conversation_id", "openai_previous_response_id"}
"""Settings with which a request needs what was stored."""


def stores_unasked(model: Model) -> bool:
    """Whether its provider stores each response that it is not told to forget.

    OpenAI does so behind one class, which is told by its name: its package may not be installed.
    """
    responses = any(one.__name__ == "OpenAIResponsesModel" for one in type(model).__mro__)
    return responses and not _NEEDS_STORED & set(model.settings or ())


class CacheSettings(ModelSettings, total=False):
    """Settings of single providers by which the system text is kept in their caches."""

    anthropic_cache_instructions: bool
    bedrock_cache_instructions: bool
    openai_cache_instructions: bool
    openai_prompt_cache_options: dict[str, str]
    openrouter_cache_instructions: bool


_OPENAI = CacheSettings(
    openai_cache_instructions=True,
    openai_prompt_cache_options={"mode": "explicit"},  # else the tail is kept too
)
_KEEPING: Mapping[str, CacheSettings] = {
    "anthropic": CacheSettings(anthropic_cache_instructions=True),
    "azure": _OPENAI,
    "bedrock": CacheSettings(bedrock_cache_instructions=True),
    "openai": _OPENAI,
    "openrouter": CacheSettings(openrouter_cache_instructions=True),
}


def marks_of(model: Model) -> CacheMarks:
    """Where a model takes cache points.

    By way of OpenRouter only what the user said can bear one, and one that stands alone is refused.
    """
    if not profile_of(model).get("supports_cache", False):
        return "none"
    return "with words" if model.system == "openrouter" else "anywhere"


def keeping_of(model: Model) -> ModelSettings | None:
    """What asks the provider to keep the system text, where cache points are taken."""
    return None if marks_of(model) == "none" else _KEEPING.get(model.system)
