"""Who hears a running turn beside its listeners: an observer, and the log of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from loopline.conversations.turn_log import log_block
from loopline.events import Caller, EventSink, ObservedTurn, Observer
from loopline.timeline import Block, ConversationKey, Recorder, Timeline, parent_name

Hear = Callable[[Block], None]

logger: logging.Logger = logging.getLogger("loopline")


def logged(conversation: str, hear: EventSink) -> Hear:
    """What logs each block and has it heard."""

    def heard(block: Block) -> None:
        if logger.isEnabledFor(logging.INFO):
            log_block(conversation, block)
        hear(block)

    return heard


def blocks_of(timeline: Timeline, number: int) -> list[Block]:
    """The blocks of a turn, which begins with its prompt."""
    prompt = timeline.turn(number).prompt
    behind = timeline.seq if prompt is None else prompt.seq - 1
    return [block for block in timeline.after(behind) if block.turn == number]


def observed(observer: Observer, turn: ObservedTurn, timeline: Timeline, hear: Hear) -> Hear:
    """What tells the observer of each block and has it heard; the observer cannot harm the turn."""
    tell: Hear | None = None
    try:
        tell = observer.begin(turn, blocks_of(timeline, turn.turn))
    except Exception:
        logger.exception("the observer broke: it hears nothing of this turn")

    def heard(block: Block) -> None:
        nonlocal tell
        if tell is not None:
            try:
                tell(block)
            except Exception:
                logger.exception("the observer broke: it hears no more of this turn")
                tell = None
        hear(block)

    return heard


def observed_turn(
    conversation: ConversationKey,
    uid: str,
    number: int,
    running: Mapping[ConversationKey, Recorder],
) -> ObservedTurn:
    """The turn as an observer knows it, with the call that began it if a turn that runs here did."""
    return ObservedTurn(
        conversation=conversation, uid=uid, turn=number, caller=_caller(conversation, running)
    )


def _caller(child: ConversationKey, running: Mapping[ConversationKey, Recorder]) -> Caller | None:
    name = parent_name(child.name)
    recorder = running.get(replace(child, name=name)) if name is not None else None
    link = recorder.turn.children.get(child.name) if recorder is not None else None
    if recorder is None or link is None:
        return None
    above = observed_turn(recorder.conversation, recorder.uid, recorder.number, running)
    return Caller(above, link.call_id)
