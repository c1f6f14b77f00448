"""Turns that wait, are asked for and never run, stop, or speak to themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from loopline import (
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    LooplineError,
    Output,
    Source,
    ToolContext,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.conversations import Conversation
from loopline.errors import ConflictError
from loopline.events import Delta
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import (
    NEW_TURN,
    Block,
    Completion,
    ConversationKey,
    Entry,
    Exit,
    MemoryLog,
    RoundStart,
    ToolStarted,
    TurnHeader,
    UserPrompt,
)
from tests.support.playground import bundle as playground
from tests.support.scripted_conversation import talking


async def waiting_at_the_lease(
    talk: Conversation, said: Coroutine[None, None, TurnResult]
) -> TurnResult:
    """What comes of it when it is stopped while somebody else has the conversation."""
    task = asyncio.create_task(said)
    await asyncio.sleep(0.05)
    await talk.stop()
    return await task


async def test_a_carried_on_turn_that_is_stopped_while_it_waits_is_a_result_and_stays_cut() -> None:
    log = MemoryLog(FakeClock())
    remaining_entry = Entry(body=UserPrompt(text="left behind"), turn=NEW_TURN)
    await log.append(ConversationKey(name="c"), [remaining_entry], seen=0)
    async with Harness.open(playground, store=log, model=ScriptedModel(["Done."])) as harness:
        talk = harness.conversation("c")
        async with log.lease(ConversationKey(name="c")):
            stopped = await waiting_at_the_lease(talk, talk.resume())
        assert (stopped.exit_reason, stopped.ok, stopped.turn_id) == ("stopped", False, "turn_1")
        assert (await talk.resume()).answer == "Done."


async def test_prompts_that_are_stopped_before_their_turns_take_a_step_are_results() -> None:
    """Their callers met a `CancelledError` once, as if they were cancelled themselves."""
    async with talking(ScriptedModel([], strict=False)) as talk:
        waiting = [asyncio.create_task(talk.say(f"go {number}")) for number in range(3)]
        await asyncio.sleep(0)
        assert await talk.stop()
        ends = [await item for item in waiting]
        assert await talk.interrupts.pending() == []
        blocks = await talk.blocks()
    assert [end.exit_reason for end in ends] == ["stopped"] * 3
    assert [end.turn_id for end in ends] == ["turn_1", "turn_2", "turn_3"]
    assert [block.type for block in blocks] == ["user.prompt"] * 3 + ["user.recalled"] * 3


async def test_a_prompt_that_another_runner_took_is_a_result_when_it_is_stopped_here() -> None:
    log, key = MemoryLog(FakeClock()), ConversationKey(name="c")
    async with Harness.open(playground, store=log, model=ScriptedModel([])) as harness:
        talk = harness.conversation("c")
        async with log.lease(key) as term:
            task = asyncio.create_task(talk.say("go"))
            await asyncio.sleep(0.05)
            start = RoundStart(
                saw=1,
                limit=15,
                takes=(1,),
                epoch=1,
                opened_by="start",
                model="m",
                protocol="native",
                renderer=1,
                system_sha256="",
                tools_sha256="",
                stable_sha256="",
            )
            await log.append(key, [Entry(body=start, turn=1, round=1)], seen=1, term=term)
            await talk.stop()
            stopped = await task
    assert (stopped.exit_reason, stopped.turn_id) == ("stopped", "turn_1")
    assert "user.recalled" in [block.type for block in await log.read(key)]


SURROGATE = "caf\udce9"


def exits(blocks: Sequence[Block]) -> list[tuple[int, str]]:
    return [(block.turn, block.body.reason) for block in blocks if isinstance(block.body, Exit)]


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_turns_run_in_the_order_in_which_they_were_asked_for(
    store: str, tmp_path: Path
) -> None:
    url = store if store == "memory:" else f"sqlite:///{tmp_path}/talk.db"
    script = ScriptedModel([Say(f"answer {n}") for n in range(1, 9)])
    async with talking(script, store=url) as talk:
        results = await asyncio.gather(*(talk.say(f"question {n}") for n in range(1, 9)))
        blocks = await talk.blocks()
    assert {(r.turn_id, r.answer) for r in results} == {
        (f"turn_{n}", f"answer {n}") for n in range(1, 9)
    }
    rows = [(b.turn, b.body.takes) for b in blocks if isinstance(b.body, RoundStart)]
    prompts = {b.turn: b.seq for b in blocks if isinstance(b.body, UserPrompt)}
    assert rows == [(turn, (prompts[turn],)) for turn in range(1, 9)]


async def test_a_prompt_whose_sender_died_is_run_before_the_next_one() -> None:
    log = MemoryLog(FakeClock())
    remaining_entry = Entry(body=UserPrompt(text="left behind"), turn=NEW_TURN)
    await log.append(ConversationKey(name="c"), [remaining_entry], seen=0)
    model = ScriptedModel(["To the first.", "To the second."])
    async with Harness.open(playground, store=log, model=model) as harness:
        result = await harness.conversation("c").say("second")
        blocks = await harness.conversation("c").blocks()
    assert result.answer == "To the second."
    assert exits(blocks) == [(1, "complete"), (2, "complete")]


async def test_a_prompt_that_nobody_ran_is_begun_by_carrying_on() -> None:
    log = MemoryLog(FakeClock())
    remaining_entry = Entry(
        body=UserPrompt(text="left behind", limits={"max_iterations": 1}), turn=NEW_TURN
    )
    await log.append(ConversationKey(name="c"), [remaining_entry], seen=0)
    async with Harness.open(playground, store=log, model=ScriptedModel(["Done."])) as harness:
        result = await harness.conversation("c").resume()
        blocks = await harness.conversation("c").blocks()
    assert result.answer == "Done."
    assert [b.body.limit for b in blocks if isinstance(b.body, RoundStart)] == [1]


async def test_a_busy_conversation_may_be_refused_instead_of_waited_for() -> None:
    async with talking([Call("play.alone", text="x"), "One."]) as talk:
        async for event in talk.stream("first"):
            if isinstance(event, Block) and isinstance(event.body, ToolStarted):
                with pytest.raises(ConflictError, match="being run"):
                    await talk.say("second", when_busy="reject")
        assert exits(await talk.blocks()) == [(1, "complete")]


async def test_a_stream_begins_with_the_prompt_and_ends_with_the_exit() -> None:
    async with talking(["Yes."]) as talk:
        events = [event async for event in talk.stream("go") if isinstance(event, Block)]
        assert events == list(await talk.blocks())
    assert isinstance(events[0].body, UserPrompt)
    assert isinstance(events[-1].body, Exit)


async def test_closing_the_harness_stops_a_turn_that_nobody_waits_for() -> None:
    log = MemoryLog(FakeClock())
    model = ScriptedModel([Call("play.alone", text="x"), "Never."], strict=False)
    async with Harness.open(playground, store=log, model=model) as harness:
        talk = harness.conversation("c")
        stream = talk.stream("go")
        async for event in stream:
            if isinstance(event, Block) and isinstance(event.body, ToolStarted):
                break
    assert exits(await log.read(ConversationKey(name="c"))) == [(1, "stopped")]


HELD: list[Conversation] = []


@tool(effect="read")
async def speak(context: ToolContext) -> str:
    """Say something to the conversation of this very turn."""
    await HELD[-1].say(f"from {context.call_id}")
    return "said"


@tool(effect="read")
def odd() -> Output:
    """Return what UTF-8 cannot hold."""
    return Output(SURROGATE, sources=[Source(url="https://a.org", title=SURROGATE, text=SURROGATE)])


@tool(effect="read")
def refuse() -> str:
    """Refuse in words that UTF-8 cannot hold."""
    raise ToolError(SURROGATE)


TOOLS_SPECS = [{"module": __name__, "alias": "own"}]


class Own(BaseWorkflow):
    """The loop with the tools above."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


