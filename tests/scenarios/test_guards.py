"""Guards say who may call what; in a turn the model reads why a call did not run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, LooplineError, TurnPayload, TurnResult
from loopline.models import JsonObject
from loopline.react import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.react.guards import Guards, allow_only, ask_before, rate_limit, read_only
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Effect, ToolResult
from tests.support import playground
from tests.support.scripted_conversation import talking
from tests.support.workbench import at_work, bodies, workbench

EFFECTS: tuple[Effect, ...] = ("read", "write", "exclusive", "meta")


def call(
    tool: str = "shop.add",
    effect: Effect = "write",
    made: dict[str, int] | None = None,
    **arguments: str,
) -> GuardedCall:
    return GuardedCall(
        call_id="c1",
        tool=tool,
        effect=effect,
        arguments={**arguments},
        turn_id="turn_1",
        conversation="c",
        user="ann",
        earlier_calls=made or {},
    )


@dataclass(frozen=True)
class Renames:
    """Changes an argument, and marks the result."""

    name: str
    value: str

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow({**call.arguments, self.name: self.value})

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{self.value}({text})"


@dataclass(frozen=True)
class Breaks:
    """Raises wherever it is asked."""

    async def before(self, call: GuardedCall) -> Verdict:
        raise ValueError("broken")

    async def after(self, call: GuardedCall, text: str) -> str:
        raise ValueError("broken")


@dataclass(frozen=True)
class Reaches:
    """Changes the arguments it is handed, instead of giving others."""

    async def before(self, call: GuardedCall) -> Verdict:
        call.arguments["name"] = "changed"
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        call.arguments["name"] = "changed"
        return text


@pytest.mark.parametrize(
    ("guard", "tool", "effect", "message"),
    [
        (allow_only(["shop.*"]), "shop.add", "write", ""),
        (allow_only("shop.*"), "shop.add", "write", ""),
        (allow_only(["shop.*"]), "web.get", "read", "web.get is not allowed here: only shop.*"),
        (allow_only(["shop.*"]), "react.plan", "meta", ""),
        (allow_only(["shop.*"]), "react.patch", "write", "react.patch is not allowed"),
        (allow_only(["Shop.*"]), "shop.add", "write", "shop.add is not allowed"),
        (allow_only([]), "shop.add", "write", "only nothing"),
        (read_only(), "shop.find", "read", ""),
        (read_only(), "shop.add", "write", "shop.add may change something (write)"),
        (read_only(), "shop.run", "exclusive", "may change something (exclusive)"),
        (read_only(), "shop.child", "meta", "may change something (meta)"),
        (read_only(), "react.plan", "meta", ""),
        (read_only(), "react.hide", "meta", ""),
    ],
)
async def test_a_guard_lets_a_call_pass_or_says_why_not(
    guard: Guard, tool: str, effect: Effect, message: str
) -> None:
    match await guard.before(call(tool, effect)):
        case Deny(reason=reason):
            assert message
            assert message in reason
        case verdict:
            assert (verdict, message) == (Allow(), "")
    assert await guard.after(call(tool, effect), "found") == "found"


def test_guards_are_values() -> None:
    assert allow_only(["a", "b"]) == allow_only(("a", "b")) != allow_only(["a"])
    assert hash(Guards((read_only(), rate_limit(3)))) == hash(Guards((read_only(), rate_limit(3))))


@pytest.mark.parametrize(
    ("limit", "patterns", "made", "passes"),
    [
        (2, ["shop.*"], {}, True),
        (2, ["shop.*"], {"shop.add": 1, "web.get": 9}, True),
        (2, ["shop.*"], {"shop.add": 1, "shop.find": 1}, False),
        (2, ["web.*"], {"shop.add": 9, "web.get": 9}, True),
        (0, ["shop.add"], {}, False),
        (3, ["*"], {"shop.add": 1, "web.get": 1}, True),
        (3, ["shop.*", "web.*"], {"shop.add": 1, "web.get": 2}, False),
    ],
)
async def test_calls_of_matching_tools_are_counted_together(
    limit: int, patterns: list[str], made: dict[str, int], passes: bool
) -> None:
    verdict = await rate_limit(limit, patterns).before(call(made=made))
    assert isinstance(verdict, Allow) is passes


async def test_a_question_shows_the_tool_and_its_arguments() -> None:
    asks = ask_before(["shop.*"])
    assert await asks.before(call(name="{tea}")) == Ask('May shop.add run with {"name":"{tea}"}?')
    assert await asks.before(call("web.get")) == Allow()
    own = ask_before(["*"], question="Really {tool}?")
    assert await own.before(call()) == Ask("Really shop.add?")


async def test_a_question_shows_only_the_beginning_of_long_arguments() -> None:
    verdict = await ask_before(["*"]).before(call(name="a" * 9_000))
    assert isinstance(verdict, Ask)
    assert len(verdict.question) < 500
    assert "…" in verdict.question


@pytest.mark.parametrize("question", ["Run {it}?", "Run {}?", "Run {tool?", "Run {tool.spec}?"])
def test_a_question_that_cannot_be_filled_in_is_refused(question: str) -> None:
    with pytest.raises(LooplineError, match="question"):
        ask_before(["*"], question=question)


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(LooplineError, match="0 or more"):
        rate_limit(-1)


async def test_without_guards_a_call_runs_as_it_is() -> None:
    assert await Guards().before(call()) == Allow()
    assert await Guards().after(call(), "found") == "found"


async def test_changed_arguments_are_what_the_next_guard_sees() -> None:
    guards = Guards((Renames("name", "a"), Renames("size", "b"), Renames("name", "c")))
    assert await guards.before(call(name="x")) == Allow({"name": "c", "size": "b"})


async def test_results_pass_through_the_guards_in_reverse() -> None:
    guards = Guards((Renames("name", "outer"), Renames("name", "inner")))
    assert await guards.after(call(), "text") == "outer(inner(text))"


async def test_the_first_that_denies_decides_although_another_asks_before_it() -> None:
    guards = Guards((ask_before(["*"]), read_only(), allow_only([])))
    verdict = await guards.before(call())
    assert isinstance(verdict, Deny)
    assert "may change something" in verdict.reason


async def test_of_two_that_ask_the_first_does() -> None:
    guards = Guards((ask_before(["*"], "One?"), ask_before(["*"], "Two?")))
    assert await guards.before(call()) == Ask("One?")


async def test_once_the_user_has_approved_nobody_asks_and_the_others_still_have_their_say() -> None:
    asks = ask_before(["*"])
    renamed = Guards((Renames("name", "a"), asks, Renames("size", "b")))
    assert await renamed.granted(call(name="x")) == Allow({"name": "a", "size": "b"})
    assert isinstance(await Guards((asks, read_only())).granted(call()), Deny)


async def test_a_guard_cannot_reach_into_the_arguments() -> None:
    given = call(name="x")
    assert await Guards((Reaches(),)).before(given) == Allow()
    await Guards((Reaches(),)).after(given, "text")
    assert given.arguments == {"name": "x"}


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_broken_guard_denies_whatever_is_no_read(
    effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "loopline"):
        verdict = await Guards((Breaks(),)).before(call(effect=effect))
    assert isinstance(verdict, Allow) is (effect == "read")
    assert "broke before shop.add" in caplog.text


async def test_a_read_that_passes_a_broken_guard_meets_the_next_one() -> None:
    verdict = await Guards((Breaks(), allow_only([]))).before(call(effect="read"))
    assert isinstance(verdict, Deny)
    assert "not allowed" in verdict.reason


async def test_what_a_broken_guard_raises_over_a_result_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="broken"):
        await Guards((Breaks(),)).after(call(), "secret")


class Guarded(BaseWorkflow):
    """The playground's tools, with guards."""

    guards = (
        Guards(
            (
                allow_only(["play.look", "play.note"]),
                rate_limit(1, ["play.look"]),
                ask_before(["play.note"]),
            )
        ),
    )

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=playground.__name__)
        return await react.run(payload)


