"""A name in a setting that restricts a bundle is the name of something it has; an unknown one is an error with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from loopline import Agent, BaseWorkflow, Bundle, BundleError, Harness, LooplineError
from loopline.bundle import LOOP_TOOLS, Setting
from loopline.crew import GraphOptions, PlanFirst, Quality, Refine
from loopline.knowledge import Passage
from loopline.react import TurnPayload
from loopline.server import ApiKeys, DailyQuotas, Principal, add_key
from loopline.testing import Call, ScriptedModel
from loopline.timeline import TurnResult
from tests.authoring.bundle_files import line_of, write

TEA = '''
from loopline import Agent, BaseWorkflow, Bundle, tool
from loopline.guards import allow_only, ask_before
from loopline.guards import Guards, rate_limit
from loopline.react.extensions import cycle_warning


@tool(effect="write", key="shop")
def order(what: str) -> str:
    """Order tea."""
    return what


class Tea(BaseWorkflow):
    instructions = "Sell tea."
    ATTRIBUTE

    async def process(self, payload):
        STATEMENT
        react = await self.build_react(ARGUMENT)
        return await react.run(payload)


bundle = Bundle(id="tea", workflow=Tea, tools=[order], KEYWORD)
'''
PARTS = {
    "ATTRIBUTE": 'ready = "yes"',
    "STATEMENT": 'self.ready = "yes"',
    "ARGUMENT": "scratchpad={}",
    "KEYWORD": 'instructions=""',
}
SKILL = """---
name: Brewing
description: How to brew.
---
Boil.
"""
OTHERS = """
from loopline import tool

TOOLS_SPECS = [{"module": __name__, "alias": "more"}]


@tool
def order(what: str) -> str:
    \"\"\"Order more.\"\"\"
    return what
"""
NEAREST = ": no tool is called 'tea.ordr', nearest is 'tea.order'"
NO_TOOL = "ask_before: no tool is called "
AGENT = 'agents=[Agent(name="a", description="A.", {})]'
UNMATCHED = ": no tool matches 'tae.*', nearest is 'tea.*'"


def tea(
    folder: Path, part: str = "", code: str = "", files: Mapping[str, str] | None = None
) -> Path:
    """A bundle with a tool `tea.order` and a skill, with the code in one of its parts, and these files."""
    text = TEA
    for name, usual in PARTS.items():
        text = text.replace(name, code if name == part else usual)
    return write(
        folder / "tea", {"__init__.py": text, "skills/public/brew/SKILL.md": SKILL, **(files or {})}
    )


class Searching(BaseWorkflow):
    """A workflow whose loop can search."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(knowledge_space_fn=self.search)
        return await react.run(payload)

    async def search(self, query: str, *, limit: int = 5) -> list[Passage]:
        """Find nothing."""
        del query, limit
        return []


async def complaints(source: Path | Bundle) -> tuple[str, ...]:
    """What is wrong with a bundle that cannot be opened."""
    with pytest.raises(BundleError) as raised:
        async with Harness.open(source, store="memory:"):
            pass
    return raised.value.problems


OPENING: dict[str, dict[str, str]] = {
    "ATTRIBUTE": {
        'guards = [ask_before(["tea.ordr"])]': "ask_before" + NEAREST,
        'guards = [ask_before("tea.ordr")]': "ask_before" + NEAREST,
        'guards = (allow_only(["tea.ordr"]),)': "allow_only" + NEAREST,
        'guards = [rate_limit(1, ["tea.ordr"])]': "rate_limit" + NEAREST,
        'guards = [Guards((ask_before(["tea.ordr"]),))]': "ask_before" + NEAREST,
        'guards = [ask_before(["tae.*"])]': "ask_before" + UNMATCHED,
        'guards = [ask_before(["react.writ"])]': NO_TOOL + "'react.writ', nearest is 'react.write'",
        'guards = [ask_before(["crew.delegat"])]': NO_TOOL
        + "'crew.delegat', nearest is 'crew.delegate'",
        'guards = [ask_before(["Tea.order"])]': "nearest is 'tea.order'",
        'guards = [ask_before(["mcp.shop.order"])]': NO_TOOL
        + "'mcp.shop.order', the known names are",
        'guard = [ask_before(["tea.order"])]': "Tea.guard is unknown, nearest is 'guards'",
        'gaurd = [ask_before(["tea.order"])]': "Tea.gaurd is unknown, nearest is 'guards'",
        "GUARDS: list = []": "Tea.GUARDS is unknown, nearest is 'guards'",
        "guard = property(lambda self: [])": "Tea.guard is unknown, nearest is 'guards'",
        "round_hook = [cycle_warning()]": "nearest is 'round_hooks'",
        "middlewares = []": "nearest is 'middleware'",
    },
    "KEYWORD": {
        AGENT.format('tools=["tea.ordr"]'): "the agent 'a'" + NEAREST,
        AGENT.format('tools=["tae.*"]'): "the agent 'a'" + UNMATCHED,
        AGENT.format(
            'skills=["public.brw"]'
        ): "the agent 'a': no skill is called 'public.brw', nearest is 'public.brew'",
        AGENT.format(
            'limits={"max_cots": 1}'
        ): "limits: no limit 'max_cots', nearest is 'max_cost'",
        AGENT.format("tool=[]"): "'tool', nearest is 'tools'",
        "instruction=''": "Bundle has no parameter 'instruction', nearest is 'instructions'",
        "zzz=[]": "Bundle has no parameter 'zzz', the known names are ",
    },
    "ARGUMENT": {
        'tools=["tea.ordr"]': "build_react(tools=…)" + NEAREST,
        'tools=("tea.order", "tae.*")': "build_react(tools=…)" + UNMATCHED,
        "max_token=3": "no limit 'max_token', nearest is 'max_tokens'",
        'instruction=""': "build_react has no parameter 'instruction', nearest is 'instructions'",
    },
}


