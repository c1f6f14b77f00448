"""What refine, verify and plan first do on 30 tasks with planted mistakes: `python -m tests.bench.quality`.

All models are scripted, and fallible: the agent writes 20 wrong answers of 30, the refiner sees only contradictions and
spoils one right answer, and whoever answers questions does not know three of the facts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from rich.console import Console

from loopline import Agent, Bundle, Harness
from loopline.crew import PlanFirst, Quality, Refine, Verify
from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall, Usage
from loopline.models.prompt import estimate
from loopline.testing import Call, FakeClock
from loopline.timeline import RunChild, ToolResult

CONSOLE = Console(highlight=False)
TASKS = 30
WRONG = range(20)
"""Tasks whose draft is wrong; of these every third also contradicts itself."""
UNKNOWN = (4, 11, 25)
"""Facts that whoever answers questions gets wrong."""
SPOILT = 22
"""A right answer that the refiner makes wrong."""
QUALITIES: Mapping[str, Quality | None] = {
    "nothing": None,
    "refine": Quality(refine=Refine()),
    "verify, notes": Quality(verify=Verify(questions=1)),
    "verify, rewrites": Quality(verify=Verify(questions=1, rewrite=True)),
    "refine and verify": Quality(refine=Refine(), verify=Verify(questions=1, rewrite=True)),
    "plan first": Quality(plan_first=PlanFirst(agents=["reader"], mode="always")),
}
_LAKE = re.compile(r"lake (\d+)")
_DEPTH = re.compile(r"is (\d+) m deep")
_LOOKED_UP = re.compile(r"the page says (\d+) m")


def depth(lake: int) -> int:
    return 100 + 7 * lake


def draft(lake: int, value: int) -> str:
    """Return an answer with that value; the wrong ones of every third task contradict themselves."""
    contradicts = value != depth(lake) and lake % 3 == 0
    says = f"The chart gives {depth(lake)} m. " if contradicts else ""
    return (
        f"{says}The lake {lake} is {value} m deep. "
        + "It lies among hills, its water is cold all year, and few have ever swum across it. " * 3
    )


class Scripted:
    """A model for everyone: who asks is told by the prompt."""

    name = "scripted"
    capabilities = Capabilities(window=1_000_000)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        reply = self._reply("\n".join(map(str, prompt.messages)), prompt)
        text = reply if isinstance(reply, str) else ""
        calls = (reply,) if isinstance(reply, ToolCall) else ()
        used = Usage(input_tokens=estimate(str(prompt)), output_tokens=estimate(text) + 1)
        yield TextDelta(text=text)
        yield Reply(text=text, calls=calls, stop_reason="tool_use" if calls else "stop", usage=used)

    def _reply(self, text: str, prompt: Prompt) -> str | ToolCall:
        if "Begin." in text:
            tasks = [{"agent": "reader", "task": f"Describe lake {n}."} for n in range(TASKS)]
            has_results = len(prompt.messages) > 1
            return "Done." if has_results else Call("crew.parallel", tasks=tasks)
        [lake, *_] = map(int, _LAKE.findall(text))
        value = next(map(int, _DEPTH.findall(text)), 0)
        match text:
            case _ if "[REFINE_DRAFT]" in text:
                better = depth(lake) if "The chart gives" in text else value
                better = better + 1 if lake == SPOILT else better
                return f"<revised>Revised. {draft(lake, better)}</revised>"
            case _ if "[COMPARE]" in text:
                known = int(text.rpartition("A: ")[2].split()[0])
                if known == value:
                    return "<status>clean</status>"
                return (
                    f"<status>discrepancy</status><discrepancies>- {known} m</discrepancies>"
                    f"<final>{draft(lake, known)}</final>"
                )
            case _ if "[VERIFY_ANSWER]" in text:
                return f"<questions>How deep is lake {lake}?</questions>"
            case _ if "How deep is" in text:
                return f"{depth(lake) - 5 if lake in UNKNOWN else depth(lake)} m"
            case _ if "Plan this task" in text:
                task = f"look lake {lake} up"
                return f'{{"steps": [{{"id": "E1", "agent": "reader", "task": "{task}"}}]}}'
            case _ if "A plan was made" not in text and "look lake" in text:
                return f"Of lake {lake} the page says {depth(lake)} m."
            case _:
                looked_up = next(map(int, _LOOKED_UP.findall(text)), 0)
                planted = depth(lake) + 3 if lake in WRONG else depth(lake)
                return draft(lake, looked_up or planted)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one quality did: of the planted mistakes and of the right answers, and what it used beside the drafts."""

    name: str
    found: int
    mended: int
    spoilt: int
    calls: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.found} | {self.mended} | {self.spoilt} | {self.calls} "
            f"| {self.tokens:,} |"
        )


async def row(name: str, quality: Quality | None) -> Row:
    reader = Agent(name="reader", description="Describes lakes.", tools=[])
    bundle = Bundle(id="lakes", agents=[reader], quality=quality)
    async with Harness.open(
        bundle, store="memory:", model=Scripted(), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("Begin.")
        bodies = [block.body for block in await talk.blocks()]
    [text] = [body.text for body in bodies if isinstance(body, ToolResult)]
    links = [body for body in bodies if isinstance(body, RunChild) and body.reason]
    reports = re.split(r"^\(\d+\) ", text, flags=re.MULTILINE)[1:]
    values = [next(map(int, _DEPTH.findall(report))) for report in reports]
    right = [value == depth(lake) for lake, value in enumerate(values)]
    noted = ["verified_with_discrepancy" in report for report in reports]
    return Row(
        name=name,
        found=sum(noted[lake] or right[lake] for lake in WRONG),
        mended=sum(right[lake] for lake in WRONG),
        spoilt=sum(not right[lake] for lake in range(len(WRONG), TASKS)),
        calls=len(links),
        tokens=sum(link.usage.input_tokens + link.usage.output_tokens for link in links),
    )


async def rows() -> list[Row]:
    return [await row(name, quality) for name, quality in QUALITIES.items()]


def main() -> None:
    CONSOLE.print("| quality | found of 20 | mended | right ones spoilt | runs | tokens |")
    CONSOLE.print("|---|---|---|---|---|---|")
    for each in asyncio.run(rows()):
        CONSOLE.print(str(each))


if __name__ == "__main__":
    main()
