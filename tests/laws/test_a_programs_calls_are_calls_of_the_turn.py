"""What a program calls is a call of the turn: judged, counted, recorded and finished like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from loopline import BaseWorkflow, Bundle, Harness, ToolContext, tool
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.guards import ask_before, block_repeated_failures, rate_limit
from loopline.models import Json
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import Block, ProxiedCall, ProxiedResult, ToolResult
from tests.support.programs import bundle, lines, python
from tests.support.scripted_conversation import talking

CALLED: list[str] = []


@tool(effect="read")
def find(name: str) -> dict[str, str]:
    """Find a kind of tea."""
    return {"found": name}


def more(number: int) -> Callable[..., object]:
    def again(name: str) -> dict[str, str]:
        """Find another kind of tea."""
        return {"found": name}

    again.__name__ = f"more_{number}"
    return tool(effect="read")(again)


@tool(effect="write")
async def order(name: str) -> str:
    """Order a kind of tea."""
    CALLED.append(f"{name} begins")
    await asyncio.sleep(0.01)
    CALLED.append(f"{name} ends")
    return f"ordered {name}"


@tool(effect="read")
def fail() -> str:
    """Fail."""
    raise ValueError("no tea")


@tool(effect="read")
def nest(levels: int) -> str:
    """Return a JSON list of lists."""
    return "[" * levels + "]" * levels


@tool(effect="read")
def rows(count: int) -> list[str]:
    """Return rows of a thousand characters."""
    return ["x" * 1_000] * count


@tool(effect="meta")
async def delegate(context: ToolContext) -> str:
    """Start a child run."""
    return (await context.spawn("look")).answer


def proxied(blocks: Sequence[Block]) -> list[ProxiedCall | ProxiedResult]:
    return [block.body for block in blocks if isinstance(block.body, ProxiedCall | ProxiedResult)]


async def report(talk: Conversation) -> str:
    (item,) = await talk.read(["tc:turn_1.c1.result"])
    return item.text


async def test_each_call_has_a_block_before_its_tool_and_one_after_it() -> None:
    program = 'print(await tools.call("shop.find", {"name": "tea"}))\nimport shop_tools\nprint(await shop_tools.find(name="cup"))'
    async with talking([python(program), "Done."], bundle=bundle(find)) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
        read = await talk.read(["tc:turn_1.c1-1.call", "tc:turn_1.c1-2.result"])
        text = await report(talk)
    assert [(body.type, body.call_id, body.parent) for body in proxied(blocks)] == [
        ("react.proxied.call", "c1-1", "c1"),
        ("react.proxied.result", "c1-1", "c1"),
        ("react.proxied.call", "c1-2", "c1"),
        ("react.proxied.result", "c1-2", "c1"),
    ]
    assert [item.text for item in read] == [
        '{"tool":"shop.find","arguments":{"name":"tea"}}',
        '{"found":"cup"}',
    ]
    assert lines(text) == ["{'found': 'tea'}", "{'found': 'cup'}"]


async def test_no_prompt_shows_them_and_their_ids_are_those_of_no_round() -> None:
    model = ScriptedModel(
        [python('await tools.call("shop.find", name="oolong")'), Call("shop.find", name="x"), "."]
    )
    async with talking(model, bundle=bundle(find)) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
    results = [block.body.call_id for block in blocks if isinstance(block.body, ToolResult)]
    assert results == ["c1", "c2"]
    assert "c1-1" not in str(model.requests[-1].messages)


async def test_writing_calls_of_one_key_keep_their_order() -> None:
    CALLED.clear()
    program = (
        'import asyncio\nawait asyncio.gather(*[tools.call("shop.order", name=n) for n in "abc"])'
    )
    async with talking([python(program), "Done."], bundle=bundle(order)) as talk:
        await talk.say("go")
    assert [f"{name} {step}" for name in "abc" for step in ("begins", "ends")] == CALLED


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ('"shop.delegate"', "not_allowed: no tool 'shop.delegate' here"),
        ('"exec.python", program="1", contract=[]', "not_allowed: no tool 'exec.python' here"),
        ('"shop.find", nme="tea"', "error: shop.find: 'name' is missing"),
        ('"shop.fail"', "error: ValueError: no tea"),
        ('"nothing"', "not_allowed: no tool 'nothing' here"),
        ('"react.read", paths=["fi:turn_1.files/a.md"]', "error: missing fi:turn_1.files/a.md: "),
        ('"shop.rows", count=2_500', "too_large: the result has "),
        ('"shop.nest", levels=200_000', "too_deep: the result is nested too deeply to be JSON"),
        ('"react.read", paths=["ar:turn_1.user.prompt", "no"]', "error: missing no: "),
    ],
)
async def test_a_call_that_fails_is_an_error_of_the_program(call: str, problem: str) -> None:
    await check_failure(f"tools.call({call})", problem)


@pytest.mark.parametrize(
    "ref", ["fi:turn_1.files/a.md", "ar:turn_9.user.prompt", "tc:turn_1.c9.result", "no", ""]
)
async def test_a_program_cannot_go_on_with_a_ref_that_names_nothing(ref: str) -> None:
    await check_failure(f"fetch_ctx({ref!r})", f"error: missing {ref}: ")


async def check_failure(call: str, problem: str) -> None:
    program = f'try:\n    print(await {call})\nexcept ToolFailed as error:\n    print(f"{{error.code}}: {{error}}")'
    shop = bundle(find, fail, nest, rows, delegate)
    async with talking([python(program), "Done."], bundle=shop) as talk:
        await talk.say("go")
        ends = [body for body in proxied(await talk.blocks()) if isinstance(body, ProxiedResult)]
        assert lines(await report(talk))[0].startswith(problem)
    has_run = "nest" in call or "rows" in call
    assert {end.status for end in ends} <= {"ok" if has_run else "error"}


async def test_a_report_names_the_events_that_were_not_sent() -> None:
    program = "emit('step', 1)\nfor number in range(12): emit(f'no name {number}\\n', 1)\nemit('no name 1\\n')"
    async with talking([python(program), "Done."], bundle=bundle()) as talk:
        await talk.say("go")
        unsent = [line for line in (await report(talk)).splitlines() if "event" in line]
    assert [line.partition(" is not")[0] for line in unsent[:2]] == [
        r"Not sent: 'no name 0\n'",
        r"Not sent: 'no name 1\n'",
    ]
    assert (len(unsent), unsent[-1]) == (11, "and 2 more events")


@pytest.mark.parametrize("result_bytes", [20_000, 2_000_000])
async def test_a_program_receives_a_long_result_whole_though_the_stored_one_is_cut(
    result_bytes: int,
) -> None:
    program = (
        "rows = await tools.call('shop.rows', count=1_900)\nprint(len(rows), set(map(len, rows)))"
    )
    async with talking([python(program), "Done."], bundle=bundle(rows)) as talk:
        await talk.say("go", result_bytes=result_bytes)
        [stored] = await talk.read(["tc:turn_1.c1-1.result"])
        assert lines(await report(talk)) == ["1900 {1000}"]
    assert (len(stored.text) > 1_900_000) == (result_bytes == 2_000_000)


async def test_a_program_calls_tools_that_its_model_is_not_offered() -> None:
    made = [more(number) for number in range(13)]
    program = 'print(await tools.call("shop.more_9", name="tea"))'
    chosen = Call("select_tools", tools=["shop.find"])
    model = ScriptedModel([python(program), "Done."], aux={"selection": [chosen]})
    async with talking(model, bundle=bundle(find, *made)) as talk:
        await talk.say("go", select_tools=True)
        text = await report(talk)
    offered = {spec.name for spec in model.requests[1].tools}
    assert {"exec.python", "react.request_tools", "shop.find"} <= offered
    assert "shop.more_9" not in offered
    assert lines(text) == ["{'found': 'tea'}"]


async def test_below_a_call_that_only_reads_a_program_only_reads() -> None:
    program = 'print(await tools.call("shop.find", name="tea"))\nawait tools.call("shop.order", name="tea")'
    async with talking(
        [python(program), "Done."], bundle=bundle(find, order, effect="read")
    ) as talk:
        await talk.say("go")
        text = await report(talk)
    assert "{'found': 'tea'}" in text
    assert "no tool 'shop.order' here" in text


class Guarded(BaseWorkflow):
    """A workflow whose guards count, and ask before an order."""

    guards = (rate_limit(2, "shop.find"), block_repeated_failures(1), ask_before("shop.order"))


def guarded() -> Bundle:
    plain = bundle(find, order, fail)
    return Bundle(
        id="shop", workflow=Guarded, tools=[find, order, fail], configuration=plain.defaults
    )


async def test_guards_count_the_calls_of_programs() -> None:
    program = """
