"""Listeners of one conversation share a dialect: the end of a turn leaves nothing that only some of them were told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline.events import DialectName, Event, dialect
from loopline.timeline import Block, Exit, TurnHeader
from tests.dialects.decoded_stream import NAMES
from tests.dialects.sample_conversation import TALK, streams
from tests.dialects.test_texts_in_parts import pieces
from tests.support.examples import examples


@pytest.mark.parametrize("name", NAMES)
@examples(25)
@given(stream=streams(pieces), data=st.data())
def test_behind_the_end_of_a_turn_a_dialect_that_took_pieces_is_one_that_took_blocks(
    name: DialectName, stream: Sequence[Event], data: st.DataObject
) -> None:
    ends = [
        place + 1
        for place, event in enumerate(stream)
        if isinstance(event, Block) and isinstance(event.body, Exit)
    ]
    place = data.draw(st.sampled_from(ends))
    live, stored = dialect(name, TALK), dialect(name, TALK)
    for event in stream[:place]:
        live.take(event)
        if isinstance(event, Block):
            stored.take(event)
    started = next(
        place
        for place, event in enumerate(stream)
        if isinstance(event, Block) and isinstance(event.body, TurnHeader)
    )
    before = [event for event in stream[:started] if isinstance(event, Block)]
    again = [_next_turn(event, stream) for event in (*before, *stream[started:])]
    assert [live.take(event) for event in again] == [stored.take(event) for event in again]


def _next_turn(event: Event, stream: Sequence[Event]) -> Event:
    """The event behind all of the stream, in a turn behind all its turns."""
    if not isinstance(event, Block):
        return event
    last = max(block.seq for block in stream if isinstance(block, Block))
    return structs.replace(event, seq=event.seq + last, turn=event.turn + 100)
