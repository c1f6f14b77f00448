"""Models by role: which chain of models a piece of work is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopline.errors import ModelError
from loopline.models.model import Model

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

    def chain(self, wanted: Model | Sequence[Model] | str | None = None) -> Chain:
        """The chain that is wanted: by a role, which is the default's where there is no such, or as it is given.

        Raises:
            ModelError: a model string is given, or no model.
        """
        if wanted is None:
            return self.default
        if isinstance(wanted, str):
            return self._hinted(wanted)
        return chain_of(wanted)

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
