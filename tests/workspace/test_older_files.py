"""Files of older turns, brought beside the current ones or in their place, and searched."""

from __future__ import annotations

import pytest

from loopline import Bundle
from loopline.models import ToolCall
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.scripted_conversation import talking

FILES = Bundle(id="files", configuration={"react": {"workspace": "latest"}})
EMPTY = Bundle(id="files", configuration={"react": {"workspace": "empty"}})


def write(path: str, content: str) -> ToolCall:
    return Call("react.write", path=path, content=content)


async def result_of(*script: Entry, turns: int = 1, bundle: Bundle = FILES) -> str:
    """Return the result of the last call of the script."""
    async with talking([*script], bundle=bundle) as talk:
        for number in range(turns):
            await talk.say(f"turn {number + 1}")
        results = await talk.blocks(types="react.tool.result")
        (item,) = await talk.read([results[-1].ref])
    return item.text


FIRST: tuple[Entry, ...] = (
    Say("", write("files/a.py", "def tea():\n    return 80\n"), write("files/b.md", "# Tea\n")),
    "Done.",
)


async def test_a_checkout_makes_an_older_tree_the_current_one() -> None:
    second: tuple[Entry, ...] = (
        Say("", write("files/a.py", "new\n"), write("files/c.md", "c\n")),
        "Done.",
    )
    text = await result_of(
        *FIRST,
        *second,
        Call("react.checkout", mode="replace", paths=["fi:turn_1.files"]),
        "Done.",
        turns=3,
    )
    assert text == (
        "checked out 2 files\n\nremoved files/c.md\n"
        "wrote fi:turn_3.files/a.py@1 (text/plain, 25 bytes)"
    )


async def test_an_overlay_leaves_the_other_files() -> None:
    text = await result_of(
        *FIRST,
        write("files/c.md", "c\n"),
        Call("react.checkout", mode="overlay", paths=["fi:turn_1.files/b.md"]),
        Call("react.search_files", root="files"),
        "Done.",
        turns=2,
        bundle=EMPTY,
    )
    assert text == (
        "2 files\nfiles/b.md (6 bytes) fi:turn_2.files/b.md@1\nfiles/c.md (2 bytes) fi:turn_2.files/c.md@1"
    )


async def test_pulled_files_stand_beside_and_are_searched() -> None:
    text = await result_of(
        *FIRST,
        Call("react.pull", paths=["fi:turn_1.files/a.py"]),
        Call("react.search_files", content_regex="return \\d+", context=1),
        "Done.",
        turns=2,
        bundle=EMPTY,
    )
    assert text == (
        "1 hit in 1 of 1 file\nturn_1/files/a.py (25 bytes) fi:turn_1.files/a.py@1\n1- def tea():\n2:     return 80"
    )


async def test_a_pulled_file_cannot_be_written() -> None:
    text = await result_of(
        *FIRST,
        Call("react.pull", paths=["fi:turn_1.files/a.py"]),
        write("turn_1/files/a.py", "x"),
        "Done.",
        turns=2,
    )
    assert "is below the id of a turn: write files/<path>" in text


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("fi:turn_9.files", "'turn_9' does not exist"),
        ("fi:turn_1.files/src", "turn_1 has a.py, b.md"),
        ("ar:turn_1.user.prompt", "names no files"),
        ("files/a.py", "not a ref"),
        ("fi:turn_1.outputs", "the ref must be of files"),
    ],
)
async def test_a_checkout_of_nothing_says_what_there_is(path: str, problem: str) -> None:
    call = Call("react.checkout", mode="overlay", paths=[path])
    assert problem in await result_of(*FIRST, call, "Done.", turns=2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"content_regex": "tea"}, ["files/a.py"]),
        ({"content_regex": "tea", "ignore_case": True}, ["files/a.py", "files/b.md"]),
        ({"content_regex": "^# "}, ["files/b.md"]),
        ({"content_regex": "80$"}, ["files/a.py"]),
        ({"content_regex": r"\Adef"}, ["files/a.py"]),
        ({"glob": "*.md"}, ["files/b.md"]),
        ({"glob": "files/**/*.py"}, ["files/a.py"]),
        ({"glob": "src/*.py"}, []),
        ({"name_regex": "b"}, ["files/b.md"]),
        ({"root": "outputs"}, []),
        ({"root": "files"}, ["files/a.py", "files/b.md"]),
    ],
)
async def test_files_are_found_by_name_and_content(
    arguments: dict[str, str | bool], expected: list[str]
) -> None:
    text = await result_of(FIRST[0], Call("react.search_files", **arguments), "Done.")
    lines = [line.split()[0] for line in text.splitlines() if " bytes) fi:" in line]
    assert lines == expected


async def test_the_end_of_a_line_is_found_before_crlf_too() -> None:
    text = await result_of(
        write("files/a.txt", "foo\r\nbar\r\n"),
        write("files/b.txt", "bar\r\nfoo\r"),
        Call("react.search_files", content_regex="foo$"),
        "Done.",
    )
    assert text.startswith("2 hits in 2 of 2 files")


async def test_a_pattern_that_takes_others_for_ever_is_searched_at_once() -> None:
    text = await result_of(
        write("files/a.txt", "a" * 200_000),
        Call("react.search_files", content_regex="^(a+)+$b|(a|aa)+$!"),
        "Done.",
    )
    assert text.startswith("no hit")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?=a)", "does not support look-around"),
        ("(", "missing )"),
        ("x" * 1_001, "1,000 characters"),
        ("a{2000}", "repetition"),
    ],
)
async def test_a_pattern_that_cannot_be_searched_is_named(pattern: str, problem: str) -> None:
    text = await result_of(FIRST[0], Call("react.search_files", content_regex=pattern), "Done.")
    assert problem in text


async def test_a_search_that_finds_too_much_says_how_to_narrow_it() -> None:
    model = ScriptedModel(
        [
            write("files/a.txt", "tea\n" * 500),
            Call("react.search_files", content_regex="tea", max_hits=3),
            "Done.",
        ]
    )
    async with talking(model, bundle=FILES) as talk:
        await talk.say("go")
        (item,) = await talk.read(["tc:turn_1.c2.result"])
    assert item.text.splitlines()[0] == "3 hits in 1 of 1 file"
    assert "narrow the search" in item.text
