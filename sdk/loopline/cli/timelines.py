"""`loopline timeline`: the blocks of a conversation, all of them or those that are wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import WIDE, Columns
from loopline.cli.conversing import kept, latest_kept, stored, unknown
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.summaries import style_of, summary_of
from loopline.cli.words import QUIET, counted, visible
from loopline.conversations import Conversation
from loopline.errors import LooplineError, StoreError
from loopline.models import JsonObject, dumps
from loopline.reader import iso, page_document
from loopline.timeline import Block, ConversationSummary, encode, turn_id

DOCUMENT = "artifact:conv.timeline.v1"
KILO, MEGA = 1_000, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which blocks: of that turn and these types, after that place, the first so many."""

    turn: int | None = None
    types: tuple[str, ...] = ()
    after: int = 0
    limit: int | None = None

    async def blocks(self, talk: Conversation) -> Sequence[Block]:
        """Those of a conversation.

        Raises:
            UsageError: there is no such type.
        """
        turn = None if self.turn is None else turn_id(self.turn)
        try:
            return await talk.blocks(
                after=self.after, limit=self.limit, types=self.types, turn=turn
            )
        except StoreError:
            raise
        except LooplineError as error:
            raise UsageError(str(error)) from error

    async def page(self, talk: Conversation) -> tuple[Sequence[Block], int | None]:
        """Those of a conversation, and after which place there are more; None when there are none."""
        if self.limit is None:
            return await self.blocks(talk), None
        found = await replace(self, limit=self.limit + 1).blocks(talk)
        page = found[: self.limit]
        return page, page[-1].seq if page and len(found) > len(page) else None


async def timeline(wanted: Wanted, choices: Choices, screen: Screen) -> int:
    """Print the blocks of a conversation, in order."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        summary = await store.log.find(talk.conversation)
        if summary is None:
            raise unknown(name, choices)
        if choices.as_json:
            screen.raw(dumps(await _document(wanted, talk, summary)))
            return ANSWERED
        page, more = await wanted.page(talk)
        if not page:
            raise UsageError(await _nothing(name, talk, summary))
        satisfaction = await talk.satisfaction()
    screen.answer_whole(
        block_table(page, wide=screen.width >= WIDE), "\n".join(map(_block_line, page))
    )
    if more is not None:
        screen.note(Text(f"there are more: --after {more}", style=QUIET))
    if satisfaction.rate is not None:
        judged = counted(satisfaction.judged, "judged turn")
        share = f"{satisfaction.rate:.0%} ({satisfaction.ok} of {judged})"
        screen.note(Text(f"satisfaction: {share}", style=QUIET))
    return ANSWERED


async def _nothing(name: str, talk: Conversation, summary: ConversationSummary) -> str:
    """That no block is wanted, and which there would be."""
    kinds = ", ".join(dict.fromkeys(block.type for block in await talk.blocks()))
    has = f"{counted(summary.turns, 'turn')} and {counted(summary.head, 'block')}"
    return f"no such block in {name!r}: it has {has}, with {kinds}"


async def _document(wanted: Wanted, talk: Conversation, summary: ConversationSummary) -> JsonObject:
    """The whole document, else the page that is wanted with the place after which there are more."""
    if wanted == Wanted():
        (item,) = await talk.read([DOCUMENT])
        return cast("JsonObject", json.loads(item.text))
    page, more = await wanted.page(talk)
    return page_document(page, summary, more)


def block_table(blocks: Sequence[Block], *, wide: bool) -> Columns:
    """The blocks in columns, coloured by kind, with the sizes of their bodies; a `wide` one has types too."""
    rows = list[tuple[Text, ...]]()
    for block in blocks:
        style, summary = style_of(block.type), visible(summary_of(block))
        rows.append(
            (
                Text(str(block.seq), style=QUIET),
                Text(f"{block.turn}.{block.round}", style=QUIET),
                Text(f"{block.ts:%H:%M:%S}", style=QUIET),
                *([Text(block.type, style=style)] if wide else []),
                Text(block.ref, style=style),
                Text(size(len(encode(block.body)[2])), style=QUIET),
                Text(summary, style=style if style == QUIET else ""),
            )
        )
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({0, len(rows[0]) - 2}), gap=1)


def size(count: int) -> str:
    """`87 B`, `12 kB`, `3.4 MB`: a number of bytes in five characters or a few more."""
    if count < KILO:
        return f"{count} B"
    return f"{count / KILO:.0f} kB" if count < MEGA else f"{count / MEGA:.1f} MB"


def _block_line(block: Block) -> str:
    return "\t".join(
        [
            str(block.seq),
            block.turn_id,
            str(block.round),
            block.type,
            block.ref,
            iso(block.ts),
            visible(summary_of(block)),
        ]
    )
