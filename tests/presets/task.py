"""One task in every preset, told in the preset's own words: `python -m tests.presets.task` writes the goldens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    Output,
    Source,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.events import Record, dialect
from loopline.models import Usage
from loopline.react import PRESETS, Limits, PresetName
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Completion, Exit
from tests.dialects.decoded_stream import line
from tests.support.workbench import bodies

GOLDEN = Path(__file__).with_name("golden")
SEEDS: tuple[PresetName, ...] = ("kdcube", "fim", "nadoo", "chatcli", "beakr")


@tool(effect="read")
async def find(name: str) -> Output:
    """Look something up."""
    if name != "tea":
        raise ToolError(f"there is no {name}")
    return Output("12 tins", sources=[Source(url="https://example.com/tea", title="Tea")])


@tool(effect="write", key="list")
async def note(text: str) -> str:
    """Put something on the list."""
    return f"noted {text}"


TOOLS_SPECS = [{"module": __name__, "alias": "shop"}]


class Shop(BaseWorkflow):
    """Picks the preset that its configuration names."""

    instructions = "You keep a shop."

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


SHOP = Bundle(id="shop", workflow=Shop)
USED = Usage(input_tokens=900, output_tokens=40)
TASK: list[Entry] = [
    Say(
        "I look both up.",
        Call("shop.find", name="tea"),
        Call("shop.find", name="pie"),
        usage=USED,
    ),
    Say("I note it.", Call("shop.note", text="tea"), usage=USED),
    Say("There is tea [[S:1]].", usage=USED),
    Say("There are 12 tins of tea [[S:1]], and no pie.", usage=USED),
]
"""The last reply is asked for where a request of its own writes the answer."""
ENDLESS: list[Entry] = [
    *(Say("I look.", Call("shop.find", name="tea"), usage=USED) for _ in range(2)),
    Say("There is tea.", usage=USED),
]
AT_THE_LIMIT: Mapping[PresetName, Limits] = {
    **dict.fromkeys(SEEDS, Limits(max_iterations=2)),
    "beakr": Limits(max_tokens=3_400),
}
"""The limit that ends each preset: its own is beyond what is worth telling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a turn, what was told of it, and what the model was asked for."""

    answer: Completion
    end: Exit
    records: list[Record]
    purposes: Sequence[str]

    @property
    def lines(self) -> list[str]:
        """The records as a golden file has them."""
        return [line(record) for record in self.records]


async def told(name: PresetName, script: list[Entry], limits: Limits | None = None) -> Told:
    """What is told of a turn in a preset, in its own words."""
    model = ScriptedModel(script, strict=False)
    properties = {"react.preset": name}
    async with Harness.open(
        SHOP, store="memory:", model=model, clock=FakeClock(), properties=properties
    ) as harness:
        talk = harness.conversation("c1")
        words = dialect(PRESETS[name].options.dialect, talk.conversation)
        records = list[Record]()
        async for event in talk.stream("Is there tea, or pie?", **(limits or {})):
            records += words.take(event)
        records += words.close()
        (answer,) = await bodies(talk, Completion)
        (end,) = await bodies(talk, Exit)
    purposes = [request.purpose for request in model.requests]
    return Told(answer=answer, end=end, records=records, purposes=purposes)


async def write() -> None:
    """Write the golden files anew."""
    GOLDEN.mkdir(exist_ok=True)
    for name in SEEDS:
        text = "\n".join((await told(name, TASK)).lines)
        (GOLDEN / f"{name}.jsonl").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(write())
