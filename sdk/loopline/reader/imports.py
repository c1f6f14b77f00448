"""What an imported document would do if it were trusted, and the block that says it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from loopline.models import dumps
from loopline.timeline import (
    Block,
    Imported,
    ImportedAction,
    Timeline,
    Turn,
    child_action,
    parent_name,
    repository_action,
    turn_id,
)

_SHOWN_CHARACTERS = 200


def import_actions(blocks: Sequence[Block], name: str) -> list[ImportedAction]:
    """Return what in the blocks would act if they were imported under that name and confirmed."""
    timeline = Timeline(blocks)
    parent = parent_name(name)
    children = (
        [
            ImportedAction(
                name=child_action(name), text=f"its answer is taken by a call of {parent!r}"
            )
        ]
        if parent is not None
        else []
    )
    turns = [*timeline.cut, *timeline.unbegun]
    return [*children, *map(_turn_action, turns), *_repository_actions(timeline)]


def import_mark(blocks: Sequence[Block], confirmed: Sequence[str], now: datetime) -> Block:
    """Return the block that stands behind imported blocks, with what of them is confirmed."""
    turn = max(block.turn for block in blocks)
    before = [b for b in blocks if b.turn == turn and isinstance(b.body, Imported)]
    return Block(
        seq=len(blocks) + 1,
        turn=turn,
        round=0,
        n=len(before) + 1,
        ts=now,
        term=max(block.term for block in blocks),
        body=Imported(confirmed=tuple(dict.fromkeys(confirmed))),
    )


def _turn_action(turn: Turn) -> ImportedAction:
    name = turn_id(turn.number)
    if turn.header is None:
        return ImportedAction(name=name, text="its prompt is answered before the next one")
    calls = [_call(turn, call_id) for call_id in turn.open_calls]
    said = "; ".join(["it is carried on", *calls])
    return ImportedAction(name=name, text=said)


def _call(turn: Turn, call_id: str) -> str:
    call, answer = turn.open_calls[call_id], turn.answers.get(call_id)
    shown = f"{call_id} runs {call.tool} {_shortened(dumps(call.arguments))}"
    return shown if answer is None else f"{shown} with the answer {_shortened(dumps(answer.value))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _repository_actions(timeline: Timeline) -> Iterator[ImportedAction]:
    for repository in dict.fromkeys(used.repository for used in timeline.knowledge):
        yield ImportedAction(
            name=repository_action(repository), text="refs of this document are read from it"
        )
