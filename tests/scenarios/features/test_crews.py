"""Agents that are called by tools or take a conversation over, and the lessons of runs that failed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import thread_time

import pytest

from loopline import Agent, Bundle, Harness, LooplineError, ToolError, TurnResult, tool
from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.crew import (
    AgentCall,
    AgentResult,
    Agents,
    CrewOptions,
    GraphOptions,
    HookedRun,
    LessonWriter,
    Quality,
    Reflexion,
    Verify,
)
from loopline.crew.agents import Reasoning, read_agent
from loopline.crew.handoff import parse_handoff
from loopline.crew.pipeline import PostOutcome, with_notes
from loopline.crew.reflexion import parse_lesson, reflection_due
from loopline.errors import ModelError, StoreBusy
from loopline.harness.harness import record_lesson
from loopline.models import Json, ModelRegistry, Prompt, Reply, TextDelta
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.support.child_runs import EACH, Line
from tests.support.crews import READER, WRITER, Scripts, crew_harness, desk, handoff
from tests.support.forked_processes import forked
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies, bodies_of


async def result_texts(talk: Conversation) -> list[str]:
    return [body.text for body in await bodies(talk, tl.ToolResult)]


async def links(talk: Conversation) -> list[tl.RunChild]:
    """The child runs as they were begun and as they ended."""
    return await bodies(talk, tl.RunChild)


def finished(names: Sequence[str]) -> Mapping[str, Sequence[Line]]:
    """Return a script for each task: it is done at once."""
    return {name: [handoff(f"done {name}")] for name in names}


async def test_the_caller_of_an_agent_sees_one_call_and_one_result() -> None:
    model = Scripts(
        {
            "Go": [Call("crew.delegate", agent="reader", task="Read it"), "It is so."],
            "Read it": [Call("desk.find", name="tea"), handoff("Tea is hot.", confidence="high")],
        }
    )
    async with talking(model, bundle=desk()) as talk:
        result = await talk.say("Go")
        [text] = await result_texts(talk)
    assert result.answer == "It is so."
    assert text == "(1) reader, completed\nsummary: Tea is hot.\nconfidence: high"
    assert "is on a page" not in "".join(map(str, model.requests["Go"]))
    assert "Go" not in str(model.requests["Read it"][0].messages)


async def test_the_sources_of_an_agent_join_the_pool_of_its_caller_and_are_cited_by_their_numbers() -> (
    None
):
    model = Scripts(
        {
            "Go": [
                Call("desk.find", name="first"),
                Call(
                    "crew.parallel",
                    tasks=[
                        {"agent": "reader", "task": "Read tea"},
                        {"agent": "reader", "task": "Read milk"},
                    ],
                ),
                "Hot [[S:2]], cold [[S:3]].",
            ],
            "Read tea": [Call("desk.find", name="tea"), handoff("Tea is hot [[S:1]].")],
            "Read milk": [Call("desk.find", name="milk"), handoff("Milk is cold [[S:1]].")],
        }
    )
    async with talking(model, bundle=desk()) as talk:
        result = await talk.say("Go")
        text = (await result_texts(talk))[-1]
        added = await bodies(talk, tl.SourceAdded)
    assert "Tea is hot [[S:2]]." in text
    assert "Milk is cold [[S:3]]." in text
    assert [(body.sid, body.source.title) for body in added] == [
        (1, "first"),
        (2, "tea"),
        (3, "milk"),
    ]
    assert [source.title for source in result.sources] == ["tea", "milk"]


async def test_a_run_records_which_agent_it_is_and_what_its_definition_was() -> None:
    model = Scripts(
        {"Go": [Call("crew.delegate", agent="Reader", task="Read"), "Ok."], "Read": ["Read."]}
    )
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        began, ended = await links(talk)
        own = await harness.conversation("c~c1").blocks()
    assert {(link.agent, link.agent_digest) for link in (began, ended)} == {
        ("reader", READER.digest)
    }
    [header] = bodies_of(own, tl.TurnHeader)
    assert (header.agent, header.agent_digest) == ("reader", READER.digest)


async def test_at_most_four_agents_run_at_once_and_results_come_in_the_order_of_the_tasks() -> None:
    names = [f"Task {number}" for number in range(9)]
    tasks = [{"agent": "writer", "task": name} for name in names]
    model = Scripts({"Go": [Call("crew.parallel", tasks=tasks), "Ok."], **finished(names)})
    async with talking(model, bundle=desk()) as talk:
        result = await talk.say("Go")
        [text] = await result_texts(talk)
        recorded = await links(talk)
    running, most = set[str](), 0
    for link in recorded:
        if link.reason:
            running.discard(link.conversation)
        else:
            running.add(link.conversation)
        most = max(most, len(running))
    assert most == 4
    assert text.count("completed") == 9
    assert [text.index(f"done {name}") for name in names] == sorted(
        text.index(f"done {name}") for name in names
    )
    assert result.usage.input_tokens == EACH.input_tokens * 11


async def test_an_agent_many_at_once_one_after_the_other_and_in_debate() -> None:
    model = Scripts(
        {
            "Go": [
                Call("crew.delegate", agent="reader", task="One"),
                Call("crew.parallel", tasks=[{"agent": "reader", "task": "Two"}]),
                Call("crew.pipeline", stages=[{"agent": "reader", "task": "Three"}]),
                Call("crew.debate", question="Why?", agents=["reader", "writer"], judge="reader"),
                "Ok.",
            ],
            "One": [handoff("1")],
            "Two": [handoff("2")],
            "Three": [handoff("3")],
            "Why?": [handoff("because")],
            "Judge": [handoff("it is decided")],
        }
    )
    async with talking(model, bundle=desk()) as talk:
        await talk.say("Go")
        texts = await result_texts(talk)
    assert [f"summary: {end}" in text for end, text in zip("123", texts, strict=False)] == [
        True
    ] * 3
    assert "it is decided" in texts[3]
    assert len(model.requests["Why?"]) == 4
    last = "".join(str(message) for message in model.requests["Why?"][-1].messages)
    assert "What the others answered" in last
    assert "because" in last


async def test_agents_at_once_answer_in_the_order_of_their_tasks() -> None:
    tasks = [{"agent": "reader", "task": "Slow"}, {"agent": "writer", "task": "Quick"}]
    model = Scripts(
        {
            "Go": [Call("crew.parallel", tasks=tasks), "Ok."],
            "Slow": [Call("desk.find", name="x"), Call("desk.find", name="y"), handoff("slow")],
            "Quick": [handoff("quick")],
        }
    )
    async with talking(model, bundle=desk()) as talk:
        await talk.say("Go")
        [text] = await result_texts(talk)
        recorded = await links(talk)
    ended = [link.conversation for link in recorded if link.reason]
    assert ended == ["c~c1.2", "c~c1"]
    assert text.index("slow") < text.index("quick")


async def test_a_stage_reads_the_output_of_the_stage_before() -> None:
    stages = [{"agent": "reader", "task": "Look"}, {"agent": "writer", "task": "Write"}]
    model = Scripts(
        {
            "Go": [Call("crew.pipeline", stages=stages), "Ok."],
            "Look": [handoff("the lake is deep")],
            "Write": [handoff("a poem")],
        }
    )
    async with crew_harness(model) as harness:
        await harness.conversation("c").say("Go")
    assert "the lake is deep" in model.prompt_of("Write")
    assert "Go" not in model.prompt_of("Write")


async def test_an_agent_hands_back_summary_findings_sources_confidence_and_gaps() -> None:
    handed = parse_handoff(
        "Text.\n<handoff>\nsummary: It works,\nmostly.\nKey findings:\n- one\n  and more\n- two\n"
        "sources: ks:a.md, [2]\nconfidence: high\ngaps:\n- none\n</handoff>"
    )
    assert handed.summary == "It works,\nmostly."
    assert (handed.findings, handed.sources) == (("one and more", "two"), ("ks:a.md", "[2]"))
    assert (handed.confidence, handed.gaps, handed.is_raw) == ("high", (), False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"summary": "s", "key_findings": ["f"], "confidence": 0.9}', ("s", ("f",), "high")),
        ('```json\n{"summary": "s", "confidence": "20%"}\n```', ("s", (), "low")),
        ("**Summary:** s\nfindings: f", ("s", ("f",), "medium")),
    ],
)
def test_a_handoff_is_read_from_json_and_from_lines(text: str, expected: object) -> None:
    handed = parse_handoff(f"<handoff>{text}</handoff>")
    assert (handed.summary, handed.findings, handed.confidence) == expected


@pytest.mark.parametrize("answer", ["Just text.", "<handoff></handoff>", "<handoff>{}</handoff>"])
def test_without_a_handoff_the_whole_answer_counts_and_is_flagged(answer: str) -> None:
    handed = parse_handoff(answer)
    assert (handed.is_raw, handed.confidence) == (True, "low")
    assert str(handed).endswith("\n(no handoff block: this is the raw answer, confidence low)")
    assert str(handed).startswith(handed.summary)


@pytest.mark.parametrize("depth", [500, 900, 950, 5_000])
@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}")])
def test_a_handoff_that_is_nested_too_deeply_is_a_text(
    opening: str, closing: str, depth: int
) -> None:
    deep = f"{opening * depth}1{closing * depth}"
    handed = parse_handoff(f'<handoff>{{"summary": "s", "findings": {deep}}}</handoff>')
    assert (handed.summary == "s") != handed.is_raw
    assert handed.is_raw or opening != "["


def test_a_finding_of_many_lines_costs_no_more_than_it_is_long() -> None:
    def cost(line: str) -> float:
        began = thread_time()
        assert parse_handoff(f"<handoff>summary: s\nfindings:{line * 100_000}").summary == "s"
        return thread_time() - began

    assert cost("\nx") < 3 * cost("\n- x")


async def test_an_agent_call_in_tags_reaches_the_agent() -> None:
    model = Scripts(
        {
            "Go": [
                "I ask.<agent_call agent='writer' task='Write &quot;it&quot;'/>",
                "<channel:answer>Ok.</channel:answer>",
            ],
            'Write "it"': [handoff("Roses.")],
        }
    )
    async with talking(model, bundle=desk()) as talk:
        result = await talk.say("Go", protocol="tagged")
        texts = await result_texts(talk)
    assert result.answer == "Ok."
    assert texts == ["(1) writer, completed\nsummary: Roses.\nconfidence: medium"]


async def test_an_agent_that_does_not_exist_is_an_error_that_names_the_others() -> None:
    model = Scripts({"Go": [Call("crew.delegate", agent="wizard", task="Do"), "Ok."]})
    async with talking(model, bundle=desk()) as talk:
        await talk.say("Go")
        [text] = await result_texts(talk)
    assert "there is no agent 'wizard'" in text
    assert "writer" in text


async def test_an_agent_has_its_own_tools_and_not_those_of_its_caller() -> None:
    model = Scripts(
        {"Go": [Call("crew.delegate", agent="writer", task="Write"), "Ok."], "Write": ["Roses."]}
    )
    async with crew_harness(model) as harness:
        await harness.conversation("c").say("Go")
    [request] = model.requests["Write"]
    names = {spec.name for spec in request.tools}
    assert "desk.find" not in names
    assert not any(name.startswith("crew.") for name in names)
    assert "Write." in request.system


async def test_children_at_once_never_use_more_than_their_parent_has_left() -> None:
    names = [f"Task {number}" for number in range(6)]
    tasks = [{"agent": "writer", "task": name} for name in names]
    model = Scripts({"Go": [Call("crew.parallel", tasks=tasks), "Ok."], **finished(names)})
    result, _ = await play_turn(model, "Go", bundle=desk(), max_tokens=9_000)
    used = result.usage.input_tokens + result.usage.output_tokens
    assert used <= 9_000


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(LooplineError, match="rename one of them"):
        Agents([READER, WRITER, READER.__class__(name="Reader", description="Another.")])


def test_an_agent_is_found_in_any_case() -> None:
    agents = Agents([READER, WRITER])
    assert agents.find("WRITER") is WRITER
    with pytest.raises(ToolError, match="there are"):
        agents.find("nobody")


@pytest.mark.parametrize(
    ("name", "effort"), [("planner", "high"), ("Coder", "medium"), ("file", "low"), ("scout", None)]
)
def test_an_agent_thinks_as_hard_as_its_kind_of_work_needs(name: str, effort: str | None) -> None:
    agent = Agent(name=name, description="Works.")
    assert dict(agent.limits_with(Reasoning().effort(agent.name))) == (
        {} if effort is None else {"reasoning_effort": effort}
    )
    own = replace(agent, effort="max")
    assert dict(own.limits_with(Reasoning().effort(own.name))) == {"reasoning_effort": "max"}


async def test_the_effort_of_an_agent_is_in_its_requests() -> None:
    agent = Agent(name="planner", description="Plans.")
    model = Scripts(
        {"Go": [Call("crew.delegate", agent="planner", task="Plan"), "Ok."], "Plan": [handoff("p")]}
    )
    async with crew_harness(model, agent) as harness:
        await harness.conversation("c").say("Go")
    assert model.requests["Plan"][0].options.reasoning_effort == "high"
    assert model.requests["Go"][0].options.reasoning_effort == ""


async def test_the_time_of_a_worker_limits_each_run_and_not_the_turn_that_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()

    @tool(effect="read")
    def rest(seconds: float) -> str:
        """Take some time."""
        clock.advance(seconds)
        return "rested"

    monkeypatch.setenv("CHATCLI_AGENT_WORKER_TIMEOUT", "15m")
    monkeypatch.setenv("CHATCLI_AGENT_MAX_WORKERS", "1")
    times = {"Work 1": 800, "Work 2": 850, "Work 3": 950}
    calls: list[Json] = [{"agent": "reader", "task": task} for task in times]
    model = Scripts(
        {
            "Go": [Call("crew.parallel", tasks=calls), "Ok."],
            **{task: [Call("desk.rest", seconds=each), "Done."] for task, each in times.items()},
        }
    )
    bundle = replace(desk(), tools=[rest])
    opened = Harness.open(
        bundle, store="memory:", model=model, clock=clock, properties={"react.preset": "chatcli"}
    )
    async with opened as harness:
        talk = harness.conversation("c")
        assert (await talk.say("Go")).answer == "Ok."
        ended = {link.conversation: link.reason for link in await links(talk) if link.reason}
    assert ended == {"c~c1": "complete", "c~c1.2": "complete", "c~c1.3": "deadline"}
    with pytest.raises(LooplineError, match="CHATCLI_AGENT_WORKER_TIMEOUT is 'soon': it takes a"):
        CrewOptions.from_environment({"CHATCLI_AGENT_WORKER_TIMEOUT": "soon"})


EXPERT = Agent(
    name="expert",
    description="Knows lakes.",
    instructions="You know lakes.",
    tools=["desk.*"],
    effort="high",
    leads=True,
)
OTHER = Agent(name="other", description="Leads.", leads=True)


def names(prompt: Prompt) -> set[str]:
    return {spec.name for spec in prompt.tools}


async def test_an_agent_takes_the_conversation_over_in_the_same_turn_and_keeps_it() -> None:
    model = ScriptedModel(
        [
            Call("crew.hand_over", agent="expert", note="It is about lakes."),
            Call("desk.find", name="lake"),
            "90 m.",
            "Cold.",
        ]
    )
    async with talking(model, bundle=desk(EXPERT, WRITER)) as talk:
        first = await talk.say("How deep is it?")
        second = await talk.say("And how warm?")
        blocks = list(await talk.blocks())
    assert (first.answer, second.answer) == ("90 m.", "Cold.")
    before, after, _, later = model.requests
    assert "Have agents work." in before.system
    assert "You know lakes." in after.system
    assert "You know lakes." in later.system
    assert "It is about lakes." in str(after.messages)
    assert "How deep is it?" in str(later.messages)
    assert after.options.reasoning_effort == "high"
    assert "crew.delegate" in names(before)
    assert "crew.delegate" not in names(after)
    [switched] = bodies_of(blocks, tl.AgentSwitched)
    assert (switched.agent, switched.agent_digest) == ("expert", EXPERT.digest)
    headers = [(b.turn, b.body.agent) for b in blocks if isinstance(b.body, tl.TurnHeader)]
    assert headers == [(1, ""), (1, "expert"), (2, "expert")]
    assert not any(isinstance(block.body, tl.RunChild) for block in blocks)


async def test_it_is_handed_back_to_the_loop_of_the_bundle() -> None:
    model = ScriptedModel(
        [
            Call("crew.hand_over", agent="expert"),
            "90 m.",
            Call("crew.hand_over", agent="main"),
            "Hello again.",
        ]
    )
    async with talking(model, bundle=desk(EXPERT)) as talk:
        await talk.say("How deep is it?")
        await talk.say("Thank you.")
    assert "Have agents work." in model.requests[-1].system
    assert "You know lakes." in model.requests[-2].system


@pytest.mark.parametrize(
    ("agents", "named", "problem"),
    [
        ([EXPERT], "expert", "there is no agent 'expert': there are main"),
        ([EXPERT], "expart", "there is no agent 'expart': there are main"),
        ([EXPERT, OTHER], "expert", "there is no agent 'expert': there are other, main"),
        ([EXPERT, OTHER], "mein", "there is no agent 'mein': there are main, other"),
    ],
)
async def test_the_model_reads_that_an_agent_cannot_be_handed_the_conversation(
    agents: Sequence[Agent], named: str, problem: str
) -> None:
    model = ScriptedModel(
        [Call("crew.hand_over", agent="expert"), Call("crew.hand_over", agent=named), "Ok."]
    )
    result, _ = await play_turn(model, "How deep is it?", bundle=desk(*agents))
    assert result.answer == "Ok."
    assert problem in str(model.requests[-1].messages[-1])


async def test_another_process_knows_who_leads(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    first = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m."])
    await play_turn(first, "How deep is it?", bundle=desk(EXPERT), store=store)
    model = ScriptedModel(["Cold."])
    await play_turn(model, "And how warm?", bundle=desk(EXPERT), store=store)
    assert "You know lakes." in model.requests[0].system


async def test_an_agent_that_the_bundle_no_longer_has_leads_nothing() -> None:
    model = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m.", "Cold."])
    async with Harness.open(
        desk(EXPERT), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        await harness.conversation("c").say("How deep is it?")
        await play_turn(model, "And how warm?", bundle=desk(OTHER), store=harness.log)
    assert "Have agents work." in model.requests[-1].system


async def test_without_agents_that_lead_nothing_can_be_handed_over() -> None:
    model = ScriptedModel(["Ok."])
    await play_turn(model, "Go", bundle=desk(WRITER))
    assert "crew.hand_over" not in names(model.requests[0])


def test_a_file_says_that_an_agent_leads_and_which_files_it_has(tmp_path: Path) -> None:
    path = tmp_path / "expert.md"
    path.write_text("---\ndescription: Knows.\nleads: true\nfiles: write\n---\nKnow.")
    agent = read_agent(path)
    assert (agent.leads, agent.files) == (True, "write")
    path.write_text("---\ndescription: Knows.\nfiles: all\n---\nKnow.")
    with pytest.raises(LooplineError, match="3: files: one of own, read, write"):
        read_agent(path)


async def test_a_document_makes_no_agent_lead() -> None:
    model = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m.", "Cold."])
    async with Harness.open(
        desk(EXPERT), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("How deep is it?")
        imported = await harness.load(await talk.export(), name="d")
        await imported.say("And how warm?")
    assert "Have agents work." in model.requests[-1].system


LESSON = (
    "<situation>Reading a page of a lake</situation><mistake>It guessed\nthe depth</mistake>"
    "<correction>Look the depth up first</correction><tags>Lake, DEPTH</tags>"
)
WRONG = "<status>discrepancy</status><discrepancies>- 90 m</discrepancies><final>90 m.</final>"
GO: list[Line] = [Call("crew.delegate", agent="reader", task="Read it"), "Ok."]
CALL = AgentCall(agent="reader", task="Read it")


def learning(verify: Verify | None = None) -> Bundle:
    return replace(desk(), quality=Quality(reflexion=Reflexion(), verify=verify))


def failing(lesson: Sequence[Line]) -> Scripts:
    """Return a model whose agent makes calls until its rounds are over."""
    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
    return Scripts({"Go": GO, "Read it": calls, "[REFLEXION]": lesson})


async def lessons(
    model: Scripts, bundle: Bundle, store: str = "memory:"
) -> tuple[list[tl.ReflectionDue], list[tl.Lesson]]:
    """Run the turn; return what was due, and what was learnt once nothing is being written."""
    async with Harness.open(bundle, store=store, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        assert await harness.drain(1_000)
        bodies = [block.body for block in await talk.blocks()]
    return (
        [body for body in bodies if isinstance(body, tl.ReflectionDue)],
        [body for body in bodies if isinstance(body, tl.Lesson)],
    )


async def test_a_lesson_of_a_run_that_failed_is_written_and_found_by_memory_search() -> None:
    model = failing([LESSON])
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go")
        assert await harness.drain(5)
        blocks = list(await talk.blocks())
        [hit] = await harness.memory.search("depth", user="local", targets=["lesson"])
        [read] = await talk.read([hit.ref])
    [lesson] = bodies_of(blocks, tl.Lesson)
    assert (result.answer, lesson.trigger, lesson.agent) == ("Ok.", "error", "reader")
    assert lesson.mistake == "It guessed the depth"
    assert lesson.tags == ("lake", "depth", "reflexion", "trigger:error")
    assert lesson.usage.input_tokens == 10
    assert "correction: Look the depth up first" in read.text
    order = [block.type for block in blocks]
    assert order.index("react.exit") < order.index("crew.lesson") == len(order) - 1
    assert "max_iterations" in str(model.requests["[REFLEXION]"][0])


LEADER = Agent(name="leader", description="Leads.", instructions="Lead.", tools=["crew.*"])
SUB = Call("crew.delegate", agent="reader", task="Read it")


@pytest.mark.parametrize("begin", ["crew.delegate", "crew.graph"])
async def test_a_lesson_of_an_agent_that_an_agent_has_called_is_written_once(
    begin: str,
) -> None:
    plan = json.dumps({"steps": [{"id": "a", "task": "do a"}]})
    calls: Mapping[str, list[Line]] = {
        "crew.delegate": [Call("crew.delegate", agent="leader", task="Lead it"), "Ok."],
        "crew.graph": [Call("crew.graph", goal="the goal"), "Ok."],
    }
    model = Scripts(
        {
            "Go": calls[begin],
            "Lead it": [SUB, "Led."],
            "Plan how": [plan],
            "Goal: the goal\n\nYour step: do a": [SUB, "Done."],
            "Say whether": [json.dumps({"achieved": True, "confidence": 1, "answer": "Done."})],
            "Read it": [Call("desk.find", name=f"{n}") for n in range(40)],
            "[REFLEXION]": [LESSON],
        }
    )
    bundle = replace(
        desk(READER, LEADER), quality=Quality(reflexion=Reflexion()), graph=GraphOptions()
    )
    due, [lesson] = await lessons(model, bundle)
    assert [(body.agent, body.task) for body in due] == [("reader", "Read it")]
    assert (lesson.agent, lesson.correction) == ("reader", "Look the depth up first")


class Slow:
    """A model that answers at once, and draws a lesson only when it is told to."""

    def __init__(self) -> None:
        self.inner = failing([LESSON])
        self.name, self.capabilities = self.inner.name, self.inner.capabilities
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if "[REFLEXION]" in str(prompt.messages[0]):
            self.asked.set()
            await self.go.wait()
        async for piece in self.inner.stream(prompt):
            yield piece


async def test_the_answer_and_the_next_turn_do_not_wait_for_a_lesson() -> None:
    model = Slow()
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("Go")).answer == "Ok."
        await model.asked.wait()
        assert (await harness.conversation("d").say("Go")).answer == "Ok."
        assert [b for b in await talk.blocks() if isinstance(b.body, tl.Lesson)] == []
        model.go.set()
        assert await harness.drain(5)
        assert any(isinstance(block.body, tl.Lesson) for block in await talk.blocks())


class Deadly(Scripts):
    """A model that kills its process when it is asked for a lesson."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if "[REFLEXION]" in str(prompt.messages[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        async for piece in super().stream(prompt):
            yield piece


