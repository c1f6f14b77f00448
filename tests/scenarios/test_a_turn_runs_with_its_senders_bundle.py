"""A turn runs with the bundle through which its message was sent, whichever harness holds the conversation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from loopline import BaseWorkflow, Bundle, Harness, tool
from loopline.bundle.load import load
from loopline.conversations import Conversation, HandedOver, Receipt
from loopline.errors import WrongBundle
from loopline.guards import ask_before
from loopline.store import SqlLog
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    ConversationKey,
    Exit,
    MemoryLog,
    TimelineLog,
    ToolCalled,
    ToolResult,
    TurnHeader,
    UserPrompt,
)
from tests.support.crashing_log import Crashed, CrashingLog

KEY = ConversationKey(name="c")


@tool(effect="write", key="orders")
def order(kind: str) -> str:
    """Order tea."""
    return f"ordered {kind}"


def changed_order() -> Callable[..., str]:
    """The same tool, as a later version of the bundle has it: with another schema."""

    @tool(effect="write", key="orders")
    def order(kind: str, grams: int = 100) -> str:
        """Order so much tea."""
        return f"ordered {grams} g of {kind}"

    return order


class Careful(BaseWorkflow):
    guards = (ask_before(["tea.order"]),)


def tea(version: str, *, guarded: bool = False, changed: bool = False) -> Bundle:
    """A version of a bundle that orders tea."""
    workflow = Careful if guarded else BaseWorkflow
    return Bundle(
        id="tea",
        version=version,
        workflow=workflow,
        tools=[changed_order() if changed else order],
    )


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[TimelineLog, None]:
    if request.param == "memory":
        yield MemoryLog(FakeClock())
        return
    async with await SqlLog.open(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@asynccontextmanager
async def opened(
    bundle: Bundle, log: TimelineLog, script: Sequence[Entry] = ()
) -> AsyncGenerator[Harness, None]:
    model = ScriptedModel(script, strict=False)
    async with Harness.open(bundle, store=log, model=model) as harness:
        yield harness


async def versions(log: TimelineLog) -> list[str]:
    """The versions of the bundle in the headers of the conversation's turns."""
    headers = await log.read(KEY, types=["turn.header"])
    return [block.body.version for block in headers if isinstance(block.body, TurnHeader)]


async def leave_cut(bundle: Bundle, log: TimelineLog, script: Sequence[Entry], left: int) -> None:
    """Send a message through the bundle, and die after so many appends of its turn."""
    crashing = CrashingLog(log)
    async with opened(bundle, crashing, script) as harness:
        crashing.left = left
        with pytest.raises(Crashed):
            await harness.conversation("c").say("Order tea.")


@pytest.mark.parametrize("name", ["other", "tea"])
async def test_two_harnesses_on_one_conversation_answer_their_own_messages(
    log: TimelineLog, name: Literal["other", "tea"]
) -> None:
    other = Bundle(id=name, version="2")
    async with (
        opened(tea("1"), log, ["one"] * 15) as first,
        opened(other, log, ["two"] * 15) as second,
    ):
        said = [
            harness.conversation("c").say(f"go {number}")
            for number in range(15)
            for harness in (first, second)
        ]
        results = await asyncio.gather(*said)
    assert [result.answer for result in results] == ["one", "two"] * 15
    headers = await log.read(KEY, types=["turn.header"])
    prompts = await log.read(KEY, types=["user.prompt"])
    senders = [block.body.sender for block in prompts if isinstance(block.body, UserPrompt)]
    bundles = {
        block.turn: (block.body.bundle, block.body.version)
        for block in headers
        if isinstance(block.body, TurnHeader)
    }
    assert [(sender.bundle, sender.version) for sender in senders if sender] == [
        bundles[turn] for turn in range(1, 31)
    ]


async def order_and_approve(talk: Conversation) -> list[str]:
    """Send a message and approve of its order; how the turn ended each time."""
    result = await talk.say("Order.")
    reasons = [result.exit_reason]
    if result.pending:
        approved = await talk.resume({call.call_id: True for call in result.pending})
        assert approved.turn_id == result.turn_id
        reasons.append(approved.exit_reason)
    return [*reasons]


