"""Each protocol reads what it writes, and a tagged text comes apart the same however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, product
from typing import Protocol

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loopline.models import AssistantMessage, ProtocolName, Reply, ToolCall
from loopline.prompt import Answer, Calls, DecisionProtocol, protocol
from loopline.prompt.protocols.tags import ChannelSplitter, Element
from tests.strategies import json_objects, texts
from tests.support.examples import sampled
from tests.support.rows import each_row

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
    read = spoken.decode(said(spoken.render_calls(notes, made)))
    assert read == Calls(notes.strip(), tuple(made))


@given(protocols, anything)
def test_an_answer_is_read_as_it_was_written(spoken: DecisionProtocol, text: str) -> None:
    assume(text.strip())
    read = spoken.decode(said(spoken.render_answer(text)))
    assert isinstance(read, Answer)
    assert (read.notes, read.text.strip()) == ("", text.strip())


@given(protocols, anything)
def test_any_text_at_all_is_read(spoken: DecisionProtocol, text: str) -> None:
    spoken.decode(Reply(text=text))


def together(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    runs = groupby(pieces, key=lambda piece: piece[0])
    return [(channel, "".join(text for _, text in run)) for channel, run in runs]


class AnySplitter(Protocol):
    """What takes a text in pieces apart."""

    def feed(self, text: str) -> Sequence[tuple[Element | str, str]]: ...

    def close(self) -> Sequence[tuple[Element | str, str]]: ...


def cut(splitter: AnySplitter, pieces: list[str]) -> list[tuple[str, str]]:
    given = [*(item for piece in pieces for item in splitter.feed(piece)), *splitter.close()]
    named = [(of.name if isinstance(of, Element) else of, text) for of, text in given if text]
    return together(named)


SPLITTERS: list[Callable[[], AnySplitter]] = [
    ChannelSplitter,
    *(protocol(name).splitter for name in NAMES),
]


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(text=anything, size=st.integers(1, 9))
def test_a_text_comes_apart_the_same_however_it_is_cut(
    splitter: Callable[[], AnySplitter], text: str, size: int
) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert cut(splitter(), pieces) == cut(splitter(), [text]) == cut(splitter(), list(text))


def heard(spoken: DecisionProtocol, text: str) -> dict[str, str]:
    """What is heard of a reply that is written letter by letter, by channel."""
    texts = dict[str, str]()
    for channel, piece in cut(spoken.splitter(), list(text)):
        texts[channel] = texts.get(channel, "") + piece
    return texts


@given(protocols, anything)
@example(protocol("json"), "\\ud83c")
@example(protocol("json"), "🍵\\n\\u00e9")
def test_an_answer_is_heard_as_it_is_read(spoken: DecisionProtocol, text: str) -> None:
    assume(text.strip())
    written = said(spoken.render_answer(text))
    read = spoken.decode(written)
    assert isinstance(read, Answer)
    assert heard(spoken, written.text) == {"answer": read.text.strip()}


@given(protocols, anything, st.lists(calls, min_size=1, max_size=3))
def test_notes_beside_calls_are_heard_as_they_are_read(
    spoken: DecisionProtocol, notes: str, made: list[ToolCall]
) -> None:
    assume(not notes.strip().startswith("```") or spoken.name != "tagged")
    texts = heard(spoken, spoken.render_calls(notes, made).text)
    # What follows a text is not known in native while it is written.
    channel = "answer" if spoken.name == "native" else "notes"
    assert texts == ({channel: notes.strip()} if notes.strip() else {})


def test_two_sections_of_a_channel_are_heard_as_two_with_nothing_between_them() -> None:
    written = "".join(f"<channel:answer>{text}</channel:answer>" for text in ("Tea.", "Milk."))
    spoken = protocol("tagged")
    assert heard(spoken, written) == {"answer": "Tea.\n\nMilk."}
    assert spoken.decode(Reply(text=written)) == Answer("", "Tea.\n\nMilk.")


def test_an_escape_that_takes_two_is_one_character_however_it_is_cut() -> None:
    written = '{"answer": "a\\ud83c\\udf75b\\ud83c", "notes": "\\u00e9\\u00zz\\q"}'
    spoken = protocol("json")
    assert heard(spoken, written) == {"answer": "a🍵b\\ud83c", "notes": "é\\u00zz\\q"}
    read = spoken.decode(Reply(text=written))
    assert read == Answer("é\\u00zz\\q", "a🍵b\\ud83c")


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
    ("<channel:answer>a</channel:answ b</channel:answer >c",
     [("answer", "a</channel:answ b"), ("", "c")]),
    ("<channel:answer>a</channel:answer b</channel:answer>", [("answer", "a</channel:answer b")]),
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


@each_row(TEXTS)
def test_channels_are_told_apart(text: str, parts: list[tuple[str, str]]) -> None:
    assert cut(ChannelSplitter(), [text]) == parts
    assert cut(ChannelSplitter(), list(text)) == parts


HARD = ["<", "<channel:", "<channel:a>", "</channel:a>", "<tool_call ", "\\", "'''", '"', "{", "<\\",
        "<tool_call name='x'>{}", "Action: x\nAction Input: {}\n", "Thought: ", "\n", " ",
        "a", "a=", "a =", "```", "``` ", '\\"', "**", "\\Action:"]  # fmt: skip


@pytest.mark.parametrize("piece", sampled(HARD, 4))
def test_two_hundred_kilobytes_of_anything_are_decided(piece: str) -> None:
    heads = ["", "<channel:code>", "<channel:answer>", "<tool_call name='x'>", "<tool_call "]

    @each_row(product(NAMES, heads))
    def decode(name: ProtocolName, head: str) -> None:
        protocol(name).decode(Reply(text=head + piece * (200_000 // len(piece))))

    decode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thought_action", "Action: a\nAction Input: {}\nFinal Answer: Made up."),
        ("thought_action", "Action: a\nAction Input: {}\nObservation: 1\nFinal Answer: Made up."),
        ("tagged", '<tool_call name="a">{}</tool_call><channel:answer>Made up.</channel:answer>'),
        ("tagged", '<tool name="a" args="{}">{}</tool><channel:canvas>Made up.</channel:canvas>'),
    ],
)
def test_an_answer_behind_a_call_is_not_heard(name: ProtocolName, text: str) -> None:
    assert heard(protocol(name), text) == {}
    read = protocol(name).decode(Reply(text=text))
    assert isinstance(read, Calls)
    assert read.discarded.endswith("Made up.")
