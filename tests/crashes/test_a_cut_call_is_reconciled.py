"""A call had begun when its runner died: its tool may say what became of it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from loopline import Bundle, BundleError, Harness, LooplineError, ToolContext, ToolError, tool
from loopline.react import Allow, GuardedCall
from loopline.react.extensions import Verdict
from loopline.testing import Call, ScriptedModel
from loopline.timeline import MemoryLog, ToolPending, ToolResult, ToolStarted
from tests.support.crashing_log import CrashingLog
from tests.support.ledgers import add_line, lines_of

UP_TO_THE_START, UP_TO_THE_CALL = 4, 3
"""So many appends are kept: the prompt, the header, a round, a decision with its call, its start."""


def add(ledger: str, line: str) -> str:
    add_line(Path(ledger), line)
    return "added"


def found(ledger: str, context: ToolContext) -> str | None:
    """Look the call up."""
    return "found it" if context.idempotency_key in lines_of(Path(ledger)) else None


async def found_later(ledger: str) -> dict[str, int]:
    return {"lines": len(lines_of(Path(ledger)))}


def broken(ledger: str) -> str:
    raise RuntimeError(f"cannot read {ledger}")


def refused(ledger: str) -> str:
    raise ToolError(f"nothing was added to {Path(ledger).name}")


def odd(ledger: str) -> object:
    del ledger
    return object()


looking_up, may_answer = asyncio.Event(), asyncio.Event()


async def found_slowly(ledger: str) -> str:
    looking_up.set()
    await may_answer.wait()
    return f"{len(lines_of(Path(ledger)))} line"


def as_given(line: str) -> str:
    return f"added {line}"


def asks(context: ToolContext) -> str:
    context.ask_user("Did it take effect?")


@tool(effect="write", key="{ledger}", reconcile=found)
def known(ledger: str, context: ToolContext) -> str:
    """Add a line that says which call it is of."""
    return add(ledger, context.idempotency_key)


@tool(reconcile=found_later)
async def counted(ledger: str) -> str:
    """Add a line."""
    return add(ledger, "line")


@tool(effect="write", reconcile=broken)
def unreadable(ledger: str) -> str:
    """Add a line that nobody can look up."""
    return add(ledger, "line")


@tool(effect="write", reconcile=refused)
def rejected(ledger: str) -> str:
    """Add a line."""
    return add(ledger, "line")


@tool(effect="write", reconcile=odd)
def odd_answer(ledger: str) -> str:
    """Add a line."""
    return add(ledger, "line")


@tool(effect="write", reconcile=as_given)
def signed(ledger: str, line: str) -> str:
    """Add this line."""
    return add(ledger, line)


@tool(effect="write", reconcile=found_slowly)
def slow(ledger: str) -> str:
    """Add a line."""
    return add(ledger, "line")


@tool(effect="write", reconcile=asks)
def asked(ledger: str, context: ToolContext) -> str:
    """Add a line."""
    return add(ledger, context.call_id)


@tool(effect="write")
def unknown(ledger: str) -> str:
    """Add a line."""
    return add(ledger, "line")


@tool(effect="read", reconcile=broken)
def read(ledger: str) -> str:
    """Read, and leave a trace of it."""
    return add(ledger, "read")


class Signs:
    """Has every line that is written bear a name."""

    async def before(self, call: GuardedCall) -> Verdict:
        line = call.arguments.get("line")
        return Allow({**call.arguments, "line": f"{line} (ann)"}) if line else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


bundle = Bundle(
    id="cut",
    tools=[known, counted, unreadable, rejected, odd_answer, signed, slow, asked, unknown, read],
    guards=[Signs()],
)


async def cut(name: str, ledger: Path, left: int = UP_TO_THE_START, **more: str) -> MemoryLog:
    """What is kept of a turn whose one call was cut off after so many appends."""
    inner = MemoryLog()
    log = CrashingLog(inner, left)
    model = ScriptedModel([Call(f"cut.{name}", ledger=str(ledger), **more)])
    async with Harness.open(bundle, store=log, model=model) as harness:
        with pytest.raises(LooplineError):
            await harness.conversation("c").say("go")
    return inner


async def carried_on(log: MemoryLog) -> ToolResult:
    """The result of the call, once another runner has carried the turn on."""
    async with Harness.open(bundle, store=log, model=ScriptedModel(["Done."])) as harness:
        talk = harness.conversation("c")
        await talk.resume()
        bodies = [block.body for block in await talk.blocks()]
    assert sum(isinstance(body, ToolStarted) for body in bodies) <= 1
    (result,) = [body for body in bodies if isinstance(body, ToolResult)]
    return result


@pytest.mark.parametrize(("name", "text"), [("known", "found it"), ("counted", '{"lines":1}')])
async def test_what_the_tool_says_became_of_the_call_is_its_result(
    tmp_path: Path, name: str, text: str
) -> None:
    log = await cut(name, tmp_path / "ledger")
    result = await carried_on(log)
    assert (result.status, result.text) == ("ok", text)
    assert len(lines_of(tmp_path / "ledger")) == 1


async def test_a_tool_that_cannot_say_leaves_the_call_interrupted(tmp_path: Path) -> None:
    log = await cut("known", tmp_path / "ledger")
    (tmp_path / "ledger").write_text("the line of another call")
    result = await carried_on(log)
    assert result.status == "interrupted"
    assert "whether it took effect is unknown" in result.text
    assert lines_of(tmp_path / "ledger") == ["the line of another call"]


async def test_a_tool_that_was_given_nothing_to_look_with_leaves_the_call_interrupted(
    tmp_path: Path,
) -> None:
    result = await carried_on(await cut("unknown", tmp_path / "ledger"))
    assert result.status == "interrupted"
    assert lines_of(tmp_path / "ledger") == ["line"]


async def test_looking_that_breaks_leaves_the_call_interrupted_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await cut("unreadable", tmp_path / "ledger")
    with caplog.at_level(logging.ERROR, "loopline"):
        result = await carried_on(log)
    assert result.status == "interrupted"
    assert "the outcome of cut.unreadable cannot be reconciled" in caplog.text
    assert "cannot read" in caplog.text


async def test_a_refusal_of_the_tool_is_the_result_of_the_call(tmp_path: Path) -> None:
    result = await carried_on(await cut("rejected", tmp_path / "ledger"))
    assert (result.status, result.text) == ("error", "nothing was added to ledger")


async def test_an_answer_that_is_no_result_leaves_the_call_interrupted_and_names_who_must_act(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await cut("odd_answer", tmp_path / "ledger")
    with caplog.at_level(logging.ERROR, "loopline"):
        result = await carried_on(log)
    assert result.status == "interrupted"
    assert (
        "cut.odd_answer returned a value that is not allowed, which its author must change"
        in caplog.text
    )


async def test_what_became_of_a_call_is_asked_with_the_arguments_that_it_ran_with(
    tmp_path: Path,
) -> None:
    log = await cut("signed", tmp_path / "ledger", line="tea")
    assert lines_of(tmp_path / "ledger") == ["tea (ann)"]
    result = await carried_on(log)
    assert (result.status, result.text) == ("ok", "added tea (ann)")
    assert (result.ran_with or {}).get("line") == "tea (ann)"


async def test_a_tool_may_ask_the_user_what_became_of_the_call(tmp_path: Path) -> None:
    log = await cut("asked", tmp_path / "ledger")
    async with Harness.open(bundle, store=log, model=ScriptedModel(["Done."])) as harness:
        talk = harness.conversation("c")
        assert (await talk.resume()).exit_reason == "paused"
        pending = [block.body for block in await talk.blocks(types="react.tool.pending")]
        assert [
            pending_call.question
            for pending_call in pending
            if isinstance(pending_call, ToolPending)
        ] == ["Did it take effect?"]
        assert (await talk.resume({"c1": "Yes."})).answer == "Done."
        results = [block.body for block in await talk.blocks(types="react.tool.result")]
    assert [result.text for result in results if isinstance(result, ToolResult)] == ["Yes."]
    assert len(lines_of(tmp_path / "ledger")) == 1


async def test_a_steer_does_not_cut_off_the_question_what_became_of_a_call(tmp_path: Path) -> None:
    log = await cut("slow", tmp_path / "ledger")
    async with Harness.open(bundle, store=log, model=ScriptedModel(["Done."])) as harness:
        talk = harness.conversation("c")
        resuming = asyncio.create_task(talk.resume())
        await looking_up.wait()
        await talk.steer("Quickly, please.")
        may_answer.set()
        assert (await resuming).answer == "Done."
        results = [block.body for block in await talk.blocks(types="react.tool.result")]
    assert [body.text for body in results if isinstance(body, ToolResult)] == ["1 line"]


async def test_a_call_that_had_not_begun_runs_and_nobody_asks_what_became_of_it(
    tmp_path: Path,
) -> None:
    log = await cut("unreadable", tmp_path / "ledger", left=UP_TO_THE_CALL)
    assert (await carried_on(log)).text == "added"
    assert len(lines_of(tmp_path / "ledger")) == 1


async def test_a_read_runs_again_and_nobody_asks_what_became_of_it(tmp_path: Path) -> None:
    log = await cut("read", tmp_path / "ledger", left=UP_TO_THE_CALL)
    assert lines_of(tmp_path / "ledger") == ["read"]
    assert (await carried_on(log)).text == "added"
    assert lines_of(tmp_path / "ledger") == ["read", "read"]


def other(path: str) -> None:
    """Take what the tool is not given."""
    del path


def any_of_it(**arguments: str) -> None:
    del arguments


def test_a_parameter_that_the_tool_does_not_take_is_refused_where_it_is_written() -> None:
    def write(ledger: str) -> None:
        """Write."""
        del ledger

    with pytest.raises(BundleError, match=r"reconcile takes 'path'.*\['ledger'\]") as refused:
        tool(effect="write", reconcile=other)(write)
    assert str(refused.value).startswith(f"{__file__}:{other.__code__.co_firstlineno}")
    with pytest.raises(BundleError, match="reconcile takes 'arguments'"):
        tool(effect="write", reconcile=any_of_it)(write)