async def test_a_message_of_a_version_with_a_guard_never_runs_without_it(log: TimelineLog) -> None:
    calls: list[Entry] = [Call("tea.order", kind="green"), "Done."] * 5
    async with (
        opened(tea("1"), log, calls) as first,
        opened(tea("2", guarded=True), log, calls) as second,
    ):
        plain, careful = first.conversation("c"), second.conversation("c")
        said = [order_and_approve(talk) for _ in range(5) for talk in (careful, plain)]
        ends = await asyncio.gather(*said)
    assert ends == [["paused", "complete"], ["complete"]] * 5
    assert len(await log.read(KEY, types=["react.tool.start"])) == 10


@pytest.mark.parametrize("left", [1, 4])
async def test_a_turn_that_was_left_is_taken_by_the_same_or_a_later_version_alone(
    log: TimelineLog, left: int
) -> None:
    script: list[Entry] = [Call("react.read", paths=["ar:turn_1.user.prompt"]), "Done."]
    async with opened(tea("1"), log), opened(tea("2"), log), opened(tea("3"), log):
        pass  # the store has met them in this order
    await leave_cut(tea("2"), log, script, left)
    async with opened(tea("1"), log, script) as earlier:
        with pytest.raises(WrongBundle, match="needs version '2' of the bundle 'tea'"):
            await earlier.conversation("c").resume()
        (outcome,) = await earlier.carry_on()
        assert (outcome.status, outcome.bundle) == ("skipped", "tea")
    async with opened(Bundle(id="other"), log, script) as other:
        with pytest.raises(WrongBundle, match="is a turn of the bundle 'tea'"):
            await other.conversation("c").resume()
    async with opened(tea("3"), log, ["Done."]) as later:
        (outcome,) = await later.carry_on()
    assert (outcome.status, outcome.result and outcome.result.answer) == ("resumed", "Done.")
    assert (await versions(log))[-1] == "3"


async def test_a_person_may_run_a_turn_with_another_bundle(log: TimelineLog) -> None:
    await leave_cut(tea("1"), log, ["Done."], left=1)
    async with opened(Bundle(id="other"), log, ["By another."]) as other:
        result = await other.conversation("c").resume(any_bundle=True)
    assert result.answer == "By another."


async def test_an_answer_through_an_earlier_version_is_refused_before_it_is_stored(
    log: TimelineLog,
) -> None:
    async with opened(tea("1"), log, ["Done."]) as earlier:
        async with opened(tea("2", guarded=True), log, [Call("tea.order", kind="green")]) as later:
            paused = await later.conversation("c").say("Order.")
        assert [call.call_id for call in paused.pending] == ["c1"]
        with pytest.raises(WrongBundle, match="needs version '2'"):
            await earlier.conversation("c").resume({"c1": True})
    assert await log.read(KEY, types=["user.answer"]) == []


async def test_an_open_call_whose_tool_has_changed_waits(log: TimelineLog) -> None:
    async with opened(tea("1", guarded=True), log, [Call("tea.order", kind="green")]) as first:
        await first.conversation("c").say("Order.")
    lost = Bundle(id="tea", version="2")
    for bundle, reason in [(tea("3", changed=True), "has changed"), (lost, "cannot run")]:
        async with opened(bundle, log, ["Done."]) as later:
            with pytest.raises(WrongBundle, match=reason):
                await later.conversation("c").resume({"c1": True} if bundle is not lost else None)
    assert await log.read(KEY, types=["react.tool.start", "react.exit"]) == []
    async with opened(tea("4"), log, ["Done."]) as later:
        assert (await later.conversation("c").resume()).answer == "Done."
    assert len(await log.read(KEY, types=["react.tool.start"])) == 1


async def test_an_approval_that_a_later_version_cannot_use_is_used_by_the_version_that_asked(
    log: TimelineLog,
) -> None:
    async with opened(tea("1", guarded=True), log, [Call("tea.order", kind="green")]) as first:
        await first.conversation("c").say("Order.")
    async with opened(tea("2", changed=True), log, ["Done."]) as later:
        with pytest.raises(WrongBundle, match="has changed"):
            await later.conversation("c").resume({"c1": True})
    async with opened(tea("1", guarded=True), log, ["Done.", "Hello."]) as first:
        assert (await first.conversation("c").say("Hello.")).answer == "Hello."
    reasons = [block.body.reason for block in await log.read(KEY) if isinstance(block.body, Exit)]
    assert reasons == ["complete", "complete"]
    assert len(await log.read(KEY, types=["react.tool.start"])) == 1


