"""`loopline files`: the files of a turn on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import Bundle, Harness
from loopline.testing import Call, Say, ScriptedModel
from tests.doors.command import Loopline

PATCH = "@@ -1,2 +1,2 @@\n # Tea\n-hot\n+hotter\n"


@pytest.fixture
async def written(tmp_path: Path) -> Loopline:
    """A store with one conversation of two turns that wrote files."""
    model = ScriptedModel(
        [
            Say(
                "",
                Call("react.write", path="files/tea.md", content="# Tea\nhot\n"),
                Call("react.write", path="outputs/note.txt", content="\x1b[31mred\n"),
            ),
            "Done.",
            Call("react.patch", path="files/tea.md", patch=PATCH),
            "Done.",
        ]
    )
    bundle = Bundle(id="files", configuration={"react": {"workspace": "latest"}})
    folder = tmp_path / "here"
    folder.mkdir()
    async with Harness.open(
        bundle, store=f"sqlite:///{folder / 'talk.db'}", model=model
    ) as harness:
        talk = harness.conversation("c1")
        await talk.say("first")
        await talk.say("second")
    return Loopline(folder, {"LOOPLINE_STORE": f"sqlite:///{folder / 'talk.db'}"})


async def test_the_files_of_a_turn_are_listed(written: Loopline) -> None:
    newest, first = written("files", "list"), written("files", "list", "--turn", "1")
    assert newest.out == "files/tea.md\tfi:turn_2.files/tea.md@1\ttext/markdown, 13 bytes\n"
    assert [line.split("\t")[1] for line in first.out.splitlines()] == [
        "fi:turn_1.files/tea.md@1",
        "fi:turn_1.outputs/note.txt@1",
    ]
    assert [file["size"] for file in written("files", "list", "--json").value["files"]] == [13]


async def test_a_file_is_printed_as_it_is(written: Loopline) -> None:
    assert written("files", "show", "tea.md").out == "# Tea\nhotter\n"
    shown = written("files", "show", "outputs/note.txt", "--turn", "turn_1").out
    assert shown == "\x1b[31mred\n"
    missing = written("files", "show", "x.md")
    assert (missing.code, missing.out) == (1, "")


async def test_two_turns_are_compared(written: Loopline) -> None:
    ran = written("files", "diff", "1", "2")
    assert ran.out.splitlines() == [
        "--- a/files/tea.md",
        "+++ b/files/tea.md",
        "@@ -1,2 +1,2 @@",
        " # Tea",
        "-hot",
        "+hotter",
        "--- a/outputs/note.txt",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        *[line for line in ran.out.splitlines() if "red" in line],
    ]
    assert "2 files changed" in ran.err
    changes = written("files", "diff", "1", "2", "--json").value["files"]
    assert [change["after"] for change in changes] == ["fi:turn_2.files/tea.md@1", None]
    assert "turns are turn_1, turn_2" in written("files", "diff", "1", "9").err


async def test_the_files_are_written_into_a_folder(written: Loopline) -> None:
    ran = written("files", "export", "tree", "--turn", "1")
    tree = written.folder / "tree"
    assert ran.code == 0
    assert (tree / "files/tea.md").read_text() == "# Tea\nhot\n"
    assert (tree / "outputs/note.txt").read_bytes() == b"\x1b[31mred\n"
    again = written("files", "export", "tree")
    assert (again.code, "has files" in again.err) == (2, True)


async def test_an_export_writes_through_no_link(written: Loopline) -> None:
    outside = written.folder / "outside"
    tree = written.folder / "tree"
    outside.mkdir()
    tree.mkdir()
    (tree / "files").symlink_to(outside)
    ran = written("files", "export", "tree", "--force")
    assert (ran.code, "is a link or not a folder" in ran.err) == (1, True)
    assert list(outside.iterdir()) == []


async def test_a_tool_that_is_called_alone_says_which_files_it_would_make(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from loopline import Bundle, Output, OutputFile, tool\n\n\n"
        '@tool(effect="write")\n'
        "def report() -> Output:\n"
        '    """Write the report."""\n'
        '    return Output("Done.", files=[OutputFile("a.csv", "x")])\n\n\n'
        'bundle = Bundle(id="shop", tools=[report])\n'
    )
    command = Loopline(tmp_path)
    ran = command("tool", "shop.py", "shop.report")
    assert (ran.code, ran.out.strip()) == (0, "Done.")
    assert "file: outputs/a.csv (1 bytes), stored only in a conversation" in ran.err
    assert command("tool", "shop.py", "shop.report", "--json").value["files"] == ["outputs/a.csv"]


async def test_a_program_is_run_alone_and_can_call_no_tool(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from loopline import Bundle\n\n"
        'execution = {"runtime": {"mode": "local"}, "allow_local": True}\n'
        'bundle = Bundle(id="shop", configuration={"execution": execution})\n'
    )
    command = Loopline(tmp_path)
    ran = command("tool", "shop.py", "exec.python", '{"contract": [], "program": "print(6 * 7)"}')
    assert (ran.code, "| 42" in ran.out) == (0, True)
    calling = '{"contract": [], "program": "await tools.call(\'shop.price\')"}'
    assert "no tool 'shop.price' here" in command("tool", "shop.py", "exec.python", calling).out
