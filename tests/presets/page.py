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

_HEAD = """# Presets

The loop that runs a turn has many options. A *preset* is a named set of values for all options. The default preset is `bare`. The five others imitate
KDCube, FIM One, Nadoo, ChatCLI and Beakr.

```python
from loopline import BaseWorkflow, Bundle, Harness
from loopline.react import PRESETS, presets_diff
from loopline.testing import ScriptedModel


class Guide(BaseWorkflow):
    async def process(self, payload):
        react = await self.build_react(preset="nadoo", max_iterations=4)
        return await react.run(payload)


guide = Bundle(id="guide", workflow=Guide)
async with Harness.open(guide, store="memory:", model=ScriptedModel(["It is so."])) as harness:
    talk = harness.conversation("c1")
    await talk.say("Is it so?")
    (header,) = [block.body for block in await talk.blocks(types="turn.header")]

assert (header.preset, header.protocol, header.limits["max_iterations"]) == ("nadoo", "thought_action", 4)
assert presets_diff(PRESETS["bare"], PRESETS["kdcube"])["protocol"] == ("auto", "tagged")
```

The block `turn.header` of a turn has the preset, and every option that differs from `bare`. `loopline presets` prints every option of each preset, and
`loopline presets diff fim nadoo` prints the options in which two presets differ.

## Overriding a preset

You can set an option in five places. If two places set the same option, the value of the lower row in this table is used.

| place | how |
|---|---|
| the preset | `Bundle(preset=…)`, with a name such as `"fim"` or with a `Preset`. `build_react(preset=…)` replaces this preset, and the property `react.preset` replaces both |
| the environment | only in the preset `chatcli`: its [environment variables](../../../internals/preset-environment.md) |
| the code | `Bundle(limits={…})`. Keywords of `build_react` override these limits |
| the configuration | the properties `react_config.max_iterations` and `react_config.early_stop`. A property `react.<option>`, such as `react.max_iterations`, overrides them |
| the turn | keywords of `say`, `stream` and `resume` |

A wrong value raises an error that names the value: for a property before the first turn, for an environment variable when a turn begins.

The property `react_config.tools` is a list of tool ids: tools of the bundle that are not in the list are not offered. If `build_react(tools=…)` is
also set, only tools in both lists are offered. If the property is an empty list, it restricts nothing.

## The options of each preset

This table has each option in which a preset differs from `bare`; the values that differ are bold. A dash means that there is no limit, or that the
option has no value. [Limits](../../../reference/limits.md) says what each option does. [One task in five
presets](../../../internals/presets-task.md) shows how the same turn runs in five presets.
"""


def page() -> str:
    """The page of the options as it should be."""
    return "\n".join([_HEAD, *_tables()]).rstrip() + "\n"


async def task_page() -> str:
    """The page of the task as it should be."""
    return "\n".join([line async for line in _tasks()]).rstrip() + "\n"


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
    yield ""


async def _tasks() -> AsyncIterator[str]:
    yield """# One task in five presets

This page shows how the [presets](../sdk/agents/react/presets-README.md) differ in a turn. The bundle has a tool that reads and
a tool that writes. The model makes two calls at once, then one call, and then answers. The second column lists the records that
a subscriber receives in the preset's own [dialect](../sdk/events-README.md). The last two columns are about another turn, whose
model calls tools without end until it reaches a limit: two decisions, or 3,400 tokens in `beakr`.
"""
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