for name in ("shop.find", "shop.find", "shop.find", "shop.fail", "shop.fail"):
    try:
        await tools.call(name, **({"name": "tea"} if "find" in name else {}))
        print("ok")
    except ToolFailed as error:
        print(error.code)
"""
    async with talking(
        [python(program), Call("shop.find", name="tea"), "Done."], bundle=guarded()
    ) as talk:
        await talk.say("go")
        text = await report(talk)
        (later,) = await talk.read(["tc:turn_1.c2.result"])
    assert lines(text) == ["ok", "ok", "denied", "error", "denied"]
    assert "at most 2, 3 were made" in later.text


ORDER = 'print("before")\nprint(await tools.call("shop.order", name="tea"))'


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        (True, "ordered tea"),
        (False, "did not approve"),
        ({"approved": False, "reason": "Too dear."}, "The user's reason: Too dear."),
    ],
)
async def test_a_program_waits_while_its_user_is_asked(answer: Json, printed: str) -> None:
    CALLED.clear()
    async with talking([python(ORDER), "Done."], bundle=guarded()) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.type == "pending":
                assert CALLED == []
                assert talk.answer(event.call_id, answer)
        assert printed in await report(talk)
    assert len(CALLED) == (2 if answer is True else 0)


LESS: Json = {"approved": True, "arguments": {"name": "milk"}}


async def answering(talk: Conversation, *answers: tuple[str, Json]) -> list[str]:
    """Send a message, give the answers in order to the calls that ask, and return the ids of these calls."""
    asked, left = list[str](), list(answers)
    async for event in talk.stream("go"):
        if isinstance(event, Delta) and event.type == "pending":
            asked.append(event.call_id)
            while left:
                person, value = left.pop(0)
                assert await talk.interrupts.answer(event.call_id, value, by=person)
    return asked


async def test_a_program_and_its_model_learn_that_the_user_changed_the_arguments() -> None:
    CALLED.clear()
    async with talking(
        [python(f"{ORDER}\nprint(tools.edited)"), "Done."], bundle=guarded()
    ) as talk:
        assert await answering(talk, ("", LESS)) == ["c1-1"]
        text = await report(talk)
        [result] = [b.body for b in await talk.blocks() if isinstance(b.body, ProxiedResult)]
    assert "ordered milk" in text
    assert "| [{'tool': 'shop.order', 'arguments': {'name': 'milk'}}]" in text
    assert 'Changed by the user: shop.order ran with these arguments: {"name":"milk"}' in text
    assert result.ran_with == {"name": "milk"}


async def test_a_rule_that_is_granted_for_a_programs_call_counts_for_its_next_call() -> None:
    CALLED.clear()
    async with talking([python(f"{ORDER}\n{ORDER}"), "Done."], bundle=guarded()) as talk:
        assert await answering(talk, ("", {"approved": True, "rule": {}})) == ["c1-1"]
        [rule] = await talk.rules()
    assert (rule.tool, CALLED.count("tea ends")) == ("shop.order", 2)


class Shared(BaseWorkflow):
    """A workflow that needs two people for an order."""

    guards = (ask_before("shop.order", people=2),)


async def test_a_programs_call_waits_for_a_second_person() -> None:
    CALLED.clear()
    shared = Bundle(
        id="shop", workflow=Shared, tools=[find, order, fail], configuration=guarded().defaults
    )
    async with talking([python(ORDER), "Done."], bundle=shared) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.type == "pending":
                with pytest.raises(LooplineError, match="2 people"):
                    talk.answer(event.call_id, True)
                assert await talk.interrupts.answer(event.call_id, LESS)
                with pytest.raises(LooplineError, match="local has approved c1-1 already"):
                    await talk.interrupts.answer(event.call_id, True)
                assert CALLED == []
                assert await talk.interrupts.answer(event.call_id, True, by="bob")
        assert "ordered milk" in await report(talk)


def nested(depth: int) -> Json:
    """A list in that many lists."""
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"approved": True, "rule": {}},
        {"approved": True, "arguments": "milk"},
        {"approved": True, "arguments": {"what": nested(250)}},
        {"approved": True, "arguments": {"what": nested(5_000)}},
        "perhaps",
    ],
    ids=["a rule", "arguments that are a text", "250 levels", "5000 levels", "a word"],
)
async def test_an_answer_that_a_running_call_cannot_take_is_refused(value: Json) -> None:
    async with talking([python(ORDER), "Done."], bundle=guarded()) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.type == "pending":
                with pytest.raises(LooplineError):
                    talk.answer(event.call_id, value)
                assert talk.answer(event.call_id, False)
        assert "did not approve" in await report(talk)


async def test_a_program_cannot_emit_an_event_of_the_sdks_own() -> None:
    names = ["question", "file", "plan", "input", "loopline.question", "crew.agent", "chat.files"]
    program = (
        "import json, os\n"
        f"for name in {names}:\n"
        "    try:\n"
        "        emit(name, {})\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "    os.write(19, json.dumps({'emit': name, 'data': {}}).encode() + b'\\n')\n"
        "emit('mine', 1)\n"
        'print(await tools.call("shop.find", name="tea"))'
    )
    async with talking([python(program), "Done."], bundle=bundle(find)) as talk:
        events = [event async for event in talk.stream("go")]
        text = await report(talk)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [event.name for event in deltas if event.type == "custom"] == ["mine"]
    for name in names:
        assert f"'{name}' is reserved for events of Loopline's own: choose another name" in text
        assert f"\nNot sent: '{name}' is reserved" in text


async def test_a_program_is_stopped_when_nobody_approves_in_time() -> None:
    CALLED.clear()
    clock = FakeClock()
    model = ScriptedModel([python(f'await tools.call("shop.find", name="a")\n{ORDER}'), "Done."])
    async with Harness.open(guarded(), store="memory:", model=model, clock=clock) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.type == "pending":
                clock.advance(60)
        text = await report(talk)
        results = [body for body in proxied(await talk.blocks()) if body.type.endswith("result")]
    assert CALLED == []
    assert "Failure: approval_required (supervisor)" in text
    assert "- tc:turn_1.c1-1.result shop.find" in text
    assert [body.status for body in results if isinstance(body, ProxiedResult)] == ["ok", "denied"]


def delegating() -> Bundle:
    return Bundle(
        id="shop",
        workflow=Guarded,
        tools=[find, order, fail, delegate],
        configuration=guarded().defaults,
    )


DELEGATED = (Call("shop.delegate"), python(ORDER), "It did.", "Done.")


async def test_a_program_of_a_child_does_not_wait_for_an_answer_that_nobody_can_give() -> None:
    CALLED.clear()
    model = ScriptedModel([*DELEGATED])
    async with Harness.open(
        delegating(), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
        text = await report(harness.conversation("c~c1"))
    assert events[-1].type == "react.exit"
    assert CALLED == []
    assert "Failure: approval_required (supervisor)" in text


async def test_who_listens_to_a_child_answers_what_its_program_asks() -> None:
    CALLED.clear()
    model = ScriptedModel([*DELEGATED])
    async with Harness.open(delegating(), store="memory:", model=model) as harness:
        child = harness.conversation("c~c1")

        def answer(event: Event) -> None:
            if isinstance(event, Delta) and event.type == "pending":
                assert child.answer(event.call_id, True)

        with child.subscribed(answer):
            await harness.conversation("c").say("go")
        assert "ordered tea" in await report(child)


async def test_a_call_that_its_program_does_not_await_has_a_result_too() -> None:
    program = (
        'import asyncio\nasyncio.ensure_future(tools.call("shop.slow"))\nawait asyncio.sleep(0.3)'
    )

    @tool(effect="read")
    async def slow() -> str:
        """Take long."""
        await asyncio.sleep(3600)
        return "late"

    async with talking([python(program), "Done."], bundle=bundle(slow)) as talk:
        await talk.say("go")
        bodies = proxied(await talk.blocks())
    assert [body.type for body in bodies] == ["react.proxied.call", "react.proxied.result"]
    assert isinstance(bodies[1], ProxiedResult)
    assert bodies[1].status == "interrupted"


async def test_a_document_with_calls_of_programs_is_read_again() -> None:
    program = 'await tools.call("shop.find", name="tea")'
    async with talking([python(program), "Done."], bundle=bundle(find)) as talk:
        await talk.say("go")
        document = await talk.export()
    async with Harness.open(
        bundle(find), store="memory:", model=ScriptedModel([]), clock=FakeClock()
    ) as harness:
        other = await harness.load(document)
        (item,) = await other.read(["tc:turn_1.c1-1.result"])
    assert item.text == '{"found":"tea"}'
