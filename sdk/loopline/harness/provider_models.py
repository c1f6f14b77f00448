"""Models at a provider: a model string such as `openai:gpt-5` becomes a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loopline.errors import ModelAccessError, ModelError
from loopline.models import (
    ATTACHMENTS,
    OFFLINE,
    Model,
    ModelFacts,
    ReplyLimits,
    Timeouts,
    Vendor,
    find_model_facts,
    find_vendor,
)
from loopline.models.model_catalog import FAMILIES
from loopline.models.safe_text import is_address, secrets_in

if TYPE_CHECKING:
    from loopline.providers.http import ClientFactory, HttpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArguments:
    """Arguments that override the environment and the model catalogue for one model."""

    base_url: str = ""
    api_key: str = field(default="", repr=False)
    facts: ModelFacts | None = None
    timeouts: Timeouts | None = None
    reply_limits: ReplyLimits | None = None


class ProviderModels:
    """Makes models that share one client, which is made with the first of them."""

    def __init__(
        self,
        environment: Mapping[str, str],
        make: ClientFactory | None = None,
        *,
        needs_keys: bool = True,
    ) -> None:
        """`make` replaces the usual client; it may need no keys."""
        self._environment = environment
        self._make_client = make
        self._needs_keys = needs_keys
        self._http: HttpTransport | None = None
        self._models: list[Model] = []

    def has_made(self, model: Model) -> bool:
        """Return whether this is one of its models."""
        return any(model is own_model for own_model in self._models)

    def model(self, name: str, arguments: ModelArguments | None = None) -> Model:
        """Return the model of that string; its key and base URL come from the arguments or the environment.

        Raises:
            ModelError: there is no such provider, or its key is not set.
        """
        arguments = arguments or ModelArguments()
        model = (
            _offline(arguments)
            if name == OFFLINE
            else self._provider_model(name, find_vendor(name), arguments)
        )
        self._models.append(model)
        return model

    def _provider_model(self, name: str, vendor: Vendor, arguments: ModelArguments) -> Model:
        base_url = self._base_url(name, vendor, arguments)
        needs_key = self._needs_keys and not base_url
        variable, key = self._key(name, vendor, arguments, required=needs_key)
        facts = arguments.facts or _facts(name, vendor, is_elsewhere=bool(base_url))
        if (facts.api == "messages") != (vendor.api_vendor == "anthropic"):
            raise ModelError(f"{name} is not asked by way of {facts.api}: change api in its facts")
        # Nobody documents the limits of other servers with OpenAI's API: the stricter ones are safe.
        is_own = vendor.name == vendor.api_vendor
        attachments = ATTACHMENTS[vendor.api_vendor if is_own else "anthropic"]
        from loopline.providers import HTTP_MODELS, Credentials, HttpTransport

        self._http = self._http or HttpTransport(self._make_client)
        return HTTP_MODELS[facts.api](
            name,
            model=name.partition(":")[2],
            url=base_url or vendor.base_url,
            credentials=Credentials(
                name,
                variable,
                key,
                vendor.api_vendor,
                secrets=secrets_in(base_url),
                url_variable="base_url" if arguments.base_url else vendor.url_variable,
            ),
            facts=facts,
            capabilities=facts.capabilities(attachments),
            http=self._http,
            timeouts=arguments.timeouts,
            reply_limits=arguments.reply_limits,
        )

    def _base_url(self, name: str, vendor: Vendor, arguments: ModelArguments) -> str:
        """Return the base URL, if it is not the provider's own."""
        url = (arguments.base_url or self._environment.get(vendor.url_variable, "")).strip()
        if url and not is_address(url):
            setting = "base_url" if arguments.base_url else vendor.url_variable
            raise ModelError(
                f"{setting} of {name} is no URL: write http:// or https://, a host, and a path if any"
            )
        return url

    def _key(
        self, name: str, vendor: Vendor, arguments: ModelArguments, *, required: bool
    ) -> tuple[str, str]:
        """Return what sets the key, and the key; a key from the environment is never sent to a URL from code."""
        if arguments.base_url or arguments.api_key:
            variable, key = "api_key", arguments.api_key.strip()
        elif vendor.key_variable:
            variable, key = (
                vendor.key_variable,
                self._environment.get(vendor.key_variable, "").strip(),
            )
        else:
            return "its server", ""
        if required and not key:
            raise ModelAccessError(f"{name} needs a key: set {variable}")
        if not key.isascii() or not key.isprintable():
            raise ModelAccessError(f"{variable} cannot be a key: it holds odd characters")
        return variable, key


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    facts: ModelFacts | None = None,
    timeouts: Timeouts | None = None,
    reply_limits: ReplyLimits | None = None,
) -> Model:
    """Return a model at a provider, or at any server with the same API; it may serve several harnesses.

    `name` is a model string such as `openai:llama-3`. `base_url` is the part before `/chat/completions`, `/responses`
    or `/v1/messages`; with it, no key is sent except `api_key`. `facts` replace the model's entry in the catalogue.

    Raises:
        ModelError: there is no such provider, a key is missing, or the URL or the model cannot be used.
    """
    arguments = ModelArguments(
        base_url=base_url or "",
        api_key=api_key or "",
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
    )
    return ProviderModels(os.environ).model(name, arguments)


def _offline(arguments: ModelArguments) -> Model:
    if arguments != ModelArguments():
        raise ModelError(
            "offline sends no requests: it takes no base_url, api_key, facts, timeouts or limits"
        )
    from loopline.offline import OfflineModel

    return OfflineModel()


def _facts(name: str, vendor: Vendor, *, is_elsewhere: bool) -> ModelFacts:
    """Return the catalogue's facts; an unknown model elsewhere has those of most servers."""
    facts = find_model_facts(name)
    if is_elsewhere and vendor.api_vendor == "openai" and facts is FAMILIES.get(f"{vendor.name}:"):
        return ModelFacts(window=facts.window, output_limit=facts.output_limit)
    return facts
