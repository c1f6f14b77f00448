"""A mistake in the code of an author is an error that says what to write, with file and line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import loopline
from loopline import BundleError, Harness
from loopline.bundle import load, load_tools
from loopline.hooks import ReactStateV2
from loopline.testing import ScriptedModel
from tests.support.warm_programs import warm_program

BEGINNING = '''from loopline import BaseWorkflow, Bundle
from loopline.crew import GraphOptions


def steep(minutes: int) -> int:
    """Steep the tea."""
    return minutes


class Tea(BaseWorkflow):
    pass


'''
LINE = BEGINNING.count("\n") + 1
MISTAKES = [
    ("tools=[steep(1)]", "an item of Bundle(tools=…) must be a function, not 1: write its name"),
    ("tools=steep", "Bundle(tools=…) must be a list of functions, not the function steep: put"),
    ('skills="skills/tea"', "Bundle(skills=…) must be a list of folders, not 'skills/tea'"),
    ("workflow=Tea()", "Tea is created for each turn: write workflow=Tea, without parentheses"),
    (
        "workflow=steep",
        "Bundle(workflow=…) must be a subclass of BaseWorkflow, not the function steep",
    ),
    ("instructions=5", "Bundle(instructions=…) must be a str, not 5"),
    ("configuration=[]", "Bundle(configuration=…) must be a dict, not []"),
    ("deps=5", "Bundle(deps=…) must be a function without parameters, not 5"),
    (
        "instruction=''",
        "TypeError: Bundle has no parameter 'instruction', nearest is 'instructions'",
    ),
    (
        "graph=GraphOptions(max_workers=0)",
        "GraphOptions(max_workers=…) must be a number of at least 1",
    ),
    (
        "graph=GraphOptions(files='rad')",
        "must be one of own, read, write, not 'rad', nearest is 'read'",
    ),
]


@pytest.mark.parametrize(("code", "problem"), MISTAKES)
def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path, code: str, problem: str) -> None:
    file = tmp_path / "tea.py"
    file.write_text(f'{BEGINNING}bundle = Bundle(id="tea", {code})\n')
    with pytest.raises(BundleError) as raised:
        load(file)
    assert str(raised.value).startswith(f"{file}:{LINE}: ")
    assert problem in str(raised.value)


def test_tools_of_one_name_are_refused_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "tea.py"
    file.write_text(f'{BEGINNING}bundle = Bundle(id="tea", tools=[steep, steep])\n')
    with pytest.raises(BundleError) as raised:
        load_tools("", load(file))
    line = BEGINNING.partition("def steep")[0].count("\n") + 1
    assert str(raised.value).startswith(f"two tools are called 'tea.steep', at {file}:{line}: ")


def test_an_unknown_name_of_loopline_is_refused_with_the_nearest(tmp_path: Path) -> None:
    unknown = "Bundel"
    with pytest.raises(AttributeError, match="no attribute 'Bundel': nearest is 'Bundle'"):
        getattr(loopline, unknown)
    file = tmp_path / "tea.py"
    file.write_text("from loopline import Bundel\n")
    with pytest.raises(BundleError, match=r"tea\.py:1: ImportError: .*: nearest is 'Bundle'$"):
        load(file)


SCRIPTS = [
    ("await conversation.say(5)", "a message must be a str, not 5"),
    ("await conversation.steer(None)", "a message must be a str, not None"),
    ("harness.conversation(5)", "the name of a conversation must be a str, not 5"),
    ("Harness.open(bundle, properties=[1])", "properties must be a dict, not [1]"),
    ("Harness.open(bundle, store=5)", "store must be a URL or a TimelineLog, not 5"),
    ("Harness.open(5)", "the bundle must be a path, a name or a Bundle, not 5"),
    (
        "with Harness.open(bundle): pass",
        "Harness is opened with `async with`, inside an `async def`",
    ),
    ("with Store.open('memory:'): pass", "Store is opened with `async with`"),
]


@pytest.mark.parametrize(("code", "problem"), SCRIPTS)
def test_a_wrong_call_in_a_script_is_refused_with_its_line(
    tmp_path: Path, code: str, problem: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from loopline import Bundle, Harness, Store\n"
        'bundle = Bundle(id="tea")\n'
        "async def main():\n"
        '    async with Harness.open(bundle, store="memory:") as harness:\n'
        '        conversation = harness.conversation("c")\n'
        f"        {code}\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(warm_program(f"{script}"), capture_output=True, text=True, check=False)
    assert f"BundleError: {script}:7: {problem}" in done.stderr


def test_a_state_for_the_tests_of_a_round_hook_is_that_of_a_turn_that_has_just_begun() -> None:
    state = ReactStateV2()
    assert (state.iteration, state.batches, state.answer) == (0, (), None)


async def test_a_round_hook_that_would_have_to_be_awaited_is_refused_with_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tea.py"
    file.write_text(
        "from loopline import BaseWorkflow, Bundle\n"
        "async def check(state):\n"
        "    return None\n"
        "class Tea(BaseWorkflow):\n"
        "    round_hooks = [check]\n"
        'bundle = Bundle(id="tea", workflow=Tea)\n'
    )
    problem = f"{file}:2: the round hook check must be `def`, not `async def`"
    async with Harness.open(file, store="memory:", model=ScriptedModel([])) as harness:
        with pytest.raises(BundleError, match=re.escape(problem)):
            await harness.conversation("c").say("go")