@pytest.mark.parametrize(
    ("part", "code", "problem"),
    [(part, *case) for part, cases in OPENING.items() for case in cases.items()],
)
async def test_a_name_in_the_code_is_refused_when_the_bundle_opens_with_its_line(
    tmp_path: Path, part: str, code: str, problem: str
) -> None:
    folder = tea(tmp_path, part, code)
    [found] = await complaints(folder)
    assert found.startswith(f"{line_of(folder / '__init__.py', code)}: ")
    assert problem in found


FILES = [
    (
        "loopline.yaml",
        "react_config:\n  tools: [tea.ordr]\n",
        "tools:",
        "react_config.tools" + NEAREST,
    ),
    (
        "loopline.yaml",
        "execution:\n  runtime: {enabled: false}\n  tools: ['tae.*']\n",
        "tools:",
        "execution.tools" + UNMATCHED,
    ),
    ("loopline.yaml", "react:\n  max_cots: 1\n", "max_cots", "nearest is 'react.max_cost'"),
    (
        "agents/reader.md",
        "---\nname: reader\ndescription: Reads.\ntools: [tea.ordr]\n---\n",
        "name:",
        "the agent 'reader'" + NEAREST,
    ),
    (
        "agents/reader.md",
        "---\nname: reader\ndescription: Reads.\nlimits: {max_cots: 1}\n---\n",
        "limits",
        "no limit 'max_cots', nearest is 'max_cost'",
    ),
    (
        "tools_descriptor.py",
        'TOOLS_SPECS = []\nTOOL_RUNTIME = {"tea.ordr": "local"}\n',
        "tea.ordr",
        "there is no tool 'tea.ordr', nearest is 'tea.order'",
    ),
    (
        "tools_descriptor.py",
        'TOOLS_SPECS = []\nMCP_TOOL_SPECS = [{"server_id": "clok"}]\n',
        "clok",
        "no server 'clok' in",
    ),
    (
        "skills_descriptor.py",
        'AGENTS_CONFIG = {"react": {"disabled": ["pubic.*"]}}\n',
        "pubic",
        "no skill is called 'pubic.*', nearest is 'public.brew'",
    ),
    (
        "skills_descriptor.py",
        'AGENTS_CONFIG = {"reactt": {"disabled": ["public.*"]}}\n',
        "reactt",
        "the consumer 'reactt' is unknown, nearest is 'react'",
    ),
]


@pytest.mark.parametrize(("file", "text", "line", "problem"), FILES)
async def test_a_name_in_a_file_is_refused_when_the_bundle_opens_with_its_line(
    tmp_path: Path, file: str, text: str, line: str, problem: str
) -> None:
    folder = tea(tmp_path, files={file: text})
    with pytest.raises(LooplineError) as raised:
        async with Harness.open(folder, store="memory:"):
            pass
    assert str(raised.value).startswith(f"{line_of(folder / file, line)}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("react_config.tools", ["tea.ordr"], "react_config.tools" + NEAREST),
        ("react.max_cots", 1, "no property 'react.max_cots', nearest is 'react.max_cost'"),
        ("privacy.redact", ["emial"], "nearest is 'email'"),
        ("execution.runtime.default_profile", "dockr", "nearest is 'docker'"),
        ("execution.runtime.mode", "dockr", "nearest is 'docker'"),
    ],
)
async def test_a_name_in_a_property_of_the_caller_is_refused_when_the_bundle_opens(
    tmp_path: Path, name: str, value: Setting, problem: str
) -> None:
    properties: dict[str, Setting] = {"execution.runtime.profiles": {"docker": {}}, name: value}
    with pytest.raises(LooplineError) as raised:
        async with Harness.open(tea(tmp_path), store="memory:", properties=properties):
            pass
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in sorted(LOOP_TOOLS)),
        ["tea.order"],
        ["tea.*"],
        ["*.order"],
        ["*"],
        ["mcp.*"],
        [],
    ],
)
async def test_a_guard_may_name_a_tool_that_this_loop_does_not_offer(
    tmp_path: Path, names: list[str]
) -> None:
    folder = tea(tmp_path, "ATTRIBUTE", f"guards = [ask_before({names})]")
    async with Harness.open(folder, store="memory:", model=ScriptedModel(["Ok."])) as harness:
        assert (await harness.conversation("c").say("Go", workspace="off")).answer == "Ok."


