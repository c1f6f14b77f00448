"""Heads of conversations in a signed file, and the audit of exported documents against them."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.reader.document_checks import DocumentError
from loopline.reader.document_import import block_at, rows_of
from loopline.timeline import ConversationKey
from loopline.timeline.chain import START, Audit, Fault, Head, Link, audit, block_link

HEADS_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


class HeadsError(LooplineError):
    """A file of heads cannot be used; the message says why."""


def heads_text(heads: Mapping[ConversationKey, Head], key: bytes = b"") -> str:
    """Return the heads as JSON; with a key it has an HMAC-SHA256 of them."""
    rows: list[Json] = [_row(conversation, head) for conversation, head in heads.items()]
    signature: JsonObject = {"hmac_sha256": _signature(rows, key)} if key else {}
    content = {"version": HEADS_VERSION, "heads": rows, **signature}
    return json.dumps(content, ensure_ascii=False, indent=1)


def read_heads(text: str, key: bytes = b"") -> dict[ConversationKey, Head]:
    """Return the heads of a text.

    Raises:
        HeadsError: the text has no heads, or was not signed with the key.
    """
    try:
        content: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeadsError(f"the heads are no JSON: {error}") from error
    match content:
        case {"version": 1, "heads": [*rows], "hmac_sha256": str(signature)}:
            pass
        case {"version": 1, "heads": [*rows]}:
            signature = ""
        case _:
            raise HeadsError("the heads are not those of loopline audit --save, version 1")
    # Digests of texts that are not ASCII are compared as bytes, half a surrogate pair included.
    if key and not hmac.compare_digest(
        signature.encode(errors="surrogatepass"), _signature(rows, key).encode()
    ):
        raise HeadsError("the heads were not signed with this key, or changed since they were")
    return dict(map(_head, rows))


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


def _head(row: Json) -> tuple[ConversationKey, Head]:
    match row:
        case {
            "conversation": str(name),
            "user": str(user),
            "project": str(project),
            "tenant": str(tenant),
            "seq": int(seq),
            "digest": str(written),
        }:
            pass
        case _:
            raise HeadsError("a head lacks a field, or has one of the wrong type")
    try:
        digest = bytes.fromhex(written)
    except ValueError:
        digest = b""
    if len(digest) != len(START) or seq < 1:
        raise HeadsError(f"the head of {name!r} is not valid: a digest has 64 hexadecimal digits")
    key = ConversationKey(name=name, user=user, project=project, tenant=tenant)
    return key, Head(seq=seq, digest=digest)


def audit_document(
    document: JsonObject, heads: Mapping[ConversationKey, Head], key: ConversationKey
) -> Audit:
    """Return what is wrong with a document, compared with the head of its conversation.

    Raises:
        DocumentError: it is not a document, or has no digests.
    """
    rows = rows_of(document)
    links = [_link(row, seq) for seq, row in enumerate(rows, start=1)]
    if not any(link.digest for link in links):
        raise DocumentError("there are no digests in it: it was exported by an older loopline")
    result = audit(key, links, heads.get(key))
    return result if result.faults else replace(result, faults=tuple(_wrong_seqs(rows)))


def _link(row: Json, seq: int) -> Link:
    """Return a row as the link with this seq; a row that is not a block matches no digest."""
    match row:
        case {"seq": int(written_seq), "digest": str(written)} if _DIGEST.fullmatch(written):
            digest = bytes.fromhex(written)
        case _:
            written_seq, digest = 0, b""
    try:
        link = block_link(block_at(row, written_seq)[0], digest)
    except DocumentError:
        return Link(seq=seq, position=b"", body=b"", digest=digest)
    return replace(link, seq=seq)


def _wrong_seqs(rows: Sequence[Json]) -> Iterator[Fault]:
    """Yield the rows with a wrong `seq` whose other fields are unchanged."""
    for expected, row in enumerate(rows, start=1):
        match row:
            case {"seq": int(seq)} if seq != expected:
                text = f"block {expected} says that it is block {seq}"
                yield Fault(seq=expected, kind="changed", text=text)
            case _:
                pass
