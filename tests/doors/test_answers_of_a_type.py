"""Typed answers on the command line: what `run`, `check` and `prompt` say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.command import Loopline, write

BUNDLE = {
    "advice.py": """from dataclasses import dataclass

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult
from loopline.testing import Say, ScriptedModel


@dataclass(frozen=True)
class Advice:
    kind: str
    minutes: int


class Adviser(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult[Advice]:
        answers = [Say('{"kind": "green", "minutes": 3}')]
        model = ScriptedModel(answers, json_schema=True, schema_beside_tools=True)
        react = await self.build_react(model=model, output_type=Advice)
        return await react.run(payload)


bundle = Bundle(id="advice", workflow=Adviser, output_type=Advice)
"""
}


@pytest.fixture
def adviser(tmp_path: Path) -> Loopline:
    write(tmp_path, BUNDLE)
    return Loopline(tmp_path)


def test_a_run_prints_the_value_and_check_and_prompt_its_type(adviser: Loopline) -> None:
    ran = adviser("run", "advice.py", "Green?", "-c", "c1", "--json").value
    assert ran["output"] == {"kind": "green", "minutes": 3}
    assert ran["answer"] == '{"kind":"green","minutes":3}'
    assert "Advice(kind: string, minutes: integer)" in adviser("check", "advice.py").out
    shown = adviser("prompt", "-c", "c1").out
    assert '"required":["kind","minutes"]' in shown.partition("form of the answer")[2]


def test_a_run_without_a_typed_answer_prints_none(tea: Loopline) -> None:
    assert tea("run", "guide", "How long is green tea steeped?", "--json").value["output"] is None
