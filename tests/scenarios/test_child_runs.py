"""Child runs: one call, one result; files go to them and come back; the rest is a conversation of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loopline import Agent, Bundle, Harness, LooplineError, Store, ToolContext, tool
from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.crew import GraphOptions
from loopline.crew.agents import FilesMode
from loopline.events import Delta, Event
from loopline.models import Prompt, Usage
from loopline.testing import Call, FakeClock
from loopline.tools.invocation import CallCache
from loopline.tools.outcome import Outcome
from tests.support.child_runs import Cast, Line, bundle, kin
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.crews import Scripts, handoff
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies, bodies_of, types


async def results(talk: Conversation) -> list[tuple[str, str]]:
    return [(body.status, body.text) for body in await bodies(talk, tl.ToolResult)]


async def links(talk: Conversation) -> list[tuple[str, str]]:
    """The conversation of each child run as it was begun, and with its reason as it ended."""
    return [(link.conversation, link.reason) for link in await bodies(talk, tl.RunChild)]


async def begun(talk: Conversation) -> list[str]:
    return [conversation for conversation, reason in await links(talk) if not reason]


async def exits(talk: Conversation) -> list[str]:
    return [body.reason for body in await bodies(talk, tl.Exit)]


async def prompt_of(talk: Conversation) -> tl.UserPrompt:
    """What the child was begun with."""
    return (await bodies(talk, tl.UserPrompt))[0]


async def heard_all(events: AsyncIterator[Event]) -> None:
    async for _ in events:
        pass


def offered(prompt: Prompt) -> set[str]:
    return {spec.name for spec in prompt.tools}


async def heard_until(events: AsyncIterator[Event], text: str) -> None:
    """Listen until a progress says this."""
    async for event in events:
        if isinstance(event, Delta) and event.type == "progress" and text in event.text:
            return


async def test_the_parent_sees_one_call_and_one_result_and_nothing_of_the_childs_work() -> None:
    model = Cast(
        {
            "Who?": [Call("kin.ask", task="find her"), "It was Ann."],
            "find her": [Call("play.look", text="hidden footprints"), "Ann, by the lake."],
        }
    )
    async with talking(model, bundle=bundle) as talk:
        result = await talk.say("Who?")
        assert (result.answer, result.ok) == ("It was Ann.", True)
        assert await results(talk) == [("ok", "complete: Ann, by the lake.")]
    text = "".join(str(request) for request in model.requests["Who?"])
    assert "Ann, by the lake." in text
    assert "hidden footprints" not in text
    assert "Who?" not in str(model.requests["find her"][0].messages)


async def test_the_child_has_a_timeline_of_its_own_that_the_parent_names() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        await talk.say("go")
        ended = await bodies(talk, tl.RunChild)
        assert [(link.call_id, link.conversation, link.reason) for link in ended] == [
            ("c1", "c~c1", ""),
            ("c1", "c~c1", "complete"),
        ]
        kinds = await types(child)
        assert (kinds[0], kinds[-1]) == ("user.prompt", "react.exit")
        begun_with = await prompt_of(child)
        assert (begun_with.text, begun_with.limits["max_iterations"]) == ("look", 5)
        (item,) = await talk.read(["cv:c~c1/ar:turn_1.assistant.completion"])
        assert item.text == "Seen."


async def test_the_link_is_kept_before_the_child_begins() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    clock = FakeClock()
    async with kin(model, clock=clock) as harness:
        talk = harness.conversation("c")
        numbers = list[int]()
        async for event in talk.stream("go"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.RunChild):
                numbers.append(len(await harness.conversation("c~c1").blocks()))
    assert numbers[0] < numbers[1]


async def test_calls_with_different_keys_have_their_children_at_once() -> None:
    waits = (Call("kin.ask", task="first"), Call("kin.ask", task="second"))
    model = Cast(
        {
            "go": [waits, "Both."],
            "first": [Call("play.alone", text="1"), "one"],
            "second": [Call("play.alone", text="2"), "two"],
        }
    )
    async with talking(model, bundle=bundle) as talk:
        kinds = [
            (event.body.conversation, event.body.reason)
            async for event in talk.stream("go")
            if isinstance(event, tl.Block) and isinstance(event.body, tl.RunChild)
        ]
        assert await results(talk) == [("ok", "complete: one"), ("ok", "complete: two")]
    assert kinds[:2] == [("c~c1", ""), ("c~c2", "")]
    assert sorted(kinds[2:]) == [("c~c1", "complete"), ("c~c2", "complete")]


async def test_calls_with_the_same_key_have_their_children_one_after_the_other() -> None:
    twice = (Call("kin.ask", task="look"), Call("kin.ask", task="look"))
    model = Cast({"go": [twice, "Both."], "look": ["Seen."]})
    _, blocks = await play_turn(model, bundle=bundle)
    links = [b.body for b in blocks if isinstance(b.body, tl.RunChild)]
    assert [(link.conversation, link.reason) for link in links] == [
        ("c~c1", ""),
        ("c~c1", "complete"),
        ("c~c2", ""),
        ("c~c2", "complete"),
    ]


@pytest.mark.parametrize("tool", ["kin.panel", "kin.group"])
async def test_one_call_may_have_several_children_at_once(tool: str) -> None:
    model = Cast(
        {
            "go": [Call(tool, tasks=["red", "green", "blue"]), "All."],
            "red": ["1"],
            "green": [Call("play.look"), "2"],
            "blue": ["3"],
        }
    )
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        assert await results(talk) == [("ok", "1 | 2 | 3")]
        assert await begun(talk) == ["c~c1", "c~c1.2", "c~c1.3"]


async def test_a_child_has_only_the_tools_and_the_instructions_it_is_given() -> None:
    model = Cast({"go": [Call("kin.narrow", task="look"), "Done."], "look": ["Seen."]})
    async with kin(model) as harness:
        await harness.conversation("c").say("go")
    (request,) = model.requests["look"]
    assert {name for name in offered(request) if not name.startswith("react.")} == {"play.look"}
    assert request.system.startswith("Be brief.")


async def test_a_child_that_cannot_be_wired_is_an_error_that_the_parent_reads() -> None:
    lends = Call("kin.lend", task="look", tools=["play.lok"])
    model = Cast({"go": [lends, "No."], "look": ["Seen."]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "No."
        ((status, text),) = await results(talk)
        assert (status, "c~c1 failed: a child run: no tool is called 'play.lok'" in text) == (
            "error",
            True,
        )
        assert await exits(harness.conversation("c~c1")) == ["error"]


async def test_a_child_needs_a_task() -> None:
    model = Cast({"go": [Call("kin.lonely"), "No."]})
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        ((status, text),) = await results(talk)
        assert (status, "needs a task" in text, await begun(talk)) == ("error", True, [])


async def test_with_a_depth_of_nothing_there_are_no_children() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "No."], "look": ["Seen."]})
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go", max_depth=0)
        ((status, text),) = await results(talk)
        assert (status, "max_depth is 0" in text) == ("error", True)
        assert await begun(talk) == []


async def test_children_have_children_and_the_lowest_have_no_tool_for_it() -> None:
    model = Cast(
        {
            "top": [Call("kin.ask", task="middle"), "Top."],
            "middle": [Call("kin.ask", task="bottom"), "Middle."],
            "bottom": [Call("kin.ask", task="below"), "Bottom."],
        }
    )
    async with kin(model) as harness:
        talk, lowest = harness.conversation("c"), harness.conversation("c~c1~c1")
        await talk.say("top")
        assert await results(talk) == [("ok", "complete: Middle.")]
        ((status, text),) = await results(lowest)
        assert (status, "no tool 'kin.ask'" in text) == ("error", True)
    assert "kin.ask" in offered(model.requests["middle"][0])
    assert "kin.ask" not in offered(model.requests["bottom"][0])
    assert "kin.shy" in offered(model.requests["bottom"][0])


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("kin.shy", "effect 'read'"), ("kin.threaded", "only an async tool")],
)
async def test_only_async_tools_of_the_effect_meta_begin_children(tool: str, reason: str) -> None:
    model = Cast({"go": [Call(tool, task="look"), "No."]})
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        ((status, text),) = await results(talk)
        assert (status, reason in text) == ("error", True)


async def test_usage_and_cost_are_those_of_the_turn_and_of_all_below_it() -> None:
    model = Cast(
        {
            "top": [Call("kin.ask", task="middle"), "Top."],
            "middle": [Call("kin.ask", task="bottom"), "Middle."],
            "bottom": ["Bottom."],
        }
    )
    result, blocks = await play_turn(model, "top", bundle=bundle)
    own = [block.body for block in blocks if isinstance(block.body, tl.Decision)]
    assert (len(own), result.rounds) == (2, 2)
    assert result.usage == Usage(input_tokens=50, output_tokens=25)
    assert result.cost == pytest.approx(100 / 1_000_000)


async def test_what_children_used_counts_against_the_parents_budget() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go", max_tokens=1_000_000)
        begun_with = await prompt_of(harness.conversation("c~c1"))
    assert begun_with.limits["max_tokens"] == 1_000_000 - 15


async def test_who_listens_to_the_parent_hears_of_the_child_and_not_what_it_says() -> None:
    model = Cast(
        {
            "go": [Call("kin.ask", task="find her"), "Done."],
            "find her": [Call("play.look", text="x"), "A secret answer."],
        }
    )
    async with kin(model) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [delta.text for delta in deltas if delta.type == "progress"] == [
        "c~c1: play.look",
        "c~c1: complete",
    ]
    assert not any("secret" in delta.text for delta in deltas)
    bodies = [block.body for block in events if isinstance(block, tl.Block)]
    assert [body.text for body in bodies if isinstance(body, tl.Completion)] == ["Done."]


async def test_stopping_the_parent_stops_the_child_and_its_tools() -> None:
    model = Cast({"go": [Call("kin.ask", task="wait")], "wait": [Call("kin.hang")]})
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        await heard_until(talk.stream("go"), "kin.hang")
        await talk.stop()
        assert (await exits(talk), await exits(child)) == (["stopped"], ["stopped"])
        ends = [b.body for b in await talk.blocks() if isinstance(b.body, tl.RunChild)]
        assert (ends[-1].reason, ends[-1].usage.input_tokens) == ("stopped", 10)


async def test_a_steer_of_the_parent_stops_the_child_and_the_turn_goes_on() -> None:
    model = Cast({"go": [Call("kin.ask", task="wait"), "As you like."], "wait": [Call("kin.hang")]})
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        events = talk.stream("go")
        await heard_until(events, "kin.hang")
        await talk.steer("Leave that.")
        await heard_all(events)
        assert (await exits(talk), await exits(child)) == (["complete"], ["stopped"])
        ((status, _),) = await results(talk)
        assert status == "interrupted"


async def test_a_call_whose_children_have_ended_ends_before_a_steer_is_taken() -> None:
    model = Cast({"go": [Call("kin.finish", task="quick"), "As you like."], "quick": ["Tea."]})
    async with talking(model, bundle=bundle) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.text == "finishing":
                await talk.steer("Leave that.")
        assert await results(talk) == [("ok", "finished Tea.")]


async def test_a_steer_of_the_parent_keeps_children_from_beginning() -> None:
    calls = (Call("kin.ask", task="wait"), Call("kin.ask", task="wait"))
    model = Cast({"go": [calls, "As you like."], "wait": [Call("kin.hang")]})
    async with talking(model, bundle=bundle) as talk:
        events = talk.stream("go")
        await heard_until(events, "kin.hang")
        await talk.steer("Leave that.")
        await heard_all(events)
        assert [status for status, _ in await results(talk)] == ["interrupted", "interrupted"]
        assert await begun(talk) == ["c~c1"]


async def test_a_child_is_run_by_the_very_model_of_its_parent() -> None:
    scripts: dict[str, list[Line]] = {"go": [Call("kin.ask", task="look"), "Done."], "look": ["!"]}
    casts = list[Cast]()

    def make() -> Cast:
        casts.append(Cast(scripts))
        return casts[-1]

    async with Harness.open(bundle, store="memory:", model=make) as harness:
        await harness.conversation("c").say("go")
    assert [len(model.requests["look"]) for model in casts] == [1]


async def test_the_parents_deadline_is_the_childs() -> None:
    model = Cast({"go": [Call("kin.ask", task="wait")], "wait": [Call("kin.hang")]})
    clock = FakeClock()
    async with kin(model, clock=clock) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        events = talk.stream("go", deadline_seconds=10)
        await heard_until(events, "kin.hang")
        clock.advance(11)
        await heard_all(events)
        assert await exits(talk) == ["deadline"]
        assert await exits(child) in (["deadline"], ["stopped"])
        assert (await prompt_of(child)).limits["deadline_seconds"] == 10


async def test_calls_that_wait_for_another_end_with_the_deadline_too() -> None:
    calls = (Call("kin.ask", task="wait"), Call("kin.ask", task="wait"))
    model = Cast({"go": [calls], "wait": [Call("kin.hang")]})
    clock = FakeClock()
    async with talking(model, bundle=bundle, clock=clock) as talk:
        events = talk.stream("go", deadline_seconds=10)
        await heard_until(events, "kin.hang")
        clock.advance(11)
        await heard_all(events)
        assert await exits(talk) == ["deadline"]
        assert len(await results(talk)) == 2


async def test_a_child_that_nobody_waits_for_ends_with_its_call() -> None:
    model = Cast({"go": [Call("kin.leave", task="wait"), "Done."], "wait": [Call("kin.hang")]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "Done."
        assert await results(talk) == [("ok", "left")]
        assert await exits(harness.conversation("c~c1")) in ([], ["stopped"])


async def test_a_question_in_a_child_waits_for_the_user_and_the_answer_goes_down(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    scripts: dict[str, list[Line]] = {
        "go": [Call("kin.ask", task="paint"), "Painted."],
        "paint": [
            Call("kin.question", text="Which colour?"),
            Call("kin.question", text="Which wall?"),
            "All of it.",
        ],
    }
    model = Cast(scripts)
    async with kin(model, store=store) as harness:
        paused = await harness.conversation("c").say("go")
        assert (paused.exit_reason, paused.pending[0].question) == ("paused", "Which colour?")
        assert (paused.pending[0].call_id, paused.pending[0].tool) == ("c1", "kin.ask")
    async with kin(model, store=store) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        again = await talk.resume({"c1": "red"})
        assert (again.exit_reason, again.pending[0].question) == ("paused", "Which wall?")
        done = await talk.resume({"c1": "the left one"})
        assert (done.answer, done.exit_reason) == ("Painted.", "complete")
        assert await results(child) == [("ok", "red"), ("ok", "the left one")]
        assert await results(talk) == [("ok", "complete: All of it.")]
        assert await begun(talk) == ["c~c1"]
        starts = [b for b in await talk.blocks() if isinstance(b.body, tl.ToolStarted)]
        pending = [b.body for b in await talk.blocks() if isinstance(b.body, tl.ToolPending)]
        assert len(starts) == 1
        assert pending[0].child == "cv:c~c1/ar:turn_1.react.tool.pending.1"
        (item,) = await talk.read([pending[0].child])
        assert "Which colour?" in item.text
    assert [len(model.requests[task]) for task in scripts] == [2, 3]


@pytest.mark.parametrize("tool", ["kin.panel", "kin.group"])
async def test_children_beside_one_that_asks_are_not_lost(tool: str) -> None:
    model = Cast(
        {
            "go": [Call(tool, tasks=["asks", "works", "wonders"]), "All."],
            "asks": [Call("kin.question", text="Red?"), "asked"],
            "works": [Call("play.alone", text="x"), Call("play.alone", text="y"), "worked"],
            "wonders": [Call("kin.question", text="Blue?"), "wondered"],
        }
    )
    async with kin(model) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).pending[0].question == "Red?"
        assert await exits(harness.conversation("c~c1.2")) == ["complete"]
        assert (await talk.resume({"c1": "yes"})).pending[0].question == "Blue?"
        assert (await talk.resume({"c1": "no"})).answer == "All."
        assert await results(talk) == [("ok", "asked | worked | wondered")]
    assert len(model.requests["works"]) == 3


async def test_what_a_tool_asks_after_its_child_is_answered_to_the_tool() -> None:
    model = Cast({"go": [Call("kin.confirm", task="look"), "Good."], "look": ["red"]})
    async with talking(model, bundle=bundle) as talk:
        assert (await talk.say("go")).pending[0].question == "Is it red?"
        assert (await talk.resume({"c1": "it is"})).answer == "Good."
        assert await results(talk) == [("ok", "it is")]
    assert len(model.requests["look"]) == 1


async def test_leave_that_a_child_needs_is_asked_of_the_user_by_its_parent() -> None:
    model = Cast(
        {
            "go": [Call("kin.ask", task="act"), "Good."],
            "act": [Call("play.alone", text="dangerous"), "acted"],
        }
    )
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        assert (await talk.say("go")).pending[0].question == "May it?"
        with pytest.raises(LooplineError, match="yes or no"):
            await talk.resume({"c1": "perhaps"})
        assert (await talk.resume({"c1": True})).answer == "Good."
        assert await results(child) == [("ok", "alone with dangerous")]


async def test_a_tool_that_comes_back_with_another_task_is_told_so() -> None:
    model = Cast({"go": [Call("kin.fickle"), "No."], "task": [Call("kin.question", text="?"), "x"]})
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        assert (await talk.resume({"c1": "yes"})).answer == "No."
        ((status, text),) = await results(talk)
        assert (status, "was started with another task" in text) == ("error", True)


async def test_what_a_child_cites_is_numbered_by_its_own_sources() -> None:
    model = Cast(
        {
            "go": [Call("kin.ask", task="look up"), "Done."],
            "look up": [Call("play.find", url="https://example.com"), "It is so [[S:1]]."],
        }
    )
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        assert await results(talk) == [("ok", "complete: It is so [1].")]


async def test_nobody_but_its_parent_speaks_to_a_child() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        await talk.say("go")
        with pytest.raises(LooplineError, match="child run of 'c'"):
            await child.say("and more?")
        with pytest.raises(LooplineError, match="child run of 'c'"):
            await child.resume()
        with pytest.raises(LooplineError, match="child run of 'c'"):
            await talk.fork(seq=1, name="c~c9")
        await child.feedback("turn_1", "ok")


async def made(store: str) -> None:
    """A conversation with a child and a grandchild, and a fork of it with a child of its own."""
    model = Cast(
        {
            "top": [
                Call("kin.ask", task="middle"),
                "Top.",
                Call("kin.ask", task="bottom"),
                "Once more.",
            ],
            "middle": [Call("kin.ask", task="bottom"), "Middle."],
            "bottom": ["Bottom."],
        }
    )
    async with talking(model, bundle=bundle, store=store) as talk:
        await talk.say("top")
        fork = await talk.fork(seq=(await talk.blocks())[-1].seq, name="f")
        await fork.say("again")
        assert await begun(fork) == ["c~c1", "f~c2"]
        (item,) = await fork.read(["cv:c~c1/ar:turn_1.assistant.completion"])
        assert item.text == "Middle."


async def test_children_are_listed_by_their_parent_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    await made(url)
    async with Store.open(url) as store:
        assert {summary.conversation.name async for summary in store.conversations()} == {"c", "f"}
        (newest,) = [summary async for summary in store.conversations(limit=1)]
        assert newest.conversation.name == "f"
        children = await store.conversation("c").children()
        assert [child.conversation.name for child in children] == ["c~c1"]
        assert [child.title for child in children] == ["middle"]


async def test_a_forgotten_conversation_takes_its_children_and_theirs_with_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    await made(url)
    async with Store.open(url) as store:
        for forgotten, gone in (("f", ["f", "f~c2"]), ("c", ["c", "c~c1", "c~c1~c1"])):
            for name in gone:
                (item,) = await store.conversation(name).read("ar:turn_1.user.prompt")
                assert item.status == "ok", name
            await store.forget(forgotten)
            for name in gone:
                (item,) = await store.conversation(name).read("ar:turn_1.user.prompt")
                assert item.status == "gone", name


async def test_an_export_names_the_children_that_it_leaves_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    await made(url)
    async with Store.open(url) as store, Store.open("memory:") as other_store:
        document = await store.conversation("c").export()
        assert document["children_not_included"] == ["c~c1"]
        talk = await other_store.load(document)
        assert await begun(talk) == ["c~c1"]
        (item,) = await talk.read("cv:c~c1/ar:turn_1.user.prompt")
        assert item.status == "missing"
        child = await store.conversation("c~c1").export()
        with pytest.raises(LooplineError, match="confirm child:c~c1"):
            await other_store.load(child)
        await other_store.load(child, confirm=["child:c~c1"])
        (item,) = await talk.read("cv:c~c1/ar:turn_1.user.prompt")
        assert item.text == "middle"


@pytest.mark.parametrize("appends", [5, 8], ids=["before it begins", "while it runs"])
async def test_a_stop_beside_the_last_moments_of_a_childs_runner_leaves_no_child_without_an_end(
    appends: int,
) -> None:
    model = Cast({"go": [Call("kin.ask", task="look")], "look": [Call("play.look", text="x")]})
    log = tl.MemoryLog(FakeClock())
    dying = CrashingLog(log, appends)
    with pytest.raises(Crashed):
        async with Harness.open(bundle, store=dying, model=model, clock=FakeClock()) as harness:
            await harness.conversation("c").say("go")
    child = tl.ConversationKey(name="c~c1")
    released = asyncio.Event()

    async def end_slowly() -> None:
        async with log.lease(child):
            released.set()
            await asyncio.sleep(0.2)

    ending = asyncio.create_task(end_slowly())
    await released.wait()
    async with talking(model, bundle=bundle, store=log) as talk:
        assert await talk.stop()
        links = [b.body for b in await talk.blocks() if isinstance(b.body, tl.RunChild)]
    await ending
    assert [link.reason for link in links] == ["", "stopped"]


CODER = Agent(name="coder", description="Codes.", tools=[], files="write")
READER = Agent(name="reader", description="Reads.", tools=[], files="read")
WRITE = Call("react.write", path="files/app.py", content="a = 1\n")


async def run(
    lines: Mapping[str, Sequence[Line]],
) -> tuple[Scripts, list[str], list[tl.FileAdded], list[tl.FileRemoved]]:
    """Run the turn; return the model, the results, and the files of the caller that were changed."""
    model = Scripts(lines)
    bundle = Bundle(
        id="desk", agents=[CODER, READER], configuration={"react": {"workspace": "latest"}}
    )
    _, blocks = await play_turn(model, "Go", bundle=bundle)
    texts = [result.text for result in bodies_of(blocks, tl.ToolResult)]
    return model, texts, bodies_of(blocks, tl.FileAdded), bodies_of(blocks, tl.FileRemoved)


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
            blocks = await talks[0].blocks()
            ended = [body.reason for body in bodies_of(blocks, tl.RunChild) if body.reason]
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
    async with talking(model, bundle=bundle) as talk:
        talks.append(talk)
        [asked] = (await talk.say("Go")).pending
        await talk.resume({asked.call_id: "yes"})
        bodies = [block.body for block in await talk.blocks()]
    files = [body.text for body in bodies if isinstance(body, tl.FileAdded)]
    assert files == ["a = 1\n", "a = 3\n"]
    [text] = [
        body.text
        for body in bodies
        if isinstance(body, tl.ToolResult) and "was also changed" in body.text
    ]
    assert "cv:c~c2/fi:turn_1.files/app.py" in text


async def run_graph(
    files: FilesMode, steps: Mapping[str, Sequence[Line]]
) -> tuple[Scripts, list[str], list[tl.FileAdded], list[dict[str, str | int]]]:
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
    async with talking(model, bundle=bundle) as talk:
        events = [event async for event in talk.stream("Begin") if isinstance(event, Delta)]
        blocks = await talk.blocks()
    texts = [result.text for result in bodies_of(blocks, tl.ToolResult)]
    data = [event.data for event in events if event.name == "crew.step"]
    told = [msgspec.convert(each, dict[str, str | int]) for each in data]
    return model, texts, bodies_of(blocks, tl.FileAdded), told


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


async def test_callers_of_an_equal_call_that_are_cancelled_together_do_not_make_it_again() -> None:
    cache = CallCache(("*",))
    made: list[str] = []

    async def run() -> Outcome:
        made.append("look")
        await asyncio.sleep(0.1)
        return Outcome(text="seen")

    callers = [asyncio.ensure_future(cache.outcome("desk.look", {}, run)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for caller in callers[:2]:
        caller.cancel()
    await asyncio.wait(callers)
    assert [caller.cancelled() for caller in callers] == [True, True, False]
    assert made == ["look", "look"]
