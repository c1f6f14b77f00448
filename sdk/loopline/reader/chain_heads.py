"""Heads of conversations as a file to be kept elsewhere, signed with a key or not."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.reader.document_import import DocumentError, block_at, rows_of
from loopline.timeline import ConversationKey
from loopline.timeline.chain import START, Audit, Fault, Head, Link, audit, block_link

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


_DIGEST = re.compile(r"[0-9a-f]{64}")


def audit_document(
    document: JsonObject, heads: Mapping[ConversationKey, Head], whose: ConversationKey
) -> Audit:
    """Return what is wrong with a document, as `whose` its head is among the heads.

    Raises:
        DocumentError: it is none, or has no digests.
    """
    rows = rows_of(document)
    links = [_link(row, place) for place, row in enumerate(rows, start=1)]
    if not any(link.digest for link in links):
        raise DocumentError("there are no digests in it: it was exported by an older loopline")
    result = audit(whose, links, heads.get(whose))
    return result if result.faults else replace(result, faults=_named_wrongly(rows))


def _link(row: Json, place: int) -> Link:
    """A row as a link at its place; one that is no block has nothing that a digest would fit."""
    match row:
        case {"seq": int(seq), "digest": str(written)} if _DIGEST.fullmatch(written):
            digest = bytes.fromhex(written)
        case _:
            seq, digest = 0, b""
    try:
        link = block_link(block_at(row, seq)[0], digest)
    except DocumentError:
        return Link(seq=place, position=b"", body=b"", digest=digest)
    return replace(link, seq=place)


def _named_wrongly(rows: Sequence[Json]) -> tuple[Fault, ...]:
    """The rows whose `seq` is not their place, although the rest of them is as it was."""
    found = list[Fault]()
    for place, row in enumerate(rows, start=1):
        match row:
            case {"seq": int(seq)} if seq != place:
                text = f"block {place} says that it is block {seq}"
                found.append(Fault(seq=place, kind="changed", text=text))
            case _:
                pass
    return tuple(found)
