"""`loopline timeline --dialect`: what a listener was sent of a conversation, in one of the vocabularies."""

from __future__ import annotations

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import Columns
from loopline.cli.conversing import kept, latest_kept, stored, unknown
from loopline.cli.door import ANSWERED
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, REF, visible
from loopline.events import DialectName, Wire, replayed, sse
from loopline.models import Json, dumps


async def tell(name: DialectName, turn: int | None, choices: Choices, screen: Screen) -> int:
    """Print the records that last, in their order: of one turn, or of all."""
    async with stored(choices) as store:
        conversation = await latest_kept(store, choices, screen)
        talk = kept(store, conversation, choices)
        blocks = await talk.blocks()
    if not blocks:
        raise unknown(conversation, choices)
    turns = {block.seq: block.turn for block in blocks}
    records = [
        record
        for record in replayed(name, talk.conversation, blocks)
        if turn in (None, turns[sse.place(record.id)[0]])
    ]
    if choices.as_json:
        screen.raw(dumps([_record_document(record) for record in records]))
    elif records:
        screen.answer_whole(_record_table(records), "\n".join(map(_record_line, records)))
    else:
        screen.note(Text("nothing was told of it", style=QUIET))
    return ANSWERED


def _record_table(records: list[Wire]) -> Columns:
    rows = [
        (
            Text(record.id, style=QUIET),
            Text(record.event, style=REF),
            Text(visible(dumps(record.data))),
        )
        for record in records
    ]
    return Columns(rows=rows, cut=2, right=frozenset({0}))


def _record_line(record: Wire) -> str:
    return "\t".join([record.id, record.event, visible(dumps(record.data))])


def _record_document(record: Wire) -> Json:
    return {"id": record.id, "event": record.event, "data": record.data}
