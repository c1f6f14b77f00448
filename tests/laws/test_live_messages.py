"""Live messages: what is encoded is decoded, in however many parts; what is malformed is nothing."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from loopline.conversations import live_messages
from loopline.events import Delta
from loopline.timeline import ConversationKey
from tests.support.examples import examples

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
DELTAS = st.builds(
    live_messages.LiveDelta,
    at=st.integers(0, 99),
    type=st.sampled_from(["delta", "reset", "custom"]),
    channel=st.sampled_from(["answer", "notes"]),
    text=TEXTS,
    data=st.none() | st.dictionaries(TEXTS, st.integers(-9, 9), max_size=3),
)
EVENTS = st.builds(
    live_messages.TurnEvents,
    process=st.just("0a1b"),
    conversation=st.just("digest"),
    run=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    number=st.integers(0, 9),
    turn=st.integers(0, 9),
    head=st.integers(0, 99),
    deltas=st.lists(DELTAS, max_size=9),
)


def read(reader: live_messages.MessageReader, texts: list[str]) -> list[live_messages.LiveMessage]:
    return [message for text in texts if (message := reader.read(text)) is not None]


@given(events=st.lists(EVENTS, max_size=3), limit=st.integers(200, 2_000))
@examples(100)
def test_messages_arrive_as_they_were_sent_in_parts_that_fit(
    events: list[live_messages.TurnEvents], limit: int
) -> None:
    ids = count()
    texts = [
        text for message in events for text in live_messages.encode_message(message, limit, ids)
    ]
    assert all(len(text.encode()) <= limit for text in texts)
    assert read(live_messages.MessageReader(), texts) == events


@given(text=TEXTS | TEXTS.map(lambda text: f"~0a {text}") | TEXTS.map(lambda text: f'["{text}"]'))
@examples(300)
def test_a_malformed_text_is_nothing(text: str) -> None:
    assert live_messages.MessageReader().read(text) is None


@given(event=EVENTS, lost=st.integers(0, 20))
@examples(100)
def test_a_message_of_which_a_part_is_lost_is_nothing_and_the_next_one_is_read(
    event: live_messages.TurnEvents, lost: int
) -> None:
    ids = count()
    texts = live_messages.encode_message(event, 200, ids)
    rest = [text for index, text in enumerate(texts) if index != lost % len(texts)]
    reader = live_messages.MessageReader()
    assert read(reader, rest) == []
    assert read(reader, live_messages.encode_message(event, 200, ids)) == [event]


def test_a_message_that_is_too_long_is_not_sent() -> None:
    delta = live_messages.LiveDelta(
        at=1, type="delta", channel="answer", text="x" * live_messages.LARGEST_MESSAGE
    )
    events = live_messages.TurnEvents("p", "d", (1, 1), 1, 1, 1, [delta])
    assert live_messages.encode_message(events, 7_900, count()) == []


def test_a_deeply_nested_text_is_nothing() -> None:
    assert live_messages.MessageReader().read("[" * 100_000) is None


def test_a_delta_keeps_its_values_and_an_unknown_type_is_nothing() -> None:
    delta = Delta(type="custom", channel="tool", text="a\ud800", name="n", data={"x": [1]})
    decoded = live_messages.LiveDelta.encode(3, delta).decode()
    assert decoded == Delta(
        type="custom", channel="tool", text="a\\ud800", name="n", data={"x": [1]}
    )
    assert live_messages.LiveDelta(at=1, type="missed", channel="").decode() is None


def test_the_name_of_a_conversation_is_not_sent() -> None:
    key = ConversationKey(name="secret")
    other = ConversationKey(name="secret", user="eve")
    [text] = live_messages.encode_message(
        live_messages.NewInput("p", live_messages.conversation_digest(key)), 200, count()
    )
    assert "secret" not in text
    assert live_messages.conversation_digest(key) != live_messages.conversation_digest(other)
