"""Models that are called through pydantic-ai, named by a string or given as one of its model classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeGuard, get_args

from pydantic_ai import ModelSettings
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, OpenAIChatCompatibleProvider, infer_model, known_model_names
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import merge_model_settings

from loopline import models
from loopline.bridge.capabilities import (
    cache_marks_of,
    cache_settings_of,
    capabilities_of,
    facts_of,
    output_limit_of,
    stores_by_default,
    thinking_fields_of,
)
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
        """Return default settings: no retries, no stored responses, and our timeouts, if the model supports them."""
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
    if isinstance(model, FallbackModel):
        for member in model.models:
            yield from _keys(member)
    client: object = getattr(model.provider, "client", None)
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
