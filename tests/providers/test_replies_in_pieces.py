"""Replies in pieces: calls from servers of every habit, and thoughts cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.errors import ModelReplyTooLarge
from loopline.models import Json, JsonObject, ReplyLimits, dumps
from loopline.providers.anthropic_messages import AnthropicReplyParser
from loopline.providers.failures import Credentials
from loopline.providers.openai_chat import ChatReplyParser, ThinkTagParser
from loopline.providers.reply_parser import CallPiece, ReplyParser, ToolCallParser
from tests.support.slow_patterns import superlinear

ACCOUNT = Credentials("m", "THE_KEY", "", "openai")
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


def test_a_name_in_every_piece_of_a_call_costs_no_more_than_the_pieces_are_long() -> None:
    def hear(text: str) -> None:
        read([(0, "", "look", piece) for piece in text])

    assert not superlinear(hear, lambda length: '{"a":"' + "}" * length)


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


@given(st.text(alphabet=" \n<think", max_size=12), st.data())
def test_white_space_before_an_answer_is_a_part_of_it_however_it_is_cut(
    text: str, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    tags = ThinkTagParser()
    deltas = [*tags.feed(text[:cut]), *tags.feed(text[cut:]), *tags.close()]
    assert "".join(delta.text for delta in deltas) == text


def test_white_space_before_a_reply_costs_no_more_than_it_is_long() -> None:
    def hear(text: str) -> None:
        tags = ThinkTagParser()
        for character in text:
            tags.feed(character)

    assert not superlinear(hear, lambda length: " " * length)


@pytest.mark.parametrize("beginning", ["", "<think>Hm.</think>"])
def test_white_space_that_may_not_be_shown_counts_as_a_part_of_a_reply(beginning: str) -> None:
    parser = ChatReplyParser((), ACCOUNT, "", "openai:m")
    assert is_too_large(parser, [said(beginning), *[said("\n" * 100)] * 11])
    parser = ChatReplyParser((), ACCOUNT, "", "openai:m")
    assert not is_too_large(parser, [said("Tea. " * 100), *[said(" ")] * 490])


def said(text: str) -> JsonObject:
    return {"choices": [{"delta": {"content": text}}]}


@pytest.mark.parametrize("kind", ["web_search_tool_result", "server_tool_use", "of_tomorrow"])
def test_a_block_of_a_tool_of_the_server_counts_as_a_part_of_a_reply(kind: str) -> None:
    block: JsonObject = {"type": kind, "content": [{"type": "text", "text": "tea" * 30}]}
    start: JsonObject = {"type": "content_block_start", "content_block": block}
    blocks: list[JsonObject] = [{**start, "index": number} for number in range(10)]
    assert is_too_large(AnthropicReplyParser((), ACCOUNT), blocks)
    assert not is_too_large(AnthropicReplyParser((), ACCOUNT), blocks[:3])


def is_too_large(parser: ReplyParser, events: Sequence[JsonObject]) -> bool:
    """Whether a reply of these events has more than 1,000 bytes."""
    for event in events:
        list(parser.feed(dumps(event)))
    try:
        parser.check_limits(ReplyLimits(bytes=1_000))
    except ModelReplyTooLarge:
        return True
    return False
