"""What is typed wrong is told in one line: 2 for a wrong use, 1 for what went wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.doors.bundles import QUESTION
from tests.doors.command import Loopline, Ran, write
from tests.support.rows import each_row

RUN = ("run", "guide", QUESTION)


def complaint(ran: Ran) -> str:
    """The one line that says what was wrong."""
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in ran.err
    assert ran.out == ""
    return line


def test_a_wrong_use_is_2(tea: Loopline) -> None:
    rows = [
        ((*RUN, "--prop", "knowledge"), "write it as name=value"),
        ((*RUN, "--prop", "knowledge.rep=x"), "nearest is 'knowledge.repo'"),
        ((*RUN, "--prop", "knowledge.validate_refs=perhaps"), "must be true or false"),
        ((*RUN, "--store", "mysql://here"), "no store 'mysql://here'"),
        ((*RUN, "--model", "oracle"), "no model 'oracle'"),
        (("run", "guide", " "), "the text is empty"),
        (("search", "guide", " "), "the query is empty"),
        (("timeline", "--store", "here.db"), "no store 'here.db'"),
        (("mcp", "guide", "--login", "tea", "--store", "memory:"), "this store is not in a file"),
    ]

    @each_row(rows)
    def check(arguments: tuple[str, ...], message: str) -> None:
        ran = tea(*arguments)
        assert message in complaint(ran)
        assert ran.code == 2

    check()


@pytest.mark.parametrize("name", ["check", "doctor", "serve", "web", "worker"])
def test_a_malformed_property_is_a_wrong_use_of_each_command(tea: Loopline, name: str) -> None:
    ran = tea(name, "guide", "--prop", "nonsense")
    assert "write it as name=value" in complaint(ran)
    assert ran.code == 2


def test_the_command_is_a_module_too(tea: Loopline) -> None:
    ran = tea.paste(f"{sys.executable} -m loopline timeline")
    assert (ran.code, "no store" in complaint(ran)) == (1, True)


def test_what_is_no_command_is_2_and_shows_how_it_is_used(tea: Loopline) -> None:
    rows = [(), ("rnu",), ("run",), ("run", "guide", "x", "--nope")]
    for arguments in rows:
        ran = tea(*arguments)
        assert (arguments, ran.code) == (arguments, 2)
        assert "Usage: loopline" in ran.out + ran.err, arguments


def test_what_cannot_be_done_is_told_in_a_line(tea: Loopline) -> None:
    rows = [
        (("read", "ar:turn_1.user.prompt"), "no store"),
        (("timeline",), "no store"),
        (("run", "guid", QUESTION), "no bundle 'guid'"),
        (("run", "./nowhere", QUESTION), "nowhere: no such folder"),
        ((*RUN, "--prop", "knowledge.repo=docs/nowhere"), "knowledge.repo"),
        ((*RUN, "--prop", "knowledge.ref=nowhere"), "knowledge.ref"),
        (("run", "guide"), "no conversation of the user 'local' yet"),
        (("run", "guide", "-c", "c1"), "nothing to carry on"),
        (("tool", "guide", "tea.steep", "{}"), "no tool 'tea.steep'"),
    ]

    @each_row(rows)
    def check(arguments: tuple[str, ...], message: str) -> None:
        ran = tea(*arguments)
        assert message in complaint(ran)
        assert ran.code in (1, 2)

    check()


def test_bad_arguments_of_a_tool_are_named(slow: Loopline) -> None:
    rows = [
        ("{", "the arguments are not JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "'what' is missing"),
        ('{"what": 1}', "what"),
        ('{"what": "dig", "wat": 1}', "'wat' is not a parameter"),
    ]

    @each_row(rows)
    def check(arguments: str, message: str) -> None:
        ran = slow("tool", "slow", "slow.work", arguments)
        assert message in complaint(ran)
        assert ran.code == 2

    check()


def test_a_tool_is_called_outside_any_conversation(slow: Loopline) -> None:
    ran = slow("tool", "slow", "slow.work", '{"what": "dig"}', "--prop", "seconds=0.01")
    assert (ran.out, ran.code) == ("dug\n", 0)
    assert not (slow.folder / ".loopline").exists()


def test_a_tool_that_fails_says_where(slow: Loopline) -> None:
    write(slow.folder, {"slow/tools.py": BROKEN_TOOL})
    ran = slow("tool", "slow", "slow.work", '{"what": "dig"}')
    assert "ZeroDivisionError: division by zero" in ran.err
    assert "tools.py:7" in ran.err
    assert ran.code == 1


INTERRUPTED_TOOL = """
from loopline import Bundle, tool


