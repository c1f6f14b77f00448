"""Custom events of tools and workflows: their names, and their data as JSON."""

from __future__ import annotations

import re

from loopline.errors import LooplineError
from loopline.models import dumps
from loopline.timeline import CustomEvent
from loopline.tools.values import as_json

EVENT_BYTES = 2_000_000
"""Bytes of JSON that the data of an event may have."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def custom_event(name: str, data: object, call_id: str = "") -> CustomEvent:
    """Return the event, its data being any JSON, pydantic or dataclass value.

    Raises:
        LooplineError: the name has other characters or is too long, or the data is no JSON or too large.
    """
    if not _NAME.fullmatch(name):
        raise LooplineError(
            f"an event's name has 1 to 100 letters, digits, _ . : or -, which {name[:100]!r} has not"
        )
    try:
        value = as_json(data)
        size = len(dumps(value).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise LooplineError(f"the data of the event {name!r} is no JSON: {error}") from error
    if size > EVENT_BYTES:
        raise LooplineError(
            f"the data of the event {name!r} has {size:,} bytes, and may have {EVENT_BYTES:,}: keep it as a "
            "file or an artifact, and emit its ref"
        )
    return CustomEvent(name=name, data=value, call_id=call_id)
