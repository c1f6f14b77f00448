"""Of a typed answer `output` is the value, its text reads as that, and listeners have heard it, in every way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from loopline import Bundle, Harness, models
from loopline.events import Delta, PartialOutput
from loopline.models.output import JsonText
from loopline.prompt import protocol
from loopline.react import ANSWER_TOOL, result
from loopline.react.loop_options import ProtocolChoice
from loopline.timeline import Completion, Timeline, citations
from tests.strategies import json_values, numbers

TEXTS = st.text(max_size=12).filter(lambda text: not text.startswith('"')) | st.sampled_from(
    ["a [[S:1]] b", "`x`", '"', "\\", "```", "[1]", "{"]
)


class Leaf(BaseModel):
    """A leaf."""

    name: str
    weight: float | None = None


@dataclass(frozen=True)
class Branch:
    """A branch, which may hold others."""

    leaves: list[int]
    tag: Literal["a", "b"] = "a"
    below: list[Branch] = field(default_factory=list["Branch"])


BRANCHES: st.SearchStrategy[Branch] = st.recursive(
    st.builds(Branch, leaves=st.lists(st.integers(0, 9), max_size=2), tag=st.sampled_from(["a", "b"])),
    lambda inner: st.builds(Branch, leaves=st.just([1]), below=st.lists(inner, max_size=2)),
    max_leaves=3,
)  # fmt: skip
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Leaf, st.builds(Leaf, name=TEXTS, weight=st.none() | numbers)),
    (Branch, BRANCHES),
    (list[int], st.lists(st.integers(), max_size=4)),
    (dict[str, str], st.dictionaries(TEXTS, TEXTS, max_size=3)),
    (int, st.integers()),
    (str, TEXTS),
    (Literal["yes", "no"], st.sampled_from(["yes", "no"])),
    (bool | None, st.none() | st.booleans()),
]
Way = tuple[ProtocolChoice, models.Capabilities]
SCHEMA = models.Capabilities(json_schema=True, schema_beside_tools=True)
WAYS: list[Way] = [
    ("auto", SCHEMA),
    ("auto", models.Capabilities()),
    ("json", models.Capabilities()),
    ("tagged", models.Capabilities()),
    ("thought_action", models.Capabilities()),
]


@dataclass
class Writer:
    """A model that gives one answer, written in some way and in pieces."""

    capabilities: models.Capabilities
    json: str
    value: models.Json
    plain: bool
    size: int
    name: str = "writer"

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        if any(tool.name == ANSWER_TOOL for tool in prompt.tools):
            arguments = self.value if isinstance(self.value, dict) else {}
            wrapped = prompt.tools[-1].parameters.get("required") == ["value"]
            record = {"value": self.value} if wrapped else arguments
            yield models.Reply(calls=(models.ToolCall(name=ANSWER_TOOL, arguments=record),))
            return
        text = protocol(prompt.options.protocol).render_answer(self.json).text
        if prompt.options.protocol == "json" and self.plain:
            text = f'{{"action": "final_answer", "notes": "n", "answer": {self.json}}}'
        if prompt.options.protocol == "native" and self.plain:
            text = f"\n```json\n{self.json}\n```"
        for at in range(0, len(text), self.size):
            yield models.TextDelta(text=text[at : at + self.size])
        yield models.Reply(text=text)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Any, Any]:
    kind, values = draw(st.sampled_from(KINDS))
    return kind, draw(values)


@settings(deadline=None)
@given(
    answers(), st.sampled_from(WAYS), st.booleans(), st.integers(1, 9), st.sampled_from([None, 2])
)
@example((str, "```"), WAYS[1], True, 1, None)
async def test_the_output_is_the_value_and_the_text_reads_as_it(
    answer: tuple[Any, Any], way: Way, plain: bool, size: int, indent: int | None
) -> None:
    (kind, value), (spoken, capabilities) = answer, way
    type_ = models.OutputType[Any](kind)
    text = type_.dump(value)
    model = Writer(capabilities, _spaced(text, indent), _loaded(text), plain, size)
    growing = PartialOutput[Any](kind)
    heard_text = ""
    async with Harness.open(Bundle(id="b"), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("?", output_type=kind, protocol=spoken):
            growing.feed(event)
            match event:
                case Delta(type="delta", channel="answer", text=piece):
                    heard_text += piece
                case Delta(type="reset", channel="answer"):
                    heard_text = ""
                case _:
                    pass
        document = await talk.export()
    async with Harness.open(Bundle(id="b"), store="memory:", model=model) as harness:
        blocks = await (await harness.load(document)).blocks()
    [body] = [block.body for block in blocks if isinstance(block.body, Completion)]
    read = result(Timeline(blocks), 1, "complete", output=type_)
    assert (body.text, body.schema_sha256) == (text, type_.sha256)
    assert heard_text == citations.resolve(text, citations.Marks({}), newest=0)
    assert (read.output, growing.output) == (value, value)
    assert read.output == type_.read(body.text)


@given(
    json_values,
    st.sampled_from([None, 1]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(["", " ", "\n!"]),
)
def test_the_text_of_a_value_is_read_off_what_is_being_written(
    value: models.Json, indent: int | None, size: int, wrapped: bool, behind: str
) -> None:
    whole = _spaced(models.dumps({"value": value} if wrapped else value), indent) + (behind or " ")
    reader = JsonText(wrapped=wrapped)
    text = "".join(reader.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    assert (text, reader.is_over) == (models.dumps(value), True)


def _loaded(text: str) -> models.Json:
    loaded: models.Json = models.OutputType[Any](Any).read(text)
    return loaded


def _spaced(text: str, indent: int | None) -> str:
    """The same JSON with white space, if any is wanted."""
    return (
        text if indent is None else json.dumps(json.loads(text), indent=indent, ensure_ascii=False)
    )
