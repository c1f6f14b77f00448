"""A turn whose answer is typed goes on in another process, which knows the type, or only its schema."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from loopline import Harness, LooplineError
from loopline.models.json_schema import json_form
from loopline.testing import Say, ScriptedModel
from tests.support.crashing_answers import BUNDLE, TEXT, Advice
from tests.support.warm_programs import warm_program

ROOT = Path(__file__).parents[2]


def killed(folder: Path, fate: str) -> str:
    """The store of a turn whose process died like this."""
    store = f"sqlite:///{folder}/talk.db"
    ran = subprocess.run(
        warm_program("-m", "tests.support.crashing_answers", store),
        cwd=ROOT,
        env={**os.environ, "FATE": fate},
        check=False,
    )
    assert ran.returncode == -9
    return store


def reader() -> ScriptedModel:
    return ScriptedModel([Say(TEXT)], json_schema=True, schema_beside_tools=True)


def test_without_the_type_the_same_is_asked_for_and_the_output_is_its_json(tmp_path: Path) -> None:
    store, model = killed(tmp_path, "in a tool"), reader()

    async def resume() -> object:
        async with Harness.open(BUNDLE, store=store, model=model) as harness:
            return (await harness.conversation("c1").resume()).output

    assert asyncio.run(resume()) == {"kind": "green", "minutes": 3}
    [request] = model.requests
    assert request.options.json_form == json_form("answer", Advice.model_json_schema())


def test_with_the_type_the_output_is_its_value(tmp_path: Path) -> None:
    store = killed(tmp_path, "in a tool")

    async def resume() -> Advice | None:
        async with Harness.open(BUNDLE, store=store, model=reader()) as harness:
            return (await harness.conversation("c1").resume(output_type=Advice)).output

    assert asyncio.run(resume()) == Advice(kind="green", minutes=3)


@pytest.mark.parametrize("kind", [Advice, dict[str, str | int], int])
def test_an_answer_that_was_kept_is_given_again_as_far_as_a_type_reads_it(
    tmp_path: Path, kind: type[object]
) -> None:
    store = killed(tmp_path, "answered")

    async def resume() -> object:
        async with Harness.open(BUNDLE, store=store, model=ScriptedModel([])) as harness:
            return (await harness.conversation("c1").resume(output_type=kind)).output

    if kind is int:
        with pytest.raises(LooplineError, match=r"turn_1 is Advice .* int .* does not read it"):
            asyncio.run(resume())
    else:
        value = Advice(kind="green", minutes=3)
        assert asyncio.run(resume()) in (value, value.model_dump())
