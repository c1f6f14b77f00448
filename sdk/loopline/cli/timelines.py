"""`loopline timeline`: a conversation block by block, or every conversation in a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import Columns
from loopline.cli.conversing import latest_kept
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.reading import stored
from loopline.cli.screen import Screen
from loopline.cli.steps import counted
from loopline.cli.summaries import style_of, summary_of
from loopline.cli.words import QUIET, visible
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.reader import iso
from loopline.timeline import Block, ConversationSummary

DOCUMENT = "artifact:conv.timeline.v1"
WIDE = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which blocks; None is all of them."""

    turn: int | None = None
    type: str | None = None

    def takes(self, turn_id: str, kind: str) -> bool:
        """Whether a block of that turn and type is wanted; a type stands for those below it too."""
        of_turn = self.turn is None or turn_id == f"turn_{self.turn}"
        return of_turn and (
            self.type is None or kind == self.type or kind.startswith(f"{self.type}.")
        )


async def timeline(wanted: Wanted, choices: Choices, screen: Screen) -> int:
    """Print the blocks of a conversation, in order."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = store.conversation(name, user=choices.whose)
        blocks = await talk.blocks()
        if not blocks:
            raise LooplineError(
                f"no conversation {name!r} of the user {choices.whose!r}: "
                "loopline timeline --list shows which there are"
            )
        (item,) = await talk.read([DOCUMENT])
    if choices.as_json:
        screen.raw(dumps(_filtered(cast("JsonObject", json.loads(item.text)), wanted)))
        return ANSWERED
    shown = [block for block in blocks if wanted.takes(block.turn_id, block.type)]
    if not shown:
        kinds = ", ".join(dict.fromkeys(block.type for block in blocks))
        turns = counted(blocks[-1].turn, "turn")
        raise UsageError(f"no such block in {name!r}: it has {turns}, with {kinds}")
    screen.answer_whole(table(shown, wide=screen.width >= WIDE), "\n".join(map(_line, shown)))
    return ANSWERED


async def conversations(choices: Choices, screen: Screen) -> int:
    """Print what conversations there are: the user's, else everybody's; the latest first."""
    async with stored(choices) as store:
        found = [summary async for summary in store.conversations(user=choices.user)]
    if choices.as_json:
        screen.raw(dumps([_row(summary) for summary in found]))
    elif found:
        screen.answer_whole(_listed(found), "\n".join(map(_list_line, found)))
    else:
        screen.note(Text("no conversation yet", style=QUIET))
    return ANSWERED


def table(blocks: Sequence[Block], *, wide: bool) -> Columns:
    """The blocks in columns, coloured by kind; a `wide` one has their types beside their refs."""
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
                Text(summary, style=style if style == QUIET else ""),
            )
        )
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({0}), gap=1)


def _line(block: Block) -> str:
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


def _filtered(document: JsonObject, wanted: Wanted) -> JsonObject:
    blocks = cast("list[dict[str, Json]]", document["blocks"])
    kept: list[Json] = [
        block for block in blocks if wanted.takes(str(block["turn_id"]), str(block["type"]))
    ]
    return {**document, "blocks": kept}


def _listed(found: Sequence[ConversationSummary]) -> Columns:
    rows = [
        (
            Text(visible(summary.conversation.name), style="bold"),
            Text(visible(summary.conversation.user), style=QUIET),
            Text(counted(summary.turns, "turn")),
            Text(counted(summary.head, "block")),
            Text(f"{summary.last_activity_at:%Y-%m-%d %H:%M}", style=QUIET),
            Text(visible(summary.title)),
        )
        for summary in found
    ]
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2, 3}))


def _list_line(summary: ConversationSummary) -> str:
    return "\t".join(map(str, _row(summary).values()))


def _row(summary: ConversationSummary) -> JsonObject:
    return {
        "conversation": summary.conversation.name,
        "user": summary.conversation.user,
        "turns": summary.turns,
        "blocks": summary.head,
        "last_activity_at": iso(summary.last_activity_at),
        "title": " ".join(summary.title.split()),
    }