@tool(effect="read")
def steep() -> str:
    \"\"\"Steep.\"\"\"
    raise KeyboardInterrupt


bundle = Bundle(id="tea", tools=[steep])
"""


def test_an_interrupt_that_a_tool_raises_is_its_failure(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": INTERRUPTED_TOOL})
    ran = Loopline(tmp_path)("tool", "tea.py", "tea.steep")
    assert (ran.code, "tea.steep: KeyboardInterrupt" in ran.err) == (1, True)
    assert "tea.py:8" in ran.err


def test_a_program_that_fails_says_so_to_the_shell(slow: Loopline) -> None:
    local = ["--prop", "execution.runtime.mode=local", "--prop", "execution.allow_local=true"]
    for program, code in (("1 / 0", 1), ("print('well')", 0)):
        arguments = json.dumps({"contract": [], "program": program})
        ran = slow("tool", "slow", "exec.python", arguments, *local)
        assert ran.code == code, ran


BROKEN_TOOL = '''from loopline import tool


@tool
def work(what: str) -> str:
    """Work."""
    return str(1 / 0)
'''


def test_a_broken_bundle_names_file_and_line(tea: Loopline) -> None:
    write(tea.folder, {"guide/__init__.py": "import loopline\n\nnonsense\n"})
    ran = tea(*RUN)
    assert "guide/__init__.py:3: NameError" in complaint(ran)
    assert ran.code == 1
    assert "Traceback" in tea(*RUN, "-v").err


def test_code_that_fails_in_a_turn_ends_it_as_an_error(slow: Loopline) -> None:
    write(slow.folder, {"slow/__init__.py": BROKEN_WORKFLOW})
    ran = slow("run", "slow", "hello")
    assert "slow/__init__.py:6: ZeroDivisionError" in complaint(ran)
    assert ran.code == 1
    assert slow.blocks("slow-1")[-1]["body"]["reason"] == "error"
    value = slow("run", "slow", "hello", "--json").value
    assert (value["ok"], value["exit_reason"]) == (False, "error")
    assert "ZeroDivisionError" in value["error"]


BROKEN_WORKFLOW = """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Broken(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        return await self.answer(str(1 / 0))


bundle = Bundle(id="slow", workflow=Broken)
"""


def test_check_lists_every_problem(slow: Loopline) -> None:
    assert slow("check", "slow").code == 0
    write(
        slow.folder,
        {
            "slow/tools.py": "from loopline import tool\n\n\n@tool\ndef work(what):\n    pass\n",
            "slow/skills/public/dig/SKILL.md": "no front matter\n",
            "slow/skills/public/sow/SKILL.md": "---\nname: sow\ncolour: green\n---\nSow.\n",
            "slow/loopline.yaml": "secnds: 3\n",
        },
    )
    ran = slow("check", "slow")
    problems = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert ran.code == 1
    assert len(problems) == 4
    assert "loopline.yaml:1: no property 'secnds'" in problems[0]
    assert "tools.py:4" in problems[1]
    assert "dig/SKILL.md:1" in problems[2]
    assert "sow/SKILL.md:3" in problems[3]


def test_check_says_what_a_bundle_is_made_of(slow: Loopline, tea: Loopline) -> None:
    ran = slow("check", "slow")
    assert "slow.work(what: str)  exclusive  Work for a long time." in ran.out
    assert "seconds = 600.0" in ran.out
    assert "indexed tea house @" in tea("check", "guide").out


TYPED = '''from typing import Literal

import pydantic

from loopline import Bundle, ToolContext

Kind = Literal["green", "black"]


class Tea(pydantic.BaseModel):
    kind: Kind


def steep(context: ToolContext, kind: Kind, cups: int | None = None, of: list[str] = []) -> str:
    """Steep tea."""
    return kind


bundle = Bundle(id="tea", tools=[steep], output_type=Tea)
'''


def test_check_shows_types_as_they_are_written(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": TYPED})
    out = Loopline(tmp_path)("check", "tea.py").out
    assert "tea.steep(kind: Literal['green', 'black'], cups?: int | None, of?: list[str])" in out
    assert "Tea(kind: Literal['green', 'black'])" in out


ANNOTATED = """
from typing import Annotated
from pydantic import Field
from loopline import Bundle, tool

@tool
def steep(
    cups: Annotated[int, Field(ge=1, description="how many")],
    kinds: list[Annotated[str, Field(min_length=2)]] | None = None,
    other: list[Annotated[int, Field(ge=1)]] = [],
) -> str:
    'Steep tea.'
    return ""

bundle = Bundle(id="tea", tools=[steep], knowledge={"repo": "", "docs_root": "docs"})
"""


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_check_shows_the_types_of_annotated_parameters(tmp_path: Path, first: str) -> None:
    write(tmp_path, {"tea.py": first + ANNOTATED})
    out = Loopline(tmp_path)("check", "tea.py").out
    assert "steep(cups: int, kinds?: list[str] | None, other?: list[int])" in out


def test_check_says_what_a_knowledge_space_lacks(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": ANNOTATED})
    lacking = Loopline(tmp_path)("check", "tea.py")
    assert "knowledge  no repository: set knowledge.repo to a folder or a URL" in lacking.out
    wrong = Loopline(tmp_path)("check", "tea.py", "--prop", "knowledge.repo=absent")
    assert "knowledge  not read, because of the problems below" in wrong.out
    assert "absent" in wrong.err


def test_check_reads_the_descriptor_that_the_code_names(slow: Loopline) -> None:
    (slow.folder / "slow" / "tools_descriptor.py").rename(slow.folder / "slow" / "my_tools.py")
    missing = slow("check", "slow")
    assert (missing.code, "no module 'slow.tools_descriptor'" in missing.err) == (1, True)
    workflow = next(
        file for file in (slow.folder / "slow").glob("*.py") if "build_react" in file.read_text()
    )
    workflow.write_text(workflow.read_text().replace("tools_descriptor", "my_tools"))
    found = slow("check", "slow")
    assert (found.code, "slow.work" in found.out) == (0, True)


def test_check_names_the_line_of_a_limit_that_there_is_not(tea: Loopline) -> None:
    init = tea.folder / "guide" / "__init__.py"
    init.write_text(init.read_text().replace("self.scratchpad)", "self.scratchpad, max_round=2)"))
    ran = tea("check", "guide")
    assert ran.code == 1
    assert f"error: {init}:8: no limit 'max_round', nearest is " in ran.err


def test_no_output_has_the_password_of_a_repository(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": ANNOTATED})
    url = "http://bob:WRONG@127.0.0.1:1/shop.git"
    for arguments in (
        ("check", "tea.py", "--prop", f"knowledge.repo={url}"),
        ("check", "tea.py", "--prop", f"knowledge.repo={url}", "--json"),
        ("check", "tea.py", "--prop", f"knowledge.repositories.shop.repo={url}"),
        ("check", "tea.py", "--prop", f"knowledge.repositories={url}"),
        ("check", "tea.py", "--prop", url),
    ):
        ran = Loopline(tmp_path)(*arguments)
        assert ran.code != 0
        assert "127.0.0.1:1/shop.git" in ran.out + ran.err, arguments
        assert "WRONG" not in ran.out + ran.err, arguments


def test_the_suggested_commands_have_no_password_of_a_url(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tea.py": "from loopline import Bundle\n"
            "bundle = Bundle(id='tea', configuration={'shop': {'url': ''}})\n"
        },
    )
    ran = Loopline(tmp_path)("run", "tea.py", "hi", "--prop", "shop.url=http://bob:WRONG@tea.io/x")
    assert (ran.code, "shop.url=http://tea.io/x" in ran.err) == (0, True)
    assert "WRONG" not in ran.out + ran.err
