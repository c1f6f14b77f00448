"""A document `artifact:conv.timeline.v1` as the blocks it was made of, or where it is damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.reader.documents import VERSION
from loopline.timeline import Block, ToolCalled, ToolResult, ToolStarted, decode


class DocumentError(LooplineError):
    """A document cannot be imported; the message names the place in it."""


def read_document(document: JsonObject) -> list[Block]:
    """The blocks of a document, checked: nothing is missing, damaged, doubled or left over.

    Raises:
        DocumentError: it is of another version, or damaged; the message names the place.
    """
    if document.get("version") != VERSION:
        raise DocumentError(f"version {document.get('version')!r}: only {VERSION} can be imported")
    rows = document.get("blocks")
    if not isinstance(rows, list) or not rows:
        raise DocumentError("blocks: there are none")
    blocks = [_block(row, place) for place, row in enumerate(rows, start=1)]
    _check_numbers(blocks)
    _check_calls(blocks)
    return blocks


def _block(row: Json, place: int) -> Block:
    """The block at a place, from 1."""
    at = f"blocks[{place - 1}]"
    match row:
        case {
            "seq": int(seq),
            "type": str(kind),
            "version": int(version),
            "turn_id": str(turn),
            "round": int(round_),
            "n": int(n),
            "ts": str(ts),
            "term": int(term),
            "body": dict(body),
        }:
            pass
        case _:
            raise DocumentError(f"{at}: a field of the block is missing or has the wrong type")
    if seq != place:
        raise DocumentError(
            f"{at}: seq {seq} stands at place {place}: a block is missing or doubled"
        )
    number = turn.removeprefix("turn_")
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise DocumentError(f"{at}: {turn!r} is no turn")
    try:
        return Block(
            seq=seq,
            turn=int(number),
            round=round_,
            n=n,
            ts=datetime.fromisoformat(ts),
            term=term,
            body=decode(kind, version, dumps(body)),
        )
    except ValueError as error:
        said = " ".join(str(error).split())
        raise DocumentError(f"{at}: it is no {kind}: {said}") from error


def _check_numbers(blocks: Sequence[Block]) -> None:
    """Each block is the n-th of its type in its turn, and the terms of runners never fall."""
    counts, newest = Counter[tuple[int, str]](), 0
    for place, block in enumerate(blocks):
        counts[block.turn, block.type] += 1
        if block.n != counts[block.turn, block.type]:
            raise DocumentError(f"blocks[{place}]: n {block.n} does not number it in its turn")
        if block.term and block.term < newest:
            raise DocumentError(f"blocks[{place}]: term {block.term} comes after {newest}")
        newest = max(newest, block.term)


def _check_calls(blocks: Sequence[Block]) -> None:
    """Every start and every result follows its call, which has only one of each."""
    called, begun, settled = set[str](), set[str](), set[str]()
    for place, block in enumerate(blocks):
        match block.body:
            case ToolCalled(call_id=call_id):
                kept, known = called, call_id not in called
            case ToolStarted(call_id=call_id):
                kept, known = begun, call_id in called and call_id not in begun | settled
            case ToolResult(call_id=call_id):
                kept, known = settled, call_id in called and call_id not in settled
            case _:
                continue
        if not known:
            raise DocumentError(f"blocks[{place}]: {block.type} of {call_id!r} is out of place")
        kept.add(call_id)
