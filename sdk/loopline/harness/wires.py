"""Models at a provider: what a model string such as `openai:gpt-5` stands for here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loopline.errors import ModelAccessError, ModelError
from loopline.models import VENDORS, Abilities, Model, ModelFacts, Vendor, facts
from loopline.models.facts import FAMILIES

if TYPE_CHECKING:
    from loopline.adapters.wires.http import Http


class Wires:
    """Makes models that share one client, which is made with the first of them."""

    def __init__(self) -> None:
        self._http: Http | None = None

    def model(self, name: str) -> Model:
        """The model of that string, with its key and base URL from the environment.

        Raises:
            ModelError: there is no such provider, or its key is not set.
        """
        provider, _, model = name.partition(":")
        if provider not in VENDORS or not model:
            known_ones = ", ".join(f"{one}:" for one in VENDORS)
            raise ModelError(f"no model {name!r}: write offline, or begin it with {known_ones}")
        vendor, known = VENDORS[provider], facts(name)
        given = os.environ.get(vendor.url_variable, "").strip()
        key = _key(name, vendor, os.environ, required=not given)
        if given and vendor.wire == "openai" and known is FAMILIES.get(f"{vendor.name}:"):
            known = ModelFacts(window=known.window, output_limit=known.output_limit)
        from loopline.adapters.wires.failing import Account
        from loopline.adapters.wires.http import Http
        from loopline.adapters.wires.kinds import model_of

        self._http = self._http or Http()
        return model_of(
            name,
            model=model,
            url=given or vendor.base_url,
            account=Account(name, vendor.key_variable or "its server", key, vendor.wire),
            facts=known,
            abilities=_abilities(known),
            http=self._http,
        )


def _key(name: str, vendor: Vendor, environment: Mapping[str, str], *, required: bool) -> str:
    key = environment.get(vendor.key_variable, "").strip() if vendor.key_variable else ""
    if required and vendor.key_variable and not key:
        raise ModelAccessError(f"{name} needs a key: set {vendor.key_variable}")
    if not key.isascii() or not key.isprintable():
        raise ModelAccessError(f"{vendor.key_variable} cannot be a key: it holds odd characters")
    return key


def _abilities(known: ModelFacts) -> Abilities:
    return Abilities(
        tool_call=known.tool_call,
        tool_choice=known.tool_choice,
        json_mode=known.json_mode,
        json_schema=known.json_schema,
        thinking=known.thinking != "none",
        tail=known.tail,
        window=known.window,
        output_limit=known.output_limit,
        price=known.price,
    )
