"""Bundles for the tests of the command: one that guides through tea, and one whose tool is slow."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.doors.command import Loopline, wait_for

TEA: Mapping[str, str] = {
    "docs/steeping.md": """# Steeping

Green tea is steeped for three minutes at eighty degrees. Hotter water makes it bitter.

## Black tea

Black tea is steeped for four minutes in boiling water. Milk is added afterwards.
""",
    "docs/storing.md": """# Storing

Leaves are stored in a closed tin, away from light and moisture.
""",
    "guide/__init__.py": """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Guide(BaseWorkflow):
    instructions = "You guide people through tea."

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(scratchpad=self.scratchpad)
        return await react.run(payload)


bundle = Bundle(
    id="tea_guide",
    workflow=Guide,
    configuration={"knowledge": {"repo": "", "docs_root": "docs"}},
)
""",
}
QUESTION = "How long is green tea steeped?"
OTHER_QUESTION = "What protects leaves from light and moisture?"

SLOW: Mapping[str, str] = {
    "slow/__init__.py": """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult
from loopline.models import Prompt, ToolMessage, UserMessage
from loopline.testing import Call, Say, ScriptedModel


def decide(prompt: Prompt) -> Say:
    said = [m for m in prompt.messages if isinstance(m, UserMessage)]
    done = [m for m in prompt.messages if isinstance(m, ToolMessage)]
    if "work" in said[-1].text and not done:
        return Say("", Call("slow.work", what="dig"))
    results = " / ".join(m.text.splitlines()[-1] for m in done)
    return Say(f"{len(said)} said; {results or 'nothing'}")


class Slow(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            tools_module="slow.tools_descriptor",
            model=ScriptedModel([decide] * 9, strict=False),
        )
        return await react.run(payload)


bundle = Bundle(id="slow", workflow=Slow, configuration={"seconds": 600.0})
""",
    "slow/tools_descriptor.py": """TOOLS_SPECS = [{"ref": "tools.py", "alias": "slow"}]
""",
    "slow/tools.py": """import time
from pathlib import Path

from loopline import ToolContext, tool


@tool
def work(what: str, context: ToolContext) -> str:
    \"\"\"Work for a long time.\"\"\"
    with Path("ledger").open("a") as ledger:
        ledger.write(f"{what}\\n")
    time.sleep(float(str(context.properties["seconds"])))
    return "dug"
""",
}


def ledger(folder: Path) -> list[str]:
    """What the slow tool has begun."""
    file = folder / "ledger"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def start_working(slow: Loopline, *options: str, is_forked: bool = True) -> subprocess.Popen[str]:
    """Start a run, and wait until its tool has begun."""
    process = slow.start("run", "slow", "work", *options, is_forked=is_forked)
    wait_for(lambda: bool(ledger(slow.folder)))
    return process


ASKING: Mapping[str, str] = {
    "asker/__init__.py": """from loopline import BaseWorkflow, Bundle, ToolContext, TurnPayload, TurnResult, tool
from loopline.models import Prompt, ToolMessage
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.testing import Call, Say, ScriptedModel

TOOLS_SPECS = [{"module": __name__, "alias": "shop"}]


@tool(effect="write", key="shop")
async def buy(what: str, context: ToolContext) -> str:
    \"\"\"Buy something.\"\"\"
    if what == "tea":
        context.ask_user("Which tea?")
    return f"bought {what}"


class Careful:
    async def before(self, call: GuardedCall) -> Verdict:
        return Ask("Buy milk?") if call.arguments["what"] == "milk" else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


def decide(prompt: Prompt) -> Say:
    done = [m.text for m in prompt.messages if isinstance(m, ToolMessage)]
    if done:
        return Say(" and ".join(text.partition("\\n")[2] for text in done))
    return Say("", Call("shop.buy", what="tea"), Call("shop.buy", what="milk"))


class Asker(BaseWorkflow):
    guards = (Careful(),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        model = ScriptedModel([decide, decide], strict=False)
        react = await self.build_react(tools_module=__name__, model=model)
        return await react.run(payload)


bundle = Bundle(id="asker", workflow=Asker)
"""
}