own = Bundle(id="own", workflow=Own)


async def test_a_tool_that_says_something_to_its_own_conversation_is_refused() -> None:
    script = ScriptedModel([Call("own.speak"), "Done."])
    async with talking(script, bundle=own) as talk:
        HELD.append(talk)
        await talk.say("go")
        assert exits(await talk.blocks()) == [(1, "complete")]
    assert "cannot wait for a message of its own turn" in str(script.requests[-1].messages[-1])


async def test_text_that_utf8_cannot_hold_is_kept_as_escapes(tmp_path: Path) -> None:
    script = [Say(SURROGATE, Call("own.odd"), Call("own.refuse")), Say(SURROGATE)]
    store = f"sqlite:///{tmp_path}/talk.db"
    async with talking(script, bundle=own, store=store) as talk:
        result = await talk.say(SURROGATE)
        await talk.feedback("turn_1", "ok", text=SURROGATE)
    assert result.answer == "caf\\udce9"


@pytest.mark.parametrize("name", ["", "  ", SURROGATE])
async def test_a_conversation_needs_a_name(name: str) -> None:
    with pytest.raises(LooplineError, match="cannot be the name of a conversation"):
        async with talking([], name=name):
            pass


class Nothing(BaseWorkflow):
    """Forgets to return."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        return cast("TurnResult", None)  # whoever checks types cannot write this; others do


class Refusing(BaseWorkflow):
    """Raises an error of the SDK's own from its own code."""

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        raise ToolError("not like this")


