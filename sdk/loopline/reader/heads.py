"""Heads of conversations as a file to be kept elsewhere, signed with a key or not."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from hashlib import sha256

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import ConversationKey
from loopline.timeline.chain import START, Head

VERSION = 1


class HeadsError(LooplineError):
    """A file of heads cannot be used; the message says why."""


def heads_text(heads: Mapping[ConversationKey, Head], key: bytes = b"") -> str:
    """Return the heads as JSON; with a key it has an HMAC-SHA256 of them."""
    rows: list[Json] = [_row(conversation, head) for conversation, head in heads.items()]
    signed: JsonObject = {"hmac_sha256": _signature(rows, key)} if key else {}
    return json.dumps({"version": VERSION, "heads": rows, **signed}, ensure_ascii=False, indent=1)


def read_heads(text: str, key: bytes = b"") -> dict[ConversationKey, Head]:
    """Return the heads that the text holds.

    Raises:
        HeadsError: it is no such text, or it was not signed with the key.
    """
    try:
        written: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeadsError(f"the heads are no JSON: {error}") from error
    match written:
        case {"version": 1, "heads": [*rows], **rest}:
            pass
        case _:
            raise HeadsError("the heads are not those of loopline audit --save, version 1")
    if key and not hmac.compare_digest(str(rest.get("hmac_sha256")), _signature(rows, key)):
        raise HeadsError("the heads were not signed with this key, or changed since they were")
    return dict(map(_read, rows))


def _signature(rows: list[Json], key: bytes) -> str:
    return hmac.new(key, dumps(rows).encode(), sha256).hexdigest()


def _row(conversation: ConversationKey, head: Head) -> JsonObject:
    return {
        "conversation": conversation.name,
        "user": conversation.user,
        "project": conversation.project,
        "tenant": conversation.tenant,
        "seq": head.seq,
        "digest": head.digest.hex(),
    }


def _read(row: Json) -> tuple[ConversationKey, Head]:
    match row:
        case {
            "conversation": str(name),
            "user": str(user),
            "project": str(project),
            "tenant": str(tenant),
            "seq": int(seq),
            "digest": str(digest),
        }:
            pass
        case _:
            raise HeadsError("a head lacks a field, or has one of the wrong type")
    try:
        known = bytes.fromhex(digest)
    except ValueError:
        known = b""
    if len(known) != len(START) or seq < 1:
        raise HeadsError(f"the head of {name!r} is none: its digest has 64 hexadecimal digits")
    conversation = ConversationKey(name=name, user=user, project=project, tenant=tenant)
    return conversation, Head(seq=seq, digest=known)