async def test_a_guard_may_name_a_tool_of_the_bundle_that_a_list_leaves_out(tmp_path: Path) -> None:
    folder = tea(tmp_path, "ARGUMENT", "tools=[]")
    text = (folder / "__init__.py").read_text()
    named = text.replace('ready = "yes"', 'guards = [ask_before(["tea.order"])]', 1)
    (folder / "__init__.py").write_text(named)
    async with Harness.open(folder, store="memory:", model=ScriptedModel(["Ok."])) as harness:
        assert (await harness.conversation("c").say("Go")).answer == "Ok."


IN_A_TURN = [
    ('self.guards = [ask_before(["tea.ordr"])]', "ask_before" + NEAREST),
    ('self.guards = [ask_before(["tae.*"])]', "ask_before" + UNMATCHED),
    ('self.guard = [ask_before(["tea.order"])]', "Tea.guard is unknown, nearest is 'guards'"),
    ('return await (await self.build_react(tools=list(["tea.ordr"]))).run(payload)', NEAREST),
    (
        'return await (await self.build_react(**{"max_token": 3})).run(payload)',
        "no limit 'max_token', nearest is 'max_tokens'",
    ),
]


@pytest.mark.parametrize(("code", "problem"), IN_A_TURN)
async def test_a_name_that_only_a_turn_knows_ends_the_turn_before_any_call(
    tmp_path: Path, code: str, problem: str
) -> None:
    folder = tea(tmp_path, "STATEMENT", code)
    model = ScriptedModel([Call("tea.order", what="milk"), "Ordered."], strict=False)
    async with Harness.open(folder, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        with pytest.raises(BundleError) as raised:
            await talk.say("Order")
        blocks = await talk.blocks()
    assert str(raised.value).startswith(f"{folder / '__init__.py'}:")
    assert problem in str(raised.value)
    assert not [block for block in blocks if block.type.startswith("react.tool")]


@pytest.mark.parametrize(
    ("name", "outcome"), [("more.order", "Ok."), ("more.ordr", "nearest is 'more.order'")]
)
async def test_a_guard_over_a_descriptor_that_only_a_turn_names_is_checked_by_the_turn(
    tmp_path: Path, name: str, outcome: str
) -> None:
    folder = tea(tmp_path, "ARGUMENT", 'tools_module=str("tea.others")', {"others.py": OTHERS})
    text = (folder / "__init__.py").read_text()
    guards = f'guards = [ask_before(["{name}"])]'
    (folder / "__init__.py").write_text(text.replace('ready = "yes"', guards, 1))
    model = ScriptedModel(["Ok."], strict=False)
    async with Harness.open(folder, store="memory:", model=model) as harness:
        try:
            said = (await harness.conversation("c").say("Go")).answer
        except BundleError as error:
            said = str(error)
    assert said.endswith(outcome)


async def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    folder = tea(
        tmp_path, "ATTRIBUTE", 'guards = [ask_before(["tea.ordr", "tea.odrer"])]; round_hook = []'
    )
    agent = "---\nname: a\ndescription: A.\ntools: [tea.oder]\n---\n"
    write(folder, {"agents/a.md": agent})
    problems = await complaints(folder)
    assert [problem.partition("nearest")[2] for problem in problems] == [
        " is 'round_hooks'",
        " is 'tea.order'",
        " is 'tea.order'",
        " is 'tea.order'",
    ]


async def test_the_names_of_the_loops_own_tools_are_those_that_it_offers(tmp_path: Path) -> None:
    agents = [Agent(name="a", description="A."), Agent(name="b", description="B.", leads=True)]
    quality = Quality(own_turns=True, plan_first=PlanFirst(), refine=Refine())
    (tmp_path / "docs").mkdir()
    everything = Bundle(
        id="tea",
        agents=agents,
        quality=quality,
        graph=GraphOptions(),
        configuration={
            "react": {"memory": True, "memsearch": True, "workspace": "latest"},
            "web": {"fetch": True},
        },
        workflow=Searching,
    )
    model = ScriptedModel(["Ok."] * 9, strict=False)
    async with Harness.open(everything, store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go", select_tools=False)
    offered = {tool.name for request in model.requests for tool in request.tools}
    others = {"react.background", "react.request_tools", "exec.python", "exec.shell", "web_search"}
    assert offered | others == LOOP_TOOLS


@pytest.mark.parametrize(
    ("quota", "near"), [("user_tokns=5", "user_tokens"), ("tenantcost=5", "tenant_cost")]
)
def test_an_unknown_quota_names_the_nearest(quota: str, near: str) -> None:
    with pytest.raises(LooplineError, match=f"nearest is '{near}'"):
        DailyQuotas.parse([quota])


def test_an_unknown_field_of_a_file_of_keys_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, Principal(user="ann"))
    file.write_text(file.read_text().replace('"expires"', '"expries"'))
    with pytest.raises(LooplineError, match=r"keys.json: .*'expries', nearest is 'expires'"):
        ApiKeys.read(file)
