"""A message is written as Python writes a dataclass: digests that older versions stored are made of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopline.models import AssistantMessage, ToolMessage, UserMessage

TEXTS = st.text() | st.text(st.characters(max_codepoint=127)) | st.text("ab'\"\\\n\t\x00\x7f")


@given(TEXTS)
def test_the_texts_of_a_message_are_written_as_python_writes_them(text: str) -> None:
    assert repr(UserMessage(text=text)) == f"UserMessage(text={text!r})"
    assert repr(AssistantMessage(text=text)) == f"AssistantMessage(text={text!r}, calls=())"
    answer = ToolMessage(call_id="c1", name="desk.look", text=text)
    assert (
        repr(answer) == f"ToolMessage(call_id='c1', name='desk.look', text={text!r}, ok={True!r})"
    )


@given(TEXTS)
def test_the_bytes_made_of_a_message_are_no_part_of_it(text: str) -> None:
    sent, unsent = UserMessage(text=text), UserMessage(text=text)
    sent.wire["messages"] = text.encode("utf-8", "replace")
    assert not unsent.wire
    assert (sent, hash(sent), repr(sent)) == (unsent, hash(unsent), repr(unsent))
