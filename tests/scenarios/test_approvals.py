"""A person approves a call, changes its arguments, denies it with a reason, or lets later calls run by a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from loopline import Agent, BaseWorkflow, Bundle, Harness, tool
from loopline.clock import Clock
from loopline.conversations import Conversation
from loopline.errors import BundleError, LooplineError, StoreError
from loopline.guards import ask_before
from loopline.models import Json, JsonObject, ToolCall
from loopline.react import ApprovalLimits, GuardedCall, parse_approval
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ApprovalMode, MemoryLog, ToolResult, ToolStarted, UserAnswer
from tests.support.crashing_log import CrashingLog
from tests.support.crews import Scripts, handoff
from tests.support.rows import each_row
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking
from tests.support.workbench import bodies

PAID: list[int] = []


@tool(effect="write", approve=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"{amount} paid"


def needs_approval(arguments: JsonObject, call: GuardedCall) -> bool | str:
    match arguments["name"]:
        case "broken":
            raise RuntimeError("the list of names is not there")
        case "public":
            return False
        case name:
            return f"May {call.user} look at {name}?"


@tool(effect="read", approve=needs_approval)
def look(name: str) -> str:
    """Look at something."""
    return f"seen {name}"


@tool(effect="write")
def note(text: str) -> str:
    """Write a note."""
    return f"noted {text}"


def desk(**fields: Any) -> Bundle:
    return Bundle(id="desk", tools=[pay, look, note], **fields)


@pytest.fixture
def store(store_url: str) -> str:
    PAID.clear()
    return store_url


@asynccontextmanager
async def at_desk(
    store: str, *script: Entry, bundle: Bundle | None = None, clock: Clock | None = None
) -> AsyncGenerator[Conversation]:
    model = ScriptedModel(list(script), strict=False)
    async with Harness.open(bundle or desk(), store=store, model=model, clock=clock) as harness:
        yield harness.conversation("c")


async def results(talk: Conversation) -> list[tuple[str, str, JsonObject | None]]:
    return [(body.status, body.text, body.ran_with) for body in await bodies(talk, ToolResult)]


async def test_a_tool_and_a_bundle_ask_for_approval_without_a_workflow(store: str) -> None:
    calls = (
        Call("desk.pay", amount=3),
        Call("desk.note", text="x"),
        Call("desk.look", name="attic"),
    )
    async with at_desk(store, Say("", *calls), "Done.", bundle=desk(approve=["desk.note"])) as talk:
        paused = await talk.say("go")
        assert [call.question for call in paused.pending] == [
            'May desk.pay run with {"amount":3}?',
            'May desk.note run with {"text":"x"}?',
            "May local look at attic?",
        ]
        assert PAID == []
        done = await talk.resume({"c1": True, "c2": False, "c3": {"approved": True}})
        assert (done.answer, PAID) == ("Done.", [3])
        assert sorted(status for status, _, _ in await results(talk)) == ["denied", "ok", "ok"]


async def test_a_function_lets_a_call_run_and_one_that_breaks_asks(store: str) -> None:
    calls = (Call("desk.look", name="public"), Call("desk.look", name="broken"))
    async with at_desk(store, Say("", *calls), "Done.") as talk:
        paused = await talk.say("go")
        assert [call.call_id for call in paused.pending] == ["c2"]
        assert [text for _, text, _ in await results(talk)] == ["seen public"]


async def test_a_call_runs_with_the_arguments_that_the_user_changed(store: str) -> None:
    model = ScriptedModel([Say("", Call("desk.pay", amount=300)), "Done."])
    async with talking(model, bundle=desk(), store=store) as talk:
        await talk.say("go")
        await talk.resume({"c1": {"approved": True, "arguments": {"amount": 30}}})
        assert PAID == [30]
        [(status, text, ran_with)] = await results(talk)
        assert (status, ran_with) == ("ok", {"amount": 30})
        assert text.splitlines() == [
            'The user approved this call with changed arguments, and it ran with these: {"amount":30}',
            "30 paid",
        ]
        [started] = await bodies(talk, ToolStarted)
        assert started.ran_with == {"amount": 30}
        [answer] = await bodies(talk, UserAnswer)
        assert answer.value == {"approved": True, "arguments": {"amount": 30}}
        assert text in f"{model.requests[-1].messages[-1]}".replace("\\n", "\n")


def nested(depth: int) -> Json:
    """A list in that many lists."""
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


def test_arguments_in_a_line_that_are_nested_too_deeply_are_no_answer() -> None:
    line = f'yes {{"amount": {"[" * 200_000}'
    assert parse_approval(line) == line


@each_row(
    [
        ({"approved": True, "arguments": {"amount": "many"}}, "arguments of desk.pay"),
        ({"approved": True, "arguments": {}}, "arguments of desk.pay"),
        ({"approved": True, "argument": {"amount": 3}}, "argument"),
        ({"approved": True, "rule": {"scope": "world"}}, "world"),
        ({"approved": True, "rule": {"seconds": 0}}, "more than 0"),
        ({"approved": True, "rule": {"seconds": 1e12}}, "after the year 9999"),
        ({"approved": True, "rule": {"seconds": 1e18}}, "after the year 9999"),
        ({"approved": False, "rule": {}}, "no rule"),
        ({"approved": False, "arguments": {"amount": 3}}, "no arguments"),
        ({"approved": True, "rule": {"scope": "user"}}, "no rule for the user"),
        ({"approved": True, "arguments": {"amount": nested(250)}}, "nested too deeply"),
        ({"approved": True, "arguments": {"amount": nested(5_000)}}, "nested too deeply"),
        ("perhaps", "yes or no"),
        ('yes {"amount": ', "the text from { on is not valid JSON: 'yes {"),
        (None, "yes or no"),
        (1, "yes or no"),
        (["yes"], "yes or no"),
        ({"approved": "yes"}, "c1 awaits approval: answer yes or no"),
        ({}, "yes or no"),
    ]
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_call_still_waits(
    value: Json, why: str
) -> None:
    PAID.clear()
    async with at_desk("memory:", PAY, "Done.") as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match=why):
            await talk.resume({"c1": value})
        assert await talk.blocks(types=["user.answer", "approval.rule"]) == []
        await talk.resume({"c1": True})
        assert PAID == [3]


PAYER = Agent(name="payer", description="Pays.")
DELEGATE = Call("crew.delegate", agent="payer", task="Pay it")
PAY = Say("", Call("desk.pay", amount=3))
OTHER = Say("", Call("desk.pay", amount=4))
RULE: JsonObject = {"scope": "conversation", "arguments": "any"}


def granting(**rule: Json) -> Json:
    return {"approved": True, "rule": {**RULE, **rule}}


@pytest.mark.parametrize(
    ("rule", "asks"),
    [
        ({}, [False, False]),
        ({"arguments": "same"}, [False, True]),
        ({"seconds": 60}, [False, False]),
    ],
)
async def test_a_rule_lets_later_calls_run_and_names_itself(
    store: str, rule: JsonObject, asks: list[bool]
) -> None:
    async with at_desk(store, PAY, "One.", PAY, "Two.", OTHER, "Three.") as talk:
        await talk.say("go")
        await talk.resume({"c1": granting(**rule)})
        [granted] = await talk.rules()
        later = [await talk.say("again"), await talk.say("and again")]
        assert [bool(result.pending) for result in later] == asks
        by_rule = [start.rule for start in await bodies(talk, ToolStarted)]
        assert by_rule == ["", *([granted.rule_id] * asks.count(False))]


async def test_a_rule_ends_at_its_time_and_when_it_is_revoked(store: str) -> None:
    clock = FakeClock()
    script: list[Entry] = [PAY, "One.", PAY, "Two.", PAY, "Three.", PAY]
    async with at_desk(store, *script, clock=clock) as talk:
        await talk.say("go")
        await talk.resume({"c1": granting(seconds=60)})
        clock.advance(61)
        assert (await talk.say("again")).pending
        assert await talk.rules() == []
        await talk.resume({"c2": granting()})
        assert not (await talk.say("again")).pending
        [rule] = await talk.rules()
        await talk.revoke_rule(rule.rule_id)
        assert await talk.rules() == []
        assert (await talk.say("again")).pending
        with pytest.raises(LooplineError, match="no rule"):
            await talk.revoke_rule(rule.rule_id)


@pytest.mark.parametrize(("scope", "asks"), [("conversation", True), ("user", False)])
async def test_a_rule_of_the_user_counts_in_other_conversations_of_the_user_alone(
    store: str, scope: str, asks: bool
) -> None:
    bundle = desk(approvals=ApprovalLimits(rules="user"))
    model = ScriptedModel([PAY, "One.", PAY, *([] if asks else ["Two."]), PAY], strict=False)
    async with Harness.open(bundle, store=store, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        await talk.resume({"c1": granting(scope=scope)})
        assert bool((await harness.conversation("d").say("go")).pending) == asks
        assert (await harness.conversation("c", user="bob").say("go")).pending


async def test_rules_outlive_the_process_and_end_with_the_conversation_or_its_limits(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/desk.db"
    async with at_desk(store, PAY, "One.") as talk:
        await talk.say("go")
        await talk.resume({"c1": granting()})
    async with at_desk(store, PAY, "Two.") as talk:
        assert not (await talk.say("again")).pending
    strict = desk(approvals=ApprovalLimits(rules="none"))
    async with at_desk(store, PAY, bundle=strict) as talk:
        assert (await talk.say("again")).pending
        fork = await talk.fork(seq=12)
        assert len(await fork.rules()) == 1


async def test_a_rule_that_was_revoked_does_not_come_back_when_a_fork_is_forgotten(
    store: str,
) -> None:
    bundle = desk(approvals=ApprovalLimits(rules="user"))
    model = ScriptedModel([PAY, "One.", PAY], strict=False)
    async with Harness.open(bundle, store=store, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        await talk.resume({"c1": granting(scope="user")})
        fork = await talk.fork(seq=len(await talk.blocks()))
        other = harness.conversation("d")
        [rule] = await other.rules()
        await other.revoke_rule(rule.rule_id)
        await harness.log.forget(fork.conversation)
        assert await other.rules() == []
        assert (await talk.say("again")).pending


async def revoke(talk: Conversation[Any]) -> None:
    [rule] = await talk.rules()
    await talk.revoke_rule(rule.rule_id)


async def plan_only(talk: Conversation[Any]) -> None:
    await talk.set_mode("plan")


@pytest.mark.parametrize(
    ("change", "reason", "statuses"),
    [(revoke, "paused", ["ok"]), (plan_only, "complete", ["ok", "denied"])],
)
async def test_a_call_that_has_not_begun_asks_when_its_rule_is_revoked_and_is_denied_by_a_plan(
    change: Callable[[Conversation[Any]], Awaitable[None]], reason: str, statuses: list[str]
) -> None:
    begun, opened = asyncio.Event(), asyncio.Event()

    @tool(effect="write", approve=True)
    async def send(number: int) -> str:
        """Send a number."""
        begun.set()
        await opened.wait()
        return f"{number} sent"

    calls = Say("", Call("desk.send", number=2), Call("desk.send", number=3))
    model = ScriptedModel([Call("desk.send", number=1), "One.", calls, "So."], strict=False)
    bundle = Bundle(id="desk", tools=[send])
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
        opened.set()
        await talk.resume({"c1": granting()})
        opened.clear()
        begun.clear()
        running = asyncio.create_task(talk.say("again"))
        await begun.wait()
        await change(talk)
        opened.set()
        result = await running
        blocks = await talk.blocks(turn="turn_2")
    assert result.exit_reason == reason
    assert [b.body.status for b in blocks if isinstance(b.body, ToolResult)] == statuses


MODES: list[tuple[ApprovalMode, list[str], int]] = [
    ("ask", ["ok"], 2),
    ("accept_reads", ["ok", "ok"], 1),
    ("deny", ["denied", "denied", "ok"], 0),
    ("plan", ["denied", "denied"], 1),
]


@pytest.mark.parametrize(("mode", "statuses", "asked"), MODES)
async def test_the_mode_of_a_conversation_decides_about_calls_that_need_approval(
    store: str, mode: ApprovalMode, statuses: list[str], asked: int
) -> None:
    calls = (
        Call("desk.pay", amount=3),
        Call("desk.look", name="attic"),
        Call("desk.note", text="x"),
    )
    async with at_desk(store, Say("", *calls), "Done.") as talk:
        await talk.set_mode(mode)
        result = await talk.say("go")
        assert await talk.mode() == mode
        assert len(result.pending) == asked
        assert sorted(status for status, _, _ in await results(talk)) == sorted(statuses)
        assert PAID == []


async def test_a_mode_counts_from_the_next_call_on_and_in_the_next_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/desk.db"
    write = Say("", Call("desk.note", text="x"))
    async with at_desk(store, write, "One.", write, "Two.") as talk:
        await talk.say("go")
        await talk.set_mode("plan")
        await talk.say("again")
    async with at_desk(store, write, "Three.") as talk:
        await talk.say("again")
        assert [status for status, _, _ in await results(talk)] == ["ok", "denied", "denied"]
        with pytest.raises(LooplineError, match="no mode"):
            await talk.set_mode(cast("ApprovalMode", "yolo"))


EDITED: Json = {"approved": True, "arguments": {"amount": 30}, "rule": RULE}


@pytest.mark.parametrize("kept", range(9))
async def test_wherever_the_process_ends_an_edited_approval_runs_at_most_once_and_only_as_edited(
    kept: int,
) -> None:
    PAID.clear()
    log = MemoryLog()
    crashing = CrashingLog(log)
    model = ScriptedModel([Say("", Call("desk.pay", amount=300)), "Done."], strict=False)
    with suppress(LooplineError):
        async with talking(model, bundle=desk(), store=crashing) as talk:
            await talk.say("go")
            crashing.left = kept
            await talk.resume({"c1": EDITED})
    async with talking(ScriptedModel(["Done."], strict=False), bundle=desk(), store=log) as talk:
        answers = await talk.blocks(types="user.answer")
        assert len(await talk.blocks(types="approval.rule")) == len(answers)
        if not await talk.blocks(types="react.exit"):
            await talk.resume(None if answers else {"c1": EDITED})
        [(status, _, ran_with)] = await results(talk)
        assert (status, PAID) in [("ok", [30]), ("interrupted", [30]), ("interrupted", [])]
        assert ran_with == ({"amount": 30} if status == "ok" else None)
        assert len(await talk.rules()) == 1


@pytest.mark.parametrize(
    ("mode", "rules", "paid"), [("deny", True, 0), ("ask", True, 2), ("ask", False, 1)]
)
async def test_a_child_run_keeps_to_the_mode_and_the_rules_of_its_parent(
    store: str, mode: ApprovalMode, *, rules: bool, paid: int
) -> None:
    pay = Call("desk.pay", amount=3)
    model = Scripts({"Go": [pay, "Paid.", DELEGATE, "Done."], "Pay it": [pay, handoff("Paid.")]})
    async with talking(model, bundle=desk(agents=[PAYER]), store=store) as talk:
        await talk.say("Go")
        await talk.resume({"c1": {"approved": True, **({"rule": RULE} if rules else {})}})
        await talk.set_mode(mode)
        result = await talk.say("Again")
        assert (bool(result.pending), len(PAID)) == (not rules, max(paid, 1))


async def test_a_mode_is_set_in_every_state_of_a_conversation(store: str) -> None:
    model = ScriptedModel([PAY, "One.", PAY])
    async with Harness.open(desk(), store=store, model=model) as harness:
        talk = harness.conversation("c")
        await talk.set_mode("deny")
        await talk.set_mode("ask")
        paused = await talk.say("go")
        await talk.set_mode("plan")
        denied = await talk.resume({call.call_id: True for call in paused.pending})
        assert (denied.answer, PAID) == ("One.", [])
        await talk.set_mode("ask")
        await talk.say("again")
        assert await talk.stop()
        await talk.set_mode("plan")
        await harness.log.forget(talk.conversation)
        with pytest.raises(StoreError):
            await talk.set_mode("ask")


@pytest.mark.parametrize("approve", [3, "yes", lambda: True])
def test_a_value_of_approve_that_cannot_decide_is_refused(approve: Any) -> None:
    with pytest.raises(BundleError, match="approve"):

        @tool(approve=approve)
        def act() -> None:
            """Act."""


@tool(effect="write", approve=True, people=2)
def refund(amount: int) -> str:
    """Refund an amount."""
    PAID.append(-amount)
    return f"{amount} refunded"


REFUND = Say("", Call("desk.refund", amount=300))


class Guarded(BaseWorkflow):
    """Two guards ask, one of them for two people."""

    guards = (ask_before(["desk.*"]), ask_before(["desk.pay"], people=2))


BY_GUARD = Bundle(id="desk", tools=[pay, refund], workflow=Guarded)
BY_LIMITS = Bundle(
    id="desk", tools=[pay, refund], approvals=ApprovalLimits(rules="user", people={"*.pay": 2})
)
Steps = list[tuple[str, Json, str]]


@pytest.mark.parametrize(
    ("bundle", "call"),
    [
        (Bundle(id="desk", tools=[refund]), "refund"),
        (BY_GUARD, "pay"),
        (BY_GUARD, "refund"),
        (BY_LIMITS, "pay"),
    ],
)
async def test_a_call_waits_for_a_second_person_after_the_first_has_approved(
    store: str, bundle: Bundle, call: str
) -> None:
    script = (Say("", Call(f"desk.{call}", amount=30)), "Done.")
    async with at_desk(store, *script, bundle=bundle) as talk:
        await talk.say("go")
        first = await talk.resume({"c1": True})
        [waiting] = first.pending
        assert (waiting.people, waiting.approved_by, PAID) == (2, ("local",), [])
        with pytest.raises(LooplineError, match="local has approved c1 already"):
            await talk.resume({"c1": True})
        with pytest.raises(LooplineError, match="no rule can be granted"):
            await talk.resume({"c1": granting()}, by="bob")
        done = await talk.resume({"c1": True}, by="bob")
        assert (done.answer, [abs(amount) for amount in PAID]) == ("Done.", [30])
        assert [answer.by for answer in await bodies(talk, UserAnswer)] == ["local", "bob"]


YES, LESS, LEAST = (
    True,
    cast("Json", {"approved": True, "arguments": {"amount": 30}}),
    cast("Json", {"approved": True, "arguments": {"amount": 20}}),
)


@pytest.mark.parametrize(
    ("answers", "paid"),
    [
        ([("ann", LESS), ("bob", YES)], [-30]),
        ([("ann", YES), ("bob", LESS), ("ann", YES)], [-30]),
        ([("ann", LESS), ("bob", LESS)], [-30]),
        ([("ann", LESS), ("bob", LEAST), ("ann", LEAST)], [-20]),
        ([("ann", YES), ("bob", False)], []),
        ([("ann", False)], []),
    ],
)
async def test_two_people_approve_the_same_arguments_and_one_of_them_can_deny(
    store: str, answers: list[tuple[str, Json]], paid: list[int]
) -> None:
    async with at_desk(store, REFUND, "Done.", bundle=Bundle(id="desk", tools=[refund])) as talk:
        await talk.say("go")
        for person, value in answers[:-1]:
            assert (await talk.resume({"c1": value}, by=person)).pending
            assert PAID == []
        person, value = answers[-1]
        assert (await talk.resume({"c1": value}, by=person)).answer == "Done."
        assert paid == PAID


async def test_no_rule_and_no_mode_takes_the_place_of_a_second_person(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/desk.db"
    PAID.clear()
    async with at_desk(store, PAY, "One.", bundle=desk()) as talk:
        await talk.say("go")
        await talk.resume({"c1": granting()})
    limits = ApprovalLimits(people={"desk.pay": 2, "desk.look": 2})
    look_first = Say("", Call("desk.look", name="attic"), Call("desk.pay", amount=3))
    async with at_desk(store, look_first, "Two.", bundle=desk(approvals=limits)) as talk:
        await talk.set_mode("accept_reads")
        assert [call.people for call in (await talk.say("again")).pending] == [2, 2]
        await talk.resume({"c2": True, "c3": True})
    async with at_desk(store, "Two.", bundle=desk(approvals=limits)) as talk:
        assert (await talk.resume({"c2": True, "c3": "yes"}, by="bob")).answer == "Two."
        assert PAID == [3, 3]


@pytest.mark.parametrize("name", ["pay", "*"])
async def test_an_operator_sets_the_number_of_people_for_a_tool(name: str, store: str) -> None:
    model = ScriptedModel([PAY, "Paid."], strict=False)
    people = {f"react.approval_people.desk.{name}": 3}
    async with talking(model, bundle=desk(), store=store, properties=people) as talk:
        [call] = (await talk.say("go")).pending
    assert call.people == 3


@pytest.mark.parametrize(
    ("people", "problem"),
    [
        (
            {"desk.payy": 2},
            "react.approval_people: no tool is called 'desk.payy', nearest is 'desk.pay'",
        ),
        (
            {"desk.pay": 0},
            "react.approval_people.desk.pay must be a number of people of at least 1",
        ),
        ({"desk.pay": "two"}, "react.approval_people.desk.pay must be a number of people"),
    ],
)
async def test_a_wrong_number_of_people_is_refused_before_a_turn(
    people: dict[str, Json], problem: str
) -> None:
    settings = {f"react.approval_people.{name}": count for name, count in people.items()}
    with pytest.raises(LooplineError) as raised:
        async with Harness.open(desk(), store="memory:", properties=settings):
            pass
    assert problem in str(raised.value)


async def test_a_tool_that_is_unknown_to_the_author_of_the_limits_is_an_error() -> None:
    limits = ApprovalLimits(people={"desk.payy": 2})
    with pytest.raises(LooplineError, match=r"'desk\.payy', nearest is 'desk\.pay'"):
        async with Harness.open(desk(approvals=limits), store="memory:"):
            pass


async def test_a_child_run_waits_for_a_second_person_too(store: str) -> None:
    call = Call("desk.refund", amount=300)
    model = Scripts({"Go": [DELEGATE, "Done."], "Pay it": [call, handoff("Paid.")]})
    bundle = Bundle(id="desk", tools=[refund], agents=[PAYER])
    async with talking(model, bundle=bundle, store=store) as talk:
        assert [call.people for call in (await talk.say("Go")).pending] == [2]
        assert (await talk.resume({"c1": LESS})).pending
        assert (await talk.resume({"c1": True}, by="bob")).answer == "Done."
        assert PAID == [-30]


async def test_an_answer_to_a_child_run_edits_its_call_or_grants_a_rule_for_it(store: str) -> None:
    more = Call("crew.delegate", agent="payer", task="Pay more")
    model = Scripts(
        {
            "Go": [DELEGATE, "Done.", more, "Done."],
            "Pay it": [Call("desk.pay", amount=300), handoff("Paid.")],
            "Pay more": [Call("desk.pay", amount=7), handoff("Paid.")],
        }
    )
    async with Harness.open(desk(agents=[PAYER]), store=store, model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        many: Json = {"approved": True, "arguments": {"amount": "many"}}
        with pytest.raises(LooplineError, match="not valid"):
            await talk.resume({"c1": many})
        await talk.resume({"c1": EDITED})
        [rule] = await talk.rules()
        assert (rule.tool, rule.conversation, PAID) == ("desk.pay", "c", [30])
        assert not (await talk.say("Again")).pending
        assert PAID == [30, 7]
        [(_, text, _)] = await results(harness.conversation("c~c1"))
        assert "changed arguments" in text


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_people_below_one_is_refused(count: int) -> None:
    with pytest.raises(LooplineError, match="people"):
        ask_before(["*"], people=count)
    with pytest.raises(LooplineError, match="people"):
        ApprovalLimits(people={"*": count})
    with pytest.raises(BundleError, match="people"):
        tool(approve=True, people=count)(look.function)
    with pytest.raises(BundleError, match="together with approve"):
        tool(people=2)(look.function)


DEAR = Call("life.write", name="dear", text="x")
ALONE = Call("life.alone", size=5)
LOOK = Call("life.look", size=5)


async def begun(talk: Conversation) -> list[str]:
    return [start.call_id for start in await bodies(talk, ToolStarted)]


async def ended(talk: Conversation) -> list[tuple[str, str]]:
    return [(result.call_id, result.status) for result in await bodies(talk, ToolResult)]


@pytest.mark.parametrize(
    ("approves", "starts", "status"),
    [(True, ["c1", "c3", "c4"], "ok"), (False, ["c3", "c4"], "denied")],
)
async def test_what_conflicts_with_a_call_that_waits_for_leave_runs_after_it(
    approves: bool, starts: list[str], status: str
) -> None:
    script: list[Entry] = [Say("", DEAR, LOOK, ALONE, ALONE), "Done."]
    async with talking(script, bundle=bundle) as talk:
        paused = await talk.say("go")
        assert [item.call_id for item in paused.pending] == ["c1"]
        assert (await begun(talk), await ended(talk)) == ([], [("c2", "ok")])
        done = await talk.resume({"c1": approves})
        assert (await begun(talk), (await ended(talk))[1:]) == (
            starts,
            [("c1", status), ("c3", "ok"), ("c4", "ok")],
        )
    assert (done.exit_reason, done.answer) == ("complete", "Done.")


async def test_with_one_of_two_approved_the_rest_still_waits_for_the_other() -> None:
    other_call = Call("life.write", name="dear", text="y")
    async with talking([Say("", DEAR, other_call, ALONE), "Done."], bundle=bundle) as talk:
        await talk.say("go")
        paused = await talk.resume({"c1": True})
        assert [item.call_id for item in paused.pending] == ["c2"]
        assert await ended(talk) == [("c1", "ok")]
        await talk.resume({"c2": True})
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2", "c3"]


async def test_a_call_that_has_asked_a_question_keeps_nothing_waiting() -> None:
    asking = Call("life.ask", question="Which?")
    async with talking([Say("", asking, ALONE), "Done."], bundle=bundle) as talk:
        await talk.say("go")
        assert await ended(talk) == [("c2", "ok")]
        await talk.resume({"c1": "this"})
        assert await ended(talk) == [("c2", "ok"), ("c1", "ok")]


async def test_a_new_prompt_ends_those_that_waited_behind_it_too() -> None:
    async with talking([Say("", DEAR, ALONE), "Another."], bundle=bundle) as talk:
        await talk.say("go")
        assert (await talk.say("never mind")).answer == "Another."
        assert await begun(talk) == []
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2"]


@pytest.mark.parametrize("between", [[], [ALONE]])
async def test_the_second_of_two_that_is_approved_first_waits_for_the_first(
    between: list[ToolCall],
) -> None:
    other_call = Call("life.write", name="dear", text="y")
    script: list[Entry] = [Say("", DEAR, *between, other_call), "Done."]
    async with talking(script, bundle=bundle) as talk:
        second = f"c{len(between) + 2}"
        await talk.say("go")
        paused = await talk.resume({second: True})
        assert (paused.exit_reason, [item.call_id for item in paused.pending]) == ("paused", ["c1"])
        assert (await talk.resume()).exit_reason == "paused"
        assert await ended(talk) == []
        done = await talk.resume({"c1": True})
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2", "c3"][
            : len(between) + 2
        ]
    assert done.answer == "Done."


async def test_a_new_prompt_ends_the_turn_in_which_only_the_second_of_two_is_approved() -> None:
    other_call = Call("life.write", name="dear", text="y")
    async with talking([Say("", DEAR, other_call), "Another."], bundle=bundle) as talk:
        await talk.say("go")
        await talk.resume({"c2": True})
        assert (await talk.say("never mind")).answer == "Another."
        assert await begun(talk) == []