async def test_the_result_of_a_client_counts_in_a_later_version_whatever_it_says(
    log: TimelineLog,
) -> None:
    def desk() -> Bundle:
        @tool(client=True, effect="read")
        def confirm(label: str) -> bool:
            """Let the user confirm."""
            raise NotImplementedError

        return Bundle(id="tea", version="1", tools=[confirm])

    def changed_desk() -> Bundle:
        @tool(client=True, effect="read")
        def confirm(label: str, place: str) -> bool:
            """Let the user confirm a place."""
            raise NotImplementedError

        return Bundle(id="tea", version="2", tools=[confirm])

    async with opened(desk(), log, [Call("tea.confirm", label="So?")]) as first:
        await first.conversation("c").say("Ask.")
    async with opened(changed_desk(), log, ["Done."]) as later:
        assert (await later.conversation("c").resume({"c1": True})).answer == "Done."


async def test_a_bundle_without_a_version_does_not_run_a_turn_of_one_that_has_a_version(
    log: TimelineLog,
) -> None:
    async with opened(tea("1", guarded=True), log, [Call("tea.order", kind="green")]) as first:
        await first.conversation("c").say("Order.")
    names: dict[str, Bundle] = {}
    exec("from loopline import Bundle\nbundle = Bundle(id='tea')", {"__name__": "typed"}, names)
    async with opened(names["bundle"], log, ["Done."]) as typed:
        with pytest.raises(WrongBundle, match="has no version: give it one"):
            await typed.conversation("c").resume({"c1": True})
    assert await log.read(KEY, types=["user.answer", "react.tool.start"]) == []


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        (tea("2", changed=True), "ordered 100 g of green"),
        (Bundle(id="tea", version="2"), "no tool 'tea.order'"),
    ],
)
async def test_a_person_may_run_an_open_call_although_its_tool_has_changed(
    log: TimelineLog, bundle: Bundle, text: str
) -> None:
    async with opened(tea("1", guarded=True), log, [Call("tea.order", kind="green")]) as first:
        await first.conversation("c").say("Order.")
    async with opened(bundle, log, ["Done."]) as later:
        result = await later.conversation("c").resume({"c1": True}, any_bundle=True)
    assert (result.answer, result.exit_reason) == ("Done.", "complete")
    [block] = await log.read(KEY, types=["react.tool.result"])
    assert isinstance(block.body, ToolResult)
    assert text in block.body.text


def holding(version: str, seconds: float) -> Bundle:
    """A version of a bundle whose tool takes some seconds."""

    @tool(effect="read")
    async def hold() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "held"

    return Bundle(id="tea", version=version, tools=[hold])


async def hand_over(bundle: Bundle, log: TimelineLog) -> None:
    """Begin a turn through the bundle, and hand it over while its call runs."""
    async with opened(bundle, log, [Call("tea.hold")]) as harness:
        talk = harness.conversation("c")
        running = asyncio.ensure_future(talk.say("Wait."))
        async for event in talk.listen():
            if isinstance(event, Block) and isinstance(event.body, ToolCalled):
                break
        await harness.hand_over()
        with pytest.raises(HandedOver):
            await running


async def test_a_turn_that_was_handed_over_is_taken_by_a_later_version(log: TimelineLog) -> None:
    await hand_over(holding("1", 600), log)
    async with opened(holding("2", 0), log, ["Done."]) as later:
        (outcome,) = await later.carry_on()
    assert (outcome.status, outcome.result and outcome.result.answer) == ("resumed", "Done.")
    assert await versions(log) == ["1", "1", "2"]


async def test_a_turn_that_was_handed_over_is_refused_by_an_earlier_version(
    log: TimelineLog,
) -> None:
    async with opened(holding("1", 0), log):
        pass  # the store has met it first
    await hand_over(holding("2", 600), log)
    head = len(await log.read(KEY))
    async with opened(holding("1", 0), log, ["Done."]) as earlier:
        with pytest.raises(WrongBundle, match="turn_1 needs version '2' of the bundle 'tea'"):
            await earlier.conversation("c").resume()
        (outcome,) = await earlier.carry_on()
    assert (outcome.status, outcome.bundle) == ("skipped", "tea")
    assert len(await log.read(KEY)) == head


