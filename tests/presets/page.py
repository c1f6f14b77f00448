"""The page that compares the presets field by field: `python -m tests.presets.page` writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby

from loopline.cli.terminal import format_limit
from loopline.react import GROUPS, PRESETS
from tests.docs.pages import ROOT
from tests.presets.task import AT_THE_LIMIT, ENDLESS, SEEDS, TASK, told

PAGE = ROOT / "docs" / "sdk" / "agents" / "react" / "presets-README.md"

_HEAD = """# Presets

Loopline has one loop, with many options. A *preset* is a named set of values for all of them. There is one preset for
each of the five systems that Loopline grew from, and `bare`, the default. A bundle chooses a preset with
`build_react(preset=…)`, and sets single options with keywords.

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

`turn.header` records the preset of a turn, and every option that differs from `bare`. `loopline presets` prints the
table of this page. `loopline presets diff fim nadoo` prints the options in which two presets differ.

## Overriding a preset

An option can be set in five places. Where two of them set the same option, the later row of this table wins.

| place | how |
|---|---|
| the preset | `build_react(preset="fim")`, or any `Preset` value |
| the environment | only in the preset `chatcli`: `CHATCLI_AGENT_WORKER_MAX_TURNS` (a number of decisions), `CHATCLI_AGENT_WORKER_TIMEOUT` (a duration such as `10m`: `deadline_seconds` of the turn or, if the bundle has agents, of each run of an agent; the turn then has none), `CHATCLI_AGENT_PARALLEL_MODE` (`false` or `0`: one call after the other, and no child runs) |
| the code | keywords of `build_react` |
| the configuration | properties below `react_config`, by Nadoo's names: `max_iterations`, `early_stop`, and `tools`, a list of tool ids (an empty list allows all); then properties below `react`, by the names of the options; `react.preset` replaces the preset that the code chose, `react.memsearch` offers [the search in past turns](memory-README.md#in-the-loop), and `react.agents_md` gives the model the nearest [AGENTS.md](../../workspace-README.md#agentsmd) |
| the turn | keywords of `say`, `stream` and `resume` |

Nadoo's property `agent_mode` accepts only `react`. A wrong value anywhere is an error that names it: for a property
before the first turn, for a variable when a turn begins.

## The options of each preset

Values that differ from `bare` are bold. A dash means that there is no limit or no choice.
[Limits](flow-README.md#limits) says what each option means.
"""


async def page() -> str:
    """The page as it should be."""
    parts = [_HEAD, *_tables(), *[line async for line in _tasks()]]
    return "\n".join(parts).rstrip() + "\n"


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
            yield _row([title, f"`{name}`", *cells])
            title = ""
    yield ""


async def _tasks() -> AsyncIterator[str]:
    yield """## One task in five presets

This table shows one task in the five presets. The bundle has a tool that reads and a tool that writes. The model makes two calls
at once, then one call, and then answers. The second column lists the records that a subscriber receives in the preset's own
[dialect](../../events-README.md). The last two columns show how a turn ends whose model calls tools without end: after two
decisions, in `beakr` after 3,400 tokens.
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
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
