"""`loopline chat` asks at the terminal what a server asks; where nobody can answer, the question is declined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopline import LooplineError
from loopline.cli.question_form import QuestionForm
from loopline.events import Delta
from loopline.models import Json
from tests.authoring.bundle_files import write
from tests.doors.command import Loopline
from tests.doors.terminal import Terminal
from tests.mcp.served import sdk

BUNDLE = """
    from loopline import BaseWorkflow, Bundle
    from loopline.testing import Call, Say, ScriptedModel

    class Asking(BaseWorkflow):
        async def process(self, payload):
            model = ScriptedModel([Call("mcp.calc.choose"), Say("It is chosen.")])
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
    question = Delta(type="pending", channel="tool", text="Which?", call_id="c1", data=schema)
    return QuestionForm(question)


def test_each_field_is_answered_by_a_line() -> None:
    asked, is_complete = form(FORM), False
    assert [line.plain for line in asked.lines] == [
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
        terminal.see("It is chosen.")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert "accept: green" in result_of(asking, "c1")


def test_a_question_is_declined_where_nobody_can_answer(asking: Loopline) -> None:
    ran = asking("run", "asking", "tea", "-c", "c1")
    assert ran.code == 0, ran.err
    assert "decline: " in result_of(asking, "c1")
