"""A model of pydantic-ai as one of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeGuard, get_args

from pydantic_ai import ModelSettings
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, OpenAIChatCompatibleProvider, infer_model, known_model_names
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import merge_model_settings

from loopline.adapters.pydantic_ai.capabilities import (
    capabilities_of,
    facts_of,
    keeping_of,
    marks_of,
    most_of,
    stores_unasked,
    thinking_fields_of,
)
from loopline.adapters.pydantic_ai.reasoning import WIRE
from loopline.adapters.pydantic_ai.request import (
    CacheMarks,
    messages_of,
    names_in,
    parameters_of,
    settings_of,
)
from loopline.adapters.pydantic_ai.response import (
    FAULTS,
    BridgedReplyParser,
    ErrorContext,
    failure,
    problem_of,
)
from loopline.errors import ModelError
from loopline.models import (
    BRIDGED,
    VENDORS,
    Capabilities,
    ModelFacts,
    Prompt,
    Reply,
    TextDelta,
    public_url,
)
from loopline.tools import ProviderNames

READ_SECONDS = 180.0
"""How long a piece of a reply is waited for."""
TOTAL_SECONDS = 1_800.0
"""How long a whole reply may take."""


class DefaultSettings(ModelSettings, total=False):
    """Settings where neither the model nor the request has others."""

    openai_store: bool


class BridgedModel:
    """A model that pydantic-ai asks: once, for who asks again is the loop."""

    def __init__(self, name: str, model: Model, secrets: tuple[str, ...] = ()) -> None:
        """`name` is what it is called here; the secrets are what no error may show."""
        self.name = name
        self.facts: ModelFacts = facts_of(model)
        self.capabilities: Capabilities = capabilities_of(model, self.facts)
        self._model = model
        self._marks: CacheMarks = marks_of(model)
        self._keeping = keeping_of(model)
        self._asker = ErrorContext(
            name, _key_of(model), (*secrets, *_keys(model)), public_url(model.base_url or "")
        )
        self._thinking_fields = thinking_fields_of(model)
        self._family = f"{WIRE}:{model.system}"
        self._entered = False

    def __repr__(self) -> str:
        return f"<{self.name}>"

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Deltas while it writes, then the reply.

        Raises:
            ModelError: it could not be asked, or broke off.
        """
        names = names_in(prompt)
        hearing = BridgedReplyParser(self.name, names, self._thinking_fields, self._family)
        try:
            await self._enter()
            async with model_request_stream(
                self._model,
                messages_of(prompt, names, self._marks, self._family),
                model_settings=self._settings(prompt, names),
                model_request_parameters=parameters_of(prompt, names),
            ) as coming:
                async for event in coming:
                    for delta in hearing.take(event):
                        yield delta
                reply = hearing.reply(coming.get())
        except FAULTS as error:  # what caused it may show a key
            problem = problem_of(error, self._asker)
            if not problem:
                raise failure(error, self._asker) from None
            reply = hearing.ended(problem)
        yield reply

    async def close(self, *, failed: bool) -> None:
        """The harness closes: a client that pydantic-ai has made is closed with it."""
        del failed
        if self._entered:
            self._entered = False
            await self._model.__aexit__(None, None, None)

    async def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            await self._model.__aenter__()

    def _settings(self, prompt: Prompt, names: ProviderNames) -> ModelSettings | None:
        """What the model was made with goes before what is usual here, and the request before both."""
        usual = merge_model_settings(self._usual(), self._model.settings)
        by_budget = self.facts.thinking_by == "budget"
        most = prompt.options.output_limit or most_of(self._model)
        kept = merge_model_settings(usual, self._keeping if prompt.cache_points else None)
        return merge_model_settings(
            kept, settings_of(prompt, names, self._family, by_budget=by_budget, most=most)
        )

    def _usual(self) -> DefaultSettings:
        """It is asked once, not for ever, and nothing of it is stored."""
        unsupported = self._model.unsupported_settings
        usual = DefaultSettings(request_timeout=TOTAL_SECONDS)
        if stores_unasked(self._model):
            usual["openai_store"] = False
        if "max_retries" not in unsupported:
            usual["max_retries"] = 0
        if "timeout" not in unsupported:
            usual["timeout"] = READ_SECONDS
        return usual


def _key_of(model: Model) -> str:
    """What the key of a model is called: its usual variable, where we know that."""
    vendor = VENDORS.get(model.system)
    return vendor.key_variable if vendor else f"the key of {model.system}"


def _keys(model: Model) -> Iterator[str]:
    """The keys by which a model asks, as far as its client tells them."""
    if isinstance(model, FallbackModel):
        for one in model.models:
            yield from _keys(one)
    client: object = getattr(model.provider, "client", None)
    for name in ("api_key", "auth_token"):
        key: object = getattr(client, name, None)
        if isinstance(key, str):
            yield key


_UNKNOWN = "Unknown model"


def model_of(name: str, string: str, secrets: tuple[str, ...]) -> BridgedModel:
    """The model of a string of pydantic-ai's; `name` is what it is called here.

    Raises:
        ModelError: there is no such model, or its package, its key or a setting is missing.
    """
    try:
        model = infer_model(string)
    except Exception as error:  # each provider's own library raises in its own way
        if str(error).startswith(_UNKNOWN):
            raise ModelError(_unknown(name, str(error))) from None
        raise failure(error, ErrorContext(name, "the key", secrets)) from error
    return BridgedModel(name, model, secrets)


def _unknown(name: str, said: str) -> str:
    ours = ", ".join(f"{vendor}:" for vendor in VENDORS)
    theirs = ", ".join(f"{one}:" for one in sorted(_providers() - set(VENDORS)))
    hint = said.partition(". ")[2]
    return (
        f"no model {name!r}: write offline, or begin it with {ours}; or, by way of pydantic-ai, with "
        f"{theirs}" + (f". {hint}" if hint else "")
    )


def _providers() -> set[str]:
    """The providers of pydantic-ai, by its list of models and by that of what resembles OpenAI."""
    listed = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    alike: tuple[str, ...] = get_args(OpenAIChatCompatibleProvider.__value__)
    return {name for name in (*listed, *alike) if "/" not in name}


def bridged(model: object, secrets: tuple[str, ...]) -> BridgedModel:
    """A model that was made already.

    Raises:
        ModelError: it is none of pydantic-ai.
    """
    if not _is_model(model):
        raise ModelError(f"{type(model).__name__} is no model: give one of Loopline or pydantic-ai")
    return BridgedModel(f"{BRIDGED}{model.model_id}", model, secrets)


def _is_model(model: object) -> TypeGuard[Model]:
    return isinstance(model, Model)
