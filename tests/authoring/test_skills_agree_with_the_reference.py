"""Skills are held to the rules of their format: `loopline skills check` agrees with the reference validator."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from loopline.skills import check_skill, skill_folders
from tests.doors.command import Loopline

NAME = "brew-tea"
DESCRIPTION = "description: Brews tea. Use it when somebody is thirsty.\n"


def front(*lines: str, name: str = NAME) -> str:
    return "\n".join(["---", f"name: {name}", *lines, "---", "", "# Tea", ""])


def valid(*lines: str) -> str:
    return front(DESCRIPTION.strip(), *lines)


CASES: dict[str, str] = {
    "plain": valid(),
    "license": valid("license: MIT"),
    "metadata": valid("metadata:", "  author: ann", "  version: 1.0"),
    "tools": valid("allowed-tools: Bash(git:*) Read"),
    "compatibility": valid("compatibility: Needs git and the internet"),
    "all": valid(
        "license: MIT", "compatibility: Git", "allowed-tools: Read", "metadata:", "  a: b"
    ),
    "a comment": valid("# a comment"),
    "folded": front("description: >", "  Brews tea,", "  and pours it."),
    "literal": front("description: |", "  Brews tea.", "  Pours it."),
    "quoted": front('description: "Brews: tea"'),
    "in single quotes": front("description: 'Brews tea'"),
    "a name in quotes": front(DESCRIPTION.strip(), name='"brew-tea"'),
    "a number in metadata": valid("metadata:", "  count: 3"),
    "a date": front("description: 2026-01-01"),
    "a truth": front("description: true"),
    "a number": front("description: 42"),
    "long but allowed": front(f"description: {'x' * 1_024}"),
    "a long compatibility": valid(f"compatibility: {'x' * 500}"),
    "in Greek": front("description: Φτιάχνει τσάι"),
    "no body": f"---\nname: {NAME}\n{DESCRIPTION}---\n",
    "carriage returns": valid().replace("\n", "\r\n"),
    "too long": front(f"description: {'x' * 1_025}"),
    "a compatibility that is too long": valid(f"compatibility: {'x' * 501}"),
    "no description": front(),
    "an empty description": front("description:"),
    "a blank description": front('description: "  "'),
    "no name": f"---\n{DESCRIPTION}---\n",
    "an empty name": front(DESCRIPTION.strip(), name=""),
    "a blank name": front(DESCRIPTION.strip(), name='" "'),
    "another name": front(DESCRIPTION.strip(), name="pour-tea"),
    "capitals": front(DESCRIPTION.strip(), name="Brew-Tea"),
    "an underscore": front(DESCRIPTION.strip(), name="brew_tea"),
    "a space": front(DESCRIPTION.strip(), name="brew tea"),
    "a dot": front(DESCRIPTION.strip(), name="brew.tea"),
    "a slash": front(DESCRIPTION.strip(), name="brew/tea"),
    "a hyphen at the end": front(DESCRIPTION.strip(), name="brew-"),
    "a hyphen at the beginning": front(DESCRIPTION.strip(), name='"-brew"'),
    "two hyphens": front(DESCRIPTION.strip(), name="brew--tea"),
    "a long name": front(DESCRIPTION.strip(), name="x" * 65),
    "another field": valid("author: ann"),
    "a version": valid("version: 1.0.0"),
    "when to use": valid("when_to_use: always"),
    "tags": valid("tags:", "  - tea"),
    "a key in capitals": valid("License: MIT"),
    "a list of descriptions": front("description:", "  - Brews tea"),
    "a description with parts": front("description:", "  short: Brews tea"),
    "a compatibility with parts": valid("compatibility:", "  - git"),
    "a name with parts": f"---\nname:\n  - brew-tea\n{DESCRIPTION}---\n",
    "twice the same": valid(f"name: {NAME}"),
    "braces": valid("metadata: {author: ann}"),
    "brackets": valid("allowed-tools: [Read, Bash]"),
    "an anchor": front("description: &a Brews tea", "license: *a"),
    "a tag": front("description: !!str Brews tea"),
    "no front matter": "# Tea\n",
    "nothing": "",
    "never closed": f"---\nname: {NAME}\n{DESCRIPTION}",
    "words before it": f"Tea\n---\nname: {NAME}\n{DESCRIPTION}---\n",
    "broken": "---\nname: [\n---\n",
    "bad indentation": f"---\nname: {NAME}\n description: x\n---\n",
    "a text alone": "---\nbrew-tea\n---\n",
    "a list alone": "---\n- name\n---\n",
    "a tab": f"---\nname: {NAME}\n\tdescription: x\n---\n",
    "a colon in a text": front("description: Brews: tea"),
}


def reference(folder: Path) -> list[str]:
    """Return what the reference validator has to say."""
    problems: list[str] = import_module("skills_ref").validate(folder)
    return problems


def laid(root: Path, text: str, folder: str = NAME) -> Path:
    path = root / folder / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode())
    return path.parent


@pytest.mark.parametrize("name", CASES)
def test_a_skill_is_valid_if_the_reference_says_so(name: str, tmp_path: Path) -> None:
    folder = laid(tmp_path, CASES[name])
    assert bool(check_skill(folder)) is bool(reference(folder)), (
        check_skill(folder),
        reference(folder),
    )


@pytest.mark.parametrize(
    "name", ["τσάι", "茶", "été", "e\u0301te\u0301", "tea2", "2", "ﬁne", "a-b-c", "x" * 64, "ß"]
)
def test_names_of_all_languages_are_judged_as_the_reference_does(name: str, tmp_path: Path) -> None:
    folder = laid(tmp_path, front(DESCRIPTION.strip(), name=name), name)
    assert bool(check_skill(folder)) is bool(reference(folder))


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    """A skill with it is loaded, although the reference refuses it."""
    laid(tmp_path, f"\ufeff{valid()}")
    checked = Loopline(tmp_path)("skills", "check", ".")
    assert (checked.code, checked.out) == (0, "")


def test_a_folder_without_a_skill_is_a_problem(tmp_path: Path) -> None:
    (problem,) = check_skill(tmp_path)
    assert str(problem) == f"{tmp_path}:1: SKILL.md is missing"
    assert reference(tmp_path)


def test_a_problem_names_file_and_line(tmp_path: Path) -> None:
    folder = laid(tmp_path, valid("license: MIT", "author: ann"))
    (problem,) = check_skill(folder)
    assert str(problem).startswith(f"{folder / 'SKILL.md'}:5: 'author' is not a field of a skill")


def test_skills_are_found_in_a_folder_and_in_its_namespaces(tmp_path: Path) -> None:
    one = laid(tmp_path, valid())
    two = laid(tmp_path / "public", valid())
    assert skill_folders(tmp_path) == [one, two]
    assert skill_folders(one) == [one]


def test_a_folder_beside_skills_that_holds_none_is_named(tmp_path: Path) -> None:
    laid(tmp_path / "public", valid())
    for name in ("empty", "_drafts", ".git"):
        (tmp_path / name).mkdir()
    checked = Loopline(tmp_path)("skills", "check", ".")
    assert (checked.code, checked.out) == (1, "empty:1: SKILL.md is missing\n")


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    laid(tmp_path / ".agents/skills", valid())
    command = Loopline(tmp_path)
    good = command("skills", "check")
    assert (good.code, good.out) == (0, "")
    assert "0 problems in 1 skill" in good.err
    laid(tmp_path / "other", front(DESCRIPTION.strip(), name="Tea"))
    bad = command("skills", "check", "other")
    assert bad.code == 1
    assert "other/brew-tea/SKILL.md:2: the name 'Tea' must be in lower case" in bad.out
    assert len(command("skills", "check", "other", "--json").value["problems"]) == 2
    assert command("skills", "check", "nowhere").code == 2
