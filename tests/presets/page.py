"""The pages that compare the presets, by option and by one task: `python -m tests.presets.page` writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby

from loopline.cli.terminal import format_limit
from loopline.react import GROUPS, PRESETS
from tests.docs.pages import ROOT
from tests.presets.task import AT_THE_LIMIT, ENDLESS, SEEDS, TASK, told

PAGE = ROOT / "docs" / "sdk" / "agents" / "react" / "presets-README.md"
TASK_PAGE = ROOT / "docs" / "internals" / "presets-task.md"


def page() -> str:
    """The page of the options with its table made anew."""
    before = PAGE.read_text("utf-8").partition("|  | option |")[0]
    return before + "\n".join(_tables()) + "\n"


async def task_page() -> str:
    """The page of the task with its table made anew."""
    before = TASK_PAGE.read_text("utf-8").partition("| preset |")[0]
    return before + "\n".join([line async for line in _tasks()]) + "\n"


def _tables() -> Iterator[str]:
    bare = PRESETS["bare"].options
    yield _row(["", "option", *(f"`{name}`" for name in PRESETS)])
    yield _row(["---"] * (len(PRESETS) + 2))
    for group, names in GROUPS.items():
        title = group
        for name in names:
            cells = list[str]()
            for item in PRESETS.values():
                value = item.options.values[name]
                same = value == bare.values[name]
                cells.append(format_limit(value) if same else f"**{format_limit(value)}**")
            if any(cell.startswith("**") for cell in cells):
                yield _row([title, f"`{name}`", *cells])
                title = ""


async def _tasks() -> AsyncIterator[str]:
    yield _row(["preset", "records, in order", "requests", "exit reason", "answer at the limit"])
    yield _row(["---"] * 5)
    for name in SEEDS:
        done = await told(name, TASK)
        ended = await told(name, ENDLESS, AT_THE_LIMIT[name])
        yield _row(
            [
                f"`{name}`",
                _runs([record.event for record in done.records]),
                _runs(done.purposes),
                f"`{ended.end.reason}`",
                _FLAGS[ended.answer.flag],
            ]
        )


_FLAGS = {
    "": "written by a request of its own",
    "forced": "requested without tools",
    "partial": "the results collected so far",
    "summary": "a summary of the calls",
}


def _runs(names: Sequence[str]) -> str:
    """The names, each with how often it comes in a row."""
    rows = [(name, len(list(row))) for name, row in groupby(names)]
    return ", ".join(f"`{name}`" if n == 1 else f"`{name}` × {n}" for name, n in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TASK_PAGE.write_text(asyncio.run(task_page()), encoding="utf-8")
