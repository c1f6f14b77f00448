"""The files of a turn's result: those that it made or changed, with their bytes, also after a restart and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    Output,
    OutputFile,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.client import connect
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.live_server import serving


@tool(effect="write")
def draw() -> Output:
    """Draw a chart."""
    secret = OutputFile("notes.txt", b"for the agent", visibility="internal")
    return Output("drawn", files=[OutputFile("chart.csv", b"a,b\n1,2\n"), secret])


class Shop(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.store.put_attachment("files/log.txt", payload.text)
        react = await self.build_react()
        return await react.run(payload)


BUNDLE = Bundle(id="shop", workflow=Shop, tools=[draw])
SCRIPT: list[Entry] = [Call("shop.draw"), Say("Here it is.")]
EXPECTED = [
    ("fi:turn_1.outputs/chart.csv@1", "chart.csv", 8, b"a,b\n1,2\n"),
    ("fi:turn_1.files/log.txt@1", "log.txt", 5, b"Draw!"),
]


async def listed(result: TurnResult[Any]) -> list[tuple[str, str, int, bytes]]:
    """The files of a result with their contents."""
    return [(file.ref, file.name, file.size, await file.read()) for file in result.files]


async def test_a_result_has_the_files_of_its_turn_alone(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(BUNDLE, store=store, model=ScriptedModel(SCRIPT)) as harness:
        result = await harness.conversation("c").say("Draw!")
        assert await listed(result) == EXPECTED
        assert all(file.type for file in result.files)
    model = ScriptedModel([Say("Nothing more.")])
    async with Harness.open(Bundle(id="shop"), store=store, model=model) as harness:
        assert not (await harness.conversation("c").say("And?")).files


async def test_a_server_sends_the_files_with_the_result() -> None:
    with serving(app(BUNDLE, store="memory:", model=ScriptedModel(SCRIPT, strict=False))) as url:
        async with connect(url) as server:
            result = await server.conversation("c").say("Draw!")
    assert await listed(result) == EXPECTED
