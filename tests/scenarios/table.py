"""The page of every feature of the seeds, with the test that holds it: `python -m tests.scenarios.table` writes it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT
from tests.house.tree import functions, python_files

FEATURES = Path(__file__).with_name("features.txt")
TABLES = Path(__file__).with_name("seed_tables.txt")
PAGE = ROOT / "docs" / "sdk" / "agents" / "react" / "seeds-README.md"

_HEAD = """# Seeds

Loopline grew from five systems, the seeds. Each feature of a seed has a row here with the test that checks it. If Loopline does not
have the feature yet, the row says "later" and which work it waits for. If a decision of Loopline differs from a seed, the test checks
the decision. One row is this feature:

```python
from loopline import BaseWorkflow, Bundle, Harness
from loopline.testing import ScriptedModel

guide = Bundle(id="guide", workflow=BaseWorkflow)
model = ScriptedModel(["First.", "Second.", "Third."])
async with Harness.open(guide, store="memory:", model=model) as harness:
    result = await harness.conversation("c1").say("Go.", early_stop=False, max_iterations=3)

assert (result.answer, result.rounds) == ("Third.", 3)
```

`python -m tests.scenarios.table` writes this page from the list of features and the names of the tests. The seeds are K (timeline,
plans, cache points), F (two phases, JSON actions), N (thought and action), C (workers, quality) and B (channels, pauses, handoff). [The
last part](#tables-of-the-seed-pages) has a row for each line of the tables on the seeds' own pages.
"""
_TABLES = """## Tables of the seed pages

Each line of a table on the pages of the seeds has a row here. It names the features above, a test, a page or a measurement that covers
the line, or the later work that it waits for.
"""

_NAME = re.compile(r"test_(row_\d+|[fncbk]\d+)_(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A row: its name, which seeds have it, what it is, and a test of another name, or what it waits for, if it does."""

    name: str
    seeds: str
    text: str
    test: str = ""
    later: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A line of a table of the seed pages: its key, what it is, and what holds it or what it waits for."""

    key: str
    text: str
    holds: tuple[str, ...]
    later: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A test that holds a row."""

    sentence: str
    path: Path


def sections() -> dict[str, list[Feature]]:
    """The rows under their headings, in order."""
    found: dict[str, list[Feature]] = {}
    rows = list[Feature]()
    for line in FEATURES.read_text("utf-8").splitlines():
        if line.startswith("== "):
            rows = found.setdefault(line.removeprefix("== "), [])
        elif not line.startswith("#"):
            name, seeds, text, *last = (part.strip() for part in line.split("|"))
            kind = "test" if "::" in "".join(last) else "later"
            rows.append(Feature(name=name, seeds=seeds, text=text, **{kind: "".join(last)}))
    return found


def tables() -> dict[str, list[TableLine]]:
    """The lines of the seeds' tables under the names of these, in order."""
    found: dict[str, list[TableLine]] = {}
    lines = list[TableLine]()
    for line in TABLES.read_text("utf-8").splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line.removeprefix("== "), [])
        elif not line.startswith("#"):
            key, text, by = (part.strip() for part in line.split("|"))
            waits = by.startswith("later: ")
            holds = () if waits else tuple(by.split())
            later = by.removeprefix("later: ") if waits else ""
            lines.append(TableLine(key=key, text=text, holds=holds, later=later))
    return found


def held_by() -> Mapping[str, Sequence[Held]]:
    """The tests by the name of the row that each holds: those with its name, and those that the row names."""
    found = defaultdict[str, list[Held]](list)
    for row in (row for rows in sections().values() for row in rows if row.test):
        file, _, test = row.test.partition("::")
        assert test in {function.name for function in functions(ROOT / file)}, row.test
        sentence = test.removeprefix("test_").replace("_", " ")
        found[row.name].append(Held(sentence=sentence, path=ROOT / file))
    for path in python_files("tests"):
        for name, sentence in _named(path):
            found[name].append(Held(sentence=sentence, path=path))
    return found


def _named(path: Path) -> Iterator[tuple[str, str]]:
    if not any(
        path.is_relative_to(ROOT / "tests" / folder)
        for folder in ("scenarios", "providers", "workspace")
    ):
        return
    for function in sorted(functions(path), key=lambda one: one.lineno):
        match = _NAME.fullmatch(function.name)
        if match is not None:
            name = match[1] if match[1].startswith("row") else match[1].upper()
            yield name, match[2].replace("_", " ")


def page() -> str:
    """The whole page."""
    held = held_by()
    parts = [_HEAD]
    for title, rows in sections().items():
        lines = ["| row | seeds | what it is | covered by |", "|---|---|---|---|"]
        lines += [_line(row, held.get(row.name, [])) for row in rows]
        parts.append("\n".join([f"## {title}\n", *lines]) + "\n")
    parts.append(_TABLES)
    for title, table in tables().items():
        lines = ["| line | what it is | covered by |", "|---|---|---|"]
        lines += [f"| `{item.key}` | {item.text} | {_holds(item)} |" for item in table]
        parts.append("\n".join([f"### {title}\n", *lines]) + "\n")
    return "\n".join(parts)


def _holds(line: TableLine) -> str:
    return " · ".join(map(_link, line.holds)) or f"later: {line.later}"


def _link(name: str) -> str:
    """The row of a feature, or a link to a file; of a test its sentence is shown."""
    path, _, test = name.partition("::")
    if "/" not in path:
        return f"`{name}`"
    shown = test.removeprefix("test_").replace("_", " ") if test else path.rpartition("/")[2]
    return f"[{shown}]({os.path.relpath(ROOT / path, PAGE.parent)})"


def _line(row: Feature, held: Sequence[Held]) -> str:
    links = [
        f"[{passage.sentence}]({os.path.relpath(passage.path, PAGE.parent)})" for passage in held
    ]
    by = " · ".join(links) or f"later: {row.later}"
    return f"| `{row.name}` | {row.seeds} | {row.text} | {by} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
