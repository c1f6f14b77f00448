"""Models that are called through pydantic-ai, named by a string or given as one of its model classes, with capabilities."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard, get_args

from pydantic_ai import ModelSettings
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, OpenAIChatCompatibleProvider, infer_model, known_model_names
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import merge_model_settings

from loopline import models
from loopline.bridge.request import (
    FAMILY,
    CacheMarks,
    messages_of,
    names_in,
    parameters_of,
    settings_of,
)
from loopline.bridge.response import (
    LIBRARY_ERRORS,
    BridgedReplyParser,
    ErrorContext,
    call_problem,
    model_error,
)
from loopline.errors import ModelError
from loopline.tools import ProviderNames

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


def facts_of(model: Model) -> models.ModelFacts:
    """Return the facts of a model from the catalogue, or else from its profile, or else the minimal facts.

    Attachments are not taken from a profile, because profiles claim them for every model.
    """
    facts = models.find_model_facts(model.model_id)
    if facts is not models.UNKNOWN and facts is not models.FAMILIES.get(f"{model.system}:"):
        return facts
    window = _read_profile(model, "context_window")
    return models.ModelFacts(
        window=window if isinstance(window, int) and window else models.UNKNOWN.window,
        tool_call=bool(_read_profile(model, "supports_tools", default=True)),
        tool_choice=bool(_read_profile(model, "supports_forced_tool_choice")),
        json_mode=bool(_read_profile(model, "supports_json_object_output")),
        json_schema=bool(_read_profile(model, "supports_json_schema_output")),
        schema_beside_tools=bool(_read_profile(model, "google_supports_tool_combination")),
        thinking="plain" if _read_profile(model, "supports_thinking") else "none",
    )


def capabilities_of(model: Model, facts: models.ModelFacts) -> models.Capabilities:
    """Return the capabilities that the loop uses.

    The tail is kept or dropped: pydantic-ai supports neither cleared tails nor tails inside a tool result.
    """
    takes_schema = bool(_read_profile(model, "supports_json_schema_output"))
    return replace(
        facts.capabilities(
            models.ATTACHMENTS["openai" if model.system == "openai" else "anthropic"]
        ),
        json_schema=facts.json_schema and takes_schema,
        schema_beside_tools=facts.schema_beside_tools and takes_schema,
        tail="kept" if _binds_thinking(model) else "dropped",
        accepts=_setting_support(model, facts),
    )


def _setting_support(model: Model, facts: models.ModelFacts) -> models.SettingSupport:
    """Return the settings that the model supports: those of the catalogue, or all, without those that pydantic-ai ignores.

    The catalogue has no entry for most of these models, and profiles do not say what a provider refuses.
    """
    is_listed = facts is models.find_model_facts(model.model_id)
    known = facts.setting_support() if is_listed else models.EVERY_SETTING
    ignored = set(model.unsupported_settings)
    return replace(
        known,
        seed=known.seed and "seed" not in ignored,
        penalties=known.penalties and not {"presence_penalty", "frequency_penalty"} & ignored,
        stops=0 if "stop_sequences" in ignored else known.stops,
        parallel_tool_calls=known.parallel_tool_calls and "parallel_tool_calls" not in ignored,
        sampling="never" if {"temperature", "top_p"} & ignored else known.sampling,
        service_tiers=() if "service_tier" in ignored else models.EVERY_SETTING.service_tiers,
        requests=known.requests and not {"timeout", "extra_headers", "extra_body"} & ignored,
    )


def _binds_thinking(model: Model) -> bool:
    """Return whether thinking of the model is valid only after the same prefix."""
    tails = {models.find_model_facts(sender.model_id).tail for sender in _senders(model)}
    return bool(tails & {"kept", "cleared"}) or any(
        _read_profile(sender, "anthropic_binds_thinking_blocks") for sender in _senders(model)
    )


def thinking_fields_of(model: Model) -> frozenset[str]:
    """Return the names of the fields in which the model expects its plain thinking again; an empty set if it does not.

    `content` means that the thinking is between tags in the text.
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


_STORAGE_SETTINGS = frozenset(
    {
        "openai_background",
        "openai_conversation_id",
        "openai_previous_response_id",
        "openai_store",
    }
)
"""Settings that require stored responses, or that say whether responses are stored."""


def stores_by_default(model: Model) -> bool:
    """Return whether the provider stores responses because no setting is about storage.

    For a wrapper or a fallback, one such model among those that it calls is enough. Only `OpenAIResponsesModel` and its
    subclasses store by default. The class is compared by name, because its package may not be installed.
    """
    settings_of_all = set(model.settings or ())
    return any(
        not _STORAGE_SETTINGS & (settings_of_all | set(sender.settings or ()))
        for sender in _senders(model)
        if any(base.__name__ == "OpenAIResponsesModel" for base in type(sender).__mro__)
    )


def _senders(model: Model) -> Iterator[Model]:
    """Yield the models that send the requests: this one, or those that a wrapper or a fallback calls."""
    match model:
        case FallbackModel():
            for member in model.models:
                yield from _senders(member)
        case WrapperModel():
            yield from _senders(model.wrapped)
        case _:
            yield model


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
    """Return the settings that cache the system text; None if the model does not accept cache points, or has none."""
    return None if cache_marks_of(model) == "none" else _CACHE_SETTINGS.get(model.system)


TIMEOUTS = models.Timeouts()
"""How long to wait for the next piece of a reply, and for the whole reply."""


class DefaultSettings(ModelSettings, total=False):
    """Settings that neither the model nor the request has set."""

    openai_store: bool