@pytest.mark.parametrize("bundle", [tea("2"), Bundle(id="other")])
async def test_a_queued_message_is_recalled_while_another_waits_for_its_harness(
    log: TimelineLog, bundle: Bundle
) -> None:
    crashing = CrashingLog(log)
    async with opened(bundle, log, ["Here."]) as waiting, opened(tea("1"), crashing) as sender:
        talk = waiting.conversation("c")
        crashing.left = 1
        with pytest.raises(Crashed):
            await sender.conversation("c").say("Order tea.")
        submission = await talk.submit("And?")
        await asyncio.sleep(0.1)
        assert not submission.has_ended
        async with asyncio.timeout(5):
            assert await talk.recall(Receipt(1, 1))
            result = await submission.result()
    assert (result.answer, result.turn_id) == ("Here.", "turn_2")
    assert {block.turn for block in await log.read(KEY, types=["turn.header"])} == {2}


@pytest.mark.parametrize(
    ("bundle", "turns"), [(Bundle(id="other"), {2}), (tea("1"), {1, 2})], ids=["other", "same"]
)
async def test_nobody_waits_for_a_harness_that_closes(
    log: TimelineLog, bundle: Bundle, turns: set[int]
) -> None:
    crashing = CrashingLog(log)
    async with opened(bundle, log, ["Here."] * len(turns)) as waiting:
        async with opened(tea("1"), crashing) as sender:
            crashing.left = 1
            with pytest.raises(Crashed):
                await sender.conversation("c").say("Order tea.")
            submission = await waiting.conversation("c").submit("And?")
            await asyncio.sleep(0.1)
            assert not submission.has_ended
        async with asyncio.timeout(5):
            assert (await submission.result()).turn_id == "turn_2"
    assert {block.turn for block in await log.read(KEY, types=["turn.header"])} == turns


async def test_a_queued_message_of_an_absent_harness_is_passed_over_by_another_bundle(
    log: TimelineLog,
) -> None:
    await leave_cut(tea("1"), log, ["Done."], left=1)
    async with opened(Bundle(id="other"), log, ["Other."]) as other:
        assert (await other.conversation("c").say("And?")).answer == "Other."
    async with opened(tea("1"), log, ["Tea."]) as first:
        assert (await first.conversation("c").resume()).answer == "Tea."


async def test_a_bundle_without_a_version_has_one_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    code = folder / "__init__.py"
    code.write_text("from loopline import Bundle\nbundle = Bundle(id='shop')\n")
    first = load(folder).version()
    assert first == load(folder).version()
    (folder / "guards.py").write_text("def may_run(call): return True\n")
    second = load(folder).version()
    (folder / "guards.py").write_text("def may_run(call): return False\n")
    third = load(folder).version()
    assert len({first, second, third}) == 3


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[None]:
    """Modules in the folder of the test can be imported."""
    sys.path.insert(0, f"{tmp_path}")
    yield
    sys.path.remove(f"{tmp_path}")


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    "edited", ["guards.py", "rules/tea.py", "rules/__init__.py", "leaves/green/oolong.py"]
)
def test_the_version_of_a_bundle_in_one_file_covers_the_modules_beside_it_that_it_imports(
    tmp_path: Path, edited: str
) -> None:
    files = {
        "shop.py": "from loopline import Bundle\nimport guards\nbundle = Bundle(id='shop')\n",
        "guards.py": "def may_run(call):\n    from rules import tea\n    return tea.allows(call)\n",
        "rules/__init__.py": "",
        "rules/tea.py": "import shop\nfrom leaves.green import oolong\n",
        "leaves/green/oolong.py": "def allows(call): return True\n",
        "unrelated.py": "raise SystemExit\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    loaded = load(tmp_path / "shop.py")
    del sys.modules["guards"]
    first = loaded.version()
    (tmp_path / "unrelated.py").write_text("raise KeyboardInterrupt\n")
    assert loaded.version() == first
    (tmp_path / edited).write_text(f"{files[edited]}\n# changed\n")
    assert loaded.version() != first


async def test_a_harness_is_present_until_it_closes(log: TimelineLog) -> None:
    async with log.present("tea", "2") as sender:
        assert await log.is_present(sender)
    assert not await log.is_present(sender)
    async with log.present("tea", "1"), log.present("tea", "2"):
        assert await log.versions("tea") == ("2", "1")
    assert await log.versions("unknown") == ()