GUARDED = Bundle(id="guarded", workflow=Guarded)


LOOKS = [Call("play.look", text="one"), Call("play.look", text="two")]


@pytest.mark.parametrize("looks", [LOOKS, [Say("", *LOOKS)]], ids=["two rounds", "one round"])
async def test_in_a_turn_the_model_reads_why_a_call_did_not_run(looks: list[Entry]) -> None:
    script: list[Entry] = [Call("play.alone", text="x"), *looks, "Done."]
    async with talking(script, bundle=GUARDED) as talk:
        await talk.say("Go.")
        blocks = await talk.blocks()
    found = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    results = sorted(found, key=lambda result: result.call_id)
    assert [(result.tool, result.status) for result in results] == [
        ("play.alone", "denied"),
        ("play.look", "ok"),
        ("play.look", "denied"),
    ]
    assert results[0].text.startswith("play.alone is not allowed here")
    assert "at most 1, 1 were made" in results[2].text


async def test_in_a_turn_a_call_waits_until_the_user_has_approved(tmp_path: Path) -> None:
    ledger = f"{tmp_path}/ledger"
    arguments: JsonObject = {"name": "tea", "ledger": ledger}
    script: list[Entry] = [Call("play.note", **arguments), "Noted."]
    async with talking(script, bundle=GUARDED) as talk:
        paused = await talk.say("Note it.")
        done = await talk.resume({paused.pending[0].call_id: True})
    assert (paused.exit_reason, paused.pending[0].tool) == ("paused", "play.note")
    assert paused.pending[0].question.startswith("May play.note run with")
    assert (done.exit_reason, done.answer) == ("complete", "Noted.")


class Redacting:
    """Lets nobody read what is secret."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return text.replace("s3cret", "***")


@pytest.mark.parametrize("way", ["w.fail", "w.crash"])
async def test_what_a_guard_leaves_out_is_in_no_error_either(way: str) -> None:
    model = ScriptedModel([Call("w.fail", message="the key is s3cret"), Call(way), "Done."])
    async with at_work(model, workbench(guards=[Redacting()])) as talk:
        await talk.say("go")
        ends = [(result.status, result.text) for result in await bodies(talk, ToolResult)]
    assert ends[0] == ("error", "the key is ***")
    assert ends[1][0] == "error"
    assert not any("s3cret" in str(request.messages[-1]) for request in model.requests)


class Breaking(Redacting):
    """Breaks over whatever it is to look over."""

    async def after(self, call: GuardedCall, text: str) -> str:
        raise ZeroDivisionError


async def test_an_error_that_a_guard_breaks_over_is_not_shown() -> None:
    model = ScriptedModel([Call("w.fail", message="s3cret"), "Done."])
    async with at_work(model, workbench(guards=[Breaking()])) as talk:
        await talk.say("go")
        (end,) = await bodies(talk, ToolResult)
    assert (end.status, end.text) == (
        "error",
        "A guard of this bundle broke over this result: it is not shown.",
    )


async def test_each_section_of_a_result_is_looked_over() -> None:
    page = Call("w.page", name="s3cret")
    read = Call("react.read", paths=["ar:turn_1.artifacts.c1@1"])
    model = ScriptedModel([page, read, "Done."])
    async with at_work(model, workbench(guards=[Redacting()])) as talk:
        await talk.say("go")
        made, end = await bodies(talk, ToolResult)
    assert "the page *** was made" in made.text
    assert "<b>***</b>" in end.text
    assert "s3cret" not in end.text
