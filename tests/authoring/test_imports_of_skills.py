"""A skill is read together with those that it imports; what it cannot import is an error with file and line."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from loopline import Bundle, BundleError
from loopline.skills import Skills, join_imports
from loopline.testing import Call, ScriptedModel
from tests.authoring.bundle_files import write
from tests.support.scripted_conversation import talking


def skill(body: str, *imports: str) -> str:
    names = f"imports: [{', '.join(imports)}]\n" if imports else ""
    return f"---\nname: A skill\ndescription: It.\n{names}---\n{body}\n"


def loaded(root: Path, **files: str) -> Skills:
    """Return skills of the namespace `public`, each with its text."""
    write(root, {f"public/{name}/SKILL.md": text for name, text in files.items()})
    return join_imports(Skills.load(root))


def test_a_skill_has_the_bodies_of_all_that_it_imports_each_once(tmp_path: Path) -> None:
    skills = loaded(
        tmp_path,
        tea=skill("Tea.", "water", "public.cup"),
        water=skill("Water.", "kettle"),
        cup=skill("Cup.", "kettle"),
        kettle=skill("Kettle."),
    )
    assert skills.find("public", "tea").body == (
        "Tea.\n\n# Imported: public.water\n\nWater.\n\n# Imported: public.kettle\n\nKettle."
        "\n\n# Imported: public.cup\n\nCup."
    )
    assert skills.find("public", "kettle").body == "Kettle."


def test_a_change_of_an_imported_skill_changes_the_ref(tmp_path: Path) -> None:
    refs = set[str]()
    for number, text in enumerate(["Hot.", "Cold."]):
        files = {"tea": skill("Tea.", "water"), "water": skill(text)}
        refs.add(loaded(tmp_path / str(number), **files).find("public", "tea").ref)
    assert len(refs) == 2


def test_many_ways_to_one_skill_are_followed_once(tmp_path: Path) -> None:
    last = 40
    files = {
        f"s{n}": skill(f"{n}", *(f"s{m}" for m in (n + 1, n + 2) if m <= last))
        for n in range(last + 1)
    }
    assert loaded(tmp_path, **files).find("public", "s0").body.count("# Imported: ") == last


def test_a_chain_of_imports_takes_the_memory_of_its_texts(tmp_path: Path) -> None:
    text, length = "x" * 10_000, 30
    files = {f"s{n}": skill(f"{n}{text}", f"s{n + 1}") for n in range(length - 1)}
    tracemalloc.start()
    try:
        skills = loaded(tmp_path, **files, **{f"s{length - 1}": skill(text)})
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 3 * length * len(text)
    assert len(skills.find("public", "s0").body) > length * len(text)


@pytest.mark.parametrize(
    ("imports", "circle"),
    [
        ({"a": ["a"]}, "public.a → public.a"),
        ({"a": ["b"], "b": ["a"]}, "public.a → public.b → public.a"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "public.b → public.c → public.b"),
    ],
)
def test_imports_in_a_circle_are_named(
    tmp_path: Path, imports: dict[str, list[str]], circle: str
) -> None:
    files = {name: skill(name, *names) for name, names in imports.items()}
    with pytest.raises(BundleError, match=circle) as raised:
        loaded(tmp_path, **files)
    assert "SKILL.md:4: the imports form a cycle" in str(raised.value)


def test_an_unknown_import_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as raised:
        loaded(tmp_path, tea=skill("Tea.", "watre"), water=skill("Water."))
    assert str(raised.value) == (
        f"{tmp_path / 'public/tea/SKILL.md'}:4: no skill 'watre' to import: nearest is 'public.water'"
    )


def test_a_list_of_imports_holds_names(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"SKILL.md:4: list the names of skills"):
        loaded(tmp_path, tea=skill("Tea.", "1"))


async def test_the_model_reads_a_skill_with_what_it_imports(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "public/tea/SKILL.md": skill("Tea.", "internal.water"),
            "internal/water/SKILL.md": skill("Water."),
        },
    )
    model = ScriptedModel([Call("react.read", paths=["sk:public.tea"]), "Done."])
    async with talking(model, bundle=Bundle(id="shop", skills=[str(tmp_path)])) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert "Tea.\n\n# Imported: internal.water\n\nWater." in result.text
    assert "sk:internal.water" not in model.requests[0].system
