"""The current folder of a program is a view of the workspace: what it changes there is stored, or named with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from loopline import Bundle, Harness
from loopline.models import Json
from loopline.testing import Call, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import FileAdded, FileRemoved, ToolResult
from loopline.timeline.workspace import Visibility, file_bytes
from tests.sandbox.conftest import ISOLATING
from tests.support.docker_daemons import IMAGE, SETTINGS

WAYS: Mapping[str, Mapping[str, Json]] = {
    "local": {"runtime": {"mode": "local"}},
    "process": {"runtime": {"mode": "process"}},
    "session": {"runtime": {"mode": "local"}},
    "docker": {
        "runtime": {"mode": "docker", "image": IMAGE, "extra_args": list(SETTINGS.extra_args)},
        "python": SETTINGS.python,
    },
}
BEFORE = {"files/log.txt": "one", "files/a/b.txt": "b", "outputs/report.md": "report"}


@pytest.fixture(params=["local", "session", *ISOLATING])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to run a program in turn."""
    if request.param == "docker":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("docker_host"))
    return str(request.param)


def shop(way: str) -> Bundle:
    """A bundle whose model writes files and runs programs."""
    execution: Json = {**WAYS[way], "allow_local": True, "limits": LIMITS}
    return Bundle(
        id="shop", configuration={"execution": execution, "react": {"workspace": "latest"}}
    )


LIMITS: Json = {"file_bytes": 100_000, "total_bytes": 150_000, "disk_bytes": 2_000_000}


async def run(
    way: str, programs: Sequence[tuple[str, Sequence[str]]], before: Mapping[str, str] = BEFORE
) -> tuple[dict[str, str], dict[str, Visibility], list[str]]:
    """The newest files of a turn after programs with contracts, who sees them, and the last report's lines."""
    entries: list[Entry] = [
        Call("react.write", path=path, content=text) for path, text in before.items()
    ]
    named: dict[str, Json] = {"session": "a"} if way == "session" else {}
    for program, contract in programs:
        files: Json = [{"filename": name} for name in contract]
        entries.append(Call("exec.python", program=program, contract=files, **named))
    model = ScriptedModel([*entries, "Done."])
    async with Harness.open(shop(way), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        bodies = [block.body for block in await talk.blocks()]
    tree, seen = dict[str, str](), dict[str, Visibility]()
    for body in bodies:
        if isinstance(body, FileAdded):
            tree[f"{body.area}/{body.path}"] = file_bytes(body).decode()
            seen[f"{body.area}/{body.path}"] = body.visibility
        if isinstance(body, FileRemoved):
            del tree[f"{body.area}/{body.path}"]
    report = [body for body in bodies if isinstance(body, ToolResult)][-1]
    return tree, seen, report.text.splitlines()


@pytest.mark.parametrize(
    ("program", "contract", "changes"),
    [
        ("open('files/log.txt', 'a').write('two')", [], {"files/log.txt": "onetwo"}),
        ("open('files/log.txt', 'a').write('two')", ["files/log.txt"], {"files/log.txt": "onetwo"}),
        ("open('outputs/new.txt', 'w').write(open('files/log.txt').read() * 2)", [], {"outputs/new.txt": "oneone"}),
        ("f = open('files/a/b.txt', 'r+'); f.write('B'); f.close()", [], {"files/a/b.txt": "B"}),
        ("import os; os.rename('files/log.txt', 'files/a/log.txt')", [], {"files/log.txt": None, "files/a/log.txt": "one"}),
        ("import os; os.rename('files/log.txt', 'files/LOG.txt')", [], {"files/log.txt": None, "files/LOG.txt": "one"}),
        ("import os; os.remove('outputs/report.md')", [], {"outputs/report.md": None}),
        ("import shutil; shutil.rmtree('files/a'); open('files/a', 'w').write('a')", [], {"files/a/b.txt": None, "files/a": "a"}),
        ("open(OUTPUT_DIR + '/turn_1/files/extra.txt', 'w').write('e'); open('outputs/extra.pdf', 'w').write('p')", [], {"files/extra.txt": "e", "outputs/extra.pdf": "p"}),
        ("open('files/extra.txt', 'w').write('e'); open('outputs/r', 'w').write('r')", ["r"], {"files/extra.txt": "e", "outputs/r": "r"}),
        ("open('files/log.txt')", [], {}),
        ("open('outputs/r.csv', 'w').write('r')", ["turn_1/outputs/r.csv"], {"outputs/r.csv": "r"}),
        ("open('files/r.csv', 'w').write('r')", ["turn_1/files/r.csv"], {"files/r.csv": "r"}),
    ],
)  # fmt: skip
async def test_what_a_program_changes_in_its_current_folder_is_stored(
    way: str, program: str, contract: list[str], changes: dict[str, str | None]
) -> None:
    tree, _, report = await run(way, [(program, contract)])
    assert report[0].startswith("Status: ok"), report
    expected = {**BEFORE, **changes}
    assert tree == {name: text for name, text in expected.items() if text is not None}


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("open('files/large.bin', 'wb').write(b'x' * 90_000); open('files/more.bin', 'wb').write(b'x' * 90_000)", "Not taken: files/more.bin: "),
        ("import os; os.symlink('/etc/hostname', 'files/link')", "Not taken: files/link: it is not a plain file"),
        ("import os; os.link('files/log.txt', 'files/second.txt')", "Not taken: files/second.txt: it has a second name"),
        ("import os; os.mkfifo('outputs/pipe') if OUTPUT_DIR[:5] == '/tmp/' else os.symlink('x', 'outputs/pipe')", "Not taken: outputs/pipe: it is not a plain file"),
        ("open('files/LOG.txt', 'w').write('1')", "Not recorded: files/log.txt and files/LOG.txt differ only in their case"),
        ("open('files/a\\u202eb', 'w').write('1')", "Not recorded: 'files/a\\u202eb': "),
        ("open(b'files/a\\xff', 'w').write('1')", "Not recorded: 'files/a\\udcff': "),
        ("open('files/a\\nStatus: ok', 'w').write('1')", "Not recorded: 'files/a\\nStatus: ok': "),
        ("import os; os.makedirs('files/__pycache__'); open('files/__pycache__/a.pyc', 'w')", "Not taken: files/__pycache__/: a workspace has no folder of this name"),
        ("import os; os.makedirs('files/' + 'd/' * 40); open('files/' + 'd/' * 40 + 'x', 'w')", "Not recorded: files/"),
    ],
)  # fmt: skip
async def test_what_cannot_be_stored_is_named_with_the_reason(
    way: str, program: str, line: str
) -> None:
    tree, _, report = await run(way, [(program, [])])
    assert [found for found in report if found.startswith(line)], report
    assert {name: tree.get(name) for name in BEFORE} == BEFORE


