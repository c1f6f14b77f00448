"""Whatever a model, a tool or a knowledge function gives, the turn goes on and the log stays readable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
    Passage,
    Source,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.errors import StoreError, StoreVersion
from loopline.models import Model, ToolCall, UserMessage
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel, ScriptError, Wait
from tests.support.git_repositories import commit
from tests.support.playground import bundle as playground
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking

HERE = tl.ConversationKey(name="c")


@tool(effect="read")
def sources(url: str) -> Output:
    """Find a page at an odd address."""
    return Output("found", sources=[Source(url=url)])


@tool(effect="read")
def unsound() -> Output:
    """Give a source of a type there is none."""
    return Output("found", sources=[Source(url="https://a.org", source_type=cast("Any", "pdf"))])


@tool(effect="read")
async def inner() -> str:
    """Cancel its own work."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@tool(effect="read")
def changing(data: dict[str, Any]) -> str:
    """Change what it was given."""
    data["inner"]["x"] = "changed"
    return "done"


@tool(effect="write", key="n:{name:d}")
def keyed(name: str) -> str:
    """Have a key that cannot be made."""
    return name


@tool
async def forever() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "never"


TOOLS_SPECS = [{"module": __name__, "alias": "odd"}]


class Odd(BaseWorkflow):
    """The loop with the tools above, and a search that gives what it is told."""

    passages: Sequence[Any] = ()

    async def search(self, query: str, *, limit: int = 5) -> Sequence[Passage]:
        return self.passages

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__, knowledge_space_fn=self.search)
        return await react.run(payload)


odd = Bundle(id="odd", workflow=Odd)


async def results(calls: Sequence[ToolCall], bundle: Bundle = odd) -> list[tl.ToolResult]:
    """What the calls come to, in a conversation that can be gone on with."""
    async with talking([Say("", *calls), "Done.", "Again."], bundle=bundle) as talk:
        assert (await talk.say("go")).answer == "Done."
        assert (await talk.say("go on")).answer == "Again."
        blocks = await talk.blocks()
    return [block.body for block in blocks if isinstance(block.body, tl.ToolResult)]


@pytest.mark.parametrize(
    "ref",
    ["ks:caf%E9.md", "ar:turn_1.artifacts.%FF", "cv:%FF/ar:turn_1.user.prompt", "cv:a/" * 3000,
     f"ar:turn_{'9' * 5000}.user.prompt", "ef:%FF:p:chatbot:s:u:c:t:r:x", "\udce9"],
)  # fmt: skip
async def test_an_odd_ref_is_a_missing_one(ref: str) -> None:
    (one,) = await results([Call("react.read", paths=[ref, "ar:turn_1.user.prompt"])], playground)
    assert one.status == "ok"
    assert '"missing":[' in one.text
    assert '"path":"ar:turn_1.user.prompt"' in one.text


@pytest.mark.parametrize(
    "url", ["http://[redacted]/x", "http://[::1/x", "https://a:²/", "https://a:99999/", "\udce9"]
)
async def test_an_odd_address_is_a_source_like_any(url: str) -> None:
    (one,) = await results([Call("odd.sources", url=url)])
    assert "[[S:1]]" in one.text


async def test_what_could_not_be_read_again_is_an_error_and_never_recorded() -> None:
    (one,) = await results([Call("odd.unsound")])
    assert one.status == "error"
    assert "source_type" in one.text


async def test_a_tool_that_cancels_its_own_work_is_an_error_and_not_the_end() -> None:
    (one,) = await results([Call("odd.inner")])
    assert (one.status, one.text) == ("error", "The tool cancelled its own work.")


async def test_a_key_that_cannot_be_made_lets_the_call_run_alone() -> None:
    (one,) = await results([Call("odd.keyed", name="a")])
    assert one.status == "ok"


