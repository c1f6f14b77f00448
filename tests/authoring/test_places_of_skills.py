"""Skills beside a bundle: those of the project, those of the user, and which of two with one name is taken."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from loopline import Bundle, Harness
from loopline.errors import PropertyError
from loopline.testing import Call, Say, ScriptedModel
from tests.authoring.bundle_files import write
from tests.doors.command import Loopline


def skill(name: str, body: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: From {body}.\n{more}---\n{body}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in a repository, with skills in all places."""
    home, repository = tmp_path / "home", tmp_path / "repository"
    here = repository / "app"
    write(
        tmp_path,
        {
            "bundle/tea/SKILL.md": skill("tea", "bundle"),
            "repository/.git/HEAD": "",
            "repository/.agents/skills/cup/SKILL.md": skill("cup", "repository"),
            "repository/.agents/skills/pot/SKILL.md": skill("pot", "repository"),
            "repository/app/.agents/skills/cup/SKILL.md": skill("cup", "app"),
            "repository/app/.agents/skills/tea/SKILL.md": skill("tea", "app"),
            ".agents/skills/outside/SKILL.md": skill("outside", "outside"),
            "home/.agents/skills/pot/SKILL.md": skill("pot", "home"),
            "home/.agents/skills/mug/SKILL.md": skill("mug", "home"),
            "home/.agents/skills/bad/SKILL.md": skill("bad", "home", "colour: red\n"),
            "home/.agents/skills/ring/SKILL.md": skill("ring", "home", "imports: [ring]\n"),
            "home/.config/agents/skills/jar/SKILL.md": skill("jar", "config"),
            "home/.config/agents/skills/shelf/lid/SKILL.md": skill("lid", "config"),
        },
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(here)
    return tmp_path


async def seen(project: Path, search: str) -> list[str]:
    """Return the lines of the catalogue, without the refs' digests."""
    model = ScriptedModel([Say("Done.")])
    bundle = Bundle(id="shop", skills=[str(project / "bundle")])
    async with Harness.open(
        bundle, store="memory:", model=model, properties={"react.skills": search}
    ) as harness:
        await harness.conversation("c").say("go")
    lines = [line for line in model.requests[0].system.splitlines() if line.startswith("sk:")]
    return [f"{line.partition('@')[0]} {line.rpartition(' ')[2]}" for line in lines]


async def test_a_bundle_has_its_own_skills_alone_unless_it_asks_for_others(project: Path) -> None:
    assert await seen(project, "bundle") == ["sk:custom.tea bundle."]


async def test_the_bundle_comes_first_then_the_nearest_folder_then_the_user(project: Path) -> None:
    of_project = ["sk:custom.tea bundle.", "sk:project.cup app.", "sk:project.pot repository."]
    assert await seen(project, "project") == of_project
    assert await seen(project, "all") == [*of_project, "sk:user.mug home.", "sk:user.jar config."]


async def test_what_is_left_out_is_said_with_its_file(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="loopline"):
        await seen(project, "all")
    home = project / "home/.agents/skills"
    assert f"{home / 'bad/SKILL.md'}:4: 'colour' is not a key of a skill" in caplog.text
    assert f"{home / 'ring/SKILL.md'}:4: the imports form a cycle" in caplog.text
    tea = project / "repository/app/.agents/skills/tea/SKILL.md"
    first = project / "bundle/tea/SKILL.md"
    assert f"{tea}:1: left out: {first} has the same name and comes first" in caplog.text
    shelf = project / "home/.config/agents/skills/shelf"
    assert f"left out: {shelf}: no SKILL.md in this folder" in caplog.text


async def test_a_skill_of_a_place_is_read_with_its_files(project: Path) -> None:
    write(project / "home/.agents/skills/mug", {"scripts/fill.py": "fill\n"})
    model = ScriptedModel(
        [Call("react.read", paths=["sk:user.mug", "sk:user.mug/scripts/fill.py"]), Say("Done.")]
    )
    async with Harness.open(
        Bundle(id="shop"), store="memory:", model=model, properties={"react.skills": "all"}
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert "home\n\nFiles of this skill" in result.text
    assert result.text.endswith("fill\n")


@pytest.mark.parametrize("name", ["SKILL.md", "compact.md"])
async def test_a_link_in_a_strangers_skill_shows_nothing(project: Path, name: str) -> None:
    secret = project / "secret.md"
    secret.write_text(skill("cup", "secret"))
    link = project / "repository/app/.agents/skills/cup" / name
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    assert "sk:project.cup repository." in await seen(project, "project")


async def test_a_folder_may_be_a_link(project: Path) -> None:
    (project / "home/.agents/skills/linked").symlink_to(project / "bundle/tea")
    assert "sk:user.linked bundle." in await seen(project, "all")


async def test_another_value_is_refused(project: Path) -> None:
    with pytest.raises(PropertyError, match="one of bundle, project, all, not 'everywhere'"):
        await seen(project, "everywhere")


def test_check_names_unknown_tools_and_skills_that_are_left_out(project: Path) -> None:
    write(
        project / "repository/app/shop",
        {
            "__init__.py": "from loopline import Bundle\nbundle = Bundle(id='shop')\n",
            "skills/public/tea/SKILL.md": skill("tea", "own"),
            "skills/public/tea/tools.yaml": "tools:\n  - id: shop.lost\n  - id: react.plan\n",
        },
    )
    command = Loopline(project / "repository/app")
    found = command("check", "./shop", "--prop", "react.skills=project")
    assert found.code == 0
    assert (
        "skills/public/tea/tools.yaml:2: this bundle does not have the tool 'shop.lost'"
        in found.err
    )
    assert "tools.yaml:3" not in found.err
    assert "left out" in found.err
    assert "sk:project.pot@" in found.out
