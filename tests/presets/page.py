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

Loopline has one loop. The five systems that it grows from differ in what the loop goes by, so each of them is a *preset*: a
plain value of every policy. A bundle picks one in `build_react(preset=…)`, and sets any policy otherwise by its keyword.

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

`turn.header` says which preset a turn goes by and every policy that is not that of `bare`. `loopline presets` prints this
page's table, `loopline presets diff fim nadoo` the policies in which two of them differ.

## What is laid over a preset

Later rows win over earlier ones, policy by policy.

| where | how |
|---|---|
| the preset | `build_react(preset="fim")`, or any `Preset` value |
| the environment | in `chatcli` alone: `CHATCLI_AGENT_WORKER_MAX_TURNS` (a number of decisions), `CHATCLI_AGENT_WORKER_TIMEOUT` (a duration such as `10m`), `CHATCLI_AGENT_PARALLEL_MODE` (`false` or `0`: one call after the other, and no child runs) |
| the code | keywords of `build_react` |
| the configuration | properties below `react_config`, by Nadoo's names: `max_iterations`, `early_stop`, and `tools`, a list of tool ids of which an empty one leaves all; then properties below `react`, by the names of the policies, and `react.preset`, which takes the place of the code's |
| the turn | keywords of `say`, `stream` and `resume` |

Nadoo's `agent_mode` may be set to `react` and to nothing else. Junk in any of these is an error that names it: in the
configuration before the first turn, in a variable when a turn begins.

## Policy by policy

What differs from `bare` stands out. What each policy means is told in [limits](flow-README.md#limits); a dash is none.
"""


async def page() -> str:
    """The page as it should be."""
    parts = [_HEAD, *_tables(), *[line async for line in _tasks()]]
    return "\n".join(parts).rstrip() + "\n"


def _tables() -> Iterator[str]:
    bare = PRESETS["bare"].options
    yield _row(["", "policy", *(f"`{name}`" for name in PRESETS)])
    yield _row(["---"] * (len(PRESETS) + 2))
    for group, names in GROUPS.items():
        title = group
        for name in names:
            cells = list[str]()
            for one in PRESETS.values():
                value = one.options.values[name]
                same = value == bare.values[name]
                cells.append(format_limit(value) if same else f"**{format_limit(value)}**")
            yield _row([title, f"`{name}`", *cells])
            title = ""
    yield ""


async def _tasks() -> AsyncIterator[str]:
    yield """## One task in five presets

One bundle with a tool that reads and one that writes is asked for two things; the model calls twice at once, then once, then
answers. This is what is told of the turn in each preset's own [vocabulary](../../events-README.md), and how a model that never
stops is stopped: at two decisions, in `beakr` at 3,400 tokens.
"""
    yield _row(["preset", "records, in their order", "requests", "at the limit", "answer then"])
    yield _row(["---"] * 5)
    for name in SEEDS:
        done = await told(name, TASK)
        ended = await told(name, ENDLESS, AT_THE_LIMIT[name])
        yield _row(
            [
                f"`{name}`",
                _runs([one.event for one in done.records]),
                _runs(done.purposes),
                f"`{ended.end.reason}`",
                _FLAGS[ended.answer.flag],
            ]
        )


_FLAGS = {
    "": "written by a request of its own",
    "forced": "asked for without calls",
    "partial": "what was collected",
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
