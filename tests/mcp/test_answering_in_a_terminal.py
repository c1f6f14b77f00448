"""`loopline chat` asks at the terminal what a server asks; where nobody can answer, the question is declined."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from loopline import LooplineError
from loopline.cli.turn_display import QuestionForm
from loopline.models import Json
from loopline.server import app
from tests.authoring.bundle_files import write
from tests.doors.command import Loopline, wait_for
from tests.doors.terminal import Terminal
from tests.mcp.served import sdk
from tests.support.live_server import refusing

BUNDLE = """
    from loopline import BaseWorkflow, Bundle
    from loopline.testing import Call, Say, ScriptedModel

    class Asking(BaseWorkflow):
        async def process(self, payload):
            calls = [Call("mcp.calc.choose")] * (2 if "two" in payload.text else 1)
            model = ScriptedModel([Say("", *calls), Say("It is chosen.")])
            react = await self.build_react(model=model, select_tools=False)
            return await react.run(payload)

    bundle = Bundle(id="asking", workflow=Asking)
"""
FORM: Json = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["green", "black"]},
        "cups": {"type": "integer", "default": 1},
        "milk": {"type": "boolean"},
        "note": {"type": "string"},
    },
}


def form(schema: Json) -> QuestionForm:
    return QuestionForm("c1", "Which?", schema)


def test_each_field_is_answered_by_a_line() -> None:
    asked, is_complete = form(FORM), False
    assert [line.plain for line in (asked.question, asked.prompt)] == [
        "? c1 Which?",
        "  kind (green | black):  (- declines)",
    ]
    for wrong, right in (("red", "green"), ("two", ""), ("perhaps", "yes"), (None, "hot")):
        if wrong is not None:
            with pytest.raises(LooplineError):
                asked.take(wrong)
        is_complete = asked.take(right)
    assert is_complete
    assert asked.answer == {"kind": "green", "cups": 1, "milk": True, "note": "hot"}


@pytest.mark.parametrize(
    ("line", "value"), [("2", 2), ("0.5", 0.5), ("true", True), ("many", "many")]
)
def test_a_choice_without_a_type_is_the_value_that_the_form_has(line: str, value: Json) -> None:
    asked = form({"type": "object", "properties": {"cups": {"enum": [0.5, 2, True, "many"]}}})
    with pytest.raises(LooplineError, match=r"choose one of 0\.5, 2, true, many"):
        asked.take("3")
    assert asked.take(line)
    assert asked.answer == {"cups": value}


def test_a_question_without_fields_is_answered_with_yes_or_no() -> None:
    asked = form(None)
    with pytest.raises(LooplineError):
        asked.take("perhaps")
    assert asked.take("yes")
    assert asked.answer is True


@pytest.fixture
def asking(tmp_path: Path) -> Loopline:
    folder = write(tmp_path, {"asking/__init__.py": BUNDLE}) / "asking"
    servers: Json = {"mcpServers": {"calc": sdk()}}
    (folder / ".mcp.json").write_text(json.dumps(servers), "utf-8")
    return Loopline(tmp_path, {})


def result_of(asking: Loopline, name: str) -> str:
    [result] = [block for block in asking.blocks(name) if block["type"] == "react.tool.result"]
    return json.dumps(result)


def test_a_question_is_answered_in_a_chat(asking: Loopline) -> None:
    with Terminal(asking, "chat", "asking", "-c", "c1") as terminal:
        terminal.see("\n>")
        terminal.type("tea\r")
        terminal.see("calc asks: Which tea")
        terminal.type("green\r")
        terminal.see("2 rounds")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert "accept: green" in result_of(asking, "c1")


def test_the_next_question_is_shown_when_the_first_is_answered_elsewhere(asking: Loopline) -> None:
    with Terminal(asking, "chat", "asking", "-c", "c1") as terminal:
        terminal.see("\n>")
        terminal.type("two teas\r")
        terminal.see("calc asks: Which tea")
        wait_for(lambda: len(open_questions(asking)) == 2)
        first, second = ("c1", "c2") if "? c1" in terminal.text else ("c2", "c1")
        assert f"? {second}" not in terminal.text
        assert asking("answer", "-c", "c1", first, "kind=black").code == 0
        terminal.see(f"? {second} calc asks: Which tea")
        terminal.type("green\r")
        terminal.see("2 rounds")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    results = {
        block["body"]["call_id"]: block["body"]["text"]
        for block in asking.blocks("c1")
        if block["type"] == "react.tool.result"
    }
    assert results == {first: "accept: black", second: "accept: green"}


def open_questions(asking: Loopline) -> list[str]:
    """The ids of the calls that ask now."""
    document = asking("answer", "-c", "c1", "--json").value
    return [question["call_id"] for question in document["questions"]]


def test_a_signal_ends_a_chat_with_its_servers_and_sets_the_terminal_back(asking: Loopline) -> None:
    with Terminal(asking, "chat", "asking", "-c", "c1") as terminal:
        terminal.see("\n>")
        assert not terminal.echoes
        terminal.type("tea\r")
        terminal.see("calc asks: Which tea")
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.echoes
    assert "stopped" in result_of(asking, "c1")


def test_a_question_is_declined_where_nobody_can_answer(asking: Loopline) -> None:
    ran = asking("run", "asking", "tea", "-c", "c1")
    assert ran.code == 0, ran.err
    assert "decline: " in result_of(asking, "c1")


def test_a_question_is_answered_from_another_process(asking: Loopline) -> None:
    with Terminal(asking, "run", "asking", "tea", "-c", "c1") as terminal:
        terminal.see("loopline answer -c c1 c1 kind=")
        listed = asking("answer", "-c", "c1", "--json")
        wrong = asking("answer", "-c", "c1", "c1", "colour=green")
        elsewhere = asking("answer", "-c", "c1", "c9", "yes")
        answered = asking("answer", "-c", "c1", "c1", "kind=green")
        terminal.see("2 rounds")
        assert terminal.end() == 0
    [question] = json.loads(listed.out)["questions"]
    assert (question["call_id"], "Which tea" in question["question"]) == ("c1", True)
    assert (wrong.code, "'colour=green' is not one of the fields: kind" in wrong.err) == (2, True)
    assert (elsewhere.code, "no running call 'c9' asks anything: c1" in elsewhere.err) == (1, True)
    assert (answered.code, "c1 has its answer" in answered.err) == (0, True)
    assert "accept: green" in result_of(asking, "c1")
    late = asking("answer", "-c", "c1", "c1", "kind=black")
    assert (late.code, "asks anything: none does" in late.err) == (1, True)


def test_the_command_that_answers_names_the_store_and_the_user(asking: Loopline) -> None:
    options = ("--store", "sqlite:///own.db", "--user", "ann")
    with Terminal(asking, "run", "asking", "tea", "-c", "c1", *options) as terminal:
        terminal.see(f"loopline answer -c c1 {' '.join(options)} c1 kind=")
        answered = asking("answer", "-c", "c1", *options, "c1", "kind=green")
        terminal.see("2 rounds")
        assert terminal.end() == 0
    assert (answered.code, "c1 has its answer" in answered.err) == (0, True)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["kind=green", "milk=no"], {"kind": "green", "milk": False}),
        (["kind=a=b"], "choose one of green, black"),
        (["kind=green", "cups=two"], "'two' is not of the type integer"),
        (["note=hot"], "a value is missing: kind"),
        (["green"], "'green' is not one of the fields"),
    ],
)
def test_the_words_of_a_command_are_the_fields_of_a_form(words: list[str], answer: Json) -> None:
    assert isinstance(FORM, dict)
    asked = form({**FORM, "required": ["kind", "cups"]})
    if isinstance(answer, str):
        with pytest.raises(LooplineError, match=answer):
            asked.take_values(words)
    else:
        asked.take_values(words)
        assert asked.answer == answer


def test_one_field_and_no_field_are_answered_by_a_word() -> None:
    alone = form({"type": "object", "properties": {"kind": {"type": "string"}}})
    alone.take_values(["green"])
    plain = form(None)
    plain.take_values(["yes"])
    assert (alone.answer, plain.answer) == ({"kind": "green"}, True)


def test_a_question_whose_answer_was_not_sent_is_asked_again(asking: Loopline) -> None:
    served = app(
        asking.folder / "asking",
        store="memory:",
        properties={"mcp.file": str(asking.folder / "asking" / ".mcp.json")},
    )
    with (
        refusing(served) as (url, refused),
        Terminal(asking, "chat", "--server", url, "-c", "c1") as terminal,
    ):
        terminal.see("\n>")
        terminal.type("tea\r")
        terminal.see("calc asks: Which tea")
        refused.add("answers")
        terminal.type("green\r")
        terminal.see("error: it is refused")
        wait_for(lambda: terminal.screen.count("calc asks: Which tea") == 2)
        refused.clear()
        terminal.type("black\r")
        terminal.see("2 rounds")
        terminal.type("/quit\r")
        assert terminal.end() == 0
