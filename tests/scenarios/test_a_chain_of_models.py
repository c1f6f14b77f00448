"""Which model is asked, with which settings: that of its role, or the next of a chain; and what the log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import pytest
from pydantic import BaseModel

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    LooplineError,
    ModelSettings,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.bundle import Setting
from loopline.conversations import Conversation
from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
    ModelUnreachable,
    PropertyError,
)
from loopline.events import Delta
from loopline.models import Price, SettingSupport, Usage
from loopline.react import Limits
from loopline.react.model_requests import RetryPolicy
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel, Wait
from loopline.testing.scripted import CapabilityChoices, Entry
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import (
    THIRTEEN,
    at_work,
    bodies,
    bodies_of,
    heard,
    run_turn,
    said,
    workbench,
)


def one(script: Sequence[Entry], **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    return ScriptedModel(script, name="one", strict=False, **capabilities)


def two(script: Sequence[Entry], **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    return ScriptedModel(script, name="two", strict=False, **capabilities)


async def test_after_a_refusal_the_next_model_is_asked_the_same_and_stays_for_the_turn() -> None:
    first, second = one([Refuse(), "Mine again."]), two([Call("w.look"), "Tea.", "Not asked."])
    async with at_work((first, second)) as talk:
        result = await talk.say("go")
        (switched,) = await bodies(talk, tl.ModelSwitched)
        later = await talk.say("and now?")
        models = [start.model for start in await bodies(talk, tl.RoundStart)]
    assert (result.answer, result.rounds, later.answer) == ("Tea.", 2, "Mine again.")
    assert (switched.model, switched.to, switched.why) == ("one", "two", "refusal")
    assert first.requests[0].messages == second.requests[0].messages
    assert models == ["one", "two", "two", "one"]


async def test_a_model_that_cannot_be_asked_gives_way_for_one_request() -> None:
    first = one([Fail("busy"), "Done."])
    second = two([Call("w.look")])
    result, blocks = await run_turn((first, second))
    switched = bodies_of(blocks, tl.ModelSwitched)
    deciders = [decision.model for decision in bodies_of(blocks, tl.Decision)]
    assert (result.answer, deciders) == ("Done.", ["two", "one"])
    assert [(item.why, item.text) for item in switched] == [("unavailable", "busy")]


async def test_a_refusal_behind_a_busy_model_leads_to_the_one_after_it_for_the_rest_of_the_turn() -> (
    None
):
    first, second = one([Fail("busy"), "Mine."]), two([Refuse()])
    third = ScriptedModel([Call("w.look"), "Tea."], name="three")
    async with at_work((first, second, third)) as talk:
        answers = [(await talk.say("go")).answer, (await talk.say("and now?")).answer]
        switched = await bodies(talk, tl.ModelSwitched)
        models = [start.model for start in await bodies(talk, tl.RoundStart)]
    assert answers == ["Tea.", "Mine."]
    assert [(item.why, item.place) for item in switched] == [("unavailable", 1), ("refusal", 2)]
    assert models == ["one", "two", "three", "three", "one"]


async def test_no_model_reads_that_another_refused() -> None:
    second = two(["Tea."])
    _, blocks = await run_turn((one([Refuse()]), second))
    assert bodies_of(blocks, tl.Notice) == []
    assert "refus" not in str(second.requests[0])


async def test_when_the_last_of_a_chain_refuses_the_turn_is_refused() -> None:
    async with at_work((one([Refuse()]), two([Refuse()]))) as talk:
        assert (await talk.say("go")).exit_reason == "refused"


async def test_when_none_of_a_chain_can_be_asked_the_turn_says_what_the_last_said() -> None:
    result, _ = await run_turn((one([Fail("busy")]), two([Fail("gone")])))
    assert (result.exit_reason, result.error) == ("error", "gone")


@pytest.mark.parametrize("entry", [Refuse(), Fail("busy")])
async def test_with_chain_first_every_request_is_made_of_the_first(entry: Entry) -> None:
    second = two(["Tea."])
    async with at_work((one([entry]), second), workbench(chain="first")) as talk:
        assert not (await talk.say("go")).ok
        assert await bodies(talk, tl.ModelSwitched) == []
    assert second.requests == []


async def test_what_a_broken_reply_has_shown_is_void_before_the_next_model_writes() -> None:
    async with at_work((one([Fail("cut", after="Half a")]), two(["Whole."]))) as talk:
        events = await heard(talk, "go")
    assert said(events) == "Whole."
    kinds = [event.type for event in events if isinstance(event, Delta)]
    assert kinds == ["delta", "reset", "delta"]


async def test_another_model_is_an_epoch_of_its_own_and_speaks_its_own_protocol() -> None:
    second = two([Call("w.look"), "Tea."], tool_call=False)
    async with at_work((one([Refuse()]), second)) as talk:
        assert (await talk.say("go")).answer == "Tea."
        starts = await bodies(talk, tl.RoundStart)
    assert [(item.model, item.protocol) for item in starts] == [
        ("one", "native"),
        ("two", "tagged"),
        ("two", "tagged"),
    ]
    assert [item.opened_by for item in starts] == ["start", "model,protocol,instructions", ""]


async def test_the_answer_of_a_synthesis_comes_from_the_next_model_too() -> None:
    first = one([Call("w.look"), "Draft.", Fail("busy")])
    async with at_work((first, two(["Written."])), workbench(answer_mode="synthesize")) as talk:
        assert (await talk.say("go")).answer == "Written."


async def test_an_attempt_that_was_refused_counts_among_what_the_turn_used_and_is_no_round() -> (
    None
):
    price = Price(input=1_000_000, output=0, cache_read=0, cache_write=0)
    used = Usage(input_tokens=7, output_tokens=1)
    second = two([Say("Tea.", usage=Usage(input_tokens=10, output_tokens=2))], price=price)
    result, _ = await run_turn((one([Refuse(used)], price=price), second))
    assert (result.usage, result.cost) == (Usage(input_tokens=17, output_tokens=3), 17.0)
    assert result.rounds == 1


async def test_the_header_names_the_whole_chain() -> None:
    _, blocks = await run_turn((one(["Tea."]), two([])))
    (header,) = bodies_of(blocks, tl.TurnHeader)
    assert (header.model, header.then) == ("one", ("two",))


async def test_a_turn_that_is_carried_on_stays_with_the_model_that_a_refusal_led_to() -> None:
    log = CrashingLog(tl.MemoryLog(FakeClock()), 6)
    script: list[Entry] = [Call("w.look"), "Tea."]
    with pytest.raises(Crashed):
        await run_turn((one([Refuse()]), two(script)), store=log)
    log.left = None
    first, second = one(["Not I."]), two(["Tea."])
    async with at_work((first, second), store=log) as talk:
        assert (await talk.resume()).answer == "Tea."
        models = [start.model for start in await bodies(talk, tl.RoundStart)]
    assert first.requests == []
    assert models[0] == "one"
    assert set(models[1:]) == {"two"}


async def test_a_workflow_may_bring_a_chain_of_its_own() -> None:
    class Own(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(model=[one([Refuse()]), two(["Tea."])])
            return await react.run(payload)

    own = Bundle(id="own", workflow=Own)
    async with Harness.open(own, store="memory:", model=ScriptedModel([])) as harness:
        assert (await harness.conversation("c").say("go")).answer == "Tea."


async def test_a_function_may_give_a_chain_for_each_run() -> None:
    chains = [[one(["Tea."])], [one([Refuse()]), two(["Pie."])]]
    async with Harness.open(
        workbench(), store="memory:", model=lambda: chains.pop(0), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        assert [(await talk.say("go")).answer, (await talk.say("go")).answer] == ["Tea.", "Pie."]


async def test_model_strings_may_be_several() -> None:
    async with Harness.open(workbench(), store="memory:", model="offline, offline") as harness:
        await (talk := harness.conversation("c")).say("go")
        (header,) = await bodies(talk, tl.TurnHeader)
    assert (header.model, header.then) == ("offline", ("offline",))


@pytest.mark.parametrize(
    ("value", "words"), [([], "needs at least one"), ("offline,gpt", "no model 'gpt'")]
)
def test_a_chain_of_nothing_or_of_what_does_not_work_is_refused(value: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Harness.open(workbench(), store="memory:", model=value)


async def test_a_run_that_is_bound_asks_one_model_alone() -> None:
    first = ScriptedModel([Call("w.look"), "Brief.", "Written."])
    second = ScriptedModel([])
    async with at_work((first, second), workbench(preset="fim", tools=["w.look"])) as talk:
        assert (await talk.say("go")).answer == "Written."
    assert (len(first.requests), second.requests) == (3, [])


@pytest.mark.parametrize("line", [Refuse(), Fail(ModelTimedOut("one: no reply in 180 s"))])
async def test_after_a_refusal_or_a_timeout_another_model_is_asked_the_same(
    line: Refuse | Fail,
) -> None:
    first = ScriptedModel([line] * 4, name="one", strict=False)
    second = ScriptedModel(["Tea."], name="two")
    async with at_work((first, second), workbench(preset="beakr")) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert len(first.requests) == 1
    assert first.requests[0].messages == second.requests[0].messages


@pytest.mark.parametrize(
    ("of_bundle", "of_turn", "sent"),
    [({}, {}, ""), ({"reasoning_effort": "low"}, {}, "low"),
     ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, "high")],
)  # fmt: skip
async def test_an_effort_is_passed_on_and_one_of_the_turn_wins(
    of_bundle: Limits, of_turn: Limits, sent: str
) -> None:
    model = ScriptedModel(["Done."])
    await run_turn(model, workbench(**of_bundle), **of_turn)
    assert model.requests[0].options.reasoning_effort == sent


LATER = [
    ModelRateLimited("busy", retry_after=2.0),
    ModelOverloaded("busy"),
    ModelTimedOut("silent"),
    ModelUnreachable("away"),
    ModelStreamBroken("cut"),
]


@pytest.mark.parametrize("error", LATER, ids=lambda one: type(one).__name__)
async def test_what_may_be_answered_later_is_asked_again(error: ModelError) -> None:
    model = ScriptedModel([Fail(error), Fail(error), "Tea."])
    result, blocks = await run_turn(model)
    (decision,) = bodies_of(blocks, tl.Decision)
    assert (result.answer, result.rounds, decision.attempt) == ("Tea.", 1, 3)
    assert len({id(request) for request in model.requests}) == 1


async def test_after_three_more_attempts_it_is_given_up() -> None:
    model = ScriptedModel([Fail(ModelOverloaded("busy"))] * 5, strict=False)
    result, _ = await run_turn(model)
    assert (result.exit_reason, len(model.requests)) == ("error", 4)


@pytest.mark.parametrize("retries", [0, 1])
async def test_how_often_is_a_policy(retries: int) -> None:
    model = ScriptedModel([Fail(ModelOverloaded("busy"))] * 5, strict=False)
    await run_turn(model, workbench(model_retries=retries))
    assert len(model.requests) == 1 + retries


@pytest.mark.parametrize("error", [ModelAccessError("no key"), ModelRequestError("no such tool")])
async def test_what_somebody_must_mend_is_neither_asked_again_nor_of_another(
    error: ModelError,
) -> None:
    first, second = ScriptedModel([Fail(error)]), ScriptedModel([])
    result, _ = await run_turn((first, second))
    assert (result.exit_reason, len(first.requests), second.requests) == ("error", 1, [])
    assert str(error) in result.error


async def test_the_next_model_is_asked_when_the_attempts_are_over() -> None:
    first = ScriptedModel([Fail(ModelOverloaded("busy"))] * 4, name="one")
    async with at_work((first, ScriptedModel(["Tea."], name="two"))) as talk:
        assert (await talk.say("go")).answer == "Tea."
        (switched,) = await bodies(talk, tl.ModelSwitched)
    assert (switched.why, len(first.requests)) == ("unavailable", 4)


async def test_text_that_was_shown_is_never_doubled() -> None:
    cut = ModelStreamBroken("cut")
    async with at_work([Fail(cut, after="Half"), Fail(cut, after="Half a"), "Whole."]) as talk:
        events = await heard(talk, "go")
    deltas = [(delta.type, delta.attempt) for delta in events if isinstance(delta, Delta)]
    assert said(events) == "Whole."
    assert deltas == [
        *[("delta", 1), ("reset", 1), ("progress", 1)],
        *[("delta", 2), ("reset", 2), ("progress", 2)],
        ("delta", 3),
    ]


async def test_a_wait_is_at_least_what_the_server_asks_for_and_part_of_a_doubling_one() -> None:
    patience = RetryPolicy(clock=FakeClock(), retries=3, jitter=lambda: 0.5)
    waits = [patience.delay(attempt, ModelOverloaded("busy")) for attempt in (1, 2, 3, 4)]
    assert waits == [0.5, 1.0, 2.0, None]
    assert patience.delay(1, ModelRateLimited("busy", retry_after=7.0)) == 7.0
    assert patience.delay(1, ModelRateLimited("busy", retry_after=61.0)) is None


async def test_the_wait_passes_on_the_clock_of_the_harness() -> None:
    clock = FakeClock()
    began = clock.now()
    model = ScriptedModel([Fail(ModelRateLimited("busy", retry_after=30.0)), "Tea."])
    await run_turn(model, clock=clock)
    assert (clock.now() - began).total_seconds() >= 30


TOOLS_SPECS = [{"module": __name__, "alias": "desk"}]


@tool(effect="meta")
async def quickly(task: str, role: str, context: ToolContext) -> str:
    """Have something done by a model of a role."""
    return (await context.spawn(task, model=role)).answer


def named(name: str, *script: Entry) -> ScriptedModel:
    return ScriptedModel(script, name=name, strict=False)


def bundle(role: str | None = None) -> Bundle:
    class Desk(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(tools_module=__name__, model=role)
            return await react.run(payload)

    return Bundle(id="desk", workflow=Desk)


async def chains(talk: Conversation) -> list[list[str]]:
    return [[header.model, *header.then] for header in await bodies(talk, tl.TurnHeader)]


@pytest.mark.parametrize(
    ("role", "chain"),
    [
        ("fast", ["quick"]),
        ("reasoning", ["deep", "deeper"]),
        ("unheard of", ["usual"]),
        (None, ["usual"]),
    ],
)
async def test_a_workflow_is_done_by_the_models_of_its_role(
    role: str | None, chain: list[str]
) -> None:
    models: Mapping[str, ScriptedModel | Sequence[ScriptedModel]] = {
        "general": named("usual", "Done."),
        "fast": named("quick", "Done."),
        "reasoning": [named("deep", "Done."), named("deeper")],
    }
    async with Harness.open(bundle(role), store="memory:", model=models) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "Done."
        assert await chains(talk) == [chain]


async def test_a_child_run_is_done_by_the_models_of_its_role_and_one_without_by_its_parents() -> (
    None
):
    usual = named(
        "usual",
        Call("desk.quickly", task="a", role="fast"),
        Call("desk.quickly", task="b", role="unheard of"),
        "B is done.",
        "Both.",
    )
    models = {"general": usual, "fast": named("quick", "A is done.")}
    async with Harness.open(bundle(), store="memory:", model=models) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "Both."
        below = [harness.conversation(name) for name in ("c~c1", "c~c2")]
        assert [await chains(child) for child in below] == [[["quick"]], [["usual"]]]


async def test_tools_are_chosen_by_the_fast_model_where_there_is_one() -> None:
    picks = Call("select_tools", tools=["w.look"])
    quick = ScriptedModel([], aux={"selection": [picks]}, name="quick")
    models = {"general": named("usual", "Done."), "fast": quick}
    opened = Harness.open(
        workbench(tools=THIRTEEN, select_tools=True),
        store="memory:",
        model=models,
        clock=FakeClock(),
    )
    async with opened as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        (chosen,) = await bodies(talk, tl.ToolsSelected)
    assert (chosen.model, "w.look" in chosen.names, "w.big" in chosen.names) == (
        "quick",
        True,
        False,
    )


async def test_a_workflow_that_names_a_model_string_is_told_where_that_goes() -> None:
    async with Harness.open(
        bundle("openai:gpt-5"), store="memory:", model=named("usual")
    ) as harness:
        with pytest.raises(ModelError, match="is a model string"):
            await harness.conversation("c").say("go")


def sent(model: ScriptedModel) -> list[ModelSettings | None]:
    return [request.options.settings for request in model.requests]


class Layered(BaseWorkflow):
    settings = ModelSettings(temperature=0.1, seed=1, stop="a", top_p=0.1)

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            settings=ModelSettings(stop="build", presence_penalty=0.3, max_tokens=30)
        )
        return await react.run(payload)


async def test_each_layer_overrides_those_before_it() -> None:
    model = ScriptedModel([Say("Tea.")], settings=ModelSettings(temperature=0.9, timeout=9))
    bundle = Bundle(
        id="tea", workflow=Layered, settings=ModelSettings(seed=2, presence_penalty=0.2)
    )
    properties: dict[str, Setting] = {
        "react.settings": {"max_tokens": 40, "frequency_penalty": 0.4}
    }
    async with talking(model, bundle=bundle, properties=properties) as conversation:
        await conversation.say("Tea?", settings=ModelSettings(frequency_penalty=0.5))
        [round_start] = await bodies(conversation, tl.RoundStart)
    expected = ModelSettings(
        timeout=9,  # of the model
        temperature=0.1,  # of the workflow class
        top_p=0.1,
        seed=2,  # of the bundle
        stop="build",  # of build_react
        presence_penalty=0.3,
        max_tokens=40,  # of the properties
        frequency_penalty=0.5,  # of the message
    )
    assert sent(model) == [expected]
    assert round_start.settings == expected.stored()
    assert model.requests[0].options.output_limit == 40
    assert model.requests[0].options.stop == ("build",)


def described(folder: Path, settings: str) -> Path:
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from loopline import BaseWorkflow, Bundle\n"
        "class Shop(BaseWorkflow):\n"
        "    async def process(self, payload):\n"
        f"        react = await self.build_react(tools_module='{folder.name}.tools_descriptor')\n"
        "        return await react.run(payload)\n"
        "bundle = Bundle(id='shop', workflow=Shop)\n"
    )
    (folder / "tools_descriptor.py").write_text(f"TOOLS_SPECS = []\nMODEL_SETTINGS = {settings}\n")
    return folder


async def test_a_descriptor_has_settings_too(tmp_path: Path) -> None:
    folder = described(tmp_path / "right", "{'temperature': 0.3}")
    model = ScriptedModel([Say("Tea.")])
    await play_turn(model, "Tea?", bundle=folder)
    assert sent(model) == [ModelSettings(temperature=0.3)]


async def test_an_unknown_setting_of_a_descriptor_gets_the_nearest_name(tmp_path: Path) -> None:
    folder = described(tmp_path / "wrong", "{'temprature': 0.3}")
    model = ScriptedModel([], strict=False)
    async with talking(model, bundle=folder) as talk:
        with pytest.raises(BundleError, match=r"tools_descriptor.py:2: .*'temperature'"):
            await talk.say("Tea?")


async def test_an_agent_has_its_own_settings_and_those_of_the_message() -> None:
    taster = Agent(
        name="taster", description="Tastes.", settings=ModelSettings(temperature=0.9, seed=5)
    )
    bundle = Bundle(id="tea", agents=[taster], settings=ModelSettings(temperature=0.1, top_p=0.5))
    script: list[Entry] = [
        Call("crew.delegate", agent="taster", task="Taste."),
        Say("Good."),
        Say("It is good."),
    ]
    model = ScriptedModel(script)
    async with talking(model, bundle=bundle) as talk:
        await talk.say("Tea?", settings=ModelSettings(seed=7))
    of_bundle = ModelSettings(temperature=0.1, top_p=0.5, seed=7)
    of_agent = ModelSettings(temperature=0.9, top_p=0.5, seed=7)
    assert sent(model) == [of_bundle, of_agent, of_bundle]


NO_SAMPLING = SettingSupport(seed=True)


async def test_a_setting_that_the_model_does_not_support_ends_the_turn_before_any_request() -> None:
    model = ScriptedModel([], accepts=NO_SAMPLING)
    bundle = Bundle(id="tea", settings=ModelSettings(temperature=0.2))
    async with talking(model, bundle=bundle) as talk:
        with pytest.raises(ModelRequestError, match=r"scripted does not support temperature=0\.2"):
            await talk.say("Tea?")
    assert not model.requests


async def test_a_setting_that_is_dropped_is_recorded_with_the_reason() -> None:
    model = ScriptedModel([Say("Tea.")], accepts=NO_SAMPLING)
    settings = ModelSettings(temperature=0.2, seed=1, unsupported="drop")
    async with talking(model, bundle=Bundle(id="tea", settings=settings)) as conversation:
        await conversation.say("Tea?")
        [round_start] = await bodies(conversation, tl.RoundStart)
    assert round_start.settings == {"seed": 1, "unsupported": "drop"}
    assert round_start.dropped_settings == {"temperature": "scripted does not support it"}
    assert sent(model) == [ModelSettings(seed=1, unsupported="drop")]


async def test_a_message_with_a_header_that_names_a_credential_is_not_stored() -> None:
    async with talking(ScriptedModel([], strict=False), bundle=Bundle(id="tea")) as conversation:
        with pytest.raises(LooplineError, match="'X-Api-Token' would be stored"):
            await conversation.say(
                "Tea?", settings=ModelSettings(extra_headers={"X-Api-Token": "s"})
            )


async def test_a_property_that_is_no_setting_gets_the_nearest_name() -> None:
    with pytest.raises(PropertyError, match="no setting 'temprature', nearest is 'temperature'"):
        async with Harness.open(
            Bundle(id="tea"),
            store="memory:",
            model=ScriptedModel([]),
            properties={"react.settings.temprature": 0.2},
        ):
            pass


async def test_a_message_in_the_queue_keeps_its_settings() -> None:
    model = ScriptedModel([Wait(0.05), Say("One."), Say("Two."), Say("Three.")])
    async with talking(model, bundle=Bundle(id="tea")) as conversation:
        await asyncio.gather(
            conversation.say("One?", settings=ModelSettings(temperature=0.1)),
            conversation.say("Two?", settings=ModelSettings(temperature=0.2)),
            conversation.say("Three?"),
        )
        asked = [(body.text, restored(body)) for body in await bodies(conversation, tl.UserPrompt)]
        answered = await bodies(conversation, tl.RoundStart)
    assert sorted(asked) == [("One?", 0.1), ("Three?", None), ("Two?", 0.2)]
    temperatures = [restored(round_start) for round_start in answered]
    assert temperatures == [temperature for _, temperature in asked]


def restored(body: tl.UserPrompt | tl.RoundStart) -> object:
    return body.settings.get("temperature")


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


SETTINGS = ModelSettings(temperature=0.4, seed=3, stop=["END"], extra_headers={"X-Trace": "1"})


@pytest.mark.parametrize("appends", [1, 4], ids=["before the first round", "in a tool"])
async def test_a_turn_that_was_cut_off_goes_on_with_the_settings_of_its_message(
    appends: int,
) -> None:
    bundle, memory = Bundle(id="tea", tools=[look]), tl.MemoryLog(FakeClock())
    first = ScriptedModel([Call("tea.look"), "Tea."], strict=False)
    with pytest.raises(Crashed):
        async with talking(first, bundle=bundle, store=CrashingLog(memory, appends)) as talk:
            await talk.say("Tea?", settings=SETTINGS)
    model = ScriptedModel(["Tea."])
    async with talking(model, bundle=bundle, store=memory) as talk:
        await talk.resume()
        recorded = await bodies(talk, tl.RoundStart)
    assert sent(model) == [SETTINGS]
    assert [item.settings for item in recorded] == [SETTINGS.recorded()] * len(recorded)


@tool(effect="read")
def ask(context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user("Green?")


async def test_a_turn_is_resumed_with_other_settings_over_those_of_its_message() -> None:
    model = ScriptedModel([Call("tea.ask"), Say("Tea.")])
    async with talking(model, bundle=Bundle(id="tea", tools=[ask]), name="c1") as conversation:
        paused = await conversation.say("Tea?", settings=ModelSettings(seed=1, top_p=0.5))
        await conversation.resume(
            {paused.pending[0].call_id: "yes"}, settings=ModelSettings(seed=2)
        )
    assert sent(model) == [ModelSettings(seed=1, top_p=0.5), ModelSettings(seed=2, top_p=0.5)]


class Advice(BaseModel):
    minutes: int


async def test_a_typed_answer_is_asked_for_with_the_settings() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')], json_schema=True, schema_beside_tools=True)
    bundle = Bundle(id="tea", output_type=Advice, settings=ModelSettings(temperature=0))
    async with talking(model, bundle=bundle) as talk:
        assert (await talk.say("Tea?")).output == Advice(minutes=3)
    assert sent(model) == [ModelSettings(temperature=0)]
