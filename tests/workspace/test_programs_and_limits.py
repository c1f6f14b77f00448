"""A program stays one: through patches, turns, checkouts, exports and documents. The limits of a tree are properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import Harness, Output, OutputFile, ToolContext, tool
from loopline.errors import PropertyError
from loopline.testing import Call, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import FileAdded, parse_path
from tests.doors.command import Loopline
from tests.support.scripted_conversation import talking
from tests.workspace.test_files_of_a_turn import bundle

NEW = """diff --git a/files/run.sh b/files/run.sh
new file mode 100755
--- /dev/null
+++ b/files/run.sh
@@ -0,0 +1 @@
+echo tea
"""
CHANGE = """--- a/files/run.sh
+++ b/files/run.sh
@@ -1 +1 @@
-echo tea
+echo pie
"""
MODE = """diff --git a/files/run.sh b/files/run.sh
old mode 100755
new mode 100644
"""
RENAME = """diff --git a/files/run.sh b/files/start.sh
similarity index 100%
rename from files/run.sh
rename to files/start.sh
"""


@tool(effect="write")
def make(context: ToolContext) -> Output:
    """Make programs."""
    context.workspace.write("files/own.py", "own\n", executable=True)
    context.workspace.write("files/own.py", "own again\n")
    return Output("Made.", files=[OutputFile("tool.py", "tool\n", executable=True)])


async def test_a_program_stays_one_in_patches_checkouts_exports_and_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Entry] = [
        Call("react.patch", patch=NEW),
        Call("react.patch", patch=CHANGE),
        Call("files.make"),
        "One.",
        Call("react.patch", patch=MODE),
        Call("react.checkout", mode="overlay", paths=["fi:turn_1.files/run.sh"]),
        Call("react.write", path="files/run.sh", content="echo soup\n"),
        Call("react.patch", patch=RENAME),
        "Two.",
    ]
    monkeypatch.chdir(tmp_path)
    place = f"sqlite:///{tmp_path / 'talk.db'}"
    model = ScriptedModel(script)
    async with Harness.open(bundle("latest", make), store=place, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        await talk.say("on")
        blocks = await talk.blocks()
        document = await talk.export()
    added = [block.body for block in blocks if isinstance(block.body, FileAdded)]
    programs = [(file.path, file.text, file.executable) for file in added]
    assert programs == [
        ("run.sh", "echo tea\n", True),
        ("run.sh", "echo pie\n", True),
        ("own.py", "own again\n", True),
        ("tool.py", "tool\n", True),
        ("run.sh", "echo pie\n", False),
        ("run.sh", "echo pie\n", True),
        ("run.sh", "echo soup\n", True),
        ("start.sh", "echo soup\n", True),
    ]
    command = Loopline(tmp_path)
    assert command("files", "export", "tree", "--store", place, "-c", "c").code == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tree/files").iterdir()}
    assert modes == {"start.sh": 0o700, "own.py": 0o700}
    listed = command("files", "list", "--store", place, "-c", "c")
    assert "text/plain, 10 bytes, executable" in listed.out
    async with Harness.open(bundle(), store="memory:", model=ScriptedModel(["So."])) as harness:
        await harness.load(document, name="copy")
        copy = await harness.conversation("copy").blocks()
    assert [block.body for block in copy if isinstance(block.body, FileAdded)] == added


async def test_a_program_that_the_call_has_removed_is_none() -> None:
    @tool(effect="write")
    def drop(context: ToolContext) -> str:
        """Remove programs, one that is recorded and one of the call."""
        files, paths = context.workspace, ("files/own.py", "files/new.py")
        files.write(paths[1], "new\n", executable=True)
        before = [files.is_executable(parse_path(path)) for path in paths]
        for path in paths:
            files.remove(path)
        return f"{before}, then {[files.is_executable(parse_path(path)) for path in paths]}"

    script: list[Entry] = [Call("files.make"), Call("files.drop"), "Done."]
    async with talking(script, bundle=bundle("latest", make, drop)) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
    assert result.text.startswith("[True, True], then [False, False]")


@pytest.mark.parametrize(
    ("limits", "path", "content", "message"),
    [
        ({"workspace.file_bytes": 5}, "files/a", "123456", "and a file may have 5"),
        ({"workspace.tree_bytes": 5}, "files/a", "123456", "and may have 5"),
        ({"workspace.files": 1}, "files/b", "1", "would have 2 files, and may have 1"),
        ({"workspace.depth": 2}, "files/a/b/c", "1", "has 3 names, and may have 2"),
    ],
)
async def test_the_limits_of_a_tree_are_properties(
    limits: dict[str, int], path: str, content: str, message: str
) -> None:
    script: list[Entry] = [
        Call("react.write", path="files/first", content="1"),
        Call("react.write", path=path, content=content),
        "Done.",
    ]
    async with talking(ScriptedModel(script), bundle=bundle(), properties=limits) as talk:
        await talk.say("go")
        first, second = await talk.read(["tc:turn_1.c1.result", "tc:turn_1.c2.result"])
    assert "wrote fi:turn_1.files/first@1" in first.text
    assert message in second.text


@pytest.mark.parametrize("value", [0, -1, 10**12, True])
async def test_a_limit_that_is_none_is_refused(value: int) -> None:
    with pytest.raises(PropertyError, match="workspace\\.files"):
        async with talking(
            ScriptedModel([]), bundle=bundle(), properties={"workspace.files": value}
        ):
            pass
