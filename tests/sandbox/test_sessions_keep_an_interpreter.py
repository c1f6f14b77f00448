"""Sessions of programs: variables stay from call to call of a turn, and a session that is gone says so."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import ref

from loopline import Harness, tool
from loopline.models import Json
from loopline.sandbox.process import LocalSandbox
from loopline.testing import Call, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ProxiedCall, ToolResult
from loopline.tools.builtin.execution import ProgramSession
from tests.bench.executions import execution, session
from tests.support.programs import bundle, lines, python


@tool(effect="read")
def price(kind: str) -> float:
    """Return the price of a kind of tea."""
    return {"green": 4.0}[kind]


def step(program: str, *filenames: str, **arguments: Json) -> Entry:
    """A call that runs the program in the session `a`."""
    contract: Json = [{"filename": name} for name in filenames]
    return Call("exec.python", program=program, contract=contract, session="a", **arguments)


async def results(*turns: Sequence[Entry], **limits: Json) -> list[ToolResult]:
    """The results of these calls, each list in a turn of its own."""
    entries: list[Entry] = [entry for turn in turns for entry in (*turn, "Done.")]
    async with Harness.open(
        bundle(price, limits=limits), store="memory:", model=ScriptedModel(entries)
    ) as harness:
        talk = harness.conversation("c")
        for _ in turns:
            await talk.say("go")
        bodies = [block.body for block in await talk.blocks()]
    parents = [body.parent for body in bodies if isinstance(body, ProxiedCall)]
    assert parents == sorted(parents)
    return [body for body in bodies if isinstance(body, ToolResult)]


async def test_variables_output_and_files_are_those_of_each_call() -> None:
    first, second, failed, third = await results(
        [
            step("x = await tools.call('shop.price', kind='green'); print('one')"),
            step("open('outputs/a.txt', 'w').write(f'{float(x) * 2}'); print('two')", "a.txt"),
            step("print(x); 1 / 0"),
            step("print(await tools.call('shop.price', kind='green'), x)"),
        ]
    )
    assert lines(first.text) == ["one"]
    assert lines(second.text) == ["two"]
    assert "wrote fi:turn_1.outputs/a.txt@1 (text/plain, 3 bytes)" in second.text
    assert failed.status == "error"
    assert "Failure: program_failed (runtime)" in failed.text
    assert "ZeroDivisionError: division by zero" in failed.text
    assert lines(third.text) == ["4.0 4.0"]


async def test_a_session_that_is_gone_says_so_once_and_the_next_call_begins_it_anew() -> None:
    ended, lost, anew = await results(
        [step("import os; x = 1; os._exit(3)"), step("print(x)"), step("x = 2; print(x)")]
    )
    assert "Failure: program_failed (runtime)" in ended.text
    assert "Failure: session_lost (sandbox)" in lost.text
    assert lines(anew.text) == ["2"]


async def test_a_program_that_takes_too_long_ends_its_session() -> None:
    late, lost = await results(
        [step("import time; time.sleep(60)", timeout_s=1.0), step("print('here')")]
    )
    assert "Failure: timeout (limits)" in late.text
    assert "Failure: session_lost (sandbox)" in lost.text


async def test_a_session_that_no_call_has_asked_for_in_time_is_gone() -> None:
    _, other, lost, anew = await results(
        [
            step("x = 1"),
            python("import time; time.sleep(0.6); print('meanwhile')"),
            step("print(x)"),
            step("print('x' in globals())"),
        ],
        call_seconds=0.3,
    )
    assert lines(other.text) == ["meanwhile"]
    assert "Failure: session_lost (sandbox)" in lost.text
    assert lines(anew.text) == ["False"]


async def test_a_session_is_of_one_turn() -> None:
    _, other = await results([step("x = 1")], [step("print('x' in globals())")])
    assert lines(other.text) == ["False"]


async def test_a_session_keeps_nothing_of_the_programs_before_the_last(runs: Path) -> None:
    sandbox = LocalSandbox(folder=runs)
    kept = list[ref[Callable[[str], None]]]()
    texts = list[str]()

    async def run(number: int) -> None:
        def on_output(text: str) -> None:
            texts.append(text)

        kept.append(ref(on_output))
        end = await opened.run(execution(f"print({number})"), session(on_output))
        assert end.user_out == f"{number}\n"

    opened = ProgramSession(sandbox, execution(""))
    for number in range(4):
        await run(number)
    gc.collect()
    gone = [listener() is None for listener in kept]
    await opened.close()
    await sandbox.close()
    assert gone == [True, True, True, False]


def opened_sessions() -> int:
    gc.collect()
    return sum(isinstance(each, ProgramSession) for each in gc.get_objects())


async def test_a_session_that_has_ended_is_not_kept() -> None:
    before = opened_sessions()
    script = [step("x = 1"), step("import os; os._exit(3)"), "Done."]
    async with Harness.open(bundle(), store="memory:", model=ScriptedModel(script)) as harness:
        await harness.conversation("c").say("go")
        assert opened_sessions() == before


async def test_a_link_as_a_file_of_a_session_is_not_taken() -> None:
    [link] = await results(
        [step("import os; os.symlink('/etc/hostname', 'outputs/a.txt')", "a.txt")]
    )
    assert "Not taken: outputs/a.txt: it is not a plain file" in link.text
