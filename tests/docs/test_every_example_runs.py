"""Every example in the README and the pages is run, as a reader would run it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.docs.page_runs import PageRuns
from tests.docs.pages import README, Fence, faults, fences, is_set_up, pages

FENCES = [fence for page in pages() for fence in fences(page)]
EXAMPLES = [fence for fence in FENCES if fence.runs or fence.title]


@pytest.fixture(scope="session")
def page_runs(tmp_path_factory: pytest.TempPathFactory) -> PageRuns:
    return PageRuns(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("fence", EXAMPLES, ids=str)
def test_an_example_does_what_its_page_shows(fence: Fence, page_runs: PageRuns) -> None:
    failure = page_runs.failure(fence)
    assert not failure, failure


def test_every_fence_can_be_checked() -> None:
    assert [f"{fence}: {fault}" for fence in FENCES for fault in faults(fence)] == []


def test_no_page_writes_a_file_twice() -> None:
    titles = Counter((fence.path, fence.title) for fence in FENCES if fence.title)
    assert [title for title, times in titles.items() if times > 1] == []


def test_a_page_that_writes_files_also_uses_them() -> None:
    writing = {fence.path for fence in FENCES if fence.title}
    assert writing - {fence.path for fence in FENCES if fence.runs} == set()


def test_the_readme_has_one_line_to_run_and_one_to_test() -> None:
    lines = [fence.text.strip() for fence in fences(README) if is_set_up(fence)]
    assert ["loopline run " in line for line in lines] == [True, False]
    assert ["pytest" in line for line in lines] == [False, True]


def test_the_line_to_run_is_the_first_the_readme_has() -> None:
    lines = [line for fence in fences(README) for line in fence.text.splitlines()]
    first = next(line for line in lines if "loopline run " in line)
    assert first in [fence.text.strip() for fence in fences(README) if is_set_up(fence)]
