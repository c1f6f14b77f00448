"""A block as a document: what programs elsewhere read of it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import cast

from loopline.models import Json, JsonObject, dumps
from loopline.timeline.blocks import Block, Unknown, stored_type
from loopline.timeline.codec import VERSION, encode_whole


def block_object(block: Block) -> JsonObject:
    """A block with its place, its name and its body, in which every field of its type is there.

    What of an unknown type would not be written as it is stored is there as `stored` too.
    """
    stored = encode_whole(block.body)
    body = _loaded(stored)
    exact: JsonObject = {} if dumps(body) == stored else {"stored": stored}
    return {
        "seq": block.seq,
        "type": stored_type(block.body),
        "version": block.body.version if isinstance(block.body, Unknown) else VERSION,
        "turn_id": block.turn_id,
        "round": block.round,
        "n": block.n,
        "ts": iso(block.ts),
        "term": block.term,
        "ref": block.ref,
        "body": body,
        **(exact if isinstance(block.body, Unknown) else {}),
    }


def _loaded(stored: str) -> Json:
    """The value of stored JSON; None of what is no JSON, as only an unknown type may hold."""
    try:
        return cast("Json", json.loads(stored))
    except ValueError:
        return None


def iso(moment: datetime) -> str:
    """UTC to the millisecond, as `2026-03-21T10:00:00.000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
