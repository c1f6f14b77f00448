"""Agents begin with the files of their caller, and their changes come back to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from loopline import Agent, Bundle, Harness, ToolContext, tool
from loopline.conversations import Conversation
from loopline.crew import GraphOptions
from loopline.crew.agents import FilesMode
from loopline.events import Delta
from loopline.testing import Call, FakeClock
from loopline.timeline import FileAdded, FileRemoved, RunChild, ToolResult
from tests.support.child_runs import Line
from tests.support.crews import Scripts, handoff

CODER = Agent(name="coder", description="Codes.", tools=[], files="write")
READER = Agent(name="reader", description="Reads.", tools=[], files="read")
WRITE = Call("react.write", path="files/app.py", content="a = 1\n")


async def run(
    lines: Mapping[str, Sequence[Line]],
) -> tuple[Scripts, list[str], list[FileAdded], list[FileRemoved]]:
    """Run the turn; return the model, the results, and the files of the caller that were changed."""
    model = Scripts(lines)
    bundle = Bundle(
        id="desk", agents=[CODER, READER], configuration={"react": {"workspace": "latest"}}
    )
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        bodies = [block.body for block in await talk.blocks()]
    return (
        model,
        [body.text for body in bodies if isinstance(body, ToolResult)],
        [body for body in bodies if isinstance(body, FileAdded)],
        [body for body in bodies if isinstance(body, FileRemoved)],
    )


async def test_what_an_agent_writes_comes_back_as_a_version_of_its_callers_file() -> None:
    _, texts, files, _ = await run(
        {
            "Go": [WRITE, Call("crew.delegate", agent="coder", task="Change it"), "Ok."],
            "Change it": [
                Call("react.search_files", content_regex="a = 1"),
                Call("react.write", path="files/app.py", content="a = 2\n"),
                Call("react.write", path="files/new.py", content="b = 1\n"),
                Call("react.write", path="outputs/note.md", content="mine"),
                handoff("Changed."),
            ],
        }
    )
    assert [(file.path, file.version, file.text) for file in files] == [
        ("app.py", 1, "a = 1\n"),
        ("app.py", 2, "a = 2\n"),
        ("new.py", 1, "b = 1\n"),
    ]
    assert "summary: Changed." in texts[1]
    assert "wrote fi:turn_1.files/app.py@2" in texts[1]


async def test_an_agent_that_reads_has_the_files_and_no_tool_that_changes_them() -> None:
    model, _, files, _ = await run(
        {
            "Go": [WRITE, Call("crew.delegate", agent="reader", task="Read it"), "Ok."],
            "Read it": [Call("react.search_files", content_regex="a = 1"), handoff("It is 1.")],
        }
    )
    tools = {spec.name for spec in model.requests["Read it"][0].tools}
    assert "react.search_files" in tools
    assert not {"react.write", "react.patch", "react.checkout"} & tools
    assert "1 hit" in model.prompt_of("Read it")
    assert [file.version for file in files] == [1]


async def test_a_stage_begins_with_the_files_of_the_stage_before() -> None:
    model, _, files, _ = await run(
        {
            "Go": [
                WRITE,
                Call(
                    "crew.pipeline",
                    stages=[
                        {"agent": "coder", "task": "First"},
                        {"agent": "coder", "task": "Second"},
                    ],
                ),
                "Ok.",
            ],
            "First": [Call("react.write", path="files/app.py", content="a = 2\n"), handoff("1")],
            "Second": [Call("react.search_files", content_regex="a = 2"), handoff("2")],
        }
    )
    assert "1 hit" in model.prompt_of("Second")
    assert [file.text for file in files] == ["a = 1\n", "a = 2\n"]


async def test_of_two_changes_of_one_file_at_once_the_first_counts_and_the_other_is_named() -> None:
    tasks = [{"agent": "coder", "task": "First"}, {"agent": "coder", "task": "Second"}]
    _, texts, files, _ = await run(
        {
            "Go": [WRITE, Call("crew.parallel", tasks=tasks), "Ok."],
            "First": [Call("react.write", path="files/app.py", content="a = 2\n"), handoff("1")],
            "Second": [
                Call("react.write", path="files/app.py", content="a = 3\n"),
                Call("react.write", path="files/b.py", content="b = 1\n"),
                handoff("2"),
            ],
        }
    )
    assert [(file.path, file.text) for file in files] == [
        ("app.py", "a = 1\n"),
        ("app.py", "a = 2\n"),
        ("b.py", "b = 1\n"),
    ]
    assert "files/app.py was also changed by coder" in texts[1]
    assert "cv:c~c2.2/fi:turn_1.files/app.py" in texts[1]


async def test_a_call_that_is_resumed_takes_changes_in_the_order_in_which_its_agents_ended() -> (
    None
):
    talks = list[Conversation]()

    @tool(effect="read")
    async def wait_for_others() -> str:
        """Wait until another agent has ended."""
        ended: list[str] = []
        while not ended:
            await asyncio.sleep(0)
            bodies = [block.body for block in await talks[0].blocks()]
            ended = [body.reason for body in bodies if isinstance(body, RunChild) and body.reason]
        return "one has"

    @tool(effect="read")
    async def confirm(context: ToolContext) -> str:
        """Ask the user."""
        context.ask_user("Shall I?")

    model = Scripts(
        {
            "Go": [
                WRITE,
                Call(
                    "crew.parallel",
                    tasks=[{"agent": "coder", "task": task} for task in ("Slow", "Quick", "Ask")],
                ),
                "Ok.",
            ],
            "Slow": [
                Call("desk.wait_for_others"),
                Call("react.write", path="files/app.py", content="a = 2\n"),
                handoff("slow"),
            ],
            "Quick": [
                Call("react.write", path="files/app.py", content="a = 3\n"),
                handoff("quick"),
            ],
            "Ask": [Call("desk.confirm"), handoff("asked")],
        }
    )
    bundle = Bundle(
        id="desk",
        agents=[replace(CODER, tools=["desk.*"])],
        tools=[wait_for_others, confirm],
        configuration={"react": {"workspace": "latest"}},
    )
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        talks.append(talk)
        [asked] = (await talk.say("Go")).pending
        await talk.resume({asked.call_id: "yes"})
        bodies = [block.body for block in await talk.blocks()]
    files = [body.text for body in bodies if isinstance(body, FileAdded)]
    assert files == ["a = 1\n", "a = 3\n"]
    [text] = [
        body.text
        for body in bodies
        if isinstance(body, ToolResult) and "was also changed" in body.text
    ]
    assert "cv:c~c2/fi:turn_1.files/app.py" in text


async def run_graph(
    files: FilesMode, steps: Mapping[str, Sequence[Line]]
) -> tuple[Scripts, list[str], list[FileAdded], list[dict[str, str | int]]]:
    """Run a graph of two steps, of which b needs a; return the model, the result, the files, and what was told."""
    plan = {
        "steps": [{"id": "a", "task": "do a"}, {"id": "b", "task": "do b", "dependencies": ["a"]}]
    }
    model = Scripts(
        {
            "Begin": [WRITE, Call("crew.graph", goal="the goal"), "Ok."],
            "Plan how": [json.dumps(plan)],
            **{f"Your step: do {id}": lines for id, lines in steps.items()},
            "Say whether": [json.dumps({"achieved": True, "confidence": 1, "answer": "Done."})],
        }
    )
    bundle = Bundle(
        id="desk",
        graph=GraphOptions(files=files),
        configuration={"react": {"workspace": "latest"}},
    )
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        events = [event async for event in talk.stream("Begin") if isinstance(event, Delta)]
        bodies = [block.body for block in await talk.blocks()]
    return (
        model,
        [body.text for body in bodies if isinstance(body, ToolResult)],
        [body for body in bodies if isinstance(body, FileAdded)],
        [
            msgspec.convert(event.data, dict[str, str | int])
            for event in events
            if event.name == "crew.step"
        ],
    )


def changing(text: str) -> list[Line]:
    return [Call("react.write", path="files/app.py", content=text), "done"]


async def test_steps_of_a_graph_that_write_begin_with_the_files_of_the_steps_before() -> None:
    look: Line = Call("react.search_files", content_regex="a = 2")
    model, texts, files, _ = await run_graph(
        "write", {"a": changing("a = 2\n"), "b": [look, *changing("a = 3\n")]}
    )
    assert "1 hit" in model.prompt_of("Your step: do b")
    assert [file.text for file in files] == ["a = 1\n", "a = 3\n"]
    assert "wrote fi:turn_1.files/app.py@2" in texts[1]


async def test_steps_of_a_graph_that_read_cannot_change_the_files_they_have() -> None:
    look: Line = Call("react.search_files", content_regex="a = 1")
    model, _, files, _ = await run_graph("read", {"a": [look, "done"], "b": ["done"]})
    tools = {spec.name for spec in model.requests["Your step: do a"][0].tools}
    assert "react.write" not in tools
    assert "1 hit" in model.prompt_of("Your step: do a")
    assert [file.text for file in files] == ["a = 1\n"]


async def test_each_call_of_a_step_is_an_iteration_of_its_progress() -> None:
    _, _, files, told = await run_graph("own", {"a": changing("a = 2\n"), "b": ["done"]})
    assert [file.text for file in files] == ["a = 1\n"]
    of_a = [data for data in told if data["step"] == "a"]
    assert [data["event"] for data in of_a] == ["started", "iteration", "completed"]
    assert of_a[1] == {
        "step": "a",
        "task": "do a",
        "attempt": 1,
        "event": "iteration",
        "status": "running",
        "iteration": 1,
        "call_id": "c1",
        "tool": "react.write",
    }


async def test_a_file_that_an_agent_removes_is_removed() -> None:
    patch = "--- a/files/app.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"
    _, _, _, removed = await run(
        {
            "Go": [WRITE, Call("crew.delegate", agent="coder", task="Remove it"), "Ok."],
            "Remove it": [Call("react.patch", patch=patch), handoff("Gone.")],
        }
    )
    assert [file.path for file in removed] == ["app.py"]
