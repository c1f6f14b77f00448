"""The bundle `coder`: agents read and write text, and the loop alone changes files."""

from __future__ import annotations

from loopline import Harness
from loopline.testing import Call
from loopline.timeline import FileAdded, RunChild, ToolResult
from tests.docs.pages import ROOT
from tests.support.crews import Scripts, handoff

APP = "def greet():\n    return 'helo'\n"


async def test_an_agent_reads_a_file_by_its_ref_and_the_loop_applies_what_another_hands_back() -> (
    None
):
    ref = "fi:turn_1.files/app.py@1"
    model = Scripts(
        {
            "Mend": [
                Call("react.write", path="files/app.py", content=APP),
                Call("crew.delegate", agent="file", task=f"Report on {ref}"),
                Call("crew.delegate", agent="coder", task=f"Correct the word in {ref}"),
                Call("react.write", path="files/app.py", content=APP.replace("helo", "hello")),
                "Corrected; nobody has run it.",
            ],
            "Report on": [
                Call("react.read", paths=[f"cv:c/{ref}"]),
                handoff("It greets with 'helo'.", confidence="high"),
            ],
            "Correct": [handoff("Replace 'helo' by 'hello'.")],
        }
    )
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Mend it")
        bodies = [block.body for block in await talk.blocks()]
    assert result.answer == "Corrected; nobody has run it."
    assert "return 'helo'" in model.prompt_of("Report on")
    assert "cv:c/" in model.requests["Report on"][0].system
    texts = [body.text for body in bodies if isinstance(body, ToolResult)]
    assert "It greets with 'helo'." in texts[1]
    agents = {body.agent for body in bodies if isinstance(body, RunChild)}
    assert agents == {"file", "coder"}
    written = [body.text for body in bodies if isinstance(body, FileAdded)]
    assert written == [APP, APP.replace("helo", "hello")]


async def test_its_agents_have_no_tools_that_write() -> None:
    model = Scripts(
        {"Go": [Call("crew.delegate", agent="coder", task="Code"), "Ok."], "Code": ["x = 1"]}
    )
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go")
    own = {spec.name for spec in model.requests["Go"][0].tools}
    agents = {spec.name for spec in model.requests["Code"][0].tools}
    assert {"react.write", "react.patch", "crew.delegate"} <= own
    assert not {"react.write", "react.patch", "crew.delegate"} & agents
    assert "react.read" in agents
