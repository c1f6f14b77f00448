"""Dependencies: one object, given to a harness, that tools, workflows, guards and child runs have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict, TypeVar, runtime_checkable

import pytest

from loopline import (
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    ToolContext,
    TurnPayload,
    TurnResult,
    run_sync,
    tool,
)
from loopline.react import Allow, GuardedCall, Verdict
from loopline.testing import Call, Say, ScriptedModel
from loopline.tools import ToolFunction, check_deps
from tests.authoring.bundle_files import line_of

T = TypeVar("T")
HERE = Path(__file__)


@dataclass(frozen=True)
class Stock:
    """What the tools of a shop ask; `seen` is where each that had it says so."""

    teas: Mapping[str, int]
    seen: list[str] = field(default_factory=list[str])

    def note(self, who: str, deps: object) -> None:
        if deps is self:
            self.seen.append(who)


@tool(effect="read")
async def count(tea: str, context: ToolContext[Stock]) -> int:
    """Count the packets of a tea."""
    context.deps.note("async tool", context.deps)
    return context.deps.teas[tea]


@tool(effect="read")
def count_in_a_thread(tea: str, context: ToolContext[Stock]) -> int:
    """Count the packets of a tea."""
    context.deps.note("tool in a thread", context.deps)
    return context.deps.teas[tea]


@tool(effect="meta")
async def delegate(task: str, context: ToolContext) -> str:
    """Have a child do it."""
    return (await context.spawn(task)).answer


class Watchman:
    """A guard that has the dependencies too."""

    async def before(self, call: GuardedCall) -> Verdict:
        if isinstance(call.deps, Stock):
            call.deps.note("guard", call.deps)
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


class Shop(BaseWorkflow[Stock]):
    guards = (Watchman(),)

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        self.deps.note("hook before", self.deps)

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        self.deps.note("hook after", self.deps)


SHOP = Bundle(id="shop", workflow=Shop, tools=[count, count_in_a_thread, delegate])


def test_tools_hooks_and_guards_have_the_object_that_the_harness_was_given() -> None:
    stock = Stock({"sencha": 3})
    calls = (Call("shop.count", tea="sencha"), Call("shop.count_in_a_thread", tea="sencha"))
    model = ScriptedModel([Say("", *calls), Say("Three.")])
    assert run_sync(SHOP, "How many?", model=model, deps=stock).answer == "Three."
    assert sorted(stock.seen) == [
        *("async tool", "guard", "guard", "hook after", "hook before", "tool in a thread")
    ]


async def test_a_child_run_has_it_too() -> None:
    stock = Stock({"sencha": 3})
    model = ScriptedModel(
        [Call("shop.delegate", task="count"), Call("shop.count", tea="sencha"), "3", "Three."]
    )
    async with Harness.open(SHOP, store="memory:", model=model, deps=stock) as harness:
        assert harness.deps is stock
        await harness.conversation("c").say("How many?")
    assert "async tool" in stock.seen


@pytest.mark.parametrize("deps", [None, Stock({})])
def test_a_tool_that_takes_a_plain_context_takes_any(deps: Stock | None) -> None:
    @tool
    def who(context: ToolContext) -> str:
        """Say who."""
        return context.user

    model = ScriptedModel([Call("plain.who"), Say("You.")])
    assert run_sync(Bundle(id="plain", tools=[who]), "Who?", model=model, deps=deps).ok


def test_dependencies_that_are_missing_are_an_error_that_names_the_tool_and_its_line() -> None:
    bundle = Bundle(id="shop", tools=[count])
    with pytest.raises(BundleError) as raised:
        run_sync(bundle, "How many?", model=ScriptedModel([], strict=False))
    location = line_of(HERE, '@tool(effect="read")')
    assert str(raised.value) == (
        f"{location}: tool 'shop.count' asks for deps of the type Stock, and none "
        "were given: pass them to Harness.open(…, deps=…), or have the bundle make them with "
        "Bundle(deps=…), as the command line needs it"
    )


def test_dependencies_of_a_second_copy_of_their_type_are_an_error_that_says_so() -> None:
    copy = type("Stock", (), {})()
    with pytest.raises(BundleError, match="asks for deps of the type Stock of its own copy"):
        run_sync(Bundle(id="shop", tools=[count]), "How?", model=ScriptedModel([]), deps=copy)


def test_a_tool_that_the_loop_does_not_offer_misses_nothing() -> None:
    class Plain(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            return await (await self.build_react(tools=["shop.delegate"])).run(payload)

    bundle = Bundle(id="shop", workflow=Plain, tools=[count, delegate])
    assert run_sync(bundle, "How many?", model=ScriptedModel(["None."])).ok


def test_a_workflow_that_misses_its_dependencies_is_an_error_too() -> None:
    with pytest.raises(
        BundleError, match=r"Shop asks for deps of the type Stock, and was given a dict"
    ):
        run_sync(SHOP, "How many?", model=ScriptedModel([], strict=False), deps={"sencha": 3})


class Generously(BaseWorkflow[T]):
    """A workflow whose subclasses say what they need."""


def test_a_workflow_whose_type_is_not_said_yet_takes_none() -> None:
    bundle = Bundle(id="shop", workflow=Generously)
    assert run_sync(bundle, "Hello?", model=ScriptedModel(["Hi."])).ok


class Counts(Protocol):
    teas: Mapping[str, int]


@runtime_checkable
class Notes(Protocol):
    def note(self, who: str, deps: object) -> None: ...


class Rows(TypedDict):
    sencha: int


def asking(wanted: object) -> ToolFunction[..., Any]:
    """A tool that asks for dependencies of the type."""

    def look(context: object) -> None:
        """Look."""
        del context

    look.__annotations__["context"] = wanted
    return tool(look)


STOCK = Stock({})


@pytest.mark.parametrize(
    ("expected", "deps", "taken"),
    [
        (ToolContext[None], STOCK, True),
        (ToolContext[Stock], STOCK, True),
        (ToolContext[Stock], None, False),
        (ToolContext[Stock], "stock", False),
        (ToolContext[Stock] | None, None, False),
        (ToolContext[Stock | None], None, True),
        (ToolContext[Stock | int], 3, True),
        (ToolContext[Stock | int], "stock", False),
        (ToolContext[dict[str, int]], {"sencha": 3}, True),
        (ToolContext[dict[str, int]], [3], False),
        (ToolContext[Annotated[Stock, "all of it"]], STOCK, True),
        (ToolContext[Annotated[Stock, "all of it"]], 3, False),
        (Annotated[ToolContext[Stock], "all of it"], None, False),
        (ToolContext[Counts], 3, True),
        (ToolContext[Counts], None, False),
        (ToolContext[Notes], STOCK, True),
        (ToolContext[Notes], 3, False),
        (ToolContext[Rows], {"sencha": 3}, True),
        (ToolContext[Rows], None, False),
        (ToolContext[Any], None, True),
        (ToolContext[object], None, True),
    ],
)
def test_what_is_given_is_checked_as_far_as_the_annotation_allows(
    expected: object, deps: object, taken: bool
) -> None:
    bound = asking(expected).bind("shop")
    assert bound.spec.parameters["properties"] == {}
    if taken:
        check_deps([bound], deps)
    else:
        with pytest.raises(BundleError, match=r"shop\.look"):
            check_deps([bound], deps)


def test_a_tool_can_be_tested_with_dependencies_and_without_a_harness() -> None:
    context = ToolContext(
        call_id="c1",
        idempotency_key="k1",
        conversation="c",
        turn_id="turn_1",
        user="ann",
        properties={},
        scratchpad={},
        on_progress=lambda _: None,
        deps=Stock({"sencha": 3}),
    )
    assert count_in_a_thread("sencha", context) == 3
    assert "sencha" not in repr(context)


# What makes them


def made_at_once() -> Stock:
    return Stock({"sencha": 4})


async def made_in_time() -> Stock:
    return Stock({"sencha": 4})


@asynccontextmanager
async def made_and_closed() -> AsyncGenerator[Stock]:
    stock = Stock({"sencha": 4})
    yield stock
    stock.seen.append("closed")


@pytest.mark.parametrize("make", [made_at_once, made_in_time, made_and_closed])
async def test_a_bundle_makes_its_own_dependencies(make: Any) -> None:
    bundle = Bundle(id="shop", workflow=Shop, tools=[count], deps=make)
    model = ScriptedModel([Call("shop.count", tea="sencha"), "Four."])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        stock = harness.deps
        await harness.conversation("c").say("How many?")
    assert isinstance(stock, Stock)
    assert stock.seen[:4] == ["hook before", "guard", "async tool", "hook after"]
    assert stock.seen[4:] == (["closed"] if make is made_and_closed else [])


async def test_those_that_are_given_are_used_instead() -> None:
    def never() -> Stock:
        raise AssertionError

    stock = Stock({})
    bundle = Bundle(id="shop", workflow=Shop, deps=never)
    async with Harness.open(bundle, store="memory:", deps=stock) as harness:
        assert harness.deps is stock


async def test_a_factory_that_fails_is_named_with_its_line() -> None:
    def broken() -> Stock:
        raise OSError("no stock today")

    bundle = Bundle(id="shop", workflow=Shop, deps=broken)
    with pytest.raises(BundleError, match="no stock today") as raised:
        async with Harness.open(bundle, store="memory:"):
            pass
    assert line_of(HERE, 'raise OSError("no stock today")') in str(raised.value)
