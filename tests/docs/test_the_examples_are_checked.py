"""What the run of the examples notices, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page_runs import PageRuns
from tests.docs.pages import anchors, faults, fences
from tests.docs.run_page import Step, matches, steps


def outcomes(folder: Path, *examples: str) -> list[str]:
    """Run a page of these examples; what failed in each that runs or is a file."""
    page = folder / "page.md"
    page.write_text("# A page\n\n" + "\n".join(f"```{example}\n```\n" for example in examples))
    runs = PageRuns(folder / "runs")
    return [runs.failure(fence) for fence in fences(page) if fence.runs or fence.title]


def test_the_examples_of_a_page_share_names_files_and_a_loop(tmp_path: Path) -> None:
    assert outcomes(
        tmp_path,
        "python\nfrom lunch import dish\nimport asyncio\nlock = asyncio.Event()",
        "python title=lunch.py\ndish = 'soup'",
        "python\nasyncio.get_running_loop().call_soon(lock.set)\nawait lock.wait()",
        "python\nprint(dish, file=open('menu', 'w'))",
        "console\n$ cat menu\nsoup\n$ cat \\\nlunch.py\ndish = …",
    ) == ["", "", "", "", ""]


def test_another_output_fails(tmp_path: Path) -> None:
    assert (
        "the page shows:\ntea\nit printed:\nsoup"
        in outcomes(tmp_path, "console\n$ echo soup\ntea").pop()
    )


def test_another_exit_code_fails(tmp_path: Path) -> None:
    seen_outcomes = outcomes(
        tmp_path, "console\n$ exit 3", "console exit=3\n$ exit 3", "console\n$ true"
    )
    assert ["exited with 3, not 0" in failure for failure in seen_outcomes] == [True, False, False]


def test_an_error_in_python_names_the_line_of_the_page(tmp_path: Path) -> None:
    failure = outcomes(tmp_path, "text\nsoup", "python\nsoup = 1\nsoup / 0").pop()
    assert 'page.md", line 9' in failure
    assert "ZeroDivisionError" in failure


def test_python_that_does_not_compile_fails_and_the_next_example_still_runs(tmp_path: Path) -> None:
    wrong, file, right = outcomes(
        tmp_path, "python\nsoup = = 1", "python title=a.py\nawait x", "python\nsoup = 1"
    )
    assert "SyntaxError" in wrong
    assert "SyntaxError" in file
    assert right == ""


def test_an_example_that_ends_the_process_fails_with_all_behind_it(tmp_path: Path) -> None:
    seen_outcomes = outcomes(tmp_path, "python\nimport os", "python\nos._exit(0)", "python\npass")
    assert ["never came to an end" in failure for failure in seen_outcomes] == [False, True, True]


def test_an_example_that_exits_fails(tmp_path: Path) -> None:
    assert "SystemExit" in outcomes(tmp_path, "python\nraise SystemExit(0)").pop()


def test_a_console_of_the_repository_has_a_store_of_its_own(tmp_path: Path) -> None:
    assert outcomes(
        tmp_path,
        "console repo\n$ ls pyproject.toml; echo $LOOPLINE_STORE\npyproject.toml\nsqlite:///…/loopline.db",
        "console\n$ echo store $LOOPLINE_STORE\nstore",
    ) == ["", ""]


def test_a_terminal_shows_the_progress_before_the_answer(tmp_path: Path) -> None:
    text = "console\n$ echo answer; echo progress >&2\n"
    assert outcomes(tmp_path, f"{text}answer", f"{text}progress\nanswer") == ["", ""]


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("a … c", "a b c\n", True),
        ("a … c", "a b\nx c\n", False),
        ("a\n…\nd", "a\nb\nc\nd\n", True),
        ("a\n…\nd", "a\nd\n", True),
        ("a\n…", "a\n", True),
        ("a.c", "abc\n", False),
        ("a", "a  \n\n", True),
        ("a", "a\nb\n", False),
    ],
)
def test_dots_stand_for_anything(page: str, printed: str, same: bool) -> None:
    assert matches(page, printed) is same


def test_a_console_is_commands_with_what_they_print() -> None:
    assert list(steps("$ a \\\n  b\nc\n\nd\n$ e\n")) == [Step("a \\\n  b", "c\n\nd"), Step("e", "")]


@pytest.mark.parametrize(
    ("example", "sound"),
    [
        ("text\nsoup", True),
        ("json title=a/b.json\n{}", True),
        ("python\npass", True),
        ("console repo exit=2\n$ false", True),
        ("\nsoup", False),
        ("bash\nls", False),
        ("pycon\n>>> 1", False),
        ("console\nls", False),
        ("python repo\npass", False),
        ("text title=../a\nsoup", False),
        ("console exit=x\n$ ls", False),
    ],
)
def test_a_fence_that_cannot_be_checked_is_a_fault(
    example: str, sound: bool, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```{example}\n```\n")
    assert [list(faults(fence)) == [] for fence in fences(page)] == [sound]


def test_a_heading_is_an_anchor(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What `a.b` is, and why\n\n## Why\n\n## Why\n")
    assert anchors(page) == {"what-ab-is-and-why", "why", "why-1"}
