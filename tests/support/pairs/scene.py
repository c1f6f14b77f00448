"""The bundle of the pairs of events, in a folder that every process of a conversation shares.

Its model and its tools wait while the folder has a file that closes their gate. A file `at-…` says where one waits.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from loopline import BaseWorkflow, Bundle, ToolContext, TurnPayload, TurnResult, models, tool
from loopline.guards import ask_before
from loopline.timeline import Effect
from loopline.tools import Outcome, Tool, ToolFunction, ToolInvocation
from tests.support.ledgers import add_line, lines_of

Gate = Literal["model", "tool"]
MARK = re.compile(r"\bm-(\w+)")
"""The mark of a message, by which requests and the log are searched for it."""
CALL = re.compile(r"please (\w+)")
POLL_SECONDS = 0.002
TALK = "c"
ANSWERED = True
GRANTING: models.Json = {"approved": True, "rule": {}}
"""The answer to an approval: it also lets later calls run."""


class Scene:
    """The folder of one conversation: its gates, its ledger of calls, and the messages that requests have shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def close(self, gate: Gate) -> None:
        """Have the model, or the tool that works, wait from now on."""
        (self.folder / f"closed-{gate}").touch()

    def open(self, gate: Gate) -> None:
        (self.folder / f"closed-{gate}").unlink(missing_ok=True)

    def is_closed(self, gate: Gate) -> bool:
        return (self.folder / f"closed-{gate}").exists()

    def waiting(self) -> set[str]:
        """Return where something waits: at the gate `model` or `tool`, or for an answer, `answer`."""
        return {path.name.split("-")[1] for path in self.folder.glob("at-*")}

    def bury(self, process: int) -> None:
        """Remove what a killed process has left behind."""
        for path in self.folder.glob(f"at-*-{process}-*"):
            path.unlink()

    @asynccontextmanager
    async def at(self, place: str) -> AsyncGenerator[None]:
        """Say that something waits there, while the context is open."""
        self._count += 1
        path = self.folder / f"at-{place}-{os.getpid()}-{self._count}"
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    async def pass_gate(self, gate: Gate) -> None:
        if self.is_closed(gate):
            async with self.at(gate):
                while True:
                    await asyncio.sleep(POLL_SECONDS)
                    if not self.is_closed(gate):
                        break

    def add(self, name: str, line: str) -> None:
        add_line(self.folder / name, line)

    def lines(self, name: str) -> list[str]:
        return lines_of(self.folder / name)

    def shown(self) -> set[str]:
        """Return the marks of all messages that some request has shown."""
        return {mark for line in self.lines("requests") for mark in json.loads(line)}

    def bundle(self) -> Bundle:
        @tool(effect="write", key="desk")
        async def work(context: ToolContext) -> str:
            """Do something, which takes a while."""
            self.add("ledger", context.call_id)
            await self.pass_gate("tool")
            return "worked"

        @tool(effect="write", key="pot", background=True, reconcile=lambda: "brewed")
        async def brew(context: ToolContext) -> str:
            """Do something in the background."""
            self.add("ledger", context.call_id)
            await self.pass_gate("tool")
            return "brewed"

        @tool(effect="write", key="desk")
        async def spend(context: ToolContext) -> str:
            """Do something that needs approval."""
            self.add("ledger", context.call_id)
            return "spent"

        desk = type("Desk", (Desk,), {"scene": self})
        return Bundle(id="desk", workflow=desk, tools=[work, brew, spend, fetch, Inquire(self)])

    async def step(self) -> str:
        self.add("ledger", "step")
        await self.pass_gate("tool")
        return "stepped"


@tool(client=True)
def fetch() -> object:
    """Have the client fetch something."""
    raise NotImplementedError


class Desk(BaseWorkflow):
    """Asks before it spends, and runs a step before the loop of a message that says so."""

    guards = (ask_before(["desk.spend"]),)
    scene: Scene

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        if "stepwise" in payload.text:
            await self.step("step", self.scene.step, reconcile=_find_step)
        return await (await self.build_react()).run(payload)


async def _find_step() -> str:
    return "stepped"


class Inquire(ToolFunction[[], str]):
    """Binds the tool that asks while it runs, as tools of MCP servers do."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(inquire, effect="write", key="desk")
        self._scene = scene

    def bind(self, alias: str) -> Tool:
        return _InquireTool(self._scene, f"{alias}.inquire")


def inquire() -> str:
    """Ask the user, and stay open for the answer."""
    return "asked"


class _InquireTool:
    effect: Effect = "write"

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        parameters: models.JsonObject = {"type": "object", "properties": {}}
        self.spec = models.ToolSpec(name=name, description="Ask.", parameters=parameters)

    def check(self, arguments: models.JsonObject) -> None:
        """Accept any."""

    def key(self, arguments: models.JsonObject) -> str:
        del arguments
        return "desk"

    async def run(self, arguments: models.JsonObject, call: ToolInvocation) -> Outcome:
        del arguments
        async with self._scene.at("answer"):
            value = await call.on_question("Which one?", {"type": "boolean"})
        if value is ANSWERED:
            self._scene.add("ledger", call.context.call_id)
        return Outcome(text=f"answered {value}")

    async def reconcile(self, arguments: models.JsonObject, call: ToolInvocation) -> Outcome | None:
        """Know nothing of a call that was cut off."""
        del arguments, call
        return None


class GatedModel:
    """Calls the tool that the last message asks for, else answers; each request passes the gate first."""

    name = "gated"
    capabilities = models.Capabilities(window=1_000_000, tool_call=True)

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        texts = [
            message.text for message in prompt.messages if isinstance(message, models.UserMessage)
        ]
        self._scene.add("requests", json.dumps(MARK.findall("\n".join(texts))))
        yield models.TextDelta(text="")
        await self._scene.pass_gate("model")
        yield _reply(prompt)


def _reply(prompt: models.Prompt) -> models.Reply:
    for message in reversed(prompt.messages):
        match message:
            case models.UserMessage(text=text, passing=False):
                asked = CALL.search(text)
                if asked is None:
                    return models.Reply(text=f"So it is: {', '.join(MARK.findall(text))}.")
                call = models.ToolCall(name=f"desk.{asked[1]}", arguments={})
                return models.Reply(calls=(call,), stop_reason="tool_use")
            case models.ToolMessage(text=text):
                return models.Reply(text=f"The tool said: {text}")
            case models.UserMessage() | models.AssistantMessage():
                pass
    return models.Reply(text="Nobody said anything.")