async def test_a_tool_cannot_change_what_the_log_says_it_was_given() -> None:
    _, blocks = await play_turn(
        [Call("odd.changing", data={"inner": {"x": "1"}}), "Done."], bundle=odd
    )
    (call,) = [b.body for b in blocks if isinstance(b.body, tl.ToolCalled)]
    assert call.arguments == {"data": {"inner": {"x": "1"}}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"ref": "ks:a"}], "not a Passage"),
        ([Passage(ref="doc-17", title="t", text="x")], "doc-17"),
        ([Passage(ref="ks:a@1234567", title="t", text="\udce9")], "udce9"),
        (None, "TypeError"),
    ],
)
async def test_a_search_that_gives_odd_things_is_an_error_for_the_model(
    value: Any, message: str
) -> None:
    class Searching(Odd):
        passages = value

    bundle = Bundle(id="searching", workflow=Searching)
    (one,) = await results([Call("react.search_knowledge", query="tea")], bundle)
    assert message in one.text


@pytest.mark.parametrize(
    "raw",
    ['{"a":' * 100_000, "[1, 2]", '{"action": "call_tool"}', '{"action": "final_answer"}', "{" * 5000,
     '{"action": "call_tool", "tool": "x", "arguments": [1]}'],
)  # fmt: skip
async def test_an_odd_reply_in_json_is_asked_for_again(raw: str) -> None:
    script = ScriptedModel([Raw(raw), Say("Better.")], tool_call=False, json_mode=True)
    async with talking(script) as talk:
        assert (await talk.say("go")).answer == "Better."


async def test_a_call_with_arguments_too_deep_to_be_stored_is_asked_for_again() -> None:
    deep: list[Any] = []
    for _ in range(197):
        deep = [deep]
    script = ScriptedModel(
        [Call("play.look", text=[deep]), Call("play.look", text=deep), Say("Better.")]
    )
    async with talking(script) as talk:
        assert (await talk.say("go")).answer == "Better."
        blocks = await talk.blocks()
    [notice] = [body for block in blocks if isinstance(body := block.body, tl.Notice)]
    assert notice.code == "malformed_reply"
    assert notice.text.startswith("The arguments of play.look are nested too deeply")
    [call] = [body for block in blocks if isinstance(body := block.body, tl.ToolCalled)]
    assert call.arguments == {"text": deep}


async def test_numbers_that_json_has_not_are_kept_as_text() -> None:
    _, blocks = await play_turn([Call("play.look", text=float("nan")), "Done."])
    (call,) = [b.body for b in blocks if isinstance(b.body, tl.ToolCalled)]
    assert call.arguments == {"text": "nan"}


async def test_a_conversation_of_a_newer_loopline_is_not_run() -> None:
    log = tl.MemoryLog(FakeClock())
    await log.append(HERE, [tl.Entry(body=tl.UserPrompt(text="hi"), turn=tl.NEW_TURN)], seen=0)
    async with log.lease(HERE) as term:
        later = tl.Unknown(stored_type="user.thought", version=1, stored="{}")
        await log.append(HERE, [tl.Entry(body=later, turn=1)], seen=0, term=term)
    async with Harness.open(playground, store=log, model=ScriptedModel([])) as harness:
        with pytest.raises(StoreVersion, match=r"user\.thought"):
            await harness.conversation("c").resume()


async def test_a_model_that_cannot_be_made_closes_the_turn_and_says_so() -> None:
    def make() -> Model:
        raise RuntimeError("no weights")

    async with Harness.open(playground, store="memory:", model=make) as harness:
        talk = harness.conversation("c")
        with pytest.raises(LooplineError, match="no weights"):
            await talk.say("go")
        assert isinstance((await talk.blocks())[-1].body, tl.Exit)


async def test_text_beside_calls_is_the_forced_answer_when_there_is_no_other() -> None:
    last = Say("Here is what I know: 42.", Call("play.look"))
    result, _ = await play_turn([Call("play.look"), last], max_iterations=1)
    assert (result.answer, result.exit_reason) == ("Here is what I know: 42.", "max_iterations")


async def test_an_answer_may_begin_with_a_tick_when_there_is_no_plan() -> None:
    async with talking(["✓ 12 tests passed\n✓ 3 warnings\nAll good."]) as talk:
        assert (await talk.say("go")).answer == "✓ 12 tests passed\n✓ 3 warnings\nAll good."


