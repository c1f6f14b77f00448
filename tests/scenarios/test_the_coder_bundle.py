"""The bundle `coder`: agents read, plan, write and refine in the workspace that they share with its loop."""

from __future__ import annotations

from loopline import Harness
from loopline.testing import Call
from loopline.timeline import FileAdded, RunChild, ToolResult
from tests.docs.pages import ROOT
from tests.support.crews import Scripts, handoff

APP = "def greet():\n    return 'helo'\n"
MENDED = APP.replace("helo", "hello")
BETTER = MENDED.replace("()", "() -> str")


async def test_its_agents_plan_read_write_and_refine_the_files_of_its_loop() -> None:
    stages = [{"agent": "coder", "task": "Correct"}, {"agent": "refiner", "task": "Improve"}]
    model = Scripts(
        {
            "Mend": [
                Call("react.write", path="files/app.py", content=APP),
                Call("crew.delegate", agent="planner", task="Plan it"),
                Call("crew.delegate", agent="file", task="Report"),
                Call("crew.pipeline", stages=stages),
                "Corrected; nobody has run it.",
            ],
            "Plan it": [handoff("1. Correct app.py.")],
            "Report": [
                Call("react.search_files", content_regex="helo"),
                handoff("It greets with 'helo'.", confidence="high"),
            ],
            "Correct": [
                Call("react.write", path="files/app.py", content=MENDED),
                handoff("It says hello."),
            ],
            "Improve": [
                Call("react.search_files", content_regex="hello"),
                Call("react.write", path="files/app.py", content=BETTER),
                handoff("It has a type."),
            ],
        }
    )
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Mend it")
        bodies = [block.body for block in await talk.blocks()]
    assert result.answer == "Corrected; nobody has run it."
    assert "1 hit" in model.prompt_of("Report")
    assert "1 hit" in model.prompt_of("Improve")
    texts = [body.text for body in bodies if isinstance(body, ToolResult)]
    assert "It greets with 'helo'." in texts[2]
    assert "wrote fi:turn_1.files/app.py@2" in texts[3]
    agents = [body.agent for body in bodies if isinstance(body, RunChild) and body.reason]
    assert agents == ["planner", "file", "coder", "refiner"]
    assert [body.text for body in bodies if isinstance(body, FileAdded)] == [APP, BETTER]


async def test_agents_that_only_read_have_no_tool_that_writes() -> None:
    names = ["coder", "file", "planner", "refiner"]
    calls = [Call("crew.delegate", agent=name, task=f"Be {name}") for name in names]
    model = Scripts({"Go": [*calls, "Ok."], **{f"Be {name}": [handoff("done")] for name in names}})
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go")
    tools = {name: {spec.name for spec in model.requests[f"Be {name}"][0].tools} for name in names}
    assert all("react.search_files" in offered for offered in tools.values())
    assert not any("crew.delegate" in offered for offered in tools.values())
    writers = {name for name, offered in tools.items() if "react.write" in offered}
    assert writers == {"coder", "refiner"}