class Leaving(BaseWorkflow):
    """Tries to end the process."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        raise SystemExit(3)


class Twice(BaseWorkflow):
    """Answers, and answers again."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.answer("once")
        return await self.answer("twice")


@pytest.mark.parametrize(
    ("workflow", "message"),
    [
        (Refusing, r"test_turns_take_turns\.py:\d+: ToolError: not like this"),
        (Leaving, r"test_turns_take_turns\.py:\d+: SystemExit: 3"),
        (Nothing, r"Nothing\.process returned None"),
    ],
)
async def test_whatever_a_bundle_does_wrong_closes_its_turn_and_names_the_place(
    workflow: type[BaseWorkflow], message: str
) -> None:
    async with talking([], bundle=Bundle(id="wrong", workflow=workflow)) as talk:
        with pytest.raises(BundleError, match=message):
            await talk.say("go")
        assert exits(await talk.blocks()) == [(1, "error")]


async def test_a_second_answer_takes_the_place_of_the_first_and_both_are_kept() -> None:
    async with talking([], bundle=Bundle(id="twice", workflow=Twice)) as talk:
        result = await talk.say("go")
        answers = [b.body.text for b in await talk.blocks() if isinstance(b.body, Completion)]
    assert result.answer == "twice"
    assert answers == ["once", "twice"]


class Late(BaseWorkflow):
    """A hook in which the user adds something."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        return await self.answer("done")

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        await HELD[-1].followup("too late")


async def test_what_comes_too_late_is_reported_and_taken_by_the_next_turn() -> None:
    async with talking([], bundle=Bundle(id="late", workflow=Late)) as talk:
        HELD.append(talk)
        result = await talk.say("go")
        await talk.say("again")
        takes = [b.body.takes for b in await talk.blocks() if isinstance(b.body, RoundStart)]
    assert result.late_input == ["ar:turn_1.user.followup.1"]
    assert len(takes[1]) == 2


def test_an_unknown_option_of_a_harness_is_refused_by_name() -> None:
    options: Any = {"attachment_caps": None}
    with pytest.raises(LooplineError, match="no option 'attachment_caps'; it has on_build"):
        Harness.open(Bundle(id="shop", instructions="You help."), **options)


async def test_unknown_limits_are_refused_by_name() -> None:
    async with talking([]) as talk:
        with pytest.raises(LooplineError, match="max_iterations must be 1 or more"):
            await talk.say("go", max_iterations=0)
        assert await talk.blocks() == []


async def test_a_header_says_what_the_turn_was_begun_with() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        (header,) = [b.body for b in await talk.blocks() if isinstance(b.body, TurnHeader)]
    assert (header.bundle, header.model, header.protocol) == ("playground", "scripted", "native")


@tool(effect="read")
def slowly(context: ToolContext) -> str:
    """Say how far it has come, from its own thread."""
    context.progress("half way")
    return "there"


async def test_progress_of_a_tool_in_a_thread_is_heard() -> None:
    async with talking([Call("own.slowly"), "Done."], bundle=own) as talk:
        events = [event async for event in talk.stream("go")]
    assert [e.text for e in events if isinstance(e, Delta) and e.type == "progress"] == ["half way"]


class Fatal(BaseException):
    """What ends the process."""


class Fragile(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        if payload.text == "poison":
            raise Fatal


async def test_a_prompt_that_ends_every_process_which_begins_it_is_passed_over_in_the_end() -> None:
    log, fragile = MemoryLog(FakeClock()), Bundle(id="fragile", workflow=Fragile)

    async def say(text: str) -> TurnResult:
        model = ScriptedModel(["Done."] * 3, strict=False)
        async with Harness.open(fragile, store=log, model=model) as harness:
            return await harness.conversation("c").say(text)

    for text in ("poison", "hello"):
        with pytest.raises(Fatal):
            await say(text)
    assert (await say("still there?")).answer == "Done."
    blocks = await log.read(ConversationKey(name="c"))
    assert exits(blocks) == [(1, "interrupted"), (2, "complete"), (3, "complete")]
