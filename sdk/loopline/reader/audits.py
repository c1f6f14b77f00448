"""An exported document compared with the chain of digests in it, and with a head kept elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopline.models import Json, JsonObject
from loopline.reader.importing import DocumentError, block_at, rows_of
from loopline.timeline import ConversationKey
from loopline.timeline.chain import Audit, Fault, Head, Link, audit, block_link

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
        return Link(seq=place, place=b"", body=b"", digest=digest)
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
