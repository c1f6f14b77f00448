"""The mistakes of a newcomer, and the error that each gets: the file, the line, and what to write."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loopline import Bundle, Harness, LooplineError
from loopline.testing import ScriptedModel
from tests.doors.command import Loopline

BEGINNING = '''from loopline import Agent, BaseWorkflow, Bundle, ModelSettings, TurnPayload, TurnResult, tool
from loopline.guards import ApprovalLimits, ask_before


@tool(effect="read")
def steep(tea: str) -> str:
    """Return how long a tea steeps."""
    return "3 minutes"


'''
NOW = datetime.now(UTC)
LINE = BEGINNING.count("\n") + 1
"""The line of the first statement after the beginning."""


def bundle(keywords: str) -> str:
    """The code of a bundle with these keywords."""
    return f'bundle = Bundle(id="tea", {keywords})\n'


def decorated(keywords: str, parameter: str = "tea: str") -> str:
    """The code of a bundle whose tool is decorated with these keywords."""
    head = f'@tool({keywords})\ndef brew({parameter}) -> str:\n    """Brew."""\n    return ""\n\n\n'
    return head + bundle("tools=[brew]")


def workflow(statement: str) -> str:
    """The code of a bundle whose `process` has this statement, two lines below the class."""
    head = "class Tea(BaseWorkflow):\n    async def process(self, payload: TurnPayload) -> TurnResult:\n"
    return f"{head}        {statement}\n\n\n{bundle('workflow=Tea, tools=[steep]')}"


def crew(call: str) -> str:
    """The code of a bundle with an agent `reader`, whose `process` makes this call."""
    agents = 'agents=[Agent(name="reader", description="Reads.", instructions="Read.")]'
    return workflow(f"await self.{call}").replace("tools=[steep]", agents)


def attribute(line: str) -> str:
    """The code of a bundle whose workflow class has this line."""
    return f"class Tea(BaseWorkflow):\n    {line}\n\n\n{bundle('workflow=Tea')}"


BEFORE = "class Before:\n    async def before(self, call: object) -> None: ...\n\n\n"
"""A class with one of the two methods of a guard."""
MISTAKES = [
    # Names that are misspelt, or imported from the wrong place.
    ("from loopline import Bundel\n", 0, "from 'loopline': nearest is 'Bundle'"),
    ("from loopline import rate_limits\n", 0, ": nearest is 'rate_limit' of loopline.guards"),
    ("from loopline.guards import ask_befor\n", 0, ": nearest is 'ask_before'"),
    ("from loopline.gards import ask_before\n", 0, ": nearest is 'loopline.guards'"),
    ("import loopline\nloopline.Bundel\n", 1, "no attribute 'Bundel': nearest is 'Bundle'"),
    (bundle("tools=[stepp]"), 0, "name 'stepp' is not defined: nearest is 'steep'"),
    # Keywords.
    (bundle('instruction="x"'), 0, "no parameter 'instruction', nearest is 'instructions'"),
    (bundle("tool=[steep]"), 0, "no parameter 'tool', nearest is 'tools'"),
    (bundle("settings=ModelSettings(temprature=0)"), 0, "nearest is 'temperature'"),
    (bundle('agents=[Agent(name="a", instruction="")]'), 0, "nearest is 'instructions'"),
    (decorated('effects="read"'), 0, "argument 'effects': nearest is 'effect'"),
    (workflow("await self.keep(nam='x', value=1)"), 2, "argument 'nam': nearest is 'name'"),
    (workflow("await self.build_react(instruction='')"), 2, "nearest is 'instructions'"),
    (workflow("await self.build_react(max_iteration=3)"), 2, "nearest is 'max_iterations'"),
    (workflow('await self.build_react(tools=["m.x"])'), 2, "'m.x', the known names are mcp.*, "),
    (workflow('await self.build_react(tools_module="tea.tools")'), 2, "no module 'tea.tools'"),
    ('bundle = Bundle("tea")\n', 0, "Bundle takes keywords: write Bundle(id=…)"),
    # Values.
    (bundle('tools=[steep(tea="x")]'), 0, "must be a function, not '3 minutes': write its name"),
    (bundle("tools=steep"), 0, "must be a list of functions, not <tool steep"),
    (bundle('limits={"max_iteration": 3}'), 0, "nearest is 'max_iterations'"),
    (bundle('limits={"max_iterations": "3"}'), 0, "max_iterations must be 1 or more"),
    (bundle('preset="chatlci"'), 0, "no preset 'chatlci', nearest is 'chatcli'"),
    (bundle('settings={"temperature": 0}'), 0, "must be ModelSettings, not {'temperature': 0}"),
    (bundle('agents=["reader"]'), 0, "an item of Bundle(agents=…) must be an Agent, not 'reader'"),
    (bundle("model=5"), 0, "must be a model string such as openai:gpt-5"),
    (bundle('knowledge={"rpo": ""}'), 0, "'knowledge.rpo', nearest is 'knowledge.repo'"),
    (decorated('effect="reads"'), 0, "has the effect 'reads', nearest is 'read'"),
    (decorated('effect="write", key="f:{pth}"'), 0, "no parameter 'pth'"),
    (decorated('effect="read"', "tea"), 0, "has no type for 'tea': annotate it"),
    (decorated('effect="read"', "*teas: str"), 0, "takes '*teas', but a call gives each argument"),
    (BEFORE + decorated('effect="read"', "tea: Before"), 4, "Before'> (use types with a JSON form"),
    # What restricts a bundle.
    (bundle('guards=ask_before(["tea.*"])'), 0, "must be a list of guards"),
    (bundle("guards=[ask_before]"), 0, "must be a guard such as ask_before([…])"),
    (
        BEFORE + bundle("guards=[Before()]"),
        4,
        "an object of the class Before, which has no after()",
    ),
    (BEFORE + bundle("round_hooks=[Before()]"), 4, "function, not an object of the class Before"),
    (bundle('tools=[steep], guards=[ask_before(["tea.stepp"])]'), 0, "nearest is 'tea.steep'"),
    (bundle('tools=[steep], approve=["tea.stepp"]'), 0, "nearest is 'tea.steep'"),
    (bundle("tools=[steep], approve=[steep]"), 0, "must be the name of a tool"),
    (
        bundle('tools=[steep], approvals=ApprovalLimits(tools=["tea.stepp"])'),
        0,
        "ApprovalLimits(tools=…): no tool is called 'tea.stepp', nearest is 'tea.steep'",
    ),
    (attribute("gaurds = []"), 1, "Tea.gaurds is unknown, nearest is 'guards'"),
    # Hooks and workflows.
    (bundle("pre_run_hook=lambda: None"), 0, "is called with (workflow, payload)"),
    (attribute("def process(self, payload): ..."), 1, "Tea.process must be `async def`"),
    (workflow("return None"), 1, "Tea.process returned None: return the last result of"),
    (workflow("return self.answer('x')"), 1, "returned a coroutine: is `await` missing?"),
    (workflow("return self.build_react().run(payload)"), 2, ": is `await` missing?"),
    (workflow("return await self.anwser('x')"), 2, "'anwser': nearest is 'answer'"),
    (workflow("return await self.answer(payload.txt)"), 2, "'txt': nearest is 'text'"),
    (workflow("return await self.answer(None)"), 2, "an answer must be a text, not None"),
    # Agents of a workflow.
    (
        crew("map('reeder', ['a'])"),
        2,
        "no agent 'reeder' in Bundle(agents=…) or the folder agents, n",
    ),
    (crew("map('reeder', [])"), 2, "nearest is 'reader'"),
    (crew("run('reeder', 'a')"), 2, "nearest is 'reader'"),
    (crew("map(None, ['a'])"), 2, "the agent must be its name or an Agent, not None"),
    (crew("map('reader', 'abc')"), 2, "must be a list of texts, not 'abc': put it in brackets"),
    (crew("map('reader', [1])"), 2, "a task must be a text, not 1"),
    (crew("map('reader', ['a'], limit='3')"), 2, "limit of map must be a whole number, not '3'"),
    (crew("map('reader', ['a'], context=3)"), 2, "context of an agent must be a text, not 3"),
    (crew("map('reader', ['a'], name=None)"), 2, "the name of a step must be a text, not None"),
    (crew("map('reader', ['a'], limits=3)"), 2, "argument 'limits': nearest is 'limit'"),
    (crew("run('reader', tasks='a')"), 2, "argument 'tasks': nearest is 'task'"),
]


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(("code", "below", "problem"), MISTAKES)
async def test_a_mistake_is_an_error_with_its_file_and_line_that_says_what_to_write(
    tmp_path: Path, code: str, below: int, problem: str
) -> None:
    file = tmp_path / "tea.py"
    file.write_text(BEGINNING + code)
    model = None if "model=" in code else ScriptedModel(["Three."], strict=False)
    with pytest.raises(LooplineError) as raised:
        async with Harness.open(file, store="memory:", model=model) as harness:
            await harness.conversation("c1").say("How long?")
    assert str(raised.value).startswith(f"{file}:{LINE + below}: ")
    assert problem in str(raised.value)
    del raised
    if "await" in problem:
        await asyncio.sleep(0)  # the event loop still has the error that it has just raised here
        gc.collect()  # a coroutine warns when it is collected: in this test, not in a later one


def test_there_are_thirty_of_them() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["rnu", "tea.py", "Hi."], "run"),
        (["run", "tae.py", "Hi."], "nearest is 'tea.py'"),
        (["tool", "tea.py", "tea.stepp"], "tea.steep"),
        (["run", "tea.py", "Hi.", "--prop", "react.memserch=true"], "react.memsearch"),
        (["run", "tea.py", "Hi.", "--modle", "offline"], "--model"),
    ],
)
def test_a_mistake_at_the_command_line_gets_the_nearest_name(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    (tmp_path / "tea.py").write_text(BEGINNING + bundle("tools=[steep]"))
    ran = Loopline(tmp_path)(*arguments)
    assert ran.code in (1, 2)
    assert problem in ran.err
    assert "Traceback" not in ran.err


Send = Callable[[Any], Awaitable[object]]
CALLS: list[tuple[Send, str]] = [
    (lambda talk: talk.say("Hi.", temperature=0.2), "settings=ModelSettings(temperature=…)"),
    (lambda talk: talk.resume(True), "by call id, such as {'c1': True}, not True"),
    (lambda talk: talk.resume({"c1": True}), "this conversation has not begun"),
    (lambda talk: talk.schedule("Hi.", at="tomorrow"), "at is a datetime, not 'tomorrow'"),
    (lambda talk: talk.schedule("Hi.", at=NOW, delay=3), "give at or delay, not both"),
]


@pytest.mark.parametrize(("send", "problem"), CALLS)
async def test_a_mistake_in_a_call_of_a_conversation_says_what_to_write(
    send: Send, problem: str
) -> None:
    model = ScriptedModel([], strict=False)
    async with Harness.open(Bundle(id="tea"), store="memory:", model=model) as harness:
        with pytest.raises(LooplineError) as raised:
            await send(harness.conversation("c1"))
    assert problem in str(raised.value)


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/talk.db"])
async def test_a_message_after_the_harness_is_closed_is_refused(tmp_path: Path, store: str) -> None:
    url, model = store.format(tmp_path), ScriptedModel(["One."])
    async with Harness.open(Bundle(id="tea"), store=url, model=model) as harness:
        talk = harness.conversation("c1")
        await talk.say("one")
    for call in (talk.say("LATE"), talk.submit("LATE"), talk.resume()):
        with pytest.raises(LooplineError, match="the harness is closed"):
            await call


def test_check_names_the_line_of_a_process_that_is_not_async(tmp_path: Path) -> None:
    (tmp_path / "tea.py").write_text(BEGINNING + attribute("def process(self, payload): ..."))
    err = Loopline(tmp_path)("check", "tea.py").err
    assert f"tea.py:{LINE + 1}: Tea.process must be `async def`" in err


def test_an_unusable_result_of_a_tool_is_described_once(tmp_path: Path) -> None:
    code = BEGINNING.replace("-> str:", "-> object:").replace('"3 minutes"', "object()")
    (tmp_path / "tea.py").write_text(code + bundle("tools=[steep]"))
    err = Loopline(tmp_path)("tool", "tea.py", "tea.steep", '{"tea": "oolong"}').err
    assert err.count("returned a value that is not allowed") == 1
    assert "tea.py:5" in err


def test_check_shows_what_a_decorator_says_of_calls(tmp_path: Path) -> None:
    code = decorated('effect="read", approve=True, background=True')
    (tmp_path / "tea.py").write_text(BEGINNING + code)
    shown = Loopline(tmp_path)("check", "tea.py").out
    assert "read · needs approval · in the background" in shown


def test_check_shows_types_as_authors_wrote_them(tmp_path: Path) -> None:
    parameter = 'kind: Literal["black", "green"], grams: int | None = None'
    code = "from typing import Literal\n" + decorated('effect="read"', parameter)
    (tmp_path / "tea.py").write_text(BEGINNING + code)
    shown = Loopline(tmp_path)("check", "tea.py").out
    assert "kind: Literal['black', 'green'], grams?: int | None" in shown


def test_check_shows_types_beside_a_context_that_only_type_checkers_import(tmp_path: Path) -> None:
    head = "from __future__ import annotations\nfrom typing import TYPE_CHECKING, Annotated\n"
    context = "if TYPE_CHECKING:\n    from loopline import ToolContext\n"
    parameters = 'minutes: Annotated[int, "how long"], context: ToolContext'
    (tmp_path / "tea.py").write_text(
        head + BEGINNING + context + decorated('effect="read"', parameters)
    )
    assert "brew(minutes: int)" in Loopline(tmp_path)("check", "tea.py").out
