"""Replies in pieces: calls from servers of every habit, and thoughts cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.models import Json
from loopline.providers.openai_chat import ThinkTagParser
from loopline.providers.reply_parser import CallPiece, ToolCallParser

Piece = tuple[int | None, str, str, Json]
WANTED = [("look", {"name": "tea"}), ("look", {"name": "pie"})]
HABITS: dict[str, list[Piece]] = {
    "in order": [
        (0, "a", "look", ""),
        (0, "", "", '{"name":'),
        (0, "", "", '"tea"}'),
        (1, "b", "look", '{"name":"pie"}'),
    ],
    "interleaved": [
        (0, "a", "look", '{"na'),
        (1, "b", "look", '{"name":'),
        (0, "", "", 'me":"tea"}'),
        (1, "", "", '"pie"}'),
    ],
    "always index 0": [
        (0, "a", "look", '{"name":"tea"}'),
        (0, "b", "look", '{"name":'),
        (0, "", "", '"pie"}'),
    ],
    "index 0 and no ids": [
        (0, "", "look", '{"name":"tea"}'),
        (0, "", "look", '{"name":"pie"}'),
    ],
    "no index": [(None, "a", "look", '{"name":"tea"}'), (None, "b", "look", '{"name":"pie"}')],
    "objects, not texts": [(0, "a", "look", {"name": "tea"}), (1, "b", "look", {"name": "pie"})],
    "the name again in every piece": [
        (0, "a", "look", '{"name":'),
        (0, "a", "look", '"tea"}'),
        (1, "b", "look", '{"name":"pie"}'),
    ],
}


def read(pieces: Sequence[Piece]) -> ToolCallParser:
    calls = ToolCallParser()
    for index, provider_id, name, arguments in pieces:
        calls.add(CallPiece(index, provider_id, name, arguments))
    return calls


@pytest.mark.parametrize("pieces", HABITS.values(), ids=HABITS)
def test_calls_are_put_together_whatever_the_habits_of_the_server(pieces: list[Piece]) -> None:
    calls, problem = read(pieces).finish()
    assert [(call.name, call.arguments) for call in calls] == WANTED
    assert problem == ""


@pytest.mark.parametrize("written", ['{"name": "te', "[1]", "tea", '{"name": "tea"} and more'])
def test_arguments_that_cannot_be_read_are_a_problem_and_no_call(written: str) -> None:
    calls, problem = read([(0, "a", "look", written)]).finish()
    assert calls == ()
    assert "call of look cannot be read" in problem


def test_a_call_without_arguments_has_none() -> None:
    calls, problem = read([(0, "a", "look", None)]).finish()
    assert (calls[0].arguments, problem) == ({}, "")


@given(
    st.text(alphabet="ab>/think <\n", max_size=30),
    st.text(alphabet="cd<\n", max_size=30),
    st.data(),
)
def test_thoughts_and_text_are_told_apart_however_they_are_cut(
    thought: str, text: str, data: st.DataObject
) -> None:
    thought = thought.replace("<", "")
    whole_text = f"<think>{thought}</think>{text}"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole_text)), max_size=8)))
    tags, record = ThinkTagParser(), {"thinking": "", "answer": ""}
    pieces = [whole_text[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole_text)], strict=True)]
    for piece in pieces:
        for delta in tags.feed(piece):
            record[delta.channel] += delta.text
    for delta in tags.close():
        record[delta.channel] += delta.text
    assert record["thinking"] == thought
    assert record["answer"] == text.lstrip("\n")


def test_a_tag_within_the_text_is_text() -> None:
    tags = ThinkTagParser()
    heard = [*tags.feed("use <think> here"), *tags.close()]
    assert [(delta.channel, delta.text) for delta in heard] == [("answer", "use <think> here")]
