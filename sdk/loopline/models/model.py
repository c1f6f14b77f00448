"""The port to a model, its capabilities and price, and the models of a run by role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from msgspec import Struct
from typing_extensions import TypeIs

from loopline.clock import Clock
from loopline.errors import ModelError
from loopline.models.prompt import Prompt, Reply, TailKind, TextDelta, Usage
from loopline.models.request_limits import (
    ATTACHMENTS,
    AttachmentLimits,
    AttachmentSupport,
    attachment_support,
)
from loopline.models.settings import (
    NOTHING_SET,
    ONLY_LENGTH,
    UNSET,
    ModelSettings,
    SettingSupport,
    SupportedSettings,
    UnsupportedSetting,
    shorten_value,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a model, in US dollars for a million tokens.

    `cache_write` is for the shorter lifetime of a cache entry (Anthropic: 5 minutes, OpenAI: 30), and `cache_write_long`
    for the longer one (an hour, 12 hours), None if there is only one; requests use the shorter one. If writing is free, it
    has the price of input. `long` is the price of a request with a long prompt, None if it is the same.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_long: float | None = None
    long: LongPrice | None = None

    def of(self, usage: Usage) -> float:
        """Return the cost of one request in US dollars; prompts over `long.over` tokens have the long price."""
        if self.long is not None and usage.input_tokens > self.long.over:
            return self.long.price.of(usage)
        uncached = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        cost = (
            max(uncached, 0) * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        )
        return cost / 1_000_000

    def times(self, of_input: float, of_output: float) -> Price:
        """Return the price multiplied by a factor for input and caches, and one for output.

        Its values are rounded to six decimals; the price of long prompts is left out.
        """
        long = self.cache_write_long
        return Price(
            input=round(self.input * of_input, 6),
            output=round(self.output * of_output, 6),
            cache_read=round(self.cache_read * of_input, 6),
            cache_write=round(self.cache_write * of_input, 6),
            cache_write_long=None if long is None else round(long * of_input, 6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrice:
    """The price of a request whose prompt has more tokens than `over`."""

    over: int
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities, limits and price of a model. Sizes are in tokens.

    With `tool_choice` the model can be forced to call a tool. `json_mode` restricts its text to a JSON object,
    `json_schema` to a JSON Schema; with `schema_beside_tools` it can still call tools then. Without `write_decisions` it
    decides only by calls, never by text.

    `tail` is the position of the changing end of a prompt, and its treatment in later requests. With `vision` the model
    gets images, with `pdf` PDFs, up to the limits in `attachments`. `accepts` are the settings that it supports, and
    `settings` its own settings, which those of a request override.
    """

    tool_call: bool = True
    tool_choice: bool = True
    write_decisions: bool = True
    json_mode: bool = False
    json_schema: bool = False
    schema_beside_tools: bool = False
    vision: bool = False
    pdf: bool = False
    thinking: bool = False
    tail: TailKind = "dropped"
    window: int = 32_000
    output_limit: int = 8_000
    price: Price | None = None
    attachments: AttachmentLimits = ATTACHMENTS["anthropic"]
    accepts: SettingSupport = ONLY_LENGTH
    settings: ModelSettings = UNSET

    @property
    def attachment_support(self) -> AttachmentSupport:
        """The files that a request may carry."""
        return attachment_support(
            self.attachments,
            vision=self.vision,
            pdf=self.pdf,
            window=self.window,
            output_limit=self.output_limit,
        )

    def supported(self, settings: ModelSettings, model: str, effort: str = "") -> SupportedSettings:
        """Return the supported settings of a request, with the reasons for dropped ones. `model` is the model's name.

        The settings are the model's own ones, overridden by `settings`.

        `effort` is the reasoning effort of the request if the settings have none, "" if it has none either. A `max_tokens`
        above the model's output limit is dropped without `unsupported="drop"` too, because the model's own limit is then the
        stricter.

        Raises:
            UnsupportedSetting: a setting is not supported, and `unsupported` is not "drop".
        """
        merged = self.settings.override(settings)
        if merged == UNSET:
            return NOTHING_SET
        dropped: dict[str, str] = {}
        for name, hint in self.accepts.problems(merged, self.output_limit, effort):
            if not merged.drops and name != "max_tokens":
                problem = f"does not support {name}={shorten_value(getattr(merged, name))}"
                instead = f"; it supports {hint}" if hint else ""
                raise UnsupportedSetting(
                    f"{model} {problem}{instead}: change the settings, or leave out what a model does not support with "
                    "ModelSettings(unsupported='drop')"
                )
            dropped[name] = f"{model} supports {hint}" if hint else f"{model} does not support it"
        return SupportedSettings(merged.without([*dropped]), dropped)

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of one request in US dollars; None if the price or the usage is unknown."""
        return None if self.price is None or usage.unreported else self.price.of(usage)


@runtime_checkable
class Model(Protocol):
    """The port to a model, which replies to prompts."""

    @property
    def name(self) -> str:
        """The model string, such as `offline` or `openai:gpt-5`."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The model's capabilities, limits and price."""
        ...

    def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Yield deltas while the model writes, and at the end exactly one Reply.

        Raises:
            ModelError: the model cannot be reached, or the reply is incomplete.
        """
        ...


class WrappedModel(Struct, frozen=True):
    """A model that changes the requests or replies of another model, with the name and capabilities of that model."""

    model: Model

    @property
    def name(self) -> str:
        """The model string."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model."""
        return self.model.capabilities


