"""A bundle: a name, the workflow that runs its turns, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loopline.models import Json

if TYPE_CHECKING:
    from loopline.bundle.workflow import BaseWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a bundle's package exposes under the name `bundle`.

    `configuration` holds the defaults of the bundle's properties, nested; with a `knowledge` section
    the bundle has a knowledge space.
    """

    id: str
    workflow: type[BaseWorkflow]
    configuration: Mapping[str, Json] = field(default_factory=dict[str, Json])
