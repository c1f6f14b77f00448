"""Agents that are called by tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from loopline import Agent, Harness, LooplineError, ToolError, tool
from loopline.conversations import Conversation
from loopline.crew import Agents, CrewOptions, parse_handoff
from loopline.crew.agents import Reasoning
from loopline.models import Json
from loopline.testing import Call, FakeClock
from loopline.timeline import RunChild, SourceAdded, ToolResult, TurnHeader
from tests.support.child_runs import EACH, Line
from tests.support.crews import AGENTS, READER, WRITER, Scripts, crew_harness, desk, handoff


async def result_texts(talk: Conversation) -> list[str]:
    """The text of each result."""
    return [b.body.text for b in await talk.blocks() if isinstance(b.body, ToolResult)]


async def links(talk: Conversation) -> list[RunChild]:
    """The child runs as they were begun and as they ended."""
    return [b.body for b in await talk.blocks() if isinstance(b.body, RunChild)]


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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go")
        text = (await result_texts(talk))[-1]
        added = [b.body for b in await talk.blocks() if isinstance(b.body, SourceAdded)]
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
    [header] = [block.body for block in own if isinstance(block.body, TurnHeader)]
    assert (header.agent, header.agent_digest) == ("reader", READER.digest)


async def test_at_most_four_agents_run_at_once_and_results_come_in_the_order_of_the_tasks() -> None:
    names = [f"Task {number}" for number in range(9)]
    tasks = [{"agent": "writer", "task": name} for name in names]
    model = Scripts({"Go": [Call("crew.parallel", tasks=tasks), "Ok."], **finished(names)})
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
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
    assert "confidence low" in str(handed)


async def test_an_agent_without_a_block_hands_back_its_raw_answer() -> None:
    model = Scripts(
        {"Go": [Call("crew.delegate", agent="writer", task="Write"), "Ok."], "Write": ["Roses."]}
    )
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        [text] = await result_texts(talk)
    assert "Roses." in text
    assert "no handoff block" in text


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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go", protocol="tagged")
        texts = await result_texts(talk)
    assert result.answer == "Ok."
    assert texts == ["(1) writer, completed\nsummary: Roses.\nconfidence: medium"]


async def test_an_agent_that_does_not_exist_is_an_error_that_names_the_others() -> None:
    model = Scripts({"Go": [Call("crew.delegate", agent="wizard", task="Do"), "Ok."]})
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
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
    async with crew_harness(model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go", max_tokens=9_000)
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


def test_the_environment_names_model_and_effort_of_an_agent_and_how_many_run_at_once() -> None:
    agents = Agents(AGENTS).with_environment(
        {
            "CHATCLI_AGENT_READER_MODEL": "scripted",
            "CHATCLI_AGENT_READER_EFFORT": "MAX",
            "CHATCLI_AGENT_WRITER_EFFORT": "enormous",
        }
    )
    assert (agents["reader"].model, agents["reader"].effort) == ("agent.reader", "max")
    assert agents["writer"] == AGENTS[1]
    assert CrewOptions.from_environment({"CHATCLI_AGENT_MAX_WORKERS": "2"}).max_workers == 2
    with pytest.raises(
        LooplineError, match="CHATCLI_AGENT_MAX_WORKERS is '0': it takes a whole number"
    ):
        CrewOptions.from_environment({"CHATCLI_AGENT_MAX_WORKERS": "0"})


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
