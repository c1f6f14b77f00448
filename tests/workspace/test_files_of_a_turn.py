"""Files of turns: written, patched, inherited by the next turn, and read by ref for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loopline import Attachment, Bundle, Harness, Output, OutputFile, ToolContext, tool
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.scripted_conversation import play_turn, talking


def bundle(start: str = "latest", *tools: Callable[..., object]) -> Bundle:
    return Bundle(id="files", tools=list(tools), configuration={"react": {"workspace": start}})


async def test_what_is_written_is_read_by_the_ref_that_the_result_gives() -> None:
    script: list[Entry] = [Call("react.write", path="files/tea.md", content="# Tea\n"), "Done."]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        (result, file) = await talk.read(["tc:turn_1.c1.result", "fi:turn_1.files/tea.md@1"])
    assert result.text == "wrote fi:turn_1.files/tea.md@1 (text/markdown, 6 bytes)"
    assert (file.text, file.mime, file.data) == ("# Tea\n", "text/markdown", b"# Tea\n")


async def test_a_new_turn_begins_with_the_files_and_without_the_outputs() -> None:
    script: list[Entry] = [
        Call("react.write", path="files/tea.md", content="one"),
        Call("react.write", path="outputs/report.md", content="report"),
        "Done.",
        Call(
            "react.patch",
            path="files/tea.md",
            patch="@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+two\n",
        ),
        "Done.",
    ]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("first")
        await talk.say("second")
        refs = [
            "fi:turn_1.files/tea.md",
            "fi:turn_2.files/tea.md",
            "fi:turn_1.outputs/report.md",
            "fi:turn_2.outputs/report.md",
        ]
        reading = await talk.read(refs)
    assert [item.text for item in reading] == ["one", "two\n", "report", ""]
    assert [item.ref for item in reading][:3] == [
        "fi:turn_1.files/tea.md@1",
        "fi:turn_2.files/tea.md@1",
        "fi:turn_1.outputs/report.md@1",
    ]
    assert reading.missing == ["fi:turn_2.outputs/report.md"]


async def test_a_file_that_a_turn_did_not_change_is_named_by_the_turn_that_did() -> None:
    script: list[Entry] = [
        Call("react.write", path="files/tea.md", content="one"),
        "Done.",
        "Nothing.",
    ]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("first")
        await talk.say("second")
        (item,) = await talk.read(["fi:turn_2.files/tea.md"])
    assert (item.text, item.ref) == ("one", "fi:turn_1.files/tea.md@1")


async def test_a_turn_may_begin_without_the_files_of_earlier_ones() -> None:
    script: list[Entry] = [Call("react.write", path="tea.md", content="one"), "Done.", "Nothing."]
    async with talking(script, bundle=bundle("empty")) as talk:
        await talk.say("first")
        await talk.say("second")
        old, new = await talk.read(["fi:turn_1.files/tea.md", "fi:turn_2.files/tea.md"])
    assert (old.text, new.status) == ("one", "missing")


async def test_the_tail_names_the_files_that_there_are() -> None:
    script: list[Entry] = [Call("react.write", path="tea.md", content="one"), "Done."]
    model = ScriptedModel(script)
    await play_turn(model, bundle=bundle())
    assert [request.tail.splitlines()[-1] for request in model.requests] == [
        "[WORKSPACE] empty",
        "[WORKSPACE] 1 file, 3 bytes: files/tea.md",
    ]


async def test_nothing_is_offered_where_the_workspace_is_off() -> None:
    model = ScriptedModel(["Hello."])
    await play_turn(model, bundle=Bundle(id="plain"))
    (request,) = model.requests
    assert not [spec.name for spec in request.tools if spec.name in ("react.write", "react.patch")]
    assert "[WORKSPACE]" not in request.tail


async def test_a_tool_puts_files_into_the_outputs() -> None:
    @tool(effect="write")
    def render() -> Output:
        """Render the report."""
        return Output("Rendered.", files=[OutputFile("export/report.pdf", b"%PDF-1.4\n\xff")])

    async with talking([Call("files.render"), "Done."], bundle=bundle("off", render)) as talk:
        await talk.say("go")
        (result, file) = await talk.read(
            ["tc:turn_1.c1.result", "fi:turn_1.outputs/export/report.pdf"]
        )
    assert result.text == (
        "Rendered.\n\nwrote fi:turn_1.outputs/export/report.pdf@1 (application/pdf, 10 bytes)"
    )
    assert (file.data, file.mime) == (b"%PDF-1.4\n\xff", "application/pdf")


async def test_a_tool_reads_and_writes_the_workspace_of_its_turn() -> None:
    @tool(effect="write")
    def shout(context: ToolContext, path: str) -> str:
        """Write a file in capitals."""
        text = context.workspace.read_text(path)
        context.workspace.write(path, text.upper())
        assert context.workspace.read_text(path) == text.upper()
        return ", ".join(context.workspace.paths("files"))

    script: list[Entry] = [
        Call("react.write", path="tea.md", content="green"),
        Call("files.shout", path="files/tea.md"),
        "Done.",
    ]
    async with talking(script, bundle=bundle("latest", shout)) as talk:
        await talk.say("go")
        first, second = await talk.read(["fi:turn_1.files/tea.md@1", "fi:turn_1.files/tea.md"])
    assert (first.text, second.text, second.ref) == ("green", "GREEN", "fi:turn_1.files/tea.md@2")


async def test_a_tool_that_fails_leaves_no_file_behind() -> None:
    @tool(effect="write")
    def half(context: ToolContext) -> str:
        """Write half of it."""
        context.workspace.write("files/a.md", "half")
        raise ValueError("no ink")

    async with talking([Call("files.half"), "Done."], bundle=bundle("latest", half)) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
        (file,) = await talk.read(["fi:turn_1.files/a.md"])
    assert file.status == "missing"
    assert [block for block in blocks if block.type.startswith("file.")] == []


async def test_a_tool_that_only_reads_may_not_write() -> None:
    @tool(effect="read")
    def sly(context: ToolContext) -> str:
        """Write although it reads."""
        context.workspace.write("files/a.md", "x")
        return "read"

    async with talking([Call("files.sly"), "Done."], bundle=bundle("latest", sly)) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert "effect 'read' may not" in result.text


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("../etc/passwd", "'..' is not a name"),
        ("/etc/passwd", "it is absolute"),
        ("files/a\0b", "a control"),
        ("files/.git/hooks/pre-commit", "Git reserves"),
        ("files/" + "x" * 300, "more than 255 bytes"),
        ("attachments/a.md", "cannot be changed"),
        ("turn_9/files/a.md", "is below the id of a turn: write files/<path>"),
    ],
)
async def test_a_path_that_leads_elsewhere_is_refused(path: str, problem: str) -> None:
    script: list[Entry] = [Call("react.write", path=path, content="x"), "Done."]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert problem in result.text


async def test_a_patch_that_fits_nowhere_says_what_stands_there() -> None:
    text = "def tea():\n    water = 80\n    return water\n"
    patch = (
        "--- a/files/tea.py\n+++ b/files/tea.py\n@@ -1,3 +1,3 @@\n def tea():\n"
        "-    water = 90\n+    water = 85\n     return water\n"
    )
    script: list[Entry] = [
        Call("react.write", path="files/tea.py", content=text),
        Call("react.patch", patch=patch),
        "Done.",
    ]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        result, file = await talk.read(["tc:turn_1.c2.result", "fi:turn_1.files/tea.py"])
    assert result.text == (
        "the patch does not apply, and nothing was changed.\n"
        "Hunk 1 of 1 for files/tea.py does not fit (line 3 of the patch: @@ -1,3 +1,3 @@)\n"
        "it expects: '    water = 90'\n"
        "line 2 is: '    water = 80'\n"
        "The nearest place is lines 1 to 3:\n1: def tea():\n2:     water = 80\n3:     return water"
    )
    assert (file.text, file.ref) == (text, "fi:turn_1.files/tea.py@1")


async def test_a_patch_changes_creates_renames_and_deletes_files_at_once() -> None:
    patch = (
        "diff --git a/files/a.txt b/files/a.txt\n--- a/files/a.txt\n+++ b/files/a.txt\n@@ -1 +1 @@\n-a\n+A\n"
        "diff --git a/files/new.txt b/files/new.txt\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/files/new.txt\n@@ -0,0 +1 @@\n+new\n"
        "diff --git a/files/b.txt b/files/sub/b.txt\nsimilarity index 100%\n"
        "rename from files/b.txt\nrename to files/sub/b.txt\n"
        "diff --git a/files/c.txt b/files/c.txt\ndeleted file mode 100644\n--- a/files/c.txt\n"
        "+++ /dev/null\n@@ -1 +0,0 @@\n-c\n"
    )
    script: list[Entry] = [
        Say(
            "",
            *(Call("react.write", path=f"files/{name}.txt", content=f"{name}\n") for name in "abc"),
        ),
        Call("react.patch", patch=patch),
        "Done.",
    ]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c4.result"])
        names = ["a.txt", "new.txt", "sub/b.txt", "b.txt", "c.txt"]
        reading = await talk.read([f"fi:turn_1.files/{name}" for name in names])
        (old,) = await talk.read(["fi:turn_1.files/c.txt@1"])
    assert "wrote fi:turn_1.files/a.txt@2 (text/plain, 2 bytes)" in result.text
    assert [item.text for item in reading] == ["A\n", "new\n", "b\n", "", ""]
    assert reading.missing == ["fi:turn_1.files/b.txt", "fi:turn_1.files/c.txt"]
    assert old.text == "c\n"


async def test_files_survive_a_fork_an_export_an_import_and_another_process(tmp_path: Path) -> None:
    large = "x" * 100_000
    script: list[Entry] = [
        Call("react.write", path="files/large.txt", content=large),
        Call("react.write", path="files/large.txt", content=f"{large}2"),
        "Done.",
        Call("react.write", path="files/large.txt", content="own"),
        "Done.",
    ]
    refs = ["fi:turn_1.files/large.txt@1", "fi:turn_1.files/large.txt@2"]
    url = f"sqlite:///{tmp_path / 'talk.db'}"
    async with talking(script, bundle=bundle(), store=url) as talk:
        await talk.say("go")
        fork = await talk.fork(seq=len(await talk.blocks()))
        await fork.say("go on")
        (mine,) = await fork.read(["fi:turn_2.files/large.txt"])
        (theirs,) = await talk.read(["fi:turn_1.files/large.txt"])
        document = await talk.export()
    assert (mine.text, theirs.text) == ("own", f"{large}2")
    async with Harness.open(bundle(), store=url, model=ScriptedModel([])) as harness:
        again = await harness.conversation("c").read(refs)
        imported = await (await harness.load(document, name="other")).read(refs)
    assert [item.text for item in again] == [large, f"{large}2"]
    assert [item.text for item in imported] == [large, f"{large}2"]


async def test_two_calls_that_change_one_file_at_once_do_not_overwrite_each_other() -> None:
    both = asyncio.Barrier(2)

    async def append(context: ToolContext, text: str) -> str:
        """Add to the file."""
        before = context.workspace.read_text("files/a.txt")
        await both.wait()
        context.workspace.write("files/a.txt", before + text)
        return "added"

    add = tool(effect="write", key="{text}")(append)
    script: list[Entry] = [
        Call("react.write", path="files/a.txt", content="-"),
        Say("", Call("files.append", text="x"), Call("files.append", text="y")),
        "Done.",
    ]
    async with talking(script, bundle=bundle("latest", add)) as talk:
        await talk.say("go")
        results = await talk.read(["tc:turn_1.c2.result", "tc:turn_1.c3.result"])
        (file,) = await talk.read(["fi:turn_1.files/a.txt"])
    said = sorted(item.text.partition("\n")[0] for item in results)
    assert said[0] == "added"
    assert "was changed by another call at the same time" in said[1]
    assert file.text in ("-x", "-y")


async def test_a_file_that_is_too_large_says_how_large_it_may_be() -> None:
    @tool(effect="write")
    def fill(context: ToolContext) -> str:
        """Write too much."""
        context.workspace.write("files/a.bin", bytes(10 * 1024 * 1024 + 1))
        return "filled"

    async with talking([Call("files.fill"), "Done."], bundle=bundle("latest", fill)) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert (
        "has 10,485,761 bytes, and a file may have 10,485,760: nothing was written" in result.text
    )


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("files/README.md", "files/readme.md", "differ only in their case"),
        ("files/a", "files/a/b", "would be both a file and a folder"),
        ("files/a/b", "files/a", "would be both a file and a folder"),
    ],
)
async def test_two_names_that_are_one_elsewhere_are_refused(
    first: str, second: str, problem: str
) -> None:
    script: list[Entry] = [
        Call("react.write", path=first, content="x"),
        Call("react.write", path=second, content="y"),
        "Done.",
    ]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
    assert problem in result.text


async def test_an_attached_file_stands_in_the_workspace() -> None:
    @tool(effect="read")
    def look(context: ToolContext) -> str:
        """List and read."""
        paths = context.workspace.paths()
        return f"{paths} {context.workspace.read_text('attachments/plan.md')}"

    async with talking([Call("files.look"), "Done."], bundle=bundle("latest", look)) as talk:
        await talk.say("go", attachments=[Attachment("plan.md", b"# Plan")])
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert result.text == "['attachments/plan.md'] # Plan"