async def test_a_prompt_that_does_not_fit_is_not_sent_and_says_so() -> None:
    class Verbose(BaseWorkflow):
        instructions = "Be brief. " * 6_000

    script = ScriptedModel(["Never."], window=20_000, strict=False)
    result, _ = await play_turn(script, bundle=Bundle(id="verbose", workflow=Verbose))
    assert result.exit_reason == "error"
    assert "has room for 12000" in result.error
    assert script.requests == []


async def test_what_is_returned_must_be_what_the_log_says() -> None:
    class Inventing(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            return TurnResult(
                answer="made by hand", turn_id=payload.turn_id, exit_reason="complete", ok=True
            )

    async with talking([], bundle=Bundle(id="inventing", workflow=Inventing)) as talk:
        with pytest.raises(BundleError, match="made by hand"):
            await talk.say("go")


async def test_an_answer_may_be_checked_and_given_again() -> None:
    class Checking(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react()
            draft = await react.run(payload)
            return await self.answer(f"{draft.answer} Checked.")

    async with talking(["Draft."], bundle=Bundle(id="checking", workflow=Checking)) as talk:
        assert (await talk.say("go")).answer == "Draft. Checked."


async def test_things_kept_at_once_under_one_name_all_have_their_version() -> None:
    class Keeping(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            refs = await asyncio.gather(*(self.keep("t", number) for number in range(5)))
            return await self.answer(" ".join(sorted(refs)))

    async with talking([], bundle=Bundle(id="keeping", workflow=Keeping)) as talk:
        result = await talk.say("go")
        reading = await talk.read(result.answer.split())
    assert sorted(item.text for item in reading) == ["0", "1", "2", "3", "4"]


async def test_a_prompt_can_be_recalled_until_a_round_takes_it() -> None:
    async with talking([Call("play.alone", text="x"), "One.", "Two."]) as talk:
        async for event in talk.stream("first"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolStarted):
                receipt = await talk.followup("no, wait")
                assert await talk.recall(receipt)
                assert not await talk.recall(receipt)
        assert (await talk.say("second")).answer == "Two."
        blocks = await talk.blocks()
    taken = [seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
    assert len(taken) == 2


async def test_stopping_takes_back_what_waits_behind_the_running_turn() -> None:
    script = ScriptedModel([Call("odd.forever"), "Later."])
    async with talking(script, bundle=odd) as talk:
        waiting = list[asyncio.Task[TurnResult]]()
        async for event in talk.stream("first"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolStarted):
                waiting.append(asyncio.create_task(talk.say("second")))
                await asyncio.sleep(0.01)
                await talk.stop()
        assert [(await item).exit_reason for item in waiting] == ["stopped"]
        result = await talk.say("third")
    assert result.answer == "Later."
    texts = [m.text for m in script.requests[-1].messages if isinstance(m, UserMessage)]
    assert not any("second" in text for text in texts)


@each_row(range(1, 60, 3))
async def test_stopping_at_any_moment_leaves_an_ended_turn_or_none(steps: int) -> None:
    script = ScriptedModel([Call("play.alone", text="x"), Call("play.look"), "Yes."], strict=False)
    async with talking(script) as talk:
        saying = asyncio.create_task(talk.say("go"))
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.gather(talk.stop(), talk.stop())
        result = await saying
        blocks = await talk.blocks()
    assert result.exit_reason in ("stopped", "complete")
    exits = [block.body.reason for block in blocks if isinstance(block.body, tl.Exit)]
    recalled = any(block.type == "user.recalled" for block in blocks)
    assert exits == ([] if recalled else [result.exit_reason])


async def test_a_turn_cut_in_a_round_of_another_model_begins_a_round_of_its_own() -> None:
    log = tl.MemoryLog(FakeClock())
    script = ScriptedModel([Wait(0), "Never."], strict=False)
    async with Harness.open(playground, store=log, model=script, clock=FakeClock()) as harness:
        async for event in harness.conversation("c").stream("go"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.RoundStart):
                break
        cut = [b for b in await log.read(HERE) if not isinstance(b.body, tl.Exit)]
    again = tl.MemoryLog(FakeClock())
    async with again.lease(HERE) as term:
        for block in cut:
            turn = tl.NEW_TURN if isinstance(block.body, tl.UserPrompt) else block.turn
            entry = tl.Entry(body=block.body, turn=turn, round=block.round)
            await again.append(HERE, [entry], seen=0, term=term)
    other_model = ScriptedModel(["Done."], tool_call=False, json_mode=True)
    other_model.name = "other"
    async with Harness.open(playground, store=again, model=other_model) as harness:
        await harness.conversation("c").resume()
    bodies = [b.body for b in await again.read(HERE) if isinstance(b.body, tl.RoundStart)]
    assert [(item.model, item.protocol, item.takes) for item in bodies] == [
        ("scripted", "native", (1,)),
        ("other", "json", ()),
    ]
    assert (bodies[1].epoch, bodies[1].opened_by) == (2, "model,protocol,instructions")


async def test_a_script_that_is_read_beyond_its_end_is_told_of_when_the_harness_closes() -> None:
    with pytest.raises(ScriptError, match="the script has ended"):
        async with talking([Call("play.look")]) as talk:
            assert (await talk.say("go")).exit_reason == "error"


async def test_waiting_in_a_script_takes_no_time_on_the_clock_of_a_test() -> None:
    clock = FakeClock()
    model = ScriptedModel([Wait(3600), "Yes."])
    async with Harness.open(playground, store="memory:", model=model, clock=clock) as harness:
        await harness.conversation("c").say("go")
    assert clock.elapsed() >= 3600


async def test_a_pinned_ref_reads_the_same_although_the_roots_have_changed(tmp_path: Path) -> None:
    repo, store = tmp_path / "repo", f"sqlite:///{tmp_path}/talk.db"
    commit(repo, {"docs/a.md": "# A\n\nThe manual.\n", "other/docs/a.md": "# A\n\nElse.\n"})
    bundle = Bundle(id="g", workflow=BaseWorkflow, configuration={"knowledge": {"repo": str(repo)}})
    async with Harness.open(bundle, store=store, model=ScriptedModel(["Yes."])) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        (before,) = await talk.read("ks:docs/a.md")
    moved = {"knowledge.docs_root": "other/docs"}
    async with Harness.open(bundle, store=store, properties=moved) as harness:
        talk = harness.conversation("c")
        (after,) = await talk.read(before.ref)
        (moving,) = await talk.read("ks:docs/a.md")
    assert (after.text, "Else" in moving.text) == (before.text, True)


async def test_a_knowledge_space_that_cannot_be_brought_up_to_date_serves_as_it_was(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    commit(repo, {"a.md": "# Tea\n\nGreen tea.\n"})
    bundle = Bundle(id="g", workflow=BaseWorkflow, configuration={"knowledge": {"repo": str(repo)}})
    script = ScriptedModel([Call("react.search_knowledge", query="green tea"), "Yes [[S:1]]."])
    async with talking(script, bundle=bundle) as talk:
        repo.rename(tmp_path / "elsewhere")
        result = await talk.say("go")
    assert result.sources
    assert "stays as it was" in str(script.requests[0])


BUNDLE = Bundle(id="any", workflow=BaseWorkflow)


@pytest.mark.parametrize(
    "url", ["sqlite:////", "sqlite:///\0", "sqlite:///\ud800", f"sqlite:///{'a' * 300}.db"]
)
async def test_a_store_that_cannot_be_is_said_to_be_none(url: str) -> None:
    with pytest.raises(StoreError, match="no store"):
        async with Harness.open(BUNDLE, store=url, model=ScriptedModel([])):
            pass


async def test_a_name_that_cannot_be_stored_is_refused_or_not_found(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(BUNDLE, store=store, model=ScriptedModel(["Done."])) as harness:
        with pytest.raises(LooplineError, match="cannot be the name of a conversation"):
            harness.conversation("a\udcff")
        conversation = harness.conversation("a\0b")
        await conversation.say("go")
        (item,) = await conversation.read("cv:\udcff/ar:turn_1.user.prompt")
    assert (item.readable, "no conversation" in item.message) == (False, True)
