"""Blocks as the page shows them: long texts are cut, and the bytes of files are left out."""

from __future__ import annotations

from typing import cast

from pydantic import BaseModel, JsonValue

from loopline.models import Json, JsonObject
from loopline.models.safe_text import remove_base64
from loopline.timeline import Block, ConversationKey, TimelineLog, block_document, read_undamaged

BYTES_FIELDS = frozenset({"data"})
"""The fields of bodies that hold the bytes of a file in base64."""
FILE_TYPES = frozenset({"user.attachment", "file.added", "text.kept"})
"""The types of bodies that may hold the bytes of a file."""
LIST_ITEMS = 200
"""The most items of a list, and the most keys of an object, in a row."""


class CutText(BaseModel):
    """A text of a body of which the row has only a part: the path of the text, and all its characters."""

    path: list[str | int]
    characters: int


class BlockRow(BaseModel):
    """A block as the page shows it. A `problem` says why the block cannot be read; then the body is empty."""

    seq: int
    type: str
    turn_id: str = ""
    round: int = 0
    n: int = 0
    ts: str = ""
    ref: str = ""
    body: JsonValue = None
    cut: list[CutText] = []
    problem: str = ""


class BodyCutter:
    """Cuts the texts of one body to `limit` characters, and notes each text that it has cut."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.cuts: list[CutText] = []

    def cut(self, value: Json, path: tuple[str | int, ...] = ()) -> Json:
        """Return the value with its texts cut to `limit` characters, and its lists and objects to `LIST_ITEMS` items.

        Each cut is noted in `cuts` with its path.
        """
        match value:
            case str():
                self._note(len(value), self._limit, path)
                return value[: self._limit]
            case list():
                self._note(len(value), LIST_ITEMS, path)
                return [self.cut(item, (*path, n)) for n, item in enumerate(value[:LIST_ITEMS])]
            case dict():
                self._note(len(value), LIST_ITEMS, path)
                items = list(value.items())[:LIST_ITEMS]
                return {key: self.cut(item, (*path, key)) for key, item in items}
            case _:
                return value

    def leave_out(self, value: Json, path: tuple[str | int, ...]) -> Json:
        """Return an empty text in place of bytes in base64, and note it; a value that is not a text is unchanged."""
        if not isinstance(value, str):
            return value
        self._note(len(value), 0, path)
        return ""

    def _note(self, length: int, limit: int, path: tuple[str | int, ...]) -> None:
        """Note a value that is longer than the limit."""
        if length > limit:
            self.cuts.append(CutText(path=list(path), characters=length))


def block_row(block: Block, limit: int) -> BlockRow:
    """Return a block as a row: texts are cut to `limit` characters, and bytes of files and base64 are left out."""
    document = block_document(block)
    cutter = BodyCutter(limit)
    body = document["body"]
    if isinstance(body, dict):
        body = _shorten(cutter, block, body)
    elif isinstance(body, str):
        body = cutter.cut(remove_base64(body, block.ref))
    return BlockRow(
        seq=block.seq,
        type=block.type,
        turn_id=block.turn_id,
        round=block.round,
        n=block.n,
        ts=cast("str", document["ts"]),
        ref=block.ref,
        body=body,
        cut=cutter.cuts,
    )


def _shorten(cutter: BodyCutter, block: Block, body: JsonObject) -> JsonObject:
    """Return the block's `body` with long values cut; of a file, its content is left out."""
    has_bytes = block.type in FILE_TYPES
    return {
        name: cutter.leave_out(value, (name,))
        if has_bytes and name in BYTES_FIELDS
        else cutter.cut(value, (name,))
        for name, value in body.items()
    }


async def read_rows(
    log: TimelineLog, key: ConversationKey, after: int, count: int, limit: int
) -> list[BlockRow]:
    """Return the rows of at most `count` blocks after the seq `after`.

    A block that the store cannot read, because its row or its blob is damaged, is a row with the `problem`.
    """
    blocks = await read_undamaged(log, key, after, count)
    return [
        block_row(block, limit)
        if isinstance(block, Block)
        else BlockRow(seq=seq, type="damaged", problem=str(block))
        for seq, block in enumerate(blocks, after + 1)
    ]