@runtime_checkable
class ClockedModel(Protocol):
    """A model that waits on the clock of its harness."""

    def use_clock(self, clock: Clock) -> None:
        """Use this clock from now on."""
        ...


@runtime_checkable
class ClosingModel(Protocol):
    """A model that releases resources when its harness closes."""

    async def close(self, *, failed: bool) -> None:
        """Release open resources; `failed` says that the harness closes because of an error."""
        ...


MODEL_MEMBERS = ("name", "capabilities", "stream")

GENERAL = "general"
"""The default role."""
FAST = "fast"
"""The role of small auxiliary work, such as choosing tools."""

Chain = tuple[Model, ...]
"""Models in the order in which they are tried, at least one."""


@dataclass(frozen=True, slots=True)
class ModelRegistry:
    """Chains of models by role, such as `general`, `fast` and `reasoning`.

    `wrap` is applied to a model of the bundle's own code, which has no role.

    Raises:
        ModelError: `roles` is empty, or a value is not a chain of models.
    """

    roles: Mapping[str, Chain]
    wrap: Callable[[Model], Model] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.roles:
            raise ModelError(f"there is no model: name one for the role {GENERAL!r}")
        for role, chain in self.roles.items():
            _check_chain(chain, f" for the role {role!r}")

    @property
    def models(self) -> list[Model]:
        """Every model, once."""
        by_id = {id(model): model for chain in self.roles.values() for model in chain}
        return list(by_id.values())

    @property
    def default(self) -> Chain:
        """The chain of the role `general`, or of the first role if there is no such role."""
        return self.roles.get(GENERAL) or next(iter(self.roles.values()))

    def by_role(self, role: str) -> Chain:
        """Return the chain of a role.

        Raises:
            ModelError: the role is unknown.
        """
        if role not in self.roles:
            raise ModelError(f"no model has the role {role!r}: there are {', '.join(self.roles)}")
        return self.roles[role]

    def chain(self, choice: Model | Sequence[Model] | str | None = None) -> Chain:
        """Return the chain for a choice: models, or the name of a role. None and an unknown role mean the default.

        A model that is not in the registry is passed to `wrap`.

        Raises:
            ModelError: the choice is a model string, empty, or not a model.
        """
        if choice is None:
            return self.default
        if not isinstance(choice, str):
            chain = chain_of(choice)
            wrap, known = self.wrap, set(map(id, self.models))
            return chain if wrap is None else tuple(m if id(m) in known else wrap(m) for m in chain)
        if ":" in choice:
            raise ModelError(
                f"{choice!r} is a model string, which goes into Harness.open or --model; "
                f"here there are the roles {', '.join(self.roles)}"
            )
        return self.roles.get(choice, self.default)


def chain_of(models: Model | Sequence[Model]) -> Chain:
    """Return the chain of one or several models.

    Raises:
        ModelError: there is no model, or an item is not a model.
    """
    return _check_chain(tuple(models) if isinstance(models, Sequence) else (models,))


def _check_chain(chain: Chain, where: str = "") -> Chain:
    if not chain:
        raise ModelError(f"a chain of models needs at least one{where}")
    if not (_is_sequence(chain) and all(map(is_model, chain))):
        raise ModelError(f"{chain!r} is not a chain of models{where}: pass models in a tuple")
    return chain


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence)


def is_model(value: object) -> TypeIs[Model]:
    """Return whether a value has the members of a model. Before Python 3.12, `isinstance` is slow for a protocol."""
    return all(hasattr(value, name) for name in MODEL_MEMBERS)