class BridgedModel:
    """A model that pydantic-ai calls. It sends each request once, because the loop decides about retries."""

    def __init__(self, name: str, model: Model, secrets: tuple[str, ...] = ()) -> None:
        """`name` is the model string. Error messages do not contain the `secrets`."""
        self.name = name
        self.facts: models.ModelFacts = facts_of(model)
        self.capabilities: models.Capabilities = capabilities_of(model, self.facts)
        self._model = model
        self._marks: CacheMarks = cache_marks_of(model)
        self._cache_settings = cache_settings_of(model)
        vendor = models.VENDORS.get(model.system)
        self._error_context = ErrorContext(
            name,
            vendor.key_variable if vendor else f"the key of {model.system}",
            (*secrets, *_keys(model)),
            models.public_url(model.base_url or ""),
        )
        self._thinking_fields = thinking_fields_of(model)
        self._family = f"{FAMILY}:{model.system}"
        self._entered = False

    def __repr__(self) -> str:
        return f"<{self.name}>"

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Send a prompt; yield the text of the reply as it is received, then the reply.

        Raises:
            ModelError: the model cannot be reached, or the reply is incomplete.
        """
        names = names_in(prompt)
        parser = BridgedReplyParser(self.name, names, self._thinking_fields, self._family)
        try:
            if not self._entered:
                self._entered = True
                await self._model.__aenter__()
            async with model_request_stream(
                self._model,
                messages_of(prompt, names, self._marks, self._family),
                model_settings=self._settings(prompt, names),
                model_request_parameters=parameters_of(prompt, names),
            ) as response:
                async for event in response:
                    for delta in parser.feed(event):
                        yield delta
                reply = parser.reply(response.get())
        except LIBRARY_ERRORS as error:  # no cause: its message may contain a key
            problem = call_problem(error, self._error_context)
            if not problem:
                raise model_error(error, self._error_context) from None
            reply = parser.reply_ended_by(problem)
        yield reply

    async def close(self, *, failed: bool) -> None:
        """Close the client of pydantic-ai, when the harness closes."""
        del failed
        if self._entered:
            self._entered = False
            await self._model.__aexit__(None, None, None)

    def _settings(self, prompt: models.Prompt, names: ProviderNames) -> ModelSettings | None:
        """Return the settings. The request overrides the model, and the model overrides the defaults."""
        settings = merge_model_settings(self._defaults(), self._model.settings)
        if prompt.cache_points:
            settings = merge_model_settings(settings, self._cache_settings)
        requested = settings_of(
            prompt,
            names,
            self._family,
            by_budget=self.facts.thinking_by == "budget",
            output_limit=prompt.options.output_limit or output_limit_of(self._model),
        )
        return merge_model_settings(settings, requested)

    def _defaults(self) -> DefaultSettings:
        """Return default settings without unsupported ones: no retries, no stored responses, and our timeouts."""
        unsupported = self._model.unsupported_settings
        defaults = DefaultSettings(request_timeout=TIMEOUTS.total)
        if stores_by_default(self._model):
            defaults["openai_store"] = False
        if "max_retries" not in unsupported:
            defaults["max_retries"] = 0
        if "timeout" not in unsupported:
            defaults["timeout"] = TIMEOUTS.read
        return defaults


def _keys(model: Model) -> Iterator[str]:
    """Yield the keys of a model that are attributes of its client."""
    for sender in _senders(model):
        client: object = getattr(sender.provider, "client", None)
        for name in ("api_key", "auth_token"):
            key: object = getattr(client, name, None)
            if isinstance(key, str):
                yield key


_UNKNOWN = "Unknown model"


def bridged_model(name: str, string: str, secrets: tuple[str, ...]) -> BridgedModel:
    """Create the model that pydantic-ai names by `string`; `name` is the model string of Loopline.

    Raises:
        ModelError: the model is unknown, or its package, its key or a setting is missing.
    """
    try:
        model = infer_model(string)
    except Exception as error:  # the libraries of the providers have no common error class
        if str(error).startswith(_UNKNOWN):
            raise ModelError(_unknown_model(name, str(error))) from None
        raise model_error(error, ErrorContext(name, "the key", secrets)) from error
    return BridgedModel(name, model, secrets)


def _unknown_model(name: str, message: str) -> str:
    """Return the error text for an unknown model, with all prefixes of model strings and the hint in `message`."""
    listed = {model.partition(":")[0] for model in known_model_names() if ":" in model}
    compatible: tuple[str, ...] = get_args(OpenAIChatCompatibleProvider.__value__)
    providers = {provider for provider in (*listed, *compatible) if "/" not in provider}
    ours = ", ".join(f"{vendor}:" for vendor in models.VENDORS)
    theirs = ", ".join(f"{provider}:" for provider in sorted(providers - set(models.VENDORS)))
    hint = message.partition(". ")[2]
    return (
        f"no model {name!r}: write offline, or begin it with {ours}; or, by way of pydantic-ai, with "
        f"{theirs}" + (f". {hint}" if hint else "")
    )


def bridge_model(model: object, secrets: tuple[str, ...]) -> BridgedModel:
    """Adapt an existing model of pydantic-ai.

    Raises:
        ModelError: `model` is not a model of pydantic-ai.
    """
    if not _is_model(model):
        raise ModelError(
            f"{type(model).__name__} is not a model: pass a model of Loopline or pydantic-ai"
        )
    return BridgedModel(f"{models.BRIDGED}{model.model_id}", model, secrets)


def _is_model(model: object) -> TypeGuard[Model]:
    return isinstance(model, Model)