async def test_of_contract_names_that_differ_in_their_case_one_is_stored_with_all_other_files(
    way: str,
) -> None:
    names = ["outputs/r.csv", "outputs/R.csv", "outputs/s.csv"]
    program = f"for name in {names}: open(name, 'w').write(name)"
    tree, _, report = await run(way, [(program, names)])
    assert tree == {**BEFORE, **{name: name for name in (names[0], names[2])}}
    assert "Not recorded: outputs/r.csv and outputs/R.csv differ only in their case" in report


@pytest.mark.parametrize(
    "way",
    ["local", *ISOLATING],
    indirect=True,
)
async def test_what_is_written_beside_the_areas_is_named(way: str) -> None:
    program = "open('chart.png', 'w'); open('../top.txt', 'w')"
    _, _, report = await run(way, [(program, [])])
    outside = "it is neither in files/ nor in outputs/"
    assert f"Not taken: chart.png: {outside}" in report
    assert f"Not taken: top.txt: {outside}" in report


async def test_a_program_that_fails_removes_nothing_and_its_changes_are_stored(way: str) -> None:
    program = "import os; os.remove('files/log.txt'); open('files/new', 'w').write('n'); 1 / 0"
    tree, _, report = await run(way, [(program, []), ("pass", [])])
    assert tree == {**BEFORE, "files/new": "n"}
    tree, _, report = await run(way, [(program, [])])
    assert "No files are removed from the workspace, because the program failed." in report


async def test_the_user_sees_the_outputs_that_a_contract_names(way: str) -> None:
    first = "open('outputs/a', 'w').write('a'); open('outputs/b', 'w').write('b')"
    _, seen, _ = await run(way, [(first, ["outputs/a"])])
    assert (seen["outputs/a"], seen["outputs/b"]) == ("external", "internal")
    _, seen, _ = await run(way, [(first, ["outputs/a"]), ("pass", ["outputs/b"])])
    assert (seen["outputs/a"], seen["outputs/b"]) == ("external", "external")


async def test_a_program_does_not_replace_what_another_call_has_written_meanwhile(
    way: str,
) -> None:
    tool = "await tools.call('react.write', path='files/log.txt', content='tool')"
    program = f"open('files/log.txt', 'a').write('mine'); open('files/x', 'w').write('x'); {tool}"
    tree, _, report = await run(way, [(program, [])])
    assert tree["files/log.txt"] == "tool"
    assert tree["files/x"] == "x"
    assert [line for line in report if "files/log.txt was changed by another call" in line]


async def test_a_session_goes_on_with_the_newest_files() -> None:
    files: Json = []
    entries: list[Entry] = [
        Call("react.write", path="files/log.txt", content="one"),
        Call(
            "exec.python", program="x = open('files/log.txt').read()", contract=files, session="a"
        ),
        Call("react.write", path="files/log.txt", content="two"),
        Call("react.write", path="files/new.txt", content="n" * 80_000),
        Call(
            "exec.python",
            program="open('files/log.txt', 'a').write(x); print(len(open('files/new.txt').read()))",
            contract=files,
            session="a",
        ),
    ]
    model = ScriptedModel([*entries, "Done."])
    async with Harness.open(shop("session"), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        [log] = await talk.read(["fi:turn_1.files/log.txt"])
        blocks = await talk.blocks()
    assert log.text == "twoone"
    last = [block.body for block in blocks if isinstance(block.body, ToolResult)][-1]
    assert "| 80000" in last.text.splitlines()
