"""Protocols that cannot take text back: what a live listener has in the end is what a replay says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.events import Delta, DialectName, Event, Record, replayed
from loopline.timeline import Block
from tests.dialects.decoded_stream import IN_PARTS, heard
from tests.dialects.sample_conversation import BLOCKS, EVENTS, TALK, streams
from tests.support.examples import examples

STARTS = ("TEXT_MESSAGE_START", "text-start")
DELTAS = ("TEXT_MESSAGE_CONTENT", "text-delta")
ENDS = ("TEXT_MESSAGE_END", "text-end")


def shown(records: Iterable[Record]) -> dict[str, str]:
    """The texts that a client shows, by their ids, once it has applied snapshots and notes of what is void."""
    texts, is_open = dict[str, str](), set[str]()
    for record in records:
        data = record.data
        part_id = str(data.get("messageId") or data.get("id"))
        if record.event in STARTS:
            assert part_id not in is_open
            is_open.add(part_id)
            texts[part_id] = ""
        elif record.event in DELTAS:
            assert part_id in is_open
            texts[part_id] += str(data["delta"])
        elif record.event in ENDS:
            is_open.remove(part_id)
            if "providerMetadata" in data:
                del texts[part_id]
        elif record.event == "MESSAGES_SNAPSHOT":
            messages = data["messages"]
            assert isinstance(messages, list)
            rows = [message for message in messages if isinstance(message, dict)]
            texts = {str(row["id"]): str(row["content"]) for row in rows if "content" in row}
            texts = {key: text for key, text in texts.items() if key.startswith("turn_")}
            texts = {key: text for key, text in texts.items() if ".reasoning." not in key}
    assert not is_open
    return texts


def words(texts: dict[str, str]) -> Sequence[str]:
    return list(texts.values())


@pytest.mark.parametrize("name", sorted(IN_PARTS))
def test_a_listener_has_the_texts_of_a_replay(name: DialectName) -> None:
    assert words(shown(heard(name, EVENTS))) == words(shown(replayed(name, TALK, BLOCKS)))


pieces = st.builds(
    Delta,
    type=st.sampled_from(["delta", "delta", "reset"]),
    channel=st.sampled_from(["answer", "notes", "thinking"]),
    text=st.sampled_from(["Sen", "cha ", "I ask ", "first.", "", "x"]),
)


@pytest.mark.parametrize("name", sorted(IN_PARTS))
@examples(60)
@given(stream=streams(pieces))
def test_no_piece_and_no_reset_changes_what_a_listener_has_in_the_end(
    name: DialectName, stream: Sequence[Event]
) -> None:
    expected = words(
        shown(replayed(name, TALK, [item for item in stream if isinstance(item, Block)]))
    )
    assert sorted(words(shown(heard(name, stream)))) == sorted(expected)
