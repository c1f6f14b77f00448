"""What follows from blocks alone: a replay is what was sent live."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import LooplineError
from loopline.events import Delta, DialectName, Event, dialect, replayed, sse
from loopline.timeline import CustomEvent, Unknown
from tests.dialects.decoded_stream import NAMES, heard, lasting, lines, stored
from tests.dialects.sample_conversation import BLOCKS, EVENTS, TALK, streams
from tests.dialects.sample_conversation import block as block_at
from tests.support.examples import examples

channels = st.sampled_from(["answer", "thinking", "notes", "tool", "tools", "canvas", "context"])
deltas = st.builds(
    Delta,
    type=st.sampled_from(["delta", "reset", "progress", "compaction", "pending", "missed"]),
    channel=channels,
    text=st.text(max_size=3),
    attempt=st.integers(1, 3),
    total=st.integers(0, 20),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_from_any_record_on_is_the_rest_of_what_was_sent_live(name: DialectName) -> None:
    live = stored(name, heard(name, EVENTS))
    assert lines(stored(name, replayed(name, TALK, BLOCKS))) == lines(live)
    for sent, record in enumerate(live, start=1):
        rest = replayed(name, TALK, BLOCKS, record.id)
        assert lines(stored(name, rest)) == lines(live[sent:])


@pytest.mark.parametrize("name", NAMES)
@examples(30)
@given(stream=streams(deltas))
def test_what_lasts_does_not_depend_on_deltas(name: DialectName, stream: Sequence[Event]) -> None:
    assert lines(stored(name, heard(name, stream))) == lines(
        stored(name, replayed(name, TALK, BLOCKS))
    )


@pytest.mark.parametrize("name", NAMES)
def test_ids_rise_and_none_is_given_twice(name: DialectName) -> None:
    ids = [record.id.split(".") for record in lasting(heard(name, EVENTS))]
    rows = [(int(seq), int(k)) for seq, k in ids]
    assert rows == sorted(set(rows))


@pytest.mark.parametrize("name", NAMES)
def test_a_block_that_is_heard_again_says_nothing(name: DialectName) -> None:
    speaking = dialect(name, TALK)
    for block in BLOCKS:
        speaking.take(block)
    assert [record for block in BLOCKS for record in speaking.take(block)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_delta_before_any_block_harms_nothing(name: DialectName) -> None:
    early = [Delta(type="delta", channel="answer", text="A"), *EVENTS]
    assert lines(stored(name, heard(name, early))) == lines(
        stored(name, replayed(name, TALK, BLOCKS))
    )


@pytest.mark.parametrize("name", NAMES)
def test_line_breaks_in_the_names_of_an_imported_document_stop_no_stream(name: DialectName) -> None:
    seq = len(BLOCKS) + 1
    later = block_at(seq, 3, Unknown(stored_type="later\r\nid: 9", version=1, stored="{}"))
    custom = block_at(seq + 1, 3, CustomEvent(name="tea\nid: 9"))
    for record in heard(name, [*EVENTS, later, custom]):
        assert sse.encode(record).count(b"\nid: ") <= 1


@pytest.mark.parametrize("after", ["x", "1", "1.", "-1.2", "1.2.3"])
def test_what_is_no_id_of_a_record_is_refused(after: str) -> None:
    with pytest.raises(LooplineError, match="is not the id of a record"):
        replayed("plain", TALK, BLOCKS, after)
