"""A bundle is one file: instructions, tools, skills and knowledge, without workflow or descriptor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, BundleError, Harness, LooplineError, run_sync, tool
from loopline.bundle import descriptor_modules, load, load_skills, load_tools
from loopline.testing import Call, Say, ScriptedModel
from tests.support.git_repositories import commit
from tests.support.warm_programs import warm_program

SKILL = "---\nname: Brewing\ndescription: How to brew.\n---\nBoil the water.\n"


@tool(effect="read")
def steep(kind: str) -> str:
    """Say how long to steep a kind of tea."""
    return f"{kind}: 3 minutes"


def pour(cups: int) -> str:
    """Pour some cups."""
    return f"{cups} poured"


def undescribed(cups: int) -> str:
    return str(cups)


class Tea(BaseWorkflow):
    instructions = "The class says this."
    tools = (pour,)


def names(bundle: Bundle) -> list[str]:
    return list(load_tools("", load(bundle)))


async def test_a_bundle_without_a_workflow_answers_with_its_own_tools() -> None:
    bundle = Bundle(id="tea", instructions="You know tea.", tools=[steep])
    model = ScriptedModel([Call("tea.steep", kind="green"), Say("Three minutes.")])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        handle = harness.conversation("c")
        result = await handle.say("How long?")
        (reading,) = await handle.read("tc:turn_1.c1.result")
    assert result.answer == "Three minutes."
    assert reading.text == "green: 3 minutes"
    assert model.requests[0].system.startswith("You know tea.")


async def test_a_plain_function_is_a_tool_that_nothing_else_runs_beside() -> None:
    (poured,) = load_tools("", load(Bundle(id="tea", tools=[pour]))).values()
    assert (poured.spec.name, poured.effect) == ("tea.pour", "exclusive")


def test_a_function_that_cannot_be_a_tool_is_named_with_its_line() -> None:
    with pytest.raises(BundleError, match=r"test_a_bundle_in_one_file\.py:\d+.*no docstring"):
        names(Bundle(id="tea", tools=[undescribed]))


def test_a_bundle_whose_id_is_no_alias_lists_no_functions() -> None:
    with pytest.raises(BundleError, match="'green tea' cannot be an alias"):
        names(Bundle(id="green tea", tools=[steep]))


async def test_tools_of_the_bundle_its_class_and_a_descriptor_are_added_together(
    tmp_path: Path,
) -> None:
    package = tmp_path / "cafe"
    package.mkdir()
    (package / "tools_descriptor.py").write_text('TOOLS_SPECS = [{"ref": "more.py", "alias": "m"}]')
    (package / "more.py").write_text(
        'from loopline import tool\n@tool\ndef bake() -> str:\n    """Bake."""\n    return "x"\n'
    )
    (package / "__init__.py").write_text(
        "from loopline import BaseWorkflow, Bundle\n"
        'def a() -> str:\n    """A."""\n    return "a"\n'
        'def b() -> str:\n    """B."""\n    return "b"\n'
        "class Cafe(BaseWorkflow):\n    tools = [b]\n"
        'bundle = Bundle(id="cafe", workflow=Cafe, tools=[a])\n'
    )
    loaded = load(package)
    assert list(load_tools("cafe.tools_descriptor", loaded)) == ["cafe.a", "cafe.b", "m.bake"]


async def test_instructions_of_the_bundle_come_before_those_of_its_class() -> None:
    systems = list[str]()
    for instructions in ("", "The bundle says this."):
        bundle, model = (
            Bundle(id="tea", workflow=Tea, instructions=instructions),
            ScriptedModel(["Hi."]),
        )
        async with Harness.open(bundle, store="memory:", model=model) as harness:
            await harness.conversation("c").say("Hello.")
        systems.append(model.requests[0].system.splitlines()[0])
    assert systems == ["The class says this.", "The bundle says this."]


def skill_folder(root: Path, *, nested: bool) -> Path:
    folder = root / "skills" / "public" / "brew" if nested else root / "brew"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    return root / "skills" if nested else folder


@pytest.mark.parametrize(("nested", "name"), [(True, "public.brew"), (False, "custom.brew")])
def test_a_skill_is_given_by_its_folder_or_by_a_folder_of_skills(
    tmp_path: Path, nested: bool, name: str
) -> None:
    folder = skill_folder(tmp_path, nested=nested)
    skills = load_skills("", load(Bundle(id="tea", skills=[folder])))
    assert [skill.full_id for skill in skills] == [name]


def test_a_skill_folder_that_is_listed_and_found_is_one_skill(tmp_path: Path) -> None:
    skill_folder(tmp_path, nested=True)
    (tmp_path / "one.py").write_text(
        'from loopline import Bundle\nbundle = Bundle(id="tea", skills=["skills/public/brew"])\n'
    )
    # Listed alone it has no namespace, so the two are skills of two names.
    skills = load_skills("", load(tmp_path / "one.py"))
    assert sorted(skill.full_id for skill in skills) == ["custom.brew", "public.brew"]


async def test_knowledge_gives_the_bundle_a_space(tmp_path: Path) -> None:
    commit(tmp_path / "repo", {"docs/tea.md": "# Tea\n\nSteep green tea for three minutes.\n"})
    bundle = Bundle(id="tea", knowledge={"repo": str(tmp_path / "repo")})
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        assert harness.knowledge is not None
        assert [passage.path for passage in await harness.knowledge.search("green tea")]


def test_code_beside_a_bundle_in_one_file_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('from loopline import Bundle\nbundle = Bundle(id="one")\n')
    (tmp_path / "neighbour.py").write_text('self.build_react(skills_module="absent.skills")\n')
    (tmp_path / "tools_descriptor.py").write_text("TOOLS_SPECS = None\n")
    loaded = load(tmp_path / "one.py")
    assert (descriptor_modules(loaded, "skills"), descriptor_modules(loaded, "tools")) == (
        [""],
        [""],
    )


def test_a_bundle_made_in_a_script_reads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text('self.build_react(skills_module="absent.skills")\n')
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from loopline import Bundle, Harness\n"
        "from loopline.testing import ScriptedModel\n"
        "async def main():\n"
        '    bundle = Bundle(id="tea")\n'
        '    async with Harness.open(bundle, store="memory:", model=ScriptedModel(["Hi."])) as h:\n'
        '        talk = h.conversation("c")\n'
        '        await talk.say("Hello.")\n'
        '        print((await talk.read("ar:turn_1.assistant.completion")).missing)\n'
        "asyncio.run(main())\n"
    )
    done = subprocess.run(warm_program(f"{script}"), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_packages_beside_a_package_are_not_its_own(tmp_path: Path) -> None:
    package = tmp_path / "cafe"
    (package / ".venv" / "lib").mkdir(parents=True)
    (package / "inner").mkdir()
    (package / "__init__.py").write_text('from loopline import Bundle\nbundle = Bundle(id="c")\n')
    (package / "inner" / "__init__.py").write_text('x.build_react(tools_module="inner.tools")\n')
    (package / ".venv" / "lib" / "other.py").write_text('x.build_react(tools_module="o.tools")\n')
    assert descriptor_modules(load(package), "tools") == ["inner.tools"]


def test_one_turn_runs_without_an_event_loop() -> None:
    bundle = Bundle(id="tea", tools=[steep])
    model = ScriptedModel([Call("tea.steep", kind="black"), Say("Three minutes.")])
    assert run_sync(bundle, "How long?", model=model).answer == "Three minutes."


async def test_in_a_running_event_loop_a_turn_is_not_run_synchronously() -> None:
    with pytest.raises(LooplineError, match="while an event loop runs in this thread"):
        run_sync(Bundle(id="tea"), "How long?")
