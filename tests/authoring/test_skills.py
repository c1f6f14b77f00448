"""Skills are read from folders, selected for an agent, and listed for a prompt."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from loopline import BundleError
from loopline.errors import RefError
from loopline.models import YamlError, read_yaml
from loopline.refs import SkillRef, parse
from loopline.skills import REACT, Skills, SkillSelection, skill_selections
from loopline.timeline import citations
from tests.authoring.bundle_files import write

TEA = """---
name: Tea
id: tea
description: How to make
  tea.
version: 1.0
namespace: public
category: drinks
tags: [hot]
when_to_use: somebody is thirsty
author: Ann
created: 2026-01-01
---

# Tea

Boil water.
"""


def skill(description: str = "It.", more: str = "") -> str:
    return f"---\ndescription: {description}\n{more}---\nBody.\n"


def shelf(root: Path) -> Skills:
    files = {
        "public/tea/SKILL.md": TEA,
        "public/soup/SKILL.md": skill(),
        "internal/wash/SKILL.md": skill(),
        "bread/SKILL.md": skill(),
    }
    return Skills.load(write(root, files))


def names(skills: Skills) -> list[str]:
    return [skill.full_id for skill in skills]


def complaint(root: Path, text: str, place: str = "public/tea") -> str:
    """What is said of the skill, after its path."""
    write(root, {f"{place}/SKILL.md": text})
    with pytest.raises(BundleError) as raised:
        Skills.load(root)
    return str(raised.value).removeprefix(f"{root / place / 'SKILL.md'}:")


def test_skills_are_found_by_namespace_and_id(tmp_path: Path) -> None:
    assert names(shelf(tmp_path)) == ["custom.bread", "internal.wash", "public.soup", "public.tea"]


def test_a_skill_is_its_front_matter_and_its_body(tmp_path: Path) -> None:
    tea = shelf(tmp_path).find("public", "tea")
    assert (tea.name, tea.description) == ("Tea", "How to make tea.")
    assert tea.when_to_use == "somebody is thirsty"
    assert tea.body == "# Tea\n\nBoil water."
    assert tea.path == tmp_path / "public" / "tea" / "SKILL.md"


def test_a_skill_is_named_by_a_ref_with_the_digest_of_its_file(tmp_path: Path) -> None:
    tea = shelf(tmp_path).find("public", "tea")
    assert tea.digest == sha256(TEA.encode()).hexdigest()[:12]
    assert parse(tea.ref) == SkillRef(namespace="public", skill="tea", digest=tea.digest)


def test_a_changed_skill_has_another_digest(tmp_path: Path) -> None:
    before = shelf(tmp_path).find("public", "tea")
    write(tmp_path, {"public/tea/SKILL.md": TEA + "\nPour it.\n"})
    assert Skills.load(tmp_path).find("public", "tea").digest != before.digest


def test_a_skill_without_a_name_is_called_like_its_folder(tmp_path: Path) -> None:
    assert shelf(tmp_path).find("custom", "bread").name == "bread"


def test_a_skill_beside_the_namespaces_may_name_its_own(tmp_path: Path) -> None:
    write(tmp_path, {"tea/SKILL.md": skill(more="namespace: public\n")})
    assert names(Skills.load(tmp_path)) == ["public.tea"]


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    file = write(tmp_path, {"tea/SKILL.md": ""}) / "tea" / "SKILL.md"
    file.write_bytes(b"\xef\xbb\xbf" + skill().replace("\n", "\r\n").encode())
    assert Skills.load(tmp_path).find("custom", "tea").body == "Body."


def test_the_gallery_has_a_line_for_each_skill(tmp_path: Path) -> None:
    skills = shelf(tmp_path)
    tea, bread = skills.find("public", "tea"), skills.find("custom", "bread")
    lines = skills.gallery().splitlines()
    assert lines[0] == f"{bread.ref} — bread: It."
    assert lines[3] == f"{tea.ref} — Tea: How to make tea. (when: somebody is thirsty)"


def test_an_unknown_skill_is_answered_with_those_that_come_close(tmp_path: Path) -> None:
    with pytest.raises(RefError, match=r"no skill public\.tee: nearest are \['public\.tea'"):
        shelf(tmp_path).find("public", "tee")
    with pytest.raises(RefError, match="there are no skills here"):
        Skills().find("public", "tea")


def test_a_key_that_means_nothing_is_refused(tmp_path: Path) -> None:
    assert complaint(tmp_path, skill(more="when_to_us: x\n")) == (
        "3: 'when_to_us' is not a key of a skill, nearest is 'when_to_use'; put it below metadata"
    )


def test_a_folder_without_a_skill_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path, {"tea/skill.txt": "", ".git/x": "", "readme.txt": ""})
    assert Skills.load(tmp_path).warnings == (
        f"{tmp_path / 'tea'}: no SKILL.md here or one folder below",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Body.", "1: the front matter between two lines --- is missing"),
        ("---\nname: x\n", "1: the front matter between two lines --- is never closed"),
        ("---\nname: Tea\ndescription: a: b\n---\n", "3: the front matter: mapping values"),
        ("---\nname: [\n---\n", "3: the front matter: expected the node content"),
        ("---\n- a\n---\n", "2: the front matter must be lines like `name: …`"),
        ("---\n---\n", "2: the front matter must be lines like `name: …`"),
        ("---\nname: Tea\nname: Tee\n---\n", "3: the front matter: 'name' is given twice"),
        ("---\n1: Tea\n---\n", "2: the front matter: the key '1' must be text: quote it"),
        (
            "---\nname: !!binary aaaa\n---\n",
            "2: the front matter: the type binary is not supported here",
        ),
        ("---\nname: !!int tea\n---\n", "2: the front matter: 'tea' is not a valid int"),
        ("---\nname: &a [*a]\n---\n", "2: the front matter: a value contains itself"),
        ("---\nname: \x07\n---\n", "2: the front matter: unacceptable character"),
        ("---\nname: Tea\n---\n", "2: 'description' must be a text"),
        ("---\nname: Tea\ndescription:\n---\n", "3: 'description' must be a text"),
        ("---\nname: [a]\ndescription: x\n---\n", "2: 'name' must be a text"),
        (skill(more="id: tee\n"), "3: the id is 'tee', but the folder is called 'tea'"),
        (skill(more="namespace: own\n"), "3: the namespace is 'own', but the folder says 'public'"),
    ],
)
def test_a_malformed_skill_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert complaint(tmp_path, text).startswith(message)


def test_a_skill_that_is_not_utf_8_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, {"tea/SKILL.md": ""}) / "tea" / "SKILL.md"
    file.write_bytes(b"---\nname: \xff\n---\n")
    with pytest.raises(BundleError, match=r"SKILL\.md:2: not UTF-8"):
        Skills.load(tmp_path)


def test_a_name_that_no_ref_can_hold_is_refused(tmp_path: Path) -> None:
    assert "'public.green tea' is not a valid name" in complaint(
        tmp_path, skill(), "public/green tea"
    )


def test_two_skills_of_a_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"tea/SKILL.md": skill()})
    assert "1: 'custom.tea' is also at" in complaint(tmp_path, skill(), "custom/tea")


def test_a_missing_root_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no folder of skills at"):
        Skills.load(tmp_path / "skills")


@pytest.mark.parametrize(
    ("selection", "seen"),
    [
        ({}, ["custom.bread", "public.soup", "public.tea"]),
        ({"enabled": []}, []),
        ({"enabled": ["tea", "public.soup"]}, ["public.soup", "public.tea"]),
        ({"enabled": ["*"]}, ["custom.bread", "internal.wash", "public.soup", "public.tea"]),
        ({"enabled": ["internal.*"]}, ["internal.wash"]),
        ({"disabled": ["public.*"]}, ["custom.bread"]),
        ({"disabled": ["t?a", "bread"]}, ["public.soup"]),
    ],
)
@pytest.mark.parametrize("consumer", ["react", REACT])
def test_an_agent_sees_the_skills_selected_for_it(
    tmp_path: Path, consumer: str, selection: dict[str, list[str]], seen: list[str]
) -> None:
    config = skill_selections({consumer: selection})
    assert names(shelf(tmp_path).enabled(config)) == seen


def test_without_a_config_an_agent_sees_all_but_internal_skills(tmp_path: Path) -> None:
    assert "internal.wash" not in names(
        shelf(tmp_path).enabled({"other": SkillSelection(enabled=())})
    )


def test_a_pattern_that_names_nothing_is_known() -> None:
    selection = SkillSelection(enabled=("tea", "own.*"), disabled=("tee",))
    assert selection.unmatched([("public", "tea")]) == ["own.*", "tee"]


def test_yaml_knows_the_line_of_each_key() -> None:
    document = read_yaml("a: 1\nb:\n  c: [yes, 1.5]\n  d: 2026-01-01\n", first_line=3)
    assert document.value == {"a": 1, "b": {"c": [True, 1.5], "d": "2026-01-01"}}
    assert [document.line("a"), document.line("b", "d"), document.line("b", "x")] == [3, 6, 4]


def test_yaml_without_content_is_nothing() -> None:
    assert read_yaml("# only a remark\n").value is None


def test_yaml_is_one_document() -> None:
    with pytest.raises(YamlError) as raised:
        read_yaml("a: 1\n---\nb: 2\n")
    assert raised.value.line == 2


@pytest.mark.parametrize(
    ("text", "plain", "line", "problem"),
    [
        ("a: b\n? - a\n: b\n", True, 3, "a key must be text"),
        ("a: b\n? c: d\n: b\n", True, 3, "a key must be text"),
        ("[" * 1_000, False, 2, "it is nested too deeply"),
        ("- " * 1_000, True, 2, "it is nested too deeply"),
    ],
    ids=["a list as a key", "a mapping as a key", "deep brackets", "deep dashes"],
)
def test_yaml_that_is_no_json_is_told_with_its_line(
    text: str, plain: bool, line: int, problem: str
) -> None:
    with pytest.raises(YamlError) as raised:
        read_yaml(text, first_line=2, plain=plain)
    assert (raised.value.line, raised.value.problem) == (line, problem)


LAUGHS = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 15))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a0: &a0 [x]\n{LAUGHS}\n", 1),
        (f"a: &a {'x' * 30_000}\nb: [*a, *a]\n", 1),
        (f"b: c\na: &a {{? {'x' * 30_000} : 1}}\nd: [*a, *a]\n", 2),
    ],
    ids=["many values", "a long text", "a long key"],
)
def test_yaml_with_aliases_that_repeat_too_much_is_refused(text: str, line: int) -> None:
    with pytest.raises(YamlError) as raised:
        read_yaml(text)
    assert raised.value.problem == "aliases repeat more than 50,000 values and characters"
    assert raised.value.line == line


def test_yaml_may_repeat_values_with_aliases() -> None:
    document = read_yaml("a: &a [1, {b: c}]\nd: *a\n? &e e\n: *e\n")
    assert document.value == {"a": [1, {"b": "c"}], "d": [1, {"b": "c"}], "e": "e"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        *((f"!!{tag} x", f"the type {tag} is not") for tag in ("binary", "set", "map", "seq")),
        *((f"!!{tag} [x]", f"the type {tag} is not") for tag in ("str", "null", "timestamp")),
        ("!!map [x]", "the type map is not supported here"),
        ("!!seq {x: y}", "the type seq is not supported here"),
        ("!!python/name:os.system ''", "the type python/name:os.system is not"),
        ("!custom x", "the type !custom is not supported here"),
        ("!!int ''", "'' is not a valid int"),
        ("!!float _", "'_' is not a valid float"),
        (f"0x{'f' * 4_000}", "'0xfff"),
        (f"1{':59' * 200}.5", "'1:59:59"),
        ("{? [x] : y}", "a key must be text"),
    ],
)
def test_yaml_with_a_value_of_another_type_is_told_with_its_line(value: str, problem: str) -> None:
    with pytest.raises(YamlError) as raised:
        read_yaml(f"a: b\nc: {value}\n")
    assert raised.value.line == 2
    assert raised.value.problem.startswith(problem)


def test_yaml_with_an_escape_that_is_no_character_is_an_error() -> None:
    with pytest.raises(YamlError, match="chr"):
        read_yaml('a: "\\U00110000"')


@pytest.mark.parametrize("key", ["built_in", "allowed-tools"])
def test_a_key_without_effect_is_warned_of(tmp_path: Path, key: str) -> None:
    write(tmp_path, {"public/tea/SKILL.md": skill(more=f"{key}: [other]\n")})
    (warning,) = Skills.load(tmp_path).warnings
    assert warning.startswith(f"{tmp_path / 'public/tea/SKILL.md'}:3: '{key}' has no effect: ")


@pytest.mark.parametrize("token", ["[[S:1]]", "[[ s : 1-3 ]]", "`[[S:2]]`", "```\n[[S:1]] x\n```"])
def test_a_skill_names_no_source_of_a_conversation(tmp_path: Path, token: str) -> None:
    write(tmp_path, {"public/tea/SKILL.md": f"{skill()}Boil {token}.\n"})
    skills = Skills.load(tmp_path)
    body = skills.find("public", "tea").body
    assert citations.find(body.replace("`", ""), newest=9) == []
    assert "[ [" in body
    assert "plain text" in skills.warnings[0]


@pytest.mark.parametrize("line", ["license: MIT", "compatibility: Git", "metadata:\n  author: ann"])
def test_the_fields_of_the_format_are_no_surprise(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"public/tea/SKILL.md": skill(more=f"{line}\n")})
    assert Skills.load(tmp_path).warnings == ()
