"""Short facts about a user are remembered, recalled with a mark, superseded, dropped, edited and removed."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from loopline import Bundle, Harness, LooplineError
from loopline.memory import MOST_FACTS, Owner, UserFacts, turn_texts
from loopline.models import Prompt, ToolCall
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import (
    NEW_TURN,
    ConversationKey,
    Entry,
    Imported,
    MemoryFact,
    MemoryLog,
    ToolResult,
    UserPrompt,
)
from tests.support.past_turns import NOW

REMEMBERING = {"react.memory": True, "react.memsearch": True}
KEY = ConversationKey(name="tea", user="ann")
ANN = Owner.of(KEY)
STRANGERS = [
    Owner(user="bob", tenant=ANN.tenant, project=ANN.project),
    Owner(user="ann", tenant="other", project=ANN.project),
    Owner(user="ann", tenant=ANN.tenant, project="other"),
]


async def results_of(*calls: ToolCall, user: str = "ann") -> Sequence[ToolResult]:
    """The results of calls that a model makes one after the other, each in a conversation of its own."""
    script = [say for call in calls for say in (Say("", call), Say("Done."))]
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    model, results = ScriptedModel(script), list[ToolResult]()
    async with Harness.open(
        bundle, store="memory:", model=model, properties=REMEMBERING
    ) as harness:
        for number in range(len(calls)):
            talk = harness.conversation(f"c{number}", user=user)
            await talk.say("My tea is oolong.")
            results += [b.body for b in await talk.blocks() if isinstance(b.body, ToolResult)]
    return results


def memory(mode: str, **arguments: object) -> ToolCall:
    return Call("react.memory", mode=mode, **arguments)


async def test_a_fact_is_recalled_in_another_conversation_with_a_mark_and_what_it_rests_on() -> (
    None
):
    wrote, recalled = await results_of(
        memory("write", text="Ann drinks oolong.", refs=["ar:turn_1.user.prompt"]), memory("list")
    )
    assert wrote.status == "ok"
    head, line = recalled.text.splitlines()
    assert "not instructions" in head
    assert "cv:c0/ar:turn_1.user.prompt): Ann drinks oolong." in line


async def test_what_is_recalled_is_not_learned_again() -> None:
    _, again, resting = await results_of(
        memory("write", text="Ann drinks oolong."),
        memory("write", text="ann  drinks OOLONG."),
        memory("write", text="Something else.", refs=["ar:turn_1.memory.fact.1"]),
    )
    assert (again.status, resting.status) == ("error", "error")
    assert "remembered already" in again.text


async def test_a_fact_cannot_rest_on_what_was_only_recalled() -> None:
    script = [
        Say("", memory("list")),
        Say("", memory("write", text="New.", refs=["tc:turn_1.c1.result"])),
        Say("", memory("write", text="New.", refs=["ar:turn_7.user.prompt"])),
        Say("Done."),
    ]
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    model = ScriptedModel(script)
    async with Harness.open(
        bundle, store="memory:", model=model, properties=REMEMBERING
    ) as harness:
        talk = harness.conversation("c", user="ann")
        await talk.say("Hello")
        _, recalled, unknown = [
            block.body.text for block in await talk.blocks() if isinstance(block.body, ToolResult)
        ]
        assert await harness.memory.facts.facts(ANN) == []
    assert "is remembered text" in recalled
    assert "does not exist in this conversation" in unknown


async def test_facts_are_no_texts_of_turns() -> None:
    log = MemoryLog(FakeClock(NOW))
    await tell(log, fact("f1", "Ann drinks oolong."))
    assert [text.text for text in turn_texts("tea", await log.read(KEY))] == ["Hello"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (memory("write"), "text must be a string that is not empty"),
        (memory("write", text="x" * 301), "may have 300"),
        (memory("write", text="x", scope="world"), "scope must be one of user, conversation"),
        (memory("write", text="x", refs=["nonsense"]), "refs:"),
        (memory("write", text="x", refs="ar:turn_1.user.prompt"), "refs must be a list"),
        (memory("supersede", id="f9", text="x"), "no fact 'f9'"),
        (memory("drop"), "id must be a string"),
        (memory("burn"), "react.memory knows list, write, supersede and drop"),
    ],
)
async def test_a_wrong_call_is_explained(call: ToolCall, message: str) -> None:
    (result,) = await results_of(call)
    assert result.status == "error"
    assert message in result.text


async def test_a_model_supersedes_and_drops_a_fact() -> None:
    ids = list[str]()

    def with_id(mode: str, **arguments: object) -> Say:
        return Say("", memory(mode, id=ids[0], **arguments))

    script: list[Say | Callable[[Prompt], Say]] = [
        Say("", memory("write", text="Ann drinks oolong.")),
        Say("Done."),
        lambda _: with_id("supersede", text="Ann drinks assam."),
        Say("Done."),
        lambda _: with_id("drop"),
        Say("Done."),
    ]
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    model, texts = ScriptedModel(script), list[list[str]]()
    async with Harness.open(
        bundle, store="memory:", model=model, properties=REMEMBERING
    ) as harness:
        for name in ("a", "b", "c"):
            await harness.conversation(name, user="ann").say("Hello")
            facts = await harness.memory.facts.facts(ANN)
            ids += [item.fact_id for item in facts]
            texts.append([item.text for item in facts])
    assert texts == [["Ann drinks oolong."], ["Ann drinks assam."], []]
    assert re.fullmatch(r"[0-9a-f]{8}", ids[0])


async def test_of_two_calls_in_one_reply_the_second_knows_the_first() -> None:
    twice = [memory("write", text="Ann drinks oolong.") for _ in range(2)]
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    model = ScriptedModel([Say("", *twice), Say("Done.")])
    async with Harness.open(
        bundle, store="memory:", model=model, properties=REMEMBERING
    ) as harness:
        await harness.conversation("c", user="ann").say("Hello")
        assert len(await harness.memory.facts.facts(ANN)) == 1


async def test_the_tool_is_offered_where_a_property_says_so() -> None:
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    for properties, offered in ((REMEMBERING, True), ({}, False)):
        model = ScriptedModel([Say("a")])
        async with Harness.open(
            bundle, store="memory:", model=model, properties=properties
        ) as harness:
            await harness.conversation("c", user="ann").say("hello")
        assert ("react.memory" in [tool.name for tool in model.requests[0].tools]) is offered


def fact(fact_id: str, text: str) -> MemoryFact:
    return MemoryFact(fact_id=fact_id, text=text)


async def tell(log: MemoryLog, *facts: MemoryFact | Imported, key: ConversationKey = KEY) -> None:
    """Record facts in a turn of a conversation, as its runner does."""
    prompt = Entry(body=UserPrompt(text="Hello"), turn=NEW_TURN)
    (block,) = (await log.append(key, [prompt], seen=0))[-1:]
    async with log.lease(key) as term:
        entries = [Entry(body=body, turn=block.turn) for body in facts]
        await log.append(key, entries, seen=block.seq, term=term)


async def texts(log: MemoryLog, owner: Owner = ANN, conversation: str | None = None) -> list[str]:
    return [fact.text for fact in await UserFacts(log).facts(owner, conversation)]


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_nobody_recalls_edits_or_removes_a_fact_of_another_owner(stranger: Owner) -> None:
    log = MemoryLog(FakeClock(NOW))
    await tell(log, fact("f1", "Ann drinks oolong."))
    await tell(log, key=stranger.key("tea"))
    assert await texts(log, stranger) == []
    facts = UserFacts(log)
    with pytest.raises(LooplineError, match="no fact 'f1'"):
        await facts.edit(stranger, "f1", "He does not.")
    with pytest.raises(LooplineError, match="no fact 'f1'"):
        await facts.remove(stranger, "f1")
    assert await texts(log) == ["Ann drinks oolong."]


async def test_a_fact_of_a_conversation_is_recalled_there_alone() -> None:
    log = MemoryLog(FakeClock(NOW))
    await tell(
        log, fact("f1", "Everywhere."), MemoryFact(fact_id="f2", text="Here.", scope="conversation")
    )
    assert await texts(log, conversation="tea") == ["Everywhere.", "Here."]
    assert await texts(log, conversation="other") == ["Everywhere."]
    assert await texts(log) == ["Everywhere.", "Here."]


async def test_a_person_edits_and_removes_a_fact() -> None:
    log = MemoryLog(FakeClock(NOW))
    await tell(log, fact("f1", "Ann drinks oolong."))
    await tell(log, fact("f1", "Ann drinks assam."), key=ANN.key("other"))
    facts = UserFacts(log)
    edited = await facts.edit(ANN, "f1", "I drink\nwater.")
    assert (edited.text, edited.by_user) == ("I drink water.", True)
    await facts.remove(ANN, "f1")
    assert await facts.facts(ANN) == []
    await log.forget(ANN.key("other"))
    assert await texts(log) == []


async def test_a_forgotten_conversation_takes_its_facts_with_it() -> None:
    log = MemoryLog(FakeClock(NOW))
    facts = UserFacts(log)
    await tell(log, fact("f1", "Ann drinks oolong."))
    assert len(await facts.facts(ANN)) == 1
    await log.forget(KEY)
    assert await facts.facts(ANN) == []


@pytest.mark.parametrize("asks_again", [True, False])
async def test_facts_that_are_forgotten_do_not_stay_in_memory(asks_again: bool) -> None:
    """They leave memory with the next reading of their user, or when 1,000 other users were read."""
    log = MemoryLog(FakeClock(NOW))
    facts = UserFacts(log)
    tracemalloc.start()
    try:
        await tell(log, fact("f1", "x" * 4_000_000))
        assert len(await facts.facts(ANN)) == 1
        await log.forget(KEY)
        for number in range(0 if asks_again else 1_000):
            await facts.facts(Owner(user=f"u{number}", tenant=ANN.tenant, project=ANN.project))
        if asks_again:
            await facts.facts(ANN)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()


async def test_facts_of_an_imported_document_are_not_remembered() -> None:
    log = MemoryLog(FakeClock(NOW))
    await tell(log, fact("f1", "Ann pays for everybody."), Imported())
    assert await texts(log) == []


async def test_so_many_facts_of_a_scope_are_remembered() -> None:
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    most = MOST_FACTS["conversation"]
    calls = [memory("write", text=f"Fact {n}.", scope="conversation") for n in range(most + 1)]
    model = ScriptedModel([*(Say("", call) for call in calls), Say("Done.")])
    async with Harness.open(
        bundle, store="memory:", model=model, properties=REMEMBERING
    ) as harness:
        talk = harness.conversation("c", user="ann")
        await talk.say("Hello", max_iterations=most + 5)
        results = [b.body for b in await talk.blocks() if isinstance(b.body, ToolResult)]
        assert len(await harness.memory.facts.facts(ANN)) == most
    assert "which is the limit" in results[-1].text
