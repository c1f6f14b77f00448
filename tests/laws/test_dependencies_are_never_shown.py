"""What dependencies hold is in no block, event, log line, span, cassette, document, error or repr that is made here."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import BaseWorkflow, Bundle, Harness, LooplineError, ToolContext, ToolError, tool
from loopline.harness.model_choice import Cassette
from loopline.models import JsonObject, ToolCall, dumps
from loopline.react import Allow, GuardedCall, Verdict
from loopline.testing import Call, Say, ScriptedModel
from tests.support.examples import examples
from tests.support.peers import openai_replies as oai
from tests.support.peers.call_replies import Call as Asked
from tests.support.peers.openai_like import openai_like
from tests.support.recording_observer import Watching

reprs: list[str] = []
"""What a tool and a guard that print everything they are given have printed."""


@dataclass
class Client:
    """A client whose every rendering shows its key."""

    key: str


class Open:
    """An object that shows its key whoever asks."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return self.key

    __str__ = __repr__


SHAPES: list[Callable[[str], object]] = [
    *(str, Client, Open),
    lambda key: {"key": [key]},
    lambda key: type(Client.__name__, (), {"__doc__": key, "key": key})(),
]


@tool(effect="read")
async def look(context: ToolContext[object], how: str) -> str:
    """Look at something."""
    reprs.append(repr(context))
    context.progress(f"looking with {context!r}")
    if how == "fails":
        raise ToolError(f"{context} failed")
    if how == "breaks":
        raise KeyError(context)
    if how == "asks":
        context.ask_user(f"May {context} look?")
    return str(context)


@tool(effect="write", key="{how}")
def change(how: str, context: ToolContext[object]) -> str:
    """Change something."""
    reprs.append(repr(context))
    if how == "breaks":
        raise ValueError(str(context))
    return f"{context}"


class Prints:
    async def before(self, call: GuardedCall) -> Verdict:
        reprs.append(repr(call))
        if call.arguments.get("how") == "guarded":
            raise ValueError(call)
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{text} {call}"


class Printing(BaseWorkflow[object]):
    tools = (look, change)
    guards = (Prints(),)


bundle = Bundle(id="shop", workflow=Printing)


def asked(name: str, how: str) -> ToolCall:
    return Call(f"shop.{name}", how=how)


HOWS = ["fails", "breaks", "guarded", "", "asks"]
calls = st.lists(
    st.builds(asked, st.sampled_from(["look", "change"]), st.sampled_from(HOWS)),
    max_size=4,
)
keys = st.text(st.sampled_from("abcdefgXYZ0123456789"), min_size=12).map("sk-".__add__)


async def rendered(deps: object, made: list[ToolCall]) -> list[str]:
    watching = Watching()
    model = ScriptedModel([Say("", *made), "Done."] if made else ["Done."], strict=False)
    harness = Harness.open(bundle, store="memory:", model=model, deps=deps, telemetry=watching)
    async with harness:
        talk = harness.conversation("c")
        events = [event async for event in talk.stream("Look.")]
        document: JsonObject = await talk.export()
        return [
            *(repr(value) for value in (harness, harness.bundle, talk, events, watching.spans)),
            *(repr(request) + str(request) for request in model.requests),
            dumps(document),
            *reprs,
        ]


@examples(60)
@given(key=keys, shape=st.sampled_from(SHAPES), made=calls)
def test_a_secret_in_them_is_nowhere_in_what_a_turn_leaves(
    key: str, shape: Callable[[str], object], made: list[ToolCall]
) -> None:
    heard = _Heard()
    logger = logging.getLogger("loopline")
    reprs.clear()
    logger.addHandler(heard)
    try:
        everything = asyncio.run(rendered(shape(key), made))
    finally:
        logger.removeHandler(heard)
    assert [item for item in [*everything, *heard.lines] if key in item] == []


@tool
def particular(context: ToolContext[Path]) -> None:
    """Be particular about what is given."""
    del context


@given(key=keys, shape=st.sampled_from(SHAPES))
@examples(20)
def test_a_secret_in_those_of_a_wrong_type_is_not_in_the_error(
    key: str, shape: Callable[[str], object]
) -> None:
    async def asked() -> str:
        wrong = Bundle(id="shop", tools=[particular])
        try:
            async with Harness.open(wrong, store="memory:", deps=shape(key)) as harness:
                await harness.conversation("c").say("Look.")
        except LooplineError as error:
            return "".join(traceback.format_exception(error))
        return ""

    shown = asyncio.run(asked())
    assert "asks for deps of the type Path" in shown
    assert key not in shown


async def test_a_secret_in_them_is_not_in_a_cassette() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        file = Path(folder) / "talk.jsonl"
        script = (oai.Says("I look.", calls=(_called(),)), oai.Says("Done."))
        async with openai_like(*script) as peer:
            environment.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
            environment.setenv("OPENAI_API_KEY", "sk-of-the-model")
            async with Harness.open(
                bundle,
                store=f"sqlite:///{folder}/talk.db",
                model="openai:m",
                deps=Open("sk-in-the-deps"),
                cassette=Cassette(file, mode="record"),
            ) as harness:
                assert (await harness.conversation("c").say("Look.")).ok
        files = contents(Path(folder))
        assert any(b"I look." in content for content in files)
        assert [content for content in files if b"sk-in-the-deps" in content] == []


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def _called() -> Asked:
    return Asked("shop__look", '{"how": ""}', "call_1")


class _Heard(logging.Handler):
    """Keeps what is logged, as it is formatted with its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
