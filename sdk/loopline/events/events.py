"""What a listener hears while a turn runs: blocks, which have a place, and deltas, which have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loopline.models import Json
from loopline.timeline import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Something on its way. A completed block stands for the deltas before it.

    The channels of a reply are `answer`, `notes`, `thinking`, and `draft`, which is heard where another request
    writes the answer. Others are `tool`, `tools`, `model`, `knowledge`, `context`, and `queue`, where a turn that
    waits for another one hears which.

    `pending` says what a call asks the user, before the turn pauses.
    `compaction` says that the context is being made smaller, and from what size.
    `reset` says that what this channel showed of the current attempt is void. In the answer channel
    citations are resolved: `[1]` is the first of the sources that the answer cites, `[?]` is none.
    `progress` says how a call or the turn gets on; `total` is of how many, 0 where nothing is counted.
    `custom` is an event of a tool or a workflow, with its `name` and `data`, in the channel `tool` or `workflow`.
    `call_id` is the call that a `progress`, `pending` or `custom` comes from, empty where it comes from none.
    `missed` says that a listener was too slow for the blocks behind the seq `after` up to `through`, which
    the log still has.
    """

    type: Literal["delta", "reset", "progress", "compaction", "pending", "custom", "missed"]
    channel: str
    text: str = ""
    attempt: int = 1
    total: int = 0
    after: int = 0
    through: int = 0
    call_id: str = ""
    name: str = ""
    data: Json = None


Event = Block | Delta
Listen = Callable[[Event], None]
