"""AGENTS.md: the nearest one is given to the model by its ref, where a property says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loopline import Bundle
from loopline.models import JsonObject
from loopline.testing import Call, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.git_repositories import commit
from tests.support.scripted_conversation import play_turn, talking


def guide(repo: Path, *, on: bool = True) -> Bundle:
    return Bundle(
        id="guide",
        configuration={
            "knowledge": {"repo": str(repo)},
            "react": {"agents_md": on, "workspace": "latest"},
        },
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    commit(tmp_path / "repo", {"AGENTS.md": "Be brief.\n", "docs/tea.md": "# Tea\n"})
    return tmp_path / "repo"


async def test_the_page_of_the_repository_is_given_by_its_ref_and_kept(repo: Path) -> None:
    model = ScriptedModel(["Yes."])
    async with talking(model, bundle=guide(repo)) as talk:
        await talk.say("go")
        kept = [block.ref for block in await talk.blocks(types="text.kept")]
        shutil.rmtree(repo)
        (item,) = await talk.read(kept)
    (ref,) = kept
    assert ref.startswith("ks:AGENTS.md@")
    assert item.text == "Be brief.\n"
    assert model.requests[0].system.endswith(
        f"{ref}; what stands above counts more than it:\nBe brief."
    )


async def test_the_page_is_recorded_once(repo: Path) -> None:
    async with talking(["Yes.", "Yes."], bundle=guide(repo)) as talk:
        await talk.say("go")
        await talk.say("go on")
        kept = await talk.blocks(types="text.kept")
    assert len(kept) == 1


async def test_the_page_of_the_files_is_nearer(repo: Path) -> None:
    script: list[Entry] = [
        Call("react.write", path="AGENTS.md", content="Be long.\n"),
        "Done.",
        "Yes.",
    ]
    model = ScriptedModel(script)
    async with talking(model, bundle=guide(repo)) as talk:
        await talk.say("go")
        await talk.say("go on")
    assert "Be long." in model.requests[-1].system
    assert "Be brief." not in model.requests[-1].system


async def test_each_of_several_repositories_gives_its_page(tmp_path: Path) -> None:
    commit(tmp_path / "web", {"docs/AGENTS.md": "Web is brief.\n", "AGENTS.md": "Farther.\n"})
    commit(tmp_path / "api", {"AGENTS.md": "Api is long.\n" + "x" * 30_000})
    commit(tmp_path / "old", {"README.md": "# Old\n"})
    repositories: JsonObject = {
        name: {"repo": str(tmp_path / name)} for name in ("web", "api", "old")
    }
    configuration: JsonObject = {
        "knowledge": {"repositories": repositories},
        "react": {"agents_md": True, "workspace": "latest"},
    }
    model = ScriptedModel(["Yes."])
    async with talking(model, bundle=Bundle(id="guide", configuration=configuration)) as talk:
        await talk.say("go")
        kept = [block.ref for block in await talk.blocks(types="text.kept")]
        for name in repositories:
            shutil.rmtree(tmp_path / name)
        web, api = await talk.read(kept)
    assert [ref.partition("@")[0] for ref in kept] == ["ks:web/docs/AGENTS.md", "ks:api/AGENTS.md"]
    assert (web.text, len(api.text)) == ("Web is brief.\n", 30_013)
    system = model.requests[0].system
    assert f"{kept[0]}; what stands above counts more than it:\nWeb is brief." in system
    assert f"[CUT] react.read gives all of {kept[1]}." in system
    assert "Farther." not in system
    assert system.count("x") < 20_000


async def test_nothing_is_given_unless_the_property_says_so(repo: Path) -> None:
    model = ScriptedModel(["Yes."])
    await play_turn(model, bundle=guide(repo, on=False))
    assert "Be brief." not in model.requests[0].system


async def test_nothing_is_given_where_there_is_no_page(tmp_path: Path) -> None:
    commit(tmp_path / "repo", {"docs/tea.md": "# Tea\n"})
    model = ScriptedModel(["Yes."])
    await play_turn(model, bundle=guide(tmp_path / "repo"))
    assert "AGENTS.md" not in model.requests[0].system
