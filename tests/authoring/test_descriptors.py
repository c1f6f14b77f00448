"""A descriptor says which tools and skills a bundle has; what is wrong in it is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import BundleError
from loopline.bundle import (
    LoadedBundle,
    load,
    load_mcp_selections,
    load_runtimes,
    load_skills,
    load_tools,
)
from tests.authoring.bundle_files import SPECS, TOOLS, guide, line_of

SKILL = "---\nname: Tea\ndescription: How to make tea.\n---\nBoil water.\n"


def bundle(folder: Path, files: dict[str, str]) -> LoadedBundle:
    return load(guide(folder, files))


def tools_of(folder: Path, descriptor: str, files: dict[str, str] | None = None) -> list[str]:
    files = {**(files or {}), "tools_descriptor.py": descriptor}
    return list(load_tools("guide.tools_descriptor", bundle(folder, files)))


def skills_of(folder: Path, descriptor: str, files: dict[str, str] | None = None) -> list[str]:
    files = {**(files or {}), "skills_descriptor.py": descriptor}
    loaded = bundle(folder, files)
    return [skill.full_id for skill in load_skills("guide.skills_descriptor", loaded)]


def check_refused(folder: Path, descriptor: str, line: str, said: str, name: str) -> None:
    """Whether the descriptor is refused for what stands on a line of it."""
    read = tools_of if name == "tools_descriptor" else skills_of
    with pytest.raises(BundleError) as raised:
        read(folder, descriptor, {"skills/public/tea/SKILL.md": SKILL})
    location = line_of(folder / "guide" / f"{name}.py", line)
    assert str(raised.value).startswith(f"{location}: ")
    assert said in str(raised.value)


def test_tools_are_listed_in_the_order_of_the_source(tmp_path: Path) -> None:
    more = TOOLS + TOOLS.replace("find", "fetch") + TOOLS.replace("find", "buy")
    assert tools_of(tmp_path, SPECS, {"tools.py": more}) == ["shop.find", "shop.fetch", "shop.buy"]


def test_tools_come_from_files_and_from_modules(tmp_path: Path) -> None:
    descriptor = """
        TOOLS_SPECS = [
            {"ref": "inner/tools.py", "alias": "a"},
            {"module": "guide.tools", "alias": "b"},
            {"module": f"{__package__}.tools", "alias": "c"},
        ]
    """
    files = {"inner/tools.py": TOOLS}
    assert tools_of(tmp_path, descriptor, files) == ["a.find", "b.find", "c.find"]


def test_a_tool_with_an_underscore_is_private(tmp_path: Path) -> None:
    text = f"{TOOLS}\n_hidden = find\nagain = find\n" + TOOLS.replace("def find", "def _own")
    assert tools_of(tmp_path, SPECS, {"tools.py": text}) == ["shop.find"]


def test_no_module_means_no_tools(tmp_path: Path) -> None:
    assert list(load_tools("", bundle(tmp_path, {}))) == []


def test_a_runtime_that_works_may_be_named(tmp_path: Path) -> None:
    descriptor = f'{SPECS}MCP_TOOL_SPECS = []\nTOOL_RUNTIME = {{"shop.find": "local"}}\n'
    assert tools_of(tmp_path, descriptor) == ["shop.find"]


def test_tools_that_run_programs_may_have_backends_of_their_own(tmp_path: Path) -> None:
    named = '{"exec.python": "fargate", "exec.shell": "process", "shop.find": "local"}'
    loaded = bundle(tmp_path, {"tools_descriptor.py": f"{SPECS}TOOL_RUNTIME = {named}\n"})
    assert list(load_tools("guide.tools_descriptor", loaded)) == ["shop.find"]
    runtimes = load_runtimes("guide.tools_descriptor", loaded)
    assert runtimes == {"exec.python": "fargate", "exec.shell": "process"}


@pytest.mark.parametrize(
    ("descriptor", "line", "message"),
    [
        ('TOOL_SPECS = [{"ref": "tools.py"}]', "TOOL_SPECS", "nearest is TOOLS_SPECS"),
        ("TOOLS_SPECS = 3", "TOOLS_SPECS", "TOOLS_SPECS must be a list such as"),
        ("TOOLS_SPECS: list = [\n    3,\n]", "3", "3 must be a dict"),
        (
            'TOOLS_SPECS = [\n    {"ref": "tools.py", "alais": "shop"},\n]',
            "alais",
            "the key 'alais' is unknown, nearest is 'alias'",
        ),
        (
            'TOOLS_SPECS = [\n    {"ref": "tools.py", "alias": "shop", "use_sk": True},\n]',
            "use_sk",
            "the key 'use_sk' is unknown",
        ),
        ('TOOLS_SPECS = [\n    {"ref": "tools.py"},\n]', "ref", "is incomplete: write"),
        ('TOOLS_SPECS = [\n    {"alias": "shop"},\n]', "alias", "is incomplete: write"),
        (
            'TOOLS_SPECS = [\n    {"ref": "tools.py", "module": "x", "alias": "shop"},\n]',
            "ref",
            "is incomplete: write",
        ),
        ('TOOLS_SPECS = [{"ref": 3, "alias": "shop"}]', "ref", "is incomplete: write"),
        ('TOOLS_SPECS = [{"ref": "tools.py", "alias": "a.b"}]', "ref", "'a.b' cannot be an alias"),
        ('TOOLS_SPECS = [{"ref": "tools.py", "alias": "react"}]', "ref", "and not one of react"),
        (
            'TOOLS_SPECS = [\n    {"ref": "__init__.py", "alias": "a"},\n]',
            "ref",
            "no function in '__init__.py' is decorated with @tool",
        ),
        (f"{SPECS}TOOL_RUNTIME = []", "TOOL_RUNTIME", "must be a dict"),
        (f"{SPECS}TOOL_RUNTIMES = {{}}", "TOOL_RUNTIMES", "nearest is TOOL_RUNTIME"),
        (
            f'{SPECS}TOOL_RUNTIME = {{\n    "shop.fnd": "local",\n}}',
            "shop.fnd",
            "there is no tool 'shop.fnd', nearest is 'shop.find'",
        ),
        (
            f'{SPECS}TOOL_RUNTIME = {{\n    "shop.find": "dockr",\n}}',
            "shop.find",
            "cannot run in 'dockr', nearest is 'docker'",
        ),
        (
            f'{SPECS}TOOL_RUNTIME = {{\n    "shop.find": "docker",\n}}',
            "shop.find",
            "'shop.find' cannot run in 'docker': only 'local' works",
        ),
        (
            f'{SPECS}TOOL_RUNTIME = {{\n    "exec.python": "fargat",\n}}',
            "exec.python",
            "'exec.python' cannot run in 'fargat', nearest is 'fargate'",
        ),
    ],
)
def test_a_wrong_tools_descriptor_is_told_with_its_line(
    tmp_path: Path, descriptor: str, line: str, message: str
) -> None:
    check_refused(tmp_path, descriptor, line, message, "tools_descriptor")


LONGER = {
    "others in it": "others = [{}, {}]\n{name} = [\n    *others,\n    {},\n]\n",
    "others in a tuple": "others = [{}, {}]\n{name} = (\n    *others,\n    {},\n)\n",
    "items added": "{name} = []\n{name} += [{}, {}]\n{name}.append({})\n",
}
"""Lists that have three items when they are read, and fewer where they are written."""
ENTRIES = {
    "TOOLS_SPECS": ['{"ref": "tools.py", "alias": "a"}', '{"ref": "tools.py", "alias": "b"}'],
    "MCP_TOOL_SPECS": ['{"server_id": "a"}', '{"server_id": "b"}'],
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("text", LONGER.values(), ids=LONGER)
def test_a_wrong_entry_of_a_list_that_grew_is_told_with_the_line_of_the_list(
    tmp_path: Path, text: str, name: str
) -> None:
    descriptor = text.format(*ENTRIES[name], 3, name=name)
    loaded = bundle(tmp_path, {"tools_descriptor.py": descriptor})
    read = load_tools if name == "TOOLS_SPECS" else load_mcp_selections
    with pytest.raises(BundleError) as raised:
        read("guide.tools_descriptor", loaded)
    location = line_of(tmp_path / "guide" / "tools_descriptor.py", f"{name} = ")
    assert str(raised.value).startswith(f"{location}: 3 ")


@pytest.mark.parametrize("text", LONGER.values(), ids=LONGER)
def test_a_list_of_servers_that_grew_is_read(tmp_path: Path, text: str) -> None:
    name, last = "MCP_TOOL_SPECS", '{"server_id": "c"}'
    descriptor = text.format(*ENTRIES[name], last, name=name)
    loaded = bundle(tmp_path, {"tools_descriptor.py": descriptor})
    selections = load_mcp_selections("guide.tools_descriptor", loaded)
    location = line_of(tmp_path / "guide" / "tools_descriptor.py", f"{name} = ")
    assert selections is not None
    assert [(item.alias, item.location) for item in selections] == [
        (alias, location) for alias in "abc"
    ]


def test_a_descriptor_without_specs_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"tools_descriptor\.py: TOOLS_SPECS must be a list"):
        tools_of(tmp_path, "")


@pytest.mark.parametrize("where", ['"ref": "tols.py"', '"module": "guide.tols"'])
def test_tools_that_are_not_there_are_told_with_who_asked(tmp_path: Path, where: str) -> None:
    with pytest.raises(BundleError) as raised:
        tools_of(tmp_path, f'TOOLS_SPECS = [\n    {{{where}, "alias": "a"}},\n]')
    location = line_of(tmp_path / "guide" / "tools_descriptor.py", "alias")
    assert str(raised.value).endswith(f"(asked for at {location})")
    assert "nearest are '" in str(raised.value)


def test_a_tool_without_a_schema_is_told_with_its_line(tmp_path: Path) -> None:
    tools = TOOLS.replace("name: str", "name: object()")
    with pytest.raises(BundleError) as raised:
        tools_of(tmp_path, SPECS, {"tools.py": tools})
    assert str(raised.value).startswith(line_of(tmp_path / "guide" / "tools.py", "@tool"))


def test_skills_are_found_without_a_descriptor(tmp_path: Path) -> None:
    loaded = bundle(tmp_path, {"skills/public/tea/SKILL.md": SKILL})
    assert [skill.full_id for skill in load_skills("", loaded)] == ["public.tea"]
    assert list(load_skills("", bundle(tmp_path / "none", {}))) == []


@pytest.mark.parametrize(
    ("descriptor", "expected"),
    [
        ("", ["public.tea"]),
        ("CUSTOM_SKILLS_ROOT = None", []),
        ('CUSTOM_SKILLS_ROOT = "more"', ["custom.tea"]),
        (
            "from pathlib import Path\nCUSTOM_SKILLS_ROOT = Path(__file__).parent / 'more'",
            ["custom.tea"],
        ),
        ('AGENTS_CONFIG = {"react": {"disabled": ["public.*"]}}', []),
        ('AGENTS_CONFIG = {"solver.react.decision.v2": {"enabled": ["tea"]}}', ["public.tea"]),
        ('AGENTS_CONFIG = {"other": {"enabled": []}}', ["public.tea"]),
    ],
)
def test_a_skills_descriptor_says_which_there_are(
    tmp_path: Path, descriptor: str, expected: list[str]
) -> None:
    files = {"skills/public/tea/SKILL.md": SKILL, "more/tea/SKILL.md": SKILL}
    assert skills_of(tmp_path, descriptor, files) == expected


def test_a_consumer_that_is_not_here_is_warned_of(tmp_path: Path) -> None:
    descriptor = 'AGENTS_CONFIG = {\n    "solver": {},\n}\n'
    loaded = bundle(tmp_path, {"skills_descriptor.py": descriptor})
    location = line_of(tmp_path / "guide" / "skills_descriptor.py", "solver")
    warnings = load_skills("guide.skills_descriptor", loaded).warnings
    assert warnings == (f"{location}: the consumer 'solver' is unknown",)


@pytest.mark.parametrize(
    ("descriptor", "line", "message"),
    [
        ("AGENT_CONFIG = {}", "AGENT_CONFIG", "nearest is AGENTS_CONFIG"),
        ("CUSTOM_SKILLS_ROOT = 3", "CUSTOM_SKILLS_ROOT", "3 must be a path or None"),
        ('CUSTOM_SKILLS_ROOT = "skils"', "CUSTOM_SKILLS_ROOT", "there is no folder"),
        ("AGENTS_CONFIG = []", "AGENTS_CONFIG", 'write {"solver.react.decision.v2":'),
        ("AGENTS_CONFIG = {3: {}}", "AGENTS_CONFIG", "3 is not a name of a consumer"),
        (
            'AGENTS_CONFIG = {"react": {}, "solver.react.decision.v2": {}}',
            "AGENTS_CONFIG",
            "or is repeated",
        ),
        ('AGENTS_CONFIG = {"react": []}', "AGENTS_CONFIG", "must have"),
        (
            'AGENTS_CONFIG = {"react": {"enable": []}}',
            "AGENTS_CONFIG",
            "the unknown key 'enable', nearest is 'enabled'",
        ),
        (
            'AGENTS_CONFIG = {"react": {"enabled": [], "disabled": []}}',
            "AGENTS_CONFIG",
            "has both enabled and disabled",
        ),
        ('AGENTS_CONFIG = {"react": {"enabled": "tea"}}', "AGENTS_CONFIG", "must list patterns"),
        ('AGENTS_CONFIG = {"react": {"enabled": [3]}}', "AGENTS_CONFIG", "must list patterns"),
        (
            'AGENTS_CONFIG = {\n    "other": {"enabled": ["public.tee"]},\n}',
            "other",
            "no skill is called 'public.tee', nearest is 'public.tea'",
        ),
    ],
)
def test_a_wrong_skills_descriptor_is_told_with_its_line(
    tmp_path: Path, descriptor: str, line: str, message: str
) -> None:
    check_refused(tmp_path, descriptor, line, message, "skills_descriptor")
