"""Each protocol reads what it writes, and a tagged text comes apart the same however it is cut."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loopline.models import AssistantMessage, ProtocolName, Reply, ToolCall
from loopline.prompt import (
    Answer,
    Calls,
    ChannelSplitter,
    DecisionProtocol,
    ThoughtSplitter,
    protocol,
)
from tests.strategies import json_objects, texts

NAMES: list[ProtocolName] = ["native", "json", "tagged", "thought_action"]
protocols = st.sampled_from([protocol(name) for name in NAMES])

marks = st.sampled_from(
    [
        *(
            "</channel:answer>",
            "<channel:code>",
            "<\\channel:x",
            "<tool_call name='x'>",
            "</tool_call>",
        ),
        *(
            "<agent_call ",
            "<",
            "\\",
            "```",
            "```json\n{}\n```",
            '{"action":"final_answer","answer":"x"}',
        ),
        *(
            "Thought: x",
            "\nAction: y\n",
            "Action Input: {}",
            "\nObservation: z",
            "\n**Final Answer:** ",
        ),
        *("\\Action: ", '"', "'''", "\n", "# ", "✓ [1] done"),
    ]
)
anything = st.lists(marks | texts, max_size=6).map("".join)
"""Any text, and very often one that looks like the marks of a protocol."""
codes = anything.map(lambda text: {"code": text, "n": 1})
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["play.look", "react.plan", "a-b_c", 'x"y<z>&', "back\\slash"]),
    arguments=json_objects | codes | st.dictionaries(st.just("text"), anything),
)


def said(message: AssistantMessage) -> Reply:
    return Reply(text=message.text, calls=message.calls)


@given(protocols, anything, st.lists(calls, min_size=1, max_size=3))
@example(
    protocol("tagged"), "", [ToolCall(name="x", arguments={"code": "a = '</channel:code>'\n"})]
)
@example(protocol("tagged"), "", [ToolCall(name="x", arguments={"code": "```\na\n```"})])
@example(protocol("tagged"), "", [ToolCall(name="x", arguments={"code": "it's\n</channel:code>"})])
def test_calls_are_read_as_they_were_written(
    spoken: DecisionProtocol, notes: str, made: list[ToolCall]
) -> None:
    assume(not notes.strip().startswith("```") or spoken.name != "tagged")
    read = spoken.decode(said(spoken.called(notes, made)))
    assert read == Calls(notes.strip(), tuple(made))


@given(protocols, anything)
def test_an_answer_is_read_as_it_was_written(spoken: DecisionProtocol, text: str) -> None:
    assume(text.strip())
    read = spoken.decode(said(spoken.answered(text)))
    assert isinstance(read, Answer)
    assert (read.notes, read.text.strip()) == ("", text.strip())


@given(protocols, anything)
def test_any_text_at_all_is_read(spoken: DecisionProtocol, text: str) -> None:
    spoken.decode(Reply(text=text))


def together(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pieces with those of one channel that follow each other made one."""
    runs = groupby(pieces, key=lambda piece: piece[0])
    return [(channel, "".join(text for _, text in run)) for channel, run in runs]


def cut(splitter: ChannelSplitter | ThoughtSplitter, pieces: list[str]) -> list[tuple[str, str]]:
    given = [one for piece in pieces for one in splitter.feed(piece)]
    return together([*given, *splitter.close()])


@pytest.mark.parametrize("splitter", [ChannelSplitter, ThoughtSplitter])
@given(text=anything, size=st.integers(1, 9))
def test_a_text_comes_apart_the_same_however_it_is_cut(
    splitter: type[ChannelSplitter | ThoughtSplitter], text: str, size: int
) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert cut(splitter(), pieces) == cut(splitter(), [text]) == cut(splitter(), list(text))


@given(anything)
@example("<>")
def test_what_is_streamed_of_a_tagged_answer_is_the_answer(text: str) -> None:
    written = protocol("tagged").answered(text).text
    assert (
        "".join(part for name, part in cut(ChannelSplitter(), [written]) if name == "answer")
        == text
    )


@given(anything)
def test_what_is_streamed_of_a_final_answer_is_the_answer(text: str) -> None:
    written = protocol("thought_action").answered(text).text
    parts = [part for name, part in cut(ThoughtSplitter(), list(written)) if name == "answer"]
    assert "".join(parts).strip() == text.strip()


CODE = """def f(x):
    return "</channel:code>" + '''
</channel:code> ``` "''' + f"{d["a"]}"  # don't
"""

TEXTS: list[tuple[str, list[tuple[str, str]]]] = [
    ("plain", [("", "plain")]),
    ("<channel:thinking>a</channel:thinking>b", [("thinking", "a"), ("", "b")]),
    ("<CHANNEL:Answer>a</Channel:ANSWER >", [("answer", "a")]),
    (f"<channel:code>{CODE}</channel:code>", [("code", CODE)]),
    ("<channel:code>'</channel:code>\n</channel:code>", [("code", "'</channel:code>\n")]),
    ("<channel:code>x = ''</channel:code>", [("code", "x = ''")]),
    ("<channel:answer>it's</channel:answer>", [("answer", "it's")]),
    ("<channel:answer>a ```\n</b> < c", [("answer", "a ```\n</b> < c")]),
    ("<channel:new>a</channel:answer></channel:new>", [("new", "a</channel:answer>")]),
    ("<channel:answer>a<channel:code>b</channel:answer>", [("answer", "a<channel:code>b")]),
    ("<channel:decision>```json\n{\"a\": \"```</channel:decision>\"}\n```</channel:decision>",
     [("decision", '```json\n{"a": "```</channel:decision>"}\n```')]),
    ("<channel:bad name>x", [("", "<channel:bad name>x")]),
    ("<channel:", [("", "<channel:")]),
    ("<tool_call", [("", "<tool_call")]),
    ("<tool_calls>", [("", "<tool_calls>")]),
    ("<tool_call name='a>b' />x", [("", "x")]),
    ('<tool_call name="a">{"x": "</tool_call>"}</tool_call>',
     [("tool_call", '{"x": "</tool_call>"}')]),
    ("a<\\tool_call>b<\\\\channel:x", [("", "a<tool_call>b<\\channel:x")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), TEXTS)
def test_channels_are_told_apart(text: str, parts: list[tuple[str, str]]) -> None:
    assert cut(ChannelSplitter(), [text]) == parts
    assert cut(ChannelSplitter(), list(text)) == parts


HARD = ["<", "<channel:", "<channel:a>", "</channel:a>", "<tool_call ", "\\", "'''", '"', "{", "<\\",
        "<tool_call name='x'>{}", "Action: x\nAction Input: {}\n", "Thought: ", "\n", " ",
        "a", "a=", "a =", "```", "``` ", '\\"', "**", "\\Action:"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "head", ["", "<channel:code>", "<channel:answer>", "<tool_call name='x'>", "<tool_call "]
)
@pytest.mark.parametrize("piece", HARD)
def test_two_hundred_kilobytes_of_anything_are_decided(
    head: str, piece: str, name: ProtocolName
) -> None:
    protocol(name).decode(Reply(text=head + piece * (200_000 // len(piece))))
