"""What stands in the folder of a skill: files read by ref, sources that get numbers, tools, a short form."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from loopline import Bundle, BundleError, Output, Source, Store, tool
from loopline.models import JsonObject
from loopline.skills import Skills, check_skill, join_imports
from loopline.testing import Call, Say, ScriptedModel
from tests.authoring.bundle_files import write
from tests.support.forged_documents import rows, undigested
from tests.support.scripted_conversation import talking

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000300000002080200000012169fc70000000c49444154789c63606060000000"
    "0400010b0c27b60000000049454e44ae426082"
)
SOURCES = """sources:
  - sid: 1
    url: https://tea.example/green
    title: Green tea
    text: Green tea at 70 degrees.
  - sid: 2
    url: https://tea.example/black
    title: Black tea
"""
TOOLS = """tools:
  - id: shop.find
    role: lookup
    why: Finds the tea.
  - id: shop.lost
"""


def skill(body: str, more: str = "") -> str:
    return f"---\nname: Tea\ndescription: It.\n{more}---\n{body}\n"


def laid(root: Path, files: Mapping[str, str]) -> Path:
    """Return the folder of the skill `public.tea` with these files."""
    write(root, {f"public/tea/{name}": text for name, text in files.items()})
    return root / "public" / "tea"


@tool(effect="read")
def find(name: str) -> Output:
    """Find a page."""
    return Output("Here.", sources=[Source(url=f"https://shop.example/{name}", title=name)])


def shop(root: Path) -> Bundle:
    return Bundle(id="shop", skills=[str(root)], tools=[find])


async def test_files_of_a_skill_are_read_by_ref_and_when_the_folder_has_gone(
    tmp_path: Path,
) -> None:
    folder = laid(
        tmp_path / "skills",
        {
            "SKILL.md": skill("Run scripts/brew.py."),
            "scripts/brew.py": "print('hot')\n",
            "references/Grüner Tee.md": "# 70 °C\n",
        },
    )
    (folder / "assets").mkdir()
    (folder / "assets" / "cup.png").write_bytes(PNG)
    (folder / "assets" / "leaf.bin").write_bytes(b"\0\1\2")
    names = [
        "",
        "/scripts/brew.py",
        "/references/Grüner Tee.md",
        "/assets/cup.png",
        "/assets/leaf.bin",
    ]
    model = ScriptedModel(
        [Call("react.read", paths=[f"sk:public.tea{name}" for name in names]), Say("Done.")]
    )
    async with talking(model, bundle=shop(tmp_path / "skills")) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
        refs = [line.split(" — ")[-1] for line in result.text.splitlines() if " — sk:" in line]
        now = list(await talk.read(refs))
        shutil.rmtree(folder)
        later = list(await talk.read(refs))
        (moved,) = await talk.read(["sk:public.tea/scripts/brew.py"])
    assert len(refs) == len(names)
    assert all("@" in ref for ref in refs)
    assert "sk:public.tea/references/Grüner%20Tee.md@" in result.text
    assert [(item.text, item.data) for item in later] == [(item.text, item.data) for item in now]
    assert [item.status for item in later] == ["ok"] * len(names)
    assert later[1].text == "print('hot')\n"
    assert later[3].text == f"image/png, 3×2 pixels, {len(PNG)} bytes"
    assert later[3].data == PNG
    assert later[4].data == b"\0\1\2"
    assert moved.status == "missing"
    assert moved.message.endswith(f"; shown before as {refs[1]}")


async def test_stored_bytes_that_are_not_base64_are_missing_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    folder = laid(tmp_path / "skills", {"SKILL.md": skill("Brew.")})
    (folder / "leaf.bin").write_bytes(b"\0\1\2")
    model = ScriptedModel([Call("react.read", paths=["sk:public.tea/leaf.bin"]), Say("Done.")])
    async with talking(model, bundle=shop(tmp_path / "skills")) as talk:
        await talk.say("go")
        document = undigested(await talk.export())
    [kept] = [row for row in rows(document) if row["type"] == "text.kept"]
    body = cast("JsonObject", kept["body"])
    body["data"] = "A"
    async with Store.open("memory:") as store:
        copy = await store.load(document)
        leaf, said = await copy.read([str(body["ref"]), "ar:turn_1.user.prompt"])
    assert (leaf.status, "its stored bytes are not valid base64" in leaf.message) == (
        "missing",
        True,
    )
    assert said.text == "go"


async def test_a_part_that_was_shown_is_read_when_the_folder_has_gone(tmp_path: Path) -> None:
    folder = laid(tmp_path / "skills", {"SKILL.md": skill("One.\nTwo.\nThree.")})
    model = ScriptedModel([Call("react.read", paths=["sk:public.tea#L2"]), Say("Done.")])
    async with talking(model, bundle=shop(tmp_path / "skills")) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
        ref = next(line for line in result.text.splitlines() if " — sk:" in line).split(" — ")[-1]
        shutil.rmtree(folder)
        (item,) = await talk.read([ref])
    assert item.text == "Two.\n"


def test_the_body_names_the_files_and_the_tools(tmp_path: Path) -> None:
    laid(tmp_path, {"SKILL.md": skill("Brew."), "scripts/brew.py": "x\n", "tools.yaml": TOOLS})
    tea = Skills.load(tmp_path).find("public", "tea")
    assert tea.body == (
        "Brew.\n\nTools for this skill:\n- shop.find — lookup: Finds the tea.\n- shop.lost\n\n"
        "Files of this skill, which react.read reads as sk:public.tea/<path>; nothing runs them:\n"
        "- scripts/brew.py (2 bytes)"
    )
    before = tea.digest
    laid(tmp_path, {"scripts/pour.py": "x\n"})
    assert Skills.load(tmp_path).find("public", "tea").digest != before


async def test_the_catalogue_says_which_tools_are_offered(tmp_path: Path) -> None:
    laid(tmp_path, {"SKILL.md": skill("Brew."), "tools.yaml": TOOLS})
    model = ScriptedModel([Say("Done.")])
    async with talking(model, bundle=shop(tmp_path)) as talk:
        await talk.say("go")
    assert "Tea: It. [tools: shop.find; not offered here: shop.lost]" in model.requests[0].system


async def test_the_citations_of_a_skill_get_the_numbers_of_the_pool(tmp_path: Path) -> None:
    text = skill("Green at 70 [[S:1]], black at 95 [[S:2]], both [[S:1-2]].\n\nWrite `[[S:1]]`.")
    folder = laid(tmp_path, {"SKILL.md": text, "sources.yaml": SOURCES})
    model = ScriptedModel(
        [
            Call("shop.find", name="cup"),
            Call("react.read", paths=["sk:public.tea"]),
            Call("react.read", paths=["sk:public.tea"]),
            Say("At 70 [[S:2]]."),
        ]
    )
    async with talking(model, bundle=shop(tmp_path)) as talk:
        answer = await talk.say("go")
        first, again, pool = await talk.read(
            ["tc:turn_1.c2.result", "tc:turn_1.c3.result", "so:sources_pool[1-9]"]
        )
        ref = first.text.split(" — ")[1].split("\n")[0]
        shutil.rmtree(folder)
        (kept,) = await talk.read([ref])
    assert "Green at 70 [[S:2]], black at 95 [[S:3]], both [[S:2,3]]." in first.text
    assert "Write `[ [S:1]]`." in first.text
    assert "[[S:2]] Green tea — https://tea.example/green" in first.text
    assert f'"exists_in_visible_context":["{ref}"]' in again.text
    assert "Green at 70 [[S:2]]" in kept.text
    assert [source.url for source in answer.sources] == ["https://tea.example/green"]
    assert "Green tea at 70 degrees." in pool.text


def test_imported_skills_bring_their_sources(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "public/tea/SKILL.md": skill("Tea [[S:1]].", "imports: [internal.water]\n"),
            "public/tea/sources.yaml": "sources:\n  - {sid: 1, url: 'https://a.example'}\n",
            "internal/water/SKILL.md": skill("Water [[S:1]]."),
            "internal/water/sources.yaml": "sources:\n  - {sid: 1, url: 'https://b.example'}\n",
            "internal/water/references/kettle.md": "Kettle.\n",
        },
    )
    skills = join_imports(Skills.load(tmp_path)).enabled({})
    tea = skills.find("public", "tea")
    assert "Tea [ [S:1]]." in tea.body
    assert "Water [ [S:2]]." in tea.body
    assert [source.url for source in tea.sources.values()] == [
        "https://a.example",
        "https://b.example",
    ]
    assert [skill.full_id for skill in skills] == ["public.tea"]
    assert skills.find("internal", "water").files[0].path == "references/kettle.md"


async def test_the_short_form_is_shown_where_the_whole_has_no_room(tmp_path: Path) -> None:
    laid(tmp_path, {"SKILL.md": skill("Long. " * 9_000), "compact.md": "Short."})
    model = ScriptedModel([Call("react.read", paths=["sk:public.tea"]), Say("Done.")])
    async with talking(model, bundle=shop(tmp_path)) as talk:
        await talk.say("go")
        result, whole = await talk.read(["tc:turn_1.c1.result", "sk:public.tea"])
    assert (
        "\nShort.\n… this is the short form; the full text did not fit: read sk:public.tea@"
        in result.text
    )
    assert len(whole.text) > 50_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sources.yaml", "sources: 1\n", "1: it must be a list below the one key `sources:`"),
        ("sources.yaml", "sauces: []\n", "1: it must be a list below the one key `sources:`"),
        ("sources.yaml", "sources:\n- tea\n", "2: it must be lines like `key: value`"),
        ("sources.yaml", "sources:\n- url: x\n", "2: 'sid' must be a number from 1 on"),
        ("sources.yaml", "sources:\n- sid: true\n", "2: 'sid' must be a number from 1 on"),
        ("sources.yaml", "sources:\n- sid: 1\n", "2: it has neither 'url' nor 'title'"),
        (
            "sources.yaml",
            "sources:\n- sid: 1\n  ulr: x\n",
            "2: the key 'ulr' is unknown, nearest is 'url'",
        ),
        (
            "sources.yaml",
            "sources:\n- {sid: 1, url: a}\n- {sid: 1, url: b}\n",
            "3: the number 1 is taken",
        ),
        ("sources.yaml", "sources:\n- {sid: 1, url: [a]}\n", "2: 'url' must be a text"),
        ("sources.yaml", "sources: [\n", "2: expected the node content"),
        ("tools.yaml", "tools:\n- role: x\n", "2: 'id' must name a tool, such as web.fetch"),
        (
            "tools.yaml",
            "tools:\n- {id: x, wy: y}\n",
            "2: the key 'wy' is unknown, nearest is 'why'",
        ),
    ],
)
def test_what_is_wrong_beside_a_skill_is_told_with_file_and_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = laid(tmp_path, {"SKILL.md": skill("Brew."), name: text})
    with pytest.raises(BundleError) as raised:
        Skills.load(tmp_path)
    assert str(raised.value).startswith(f"{folder / name}:{message}")
    assert str(raised.value) in map(str, check_skill(folder))


def test_a_citation_that_the_skill_has_no_source_for_is_refused(tmp_path: Path) -> None:
    folder = laid(
        tmp_path, {"SKILL.md": skill("One [[S:1]].\n\nSeven [[S:7]]."), "sources.yaml": SOURCES}
    )
    with pytest.raises(BundleError) as raised:
        Skills.load(tmp_path)
    assert str(raised.value) == f"{folder / 'SKILL.md'}:7: sources.yaml has no source 7"


def test_what_cannot_be_read_in_a_folder_is_told(tmp_path: Path) -> None:
    folder = laid(tmp_path / "skills", {"SKILL.md": skill("Brew."), "a/b/c/d/e/f/g/h/deep.md": "x"})
    (tmp_path / "secret").write_text("secret")
    (folder / "link.md").symlink_to(tmp_path / "secret")
    write(tmp_path / "outside", {"secret.md": "secret"})
    for name in ("linked", "a/b/c/d/e/f/g/linked"):
        (folder / name).symlink_to(tmp_path / "outside")
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(11 * 1024 * 1024)
    skills = Skills.load(tmp_path / "skills")
    assert skills.find("public", "tea").files == ()
    problems = "\n".join(skills.warnings)
    for name in ("link.md", "linked", "a/b/c/d/e/f/g/linked"):
        assert problems.count(f"{folder / name}: a link is not followed") == 1
    assert (
        "huge.bin: it has 11,534,336 bytes, and a file of a skill may have 10,485,760" in problems
    )
    assert "a folder of a skill is at most 8 deep" in problems


@pytest.mark.parametrize(
    "path", ["link.md", "../secret", "folder/../../secret", "/etc/passwd", "folder"]
)
async def test_no_ref_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    folder = laid(tmp_path / "skills", {"SKILL.md": skill("Brew."), "folder/a.md": "a"})
    (tmp_path / "skills" / "public" / "secret").write_text("secret")
    (folder / "link.md").symlink_to(folder.parent / "secret")
    async with talking(ScriptedModel([Say("x")]), bundle=shop(tmp_path / "skills")) as talk:
        (item,) = await talk.read([f"sk:public.tea/{path}"])
    assert item.status == "missing"
    assert item.text == ""


def test_a_skill_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = laid(tmp_path, {"SKILL.md": skill("Brew.")})
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").mkdir()
    with pytest.raises(BundleError, match=r"SKILL\.md:1: it cannot be read: Is a directory"):
        Skills.load(tmp_path)


def test_a_skill_that_is_too_large_is_refused(tmp_path: Path) -> None:
    laid(tmp_path, {"SKILL.md": skill("x" * 300_000)})
    with pytest.raises(
        BundleError, match=r"SKILL\.md:1: it has 300,\d+ bytes, and may have 262,144"
    ):
        Skills.load(tmp_path)


@pytest.mark.parametrize("field", ["description", "compatibility"])
def test_a_field_that_is_too_long_is_refused(tmp_path: Path, field: str) -> None:
    text = "---\nname: Tea\n" + f"description: {'x' * 2_000 if field == 'description' else 'x'}\n"
    more = f"compatibility: {'x' * 600}\n" if field == "compatibility" else ""
    laid(tmp_path, {"SKILL.md": f"{text}{more}---\nBrew.\n"})
    with pytest.raises(BundleError, match=f"'{field}' has "):
        Skills.load(tmp_path)


@pytest.mark.parametrize("name", ["τσάι", "茶", "été"])
async def test_names_of_all_languages_can_be_read(tmp_path: Path, name: str) -> None:
    write(tmp_path, {f"{name}/SKILL.md": f"---\nname: {name}\ndescription: It.\n---\nBrew.\n"})
    async with talking(ScriptedModel([Say("x")]), bundle=shop(tmp_path)) as talk:
        (item,) = await talk.read([f"sk:custom.{name}"])
    assert (item.text, item.ref.partition("@")[0]) == ("Brew.", f"sk:custom.{name}")


def test_a_gallery_is_bounded(tmp_path: Path) -> None:
    write(
        tmp_path,
        {f"s{n}/SKILL.md": f"---\ndescription: {'x' * 1_000}\n---\nx\n" for n in range(900)},
    )
    gallery = Skills.load(tmp_path).gallery()
    assert len(gallery) < 18_000
    assert gallery.splitlines()[-1].endswith(" more skills")


def test_a_consumer_sees_the_skills_that_are_meant_for_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a/SKILL.md": skill("x", "include_for: [react]\n"),
            "b/SKILL.md": skill("x", "include_for: writer\n"),
            "c/SKILL.md": skill("x"),
        },
    )
    skills = Skills.load(tmp_path)
    assert [found.id for found in skills.enabled({})] == ["a", "c"]
    assert [found.id for found in skills.enabled({}, "writer")] == ["b", "c"]