def _die(store: str) -> None:
    async def live() -> None:
        calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
        model = Deadly({"Go": GO, "Read it": calls})
        async with Harness.open(learning(), store=store, model=model) as harness:
            await harness.conversation("c").say("Go")
            await harness.drain(30)

    asyncio.run(live())


async def test_a_lesson_that_a_kill_took_is_written_by_the_next_process(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    process = forked.Process(target=_die, args=(store,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    async with Harness.open(learning(), store=store, model=failing([LESSON])) as harness:
        assert await harness.drain(30)
        blocks = await harness.conversation("c").blocks()
    assert [body.correction for body in bodies_of(blocks, tl.Lesson)] == ["Look the depth up first"]


async def test_a_discrepancy_is_learnt_from() -> None:
    model = Scripts(
        {
            "Go": GO,
            "Read it": ["It is 9 m deep."],
            "[NUM_QUESTIONS=3]": ["<questions>1. How deep?</questions>"],
            "How deep?": ["90 m."],
            "[COMPARE]": [WRONG],
            "[REFLEXION]": [LESSON],
        }
    )
    due, learnt = await lessons(model, learning(Verify()))
    assert [body.trigger for body in due] == ["discrepancy"]
    assert "90 m" in due[0].outcome
    assert [body.correction for body in learnt] == ["Look the depth up first"]


def ended(reason: tl.ExitReason, **notes: bool) -> AgentResult:
    result = TurnResult(answer="x", turn_id="turn_1", exit_reason=reason, ok=reason == "complete")
    return with_notes(AgentResult(call=CALL, result=result), notes)


@each_row(
    [
        (Reflexion(), ended("complete"), None),
        (Reflexion(), ended("error"), "error"),
        (Reflexion(on_error=False), ended("error"), None),
        (Reflexion(), ended("stopped"), None),
        (Reflexion(), ended("complete", verified_with_discrepancy=True), "discrepancy"),
        (Reflexion(on_discrepancy=False), ended("complete", verified_with_discrepancy=True), None),
        (Reflexion(), ended("complete", refine_low_quality=True), None),
        (Reflexion(on_low_quality=True), ended("complete", refine_low_quality=True), "low_quality"),
        (Reflexion(), ended("error", reflect=True), "manual"),
        (Reflexion(), ended("error", verified_with_discrepancy=True), "error"),
        (Reflexion(on_error=False), AgentResult(call=CALL, error="broken"), None),
        (Reflexion(), AgentResult(call=CALL, error="broken"), "error"),
    ]
)
def test_each_cause_makes_a_lesson_due_and_what_the_user_stopped_none(
    hook: Reflexion, result: AgentResult, trigger: tl.LessonTrigger | None
) -> None:
    assert hook.trigger(result) == trigger


async def test_a_hook_of_your_own_may_ask_for_a_lesson() -> None:
    class Asking:
        async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
            del run
            return with_notes(result, {"reflect": True})

    model = Scripts({"Go": GO, "Read it": ["Fine."], "[REFLEXION]": [LESSON]})
    bundle = replace(desk(), quality=Quality(reflexion=Reflexion(), after=[Asking()]))
    due, _ = await lessons(model, bundle)
    assert [body.trigger for body in due] == ["manual"]


DUE = reflection_due("error", "Read", "a", "b")


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("<skip>It was the network.</skip>", "It was the network."),
        ("<situation>s</situation>", "the reply has no situation and correction"),
        ("Nothing.", "the reply has no situation and correction"),
        (f"{LESSON}<skip>no</skip>", "no"),
    ],
)
def test_a_reply_without_situation_and_correction_is_no_lesson(text: str, skipped: str) -> None:
    lesson = parse_lesson(DUE, Reply(text=text))
    assert (lesson.skipped, lesson.text) == (skipped, "")


def test_the_same_failure_of_the_same_task_is_one_lesson() -> None:
    same = reflection_due("error", " READ ", "a", "b")
    assert same.lesson_id == DUE.lesson_id
    assert reflection_due("error", "Read", "a", "c").lesson_id != DUE.lesson_id


async def test_a_lesson_whose_model_fails_is_tried_five_times_and_then_given_up_for_good() -> None:
    class Failing(Scripts):
        asked = 0

        async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
            if "[REFLEXION]" in str(prompt.messages[0]):
                Failing.asked += 1
                raise ModelError("no network")
            async for piece in super().stream(prompt):
                yield piece

    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
    _, [lesson] = await lessons(Failing({"Go": GO, "Read it": calls}), learning())
    assert Failing.asked == 5
    assert lesson.skipped == "no lesson after 5 attempts: no network"


def writer(log: tl.MemoryLog, model: ScriptedModel) -> LessonWriter:
    """Return a writer of lessons as each process that has the store open has one."""

    @asynccontextmanager
    async def models(_: tl.ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        yield ModelRegistry({"fast": (model,)})

    return LessonWriter(
        bundle="desk",
        log=log,
        record=partial(record_lesson, log),
        models=models,
        clock=FakeClock(),
        options=Reflexion(),
    )


TALK = tl.ConversationKey(name="c")


async def append(log: tl.MemoryLog, body: tl.Body) -> None:
    """Append a body to the first turn, as its runner does."""
    async with log.lease(TALK) as term:
        await log.append(TALK, [tl.Entry(body=body, turn=1)], seen=0, term=term)


HEADER = tl.TurnHeader(bundle="desk", model="scripted", protocol="native")


async def written(log: tl.MemoryLog) -> list[tl.Lesson]:
    return bodies_of(await log.read(TALK), tl.Lesson)


async def test_a_lesson_that_could_not_be_recorded_is_written_after_a_later_turn() -> None:
    log = tl.MemoryLog(FakeClock())
    await log.append(TALK, [tl.Entry(body=tl.UserPrompt(text="Go"), turn=tl.NEW_TURN)], seen=0)
    await append(log, HEADER)
    await append(log, DUE)
    outcomes = list[str]()

    async def record(conversation: tl.ConversationKey, turn: int, lesson: tl.Lesson) -> None:
        outcomes.append("busy" if not outcomes else "recorded")
        if outcomes == ["busy"]:
            raise StoreBusy("the store is busy")
        await record_lesson(log, conversation, turn, lesson)

    lessons = replace(writer(log, ScriptedModel([LESSON, LESSON])), record=record)
    lessons.follow(TALK)
    await lessons.idle()
    await append(log, HEADER)  # of a later turn
    lessons.follow(TALK)
    await lessons.idle()
    assert outcomes == ["busy", "recorded"]
    assert len(await written(log)) == 1


async def test_a_lesson_is_due_in_a_turn_whose_beginning_was_read_before() -> None:
    log, model = tl.MemoryLog(FakeClock()), ScriptedModel([LESSON])
    await log.append(TALK, [tl.Entry(body=tl.UserPrompt(text="Go"), turn=tl.NEW_TURN)], seen=0)
    await append(log, HEADER)
    lesson_writer = writer(log, model)
    lesson_writer.follow(TALK)  # the turn before has ended
    await lesson_writer.idle()
    await append(log, DUE)
    lesson_writer.follow(TALK)
    await lesson_writer.idle()
    assert [lesson.lesson_id for lesson in await written(log)] == [DUE.lesson_id]


async def test_a_lesson_that_two_processes_write_is_recorded_once() -> None:
    log = tl.MemoryLog(FakeClock())
    await log.append(TALK, [tl.Entry(body=tl.UserPrompt(text="Go"), turn=tl.NEW_TURN)], seen=0)
    await append(log, HEADER)
    await append(log, DUE)
    writers = [writer(log, ScriptedModel([LESSON])) for _ in range(2)]
    for lesson_writer in writers:
        lesson_writer.follow(TALK)
    for lesson_writer in writers:
        await lesson_writer.idle()
    assert [lesson.lesson_id for lesson in await written(log)] == [DUE.lesson_id]


async def test_an_agent_whose_run_cannot_be_begun_is_learnt_from_too() -> None:
    async def broken(call: AgentCall) -> TurnResult:
        raise ToolError("it broke")

    through = Quality(reflexion=Reflexion()).pipeline(FakeClock())
    result = await through.run(CALL, broken, lambda _: broken)
    assert [due.outcome for due in result.reflections] == ["it broke"]


async def test_a_lesson_comes_back_for_a_similar_task_and_for_no_other() -> None:
    model = Scripts(
        {
            "Go": [
                Call("crew.delegate", agent="reader", task="Read it: the depth of a lake"),
                "Ok.",
            ],
            "Again": [Call("crew.delegate", agent="reader", task="Find the depth"), "Ok."],
            "Other": [Call("crew.delegate", agent="reader", task="Write a poem"), "Ok."],
            "Read it": [Call("desk.find", name=f"{n}") for n in range(40)],
            "Find the depth": ["90 m."],
            "Write a poem": ["Roses."],
            "[REFLEXION]": [LESSON],
        }
    )
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("Go")
        assert await harness.drain(5)
        async with Harness.open(learning(), store=harness.log, model=model) as later:
            await later.conversation("d").say("Again")
            await later.conversation("e").say("Other")
    found = model.requests["Find the depth"][0].system
    assert "no instructions:\nsituation" in found
    assert "Look the depth up first" in found
    for task in ("Write a poem", "Read it"):
        assert "Look the depth up first" not in model.requests[task][0].system
        assert "Lessons" not in model.requests[task][0].system
