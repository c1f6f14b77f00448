"""Custom events: what a tool or a workflow tells its listeners, and the log keeps, beside what the model sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopline.models import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomEvent:
    """A tool or a workflow emitted an event of its own; `call_id` is empty for a workflow. No prompt shows it."""

    name: str
    data: Json = None
    call_id: str = ""
    type: Literal["event.custom"] = "event.custom"
