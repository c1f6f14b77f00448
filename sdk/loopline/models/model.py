"""The port to a model: one streaming method, and facts about what the model can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loopline.clock import Clock
from loopline.errors import ModelError
from loopline.models.prompt import Prompt, Reply, TailKind, TextDelta, Usage
from loopline.models.request_limits import (
    ATTACHMENTS,
    AttachmentLimits,
    AttachmentSupport,
    attachment_support,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a model costs, in US dollars for a million tokens.

    A request whose prompt is longer costs `long` instead, None where a long one costs no more.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    long: LongPrice | None = None

    def of(self, usage: Usage) -> float:
        """What one request costs, in US dollars, by what it used."""
        if self.long is not None and usage.input_tokens > self.long.over:
            return self.long.price.of(usage)
        plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        cost = (
            max(plain, 0) * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        )
        return cost / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrice:
    """What a whole request costs when its prompt has more tokens than `over`."""

    over: int
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Facts about a model. `tool_choice`: it can be made to call a tool. Sizes are in tokens.

    `json_mode`: its text can be held to some JSON object, `json_schema`: to one of a given form;
    `schema_beside_tools`: it still calls tools then.

    `tail` is where the volatile end of a prompt may stand, and what becomes of it. One that does not
    `write_decisions` decides by calls of its own and in no form of text. One with `vision` is given
    images, one that reads `pdf` PDFs, within the limits of `attachments`.
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

    @property
    def attachment_support(self) -> AttachmentSupport:
        """What files a request to it may carry."""
        return attachment_support(
            self.attachments,
            vision=self.vision,
            pdf=self.pdf,
            window=self.window,
            output_limit=self.output_limit,
        )

    def cost(self, usage: Usage) -> float | None:
        """Return what one request costs, in US dollars; None without a price or a report of its tokens."""
        return None if self.price is None or usage.unreported else self.price.of(usage)


@runtime_checkable
class Model(Protocol):
    """Anything that can carry a prompt one step further."""

    @property
    def name(self) -> str:
        """The model string, such as `offline` or `openai:gpt-5`."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Deltas while it writes, then exactly one Reply, last.

        Raises:
            ModelError: it could not be asked, or broke off.
        """
        ...


@runtime_checkable
class ClockedModel(Protocol):
    """A model that waits on the clock of its harness."""

    def use_clock(self, clock: Clock) -> None:
        """Wait on this clock from now on."""
        ...


@runtime_checkable
class ClosingModel(Protocol):
    """A model that wants to know when its harness closes."""

    async def close(self, *, failed: bool) -> None:
        """The harness closes; `failed` says that an error is on its way."""
        ...


GENERAL = "general"
"""The role of work for which none is wanted."""
FAST = "fast"
"""The role of small work on the way, such as choosing tools."""

Chain = tuple[Model, ...]
"""Models in the order in which they are asked, one at least."""


@dataclass(frozen=True, slots=True)
class ModelRegistry:
    """Chains of models by their roles, such as `general`, `fast` and `reasoning`, in their order.

    Raises:
        ModelError: there is no role, or one has no chain of models.
    """

    roles: Mapping[str, Chain]

    def __post_init__(self) -> None:
        if not self.roles:
            raise ModelError(f"there is no model: name one for the role {GENERAL!r}")
        for role, chain in self.roles.items():
            _checked(chain, f" for the role {role!r}")

    @property
    def models(self) -> list[Model]:
        """Every model, once."""
        every = {id(model): model for chain in self.roles.values() for model in chain}
        return list(every.values())

    @property
    def default(self) -> Chain:
        """The chain of the role `general`, else of the first."""
        return self.roles.get(GENERAL) or next(iter(self.roles.values()))

    def by_role(self, role: str) -> Chain:
        """The chain of a role.

        Raises:
            ModelError: there is no such role.
        """
        if role not in self.roles:
            raise ModelError(f"no model has the role {role!r}: there are {', '.join(self.roles)}")
        return self.roles[role]

    def chain(self, choice: Model | Sequence[Model] | str | None = None) -> Chain:
        """The chain that is wanted: by a role, which is the default's where there is no such, or as it is given.

        Raises:
            ModelError: a model string is given, or no model.
        """
        if choice is None:
            return self.default
        if isinstance(choice, str):
            return self._hinted(choice)
        return chain_of(choice)

    def _hinted(self, role: str) -> Chain:
        if ":" in role:
            raise ModelError(
                f"{role!r} is a model string, which goes into Harness.open or --model; "
                f"here there are the roles {', '.join(self.roles)}"
            )
        return self.roles.get(role, self.default)


def chain_of(models: Model | Sequence[Model]) -> Chain:
    """The chain of these models.

    Raises:
        ModelError: there is none, or something else is among them.
    """
    return _checked(tuple(models) if isinstance(models, Sequence) else (models,))


def _checked(chain: Chain, where: str = "") -> Chain:
    if not chain:
        raise ModelError(f"a chain of models needs one at least{where}")
    if not (_is_sequence(chain) and _are_models(chain)):
        raise ModelError(f"{chain!r} is no chain of models{where}: give models in a tuple")
    return chain


def _is_sequence(given: object) -> bool:
    return isinstance(given, Sequence)


def _are_models(given: Sequence[object]) -> bool:
    return all(isinstance(one, Model) for one in given)
