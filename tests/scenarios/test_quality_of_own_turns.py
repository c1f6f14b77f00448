"""The user's own turn is planned first, and its draft is refined and verified before it is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loopline import Bundle, Harness
from loopline.crew import Hyde, PlanFirst, Quality, Refine, Reflexion, Verify, with_environment
from loopline.testing import Call, FakeClock
from loopline.timeline import Completion, Draft, Lesson, RunChild
from tests.support.child_runs import Line
from tests.support.crews import Scripts, desk, find

LONG = "The lake is deep and cold, and nobody has ever seen its ground, which lies far below. " * 4
WRONG = "<status>discrepancy</status><discrepancies>- 90 m</discrepancies><final>90 m deep.</final>"


def own(quality: Quality) -> Bundle:
    return replace(desk(), quality=replace(quality, own_turns=True))


async def test_a_draft_is_refined_and_verified_before_it_is_the_answer() -> None:
    model = Scripts(
        {
            "Go": [LONG, Call("crew.review")],
            "[REFINE_DRAFT]": [
                f"<revised>{LONG} It is 9 m deep, which is not much at all.</revised>"
            ],
            "[NUM_QUESTIONS=3]": ["<questions>1. How deep?</questions>"],
            "How deep?": ["90 m."],
            "[COMPARE]": [WRONG],
        }
    )
    bundle = own(Quality(refine=Refine(), verify=Verify(rewrite=True)))
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go")
        bodies = [block.body for block in await talk.blocks()]
    assert result.answer == "90 m deep."
    assert [body.text for body in bodies if isinstance(body, Draft)] == [LONG]
    assert [body.text for body in bodies if isinstance(body, Completion)] == ["90 m deep."]
    agents = [body.agent for body in bodies if isinstance(body, RunChild) and body.reason]
    assert agents == ["refiner", "verifier", "answerer", "verifier"]
    assert "It is 9 m deep" in model.prompt_of("[COMPARE]")
    assert result.usage.input_tokens == 10 * 6


async def test_a_draft_that_its_model_does_not_have_checked_is_the_answer_the_second_time() -> None:
    model = Scripts({"Go": [LONG, "I am sure."]})
    async with Harness.open(
        own(Quality(refine=Refine())), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        assert (await harness.conversation("c").say("Go")).answer == "I am sure."


HARD = "Refactor a.py and b.py, then update c.py, test it and finally document the change"
ALONE = Bundle(id="desk", instructions="Keep the desk.", tools=[find])


@pytest.mark.parametrize(
    ("bundle", "agents", "told"),
    [(desk(), ["reader"], "reader"), (desk(), [], "main"), (ALONE, [], "main")],
    ids=["an agent", "agents that the hook does not name", "no agents"],
)
async def test_a_hard_task_of_the_user_is_planned_first(
    bundle: Bundle, agents: Sequence[str], told: str
) -> None:
    plan = f'{{"steps": [{{"id": "E1", "agent": "{told}", "task": "look at all"}}]}}'
    lines: dict[str, list[Line]] = {
        "crew.prepare": [Call("crew.prepare"), "Done."],
        "Plan this task": [plan],
        "look at all": [Call("desk.find", name="tea"), "It is small."],
    }
    model = Scripts(lines)
    quality = Quality(own_turns=True, plan_first=PlanFirst(agents=agents))
    planned = replace(bundle, quality=quality)
    async with Harness.open(planned, store="memory:", model=model, clock=FakeClock()) as harness:
        assert (await harness.conversation("c").say(HARD)).answer == "Done."
    reminder, message = model.requests["crew.prepare"][0].messages
    assert "The task that follows takes several steps: call crew.prepare first" in str(reminder)
    assert HARD in str(message)
    assert f"Agents: {told}. " in model.prompt_of("Plan this task")
    assert f"E1 ({told}, done): look at all\nIt is small." in model.prompt_of("crew.prepare")
    own = bundle.instructions if told == "main" else "Read."
    assert own in model.requests["look at all"][0].system


async def test_a_turn_that_fails_is_learnt_from() -> None:
    lesson = "<situation>s</situation><correction>Search less</correction>"
    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(20)]
    model = Scripts({"Go": calls, "[REFLEXION]": [lesson]})
    async with Harness.open(
        own(Quality(reflexion=Reflexion())), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go", max_iterations=3, on_exhausted="partial")
        assert await harness.drain(5)
        bodies = [block.body for block in await talk.blocks()]
    assert result.exit_reason == "max_iterations"
    assert [body.correction for body in bodies if isinstance(body, Lesson)] == ["Search less"]


# The environment


def test_the_environment_changes_the_quality_that_it_names() -> None:
    quality = with_environment(
        Quality(verify=Verify(questions=2)),
        {
            "CHATCLI_QUALITY_REFINE_ENABLED": "yes",
            "CHATCLI_QUALITY_REFINE_MAX_PASSES": "3",
            "CHATCLI_QUALITY_REFINE_EXCLUDE": "Git, shell",
            "CHATCLI_QUALITY_REFINE_CONVERGENCE_STRICT": "on",
            "CHATCLI_QUALITY_VERIFY_REWRITE": "1",
            "CHATCLI_QUALITY_REFLEXION_ENABLED": "TRUE",
            "CHATCLI_QUALITY_REFLEXION_ON_HALLUCINATION": "off",
            "CHATCLI_QUALITY_REFLEXION_QUEUE_STALE_AFTER": "48h",
            "CHATCLI_QUALITY_PLAN_FIRST_MODE": "always",
            "CHATCLI_QUALITY_HYDE_ENABLED": "1",
            "CHATCLI_QUALITY_HYDE_NUM_KEYWORDS": "7",
            "CHATCLI_QUALITY_REASONING_MODE": "on",
            "CHATCLI_QUALITY_REASONING_BUDGET": "8000",
        },
    )
    assert quality is not None
    assert quality.refine == Refine(max_passes=3, excluded=("git", "shell"), strict=True)
    assert quality.verify == Verify(questions=2, rewrite=True)
    assert quality.reflexion == Reflexion(on_discrepancy=False, stale_days=2.0)
    assert quality.plan_first == PlanFirst(mode="always")
    assert quality.hyde == Hyde(keywords=7)
    assert quality.reasoning.effort("scout") == "high"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REFINE_ENABLED", "perhaps"),
        ("VERIFY_NUM_QUESTIONS", "-1"),
        ("PLAN_FIRST_MODE", "sometimes"),
        ("REASONING_MODE", "wild"),
        ("REFLEXION_QUEUE_STALE_AFTER", "soon"),
        ("ENABLED", ""),
    ],
)
def test_junk_in_the_environment_changes_nothing(name: str, text: str) -> None:
    before = Quality(verify=Verify(), reflexion=Reflexion())
    assert with_environment(before, {f"CHATCLI_QUALITY_{name}": text}) == before
    assert with_environment(None, {}) is None


async def test_the_environment_counts_in_the_preset_chatcli_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHATCLI_QUALITY_REFINE_ENABLED", "true")
    go: list[Line] = [Call("crew.delegate", agent="writer", task="Write"), "Ok."]
    model = Scripts({"Go": go, "Write": [LONG], "[REFINE_DRAFT]": ["<revised>Short.</revised>"]})
    async with Harness.open(
        desk(), store="memory:", model=model, properties={"react.preset": "chatcli"}
    ) as harness:
        await harness.conversation("c").say("Go")
        assert len(model.requests["[REFINE_DRAFT]"]) == 1
    async with Harness.open(desk(), store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go")
        assert len(model.requests["[REFINE_DRAFT]"]) == 1
