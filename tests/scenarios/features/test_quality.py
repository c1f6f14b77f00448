"""Refine, Verify and the other steps around an agent's run, and around the user's own turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, product

import pytest

from loopline import Bundle, Harness, LooplineError, ToolError, TurnResult
from loopline.crew import (
    AgentCall,
    AgentResult,
    Agents,
    HookedRun,
    Hyde,
    NewCall,
    PlanFirst,
    Quality,
    QualityPipeline,
    Refine,
    Reflexion,
    SkipHooks,
    SkipRun,
    Verify,
)
from loopline.crew.agents import effort_of_budget
from loopline.crew.dispatcher import Dispatcher
from loopline.crew.pipeline import PostHook, PostOutcome, PreOutcome, RunAgent
from loopline.crew.plan_first import complexity, parse_work_plan, resolve_placeholders
from loopline.crew.quality import with_environment
from loopline.events import AgentEvent
from loopline.search import EmbeddingError, SharedEmbedder
from loopline.testing import Call, FakeClock
from loopline.timeline import Completion, Draft, Lesson, RunChild, ToolResult
from tests.bench.quality import QUALITIES, row
from tests.docs.pages import ROOT
from tests.support.child_runs import Line
from tests.support.crews import AGENTS, READER, Scripts, desk, find
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.vectors_in_memory import WordEmbedder

CALL = AgentCall(agent="reader", task="Read")
LONG = "The lake is deep and cold, and nobody has ever seen its ground, which lies far below. " * 4


def answer(text: str) -> TurnResult:
    return TurnResult(answer=text, turn_id="turn_1", exit_reason="complete", ok=True)


@dataclass
class Worker:
    """Runs that answer by a function of the call; `calls` are those it got."""

    reply: Callable[[AgentCall], str] = lambda call: f"did {call.task}"
    calls: list[AgentCall] = field(default_factory=list[AgentCall])

    async def __call__(self, call: AgentCall) -> TurnResult:
        self.calls.append(call)
        return answer(self.reply(call))

    def of_hook(self, number: int) -> RunAgent:
        """Return what a hook has agents work by."""
        del number
        return self


@dataclass
class Before:
    outcome: PreOutcome | Exception = None
    calls: int = 0

    async def before(self, run: HookedRun) -> PreOutcome:
        del run
        self.calls += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@dataclass
class Prefix:
    text: str

    async def before(self, run: HookedRun) -> PreOutcome:
        return NewCall(replace(run.call, task=f"{self.text}{run.call.task}"))


@dataclass
class Suffix:
    text: str
    skip: bool = False

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        del run
        changed = replace(result, text=f"{result.answer}{self.text}")
        return SkipHooks(changed) if self.skip else changed


class Stuck:
    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        del run, result
        self.begun.set()
        await asyncio.Event().wait()
        return None


def pipeline(
    *hooks: Before | Prefix | PlanFirst | PostHook, clock: FakeClock | None = None
) -> QualityPipeline:
    """Return a pipeline with these hooks, each before or after the run."""
    through = QualityPipeline(clock=clock or FakeClock())
    for hook in hooks:
        if isinstance(hook, Before | Prefix | PlanFirst):
            through.add_before(hook)
        else:
            through.add_after(hook)
    return through


async def run(through: QualityPipeline, worker: Worker, call: AgentCall = CALL) -> AgentResult:
    return await through.run(call, worker, worker.of_hook)


async def test_without_hooks_or_switched_off_a_run_is_the_agents_alone() -> None:
    worker, off = Worker(), QualityPipeline(clock=FakeClock(), enabled=False)
    off.add_after(Suffix("!"))
    assert (await run(off, worker)).answer == (await run(pipeline(), worker)).answer == "did Read"
    assert worker.calls == [CALL, CALL]


async def test_hooks_before_the_run_change_the_task_one_after_the_other() -> None:
    through = pipeline(Prefix("[1]"), Prefix("[2]"))
    assert (await run(through, Worker())).answer == "did [2][1]Read"


async def test_a_hook_may_stand_in_for_the_run_and_hooks_after_it_are_called() -> None:
    worker = Worker()
    result = await run(pipeline(Before(SkipRun("instead")), Suffix("!")), worker)
    assert (result.answer, result.problem, worker.calls) == ("instead!", "", [])


async def test_a_lower_priority_comes_first_and_else_the_order_of_adding() -> None:
    through, worker = pipeline(), Worker()
    through.add_after(Suffix("c"))
    through.add_after(Suffix("d"))
    through.add_after(Suffix("a"), 1)
    through.add_after(Suffix("b"), 99)
    assert (await run(through, worker)).answer == "did Readabcd"


async def test_the_rest_of_a_phase_can_be_skipped() -> None:
    skipped = Before()
    through = pipeline(Before(SkipHooks()), skipped, Suffix("a", skip=True), Suffix("b"))
    assert (await run(through, Worker())).answer == "did Reada"
    assert skipped.calls == 0


async def test_a_hook_that_fails_changes_nothing() -> None:
    through = pipeline(Before(ValueError("broken")), Suffix("!"))
    assert (await run(through, Worker())).answer == "did Read!"


async def test_a_hook_that_takes_thirty_seconds_is_left_behind() -> None:
    clock, stuck = FakeClock(), Stuck()
    running = asyncio.ensure_future(run(pipeline(stuck, clock=clock), Worker()))
    await stuck.begun.wait()
    clock.advance(29)
    await asyncio.sleep(0)
    assert not running.done()
    clock.advance(1)
    assert (await running).answer == "did Read"


async def test_after_five_failures_a_hook_rests_for_thirty_seconds_and_is_tried_once() -> None:
    clock, worker, hook = FakeClock(), Worker(), Before(ValueError("broken"))
    through = pipeline(hook, clock=clock)
    for _ in range(9):
        await run(through, worker)
    assert hook.calls == 5
    clock.advance(30)
    await run(through, worker)
    await run(through, worker)
    assert hook.calls == 6
    clock.advance(30)
    hook.outcome = None
    await run(through, worker)
    await run(through, worker)
    assert hook.calls == 8


async def test_fifty_runs_at_once_do_not_mix() -> None:
    through, worker = pipeline(Prefix(">"), Suffix("<")), Worker()
    calls = [AgentCall(agent="reader", task=f"{number}") for number in range(50)]
    results = await asyncio.gather(*(run(through, worker, call) for call in calls))
    assert [result.answer for result in results] == [f"did >{n}<" for n in range(50)]


async def test_a_run_keeps_the_hooks_that_there_were_when_it_began() -> None:
    through, begun, go = pipeline(Suffix("a")), asyncio.Event(), asyncio.Event()

    async def slow(call: AgentCall) -> TurnResult:
        begun.set()
        await go.wait()
        return answer(call.task)

    running = asyncio.ensure_future(through.run(CALL, slow, Worker().of_hook))
    await begun.wait()
    before = through.generation
    through.add_after(Suffix("b"))
    go.set()
    assert (await running).answer == "Reada"
    assert through.generation == before + 1
    assert (await run(through, Worker())).answer == "did Readab"


async def test_draining_takes_no_more_hooks_and_waits_no_longer_than_told() -> None:
    clock, stuck = FakeClock(), Stuck()
    through = pipeline(stuck, clock=clock)
    running = asyncio.ensure_future(run(through, Worker()))
    await stuck.begun.wait()
    draining = asyncio.ensure_future(through.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(LooplineError, match="drained"):
        through.add_after(Suffix("!"))
    assert (await run(through, Worker())).answer == "did Read"
    clock.advance(5)
    assert await draining is False
    clock.advance(25)
    await running
    assert await through.drain(5) is True


async def test_an_agent_that_fails_has_an_error_and_hooks_see_it() -> None:
    async def broken(call: AgentCall) -> TurnResult:
        raise ToolError(f"{call.agent} broke")

    result = await pipeline(Suffix("!")).run(CALL, broken, Worker().of_hook)
    assert (result.problem, result.answer) == ("reader broke", "!")


# Refining


def revised(text: str) -> str:
    return f"<critique>dull</critique><revised>{text}</revised>"


async def refined(
    reply: Callable[[AgentCall], str], draft: str = LONG, passes: int = 1
) -> AgentResult:
    through = pipeline(Refine(max_passes=passes))
    return await through.run(CALL, Worker(lambda call: draft), Worker(reply).of_hook)


@pytest.mark.parametrize(
    "better",
    [
        "Nobody has ever seen the ground of the cold lake.",
        f"{LONG} It is also very wide, as wide as three other lakes are together.",
        LONG.replace("cold", "icy"),
    ],
)
async def test_a_draft_is_rewritten(better: str) -> None:
    result = await refined(lambda call: revised(better))
    assert result.answer == better.strip()
    assert dict(result.notes) == {"refine_passes": 1}


@pytest.mark.parametrize(
    "reply",
    [
        "<critique>It is fine.</critique><revised></revised>",
        "<critique>It is fine.</critique><revised> \n</revised>",
        "<critique>It is fine as it is, deep and cold lake and all.</critique>",
        "",
    ],
)
async def test_a_refiner_that_has_nothing_to_change_leaves_the_draft_alone(reply: str) -> None:
    result = await refined(lambda call: reply, passes=2)
    assert (result.answer, dict(result.notes)) == (LONG, {})


REMARKS = [
    *("No changes.", "(unchanged)", "None", "N/A", "OK", "The draft is fine as it is.", "Tea."),
    *("Keine Änderungen nötig.", "Sin cambios.", "Aucun changement.", "Без изменений.", "変更なし"),
    *("无需修改", "변경 없음", "No hay cambios en el texto.", "I cannot help with that."),
]


@each_row(
    product(REMARKS, ["{}", "<revised>{}</revised>", "<critique>x</critique><revised>{}"], [1, 3])
)
async def test_a_remark_never_takes_the_place_of_the_draft(
    remark: str, form: str, passes: int
) -> None:
    result = await refined(lambda call: form.format(remark), passes=passes)
    assert result.answer == LONG
    assert result.notes["refine_rolled_back"] is True


LAKE_IN_JAPANESE = "この湖は深くて冷たく、底を見た人は誰もいません。底ははるか下にあります。" * 3


@pytest.mark.parametrize(
    ("revision", "kept"),
    [
        ("この湖は深く、底を見た人は誰もいません。", False),
        ("変更はありません。", True),
        ("なし", True),
    ],
)
async def test_texts_without_spaces_are_compared_too(revision: str, kept: bool) -> None:
    result = await refined(lambda call: revised(revision), draft=LAKE_IN_JAPANESE)
    assert result.answer == (LAKE_IN_JAPANESE if kept else revision)


@pytest.mark.parametrize(("draft", "agent"), [("short", "reader"), (LONG, "Formatter")])
async def test_a_short_draft_and_an_excluded_agent_are_left_alone(draft: str, agent: str) -> None:
    hooks, call = Worker(), AgentCall(agent=agent, task="Do")
    result = await pipeline(Refine()).run(call, Worker(lambda _: draft), hooks.of_hook)
    assert (result.answer, hooks.calls) == (draft, [])


async def test_refining_ends_when_a_pass_changes_next_to_nothing() -> None:
    texts = iter([f"{LONG} And a whole new sentence that was not there before at all.", LONG])
    seen = list[str]()

    def reply(call: AgentCall) -> str:
        seen.append(call.task)
        last = next(texts, None)
        return revised(f"{last or LONG}.")

    result = await refined(lambda call: reply(call), passes=9)
    assert result.notes["refine_passes"] == len(seen) <= 3


FIRST, LAST = LONG[:90], LONG[-90:].strip()
COLD = "Its water stays cold through all of summer because springs feed it from below. "
ROAD = "A narrow road leads along the northern shore to two villages and one chapel. "
SWAPPED = [f"{FIRST}{ROAD}{COLD}{LAST}", f"{FIRST}{COLD}{ROAD}{LAST}"]
OTHERS = [
    f"{FIRST}Kings quarrelled over taxes, wheat, salt, horses, bridges, mills and forests. {LAST}",
    f"{FIRST}Engines burn coal or oil; turbines want steam, gas, pressure, valves, pipes. {LAST}",
]


def no_embedder() -> WordEmbedder:
    raise EmbeddingError("no model")


@pytest.mark.parametrize(
    ("embeddings", "load", "texts", "passes"),
    [
        (True, WordEmbedder, SWAPPED, 1),
        (True, WordEmbedder, OTHERS, 3),
        (False, WordEmbedder, SWAPPED, 3),
        (True, no_embedder, SWAPPED, 3),
        (True, None, SWAPPED, 3),
    ],
)
async def test_refining_ends_when_the_embedder_finds_both_texts_nearly_the_same(
    embeddings: bool, load: Callable[[], WordEmbedder] | None, texts: list[str], passes: int
) -> None:
    embedder = None if load is None else SharedEmbedder(load)
    through = QualityPipeline(clock=FakeClock(), embedder=embedder)
    through.add_after(Refine(max_passes=3, embeddings=embeddings, strict=True))
    revisions = cycle(texts)
    hooks = Worker(lambda call: revised(next(revisions)))
    result = await through.run(CALL, Worker(lambda _: texts[-1]), hooks.of_hook)
    assert result.notes["refine_passes"] == passes


async def test_a_refiner_that_fails_leaves_the_best_text() -> None:
    def reply(call: AgentCall) -> str:
        raise ToolError("no refiner")

    assert (await refined(reply)).answer == LONG


async def test_a_pass_that_loses_the_original_is_rolled_back() -> None:
    texts = iter(
        [f"{LONG} It is also very wide, as wide as three other lakes are together.", "Tea."]
    )
    result = await refined(lambda call: revised(next(texts)), passes=3)
    assert result.answer.startswith(LONG.strip())
    assert result.notes["refine_rolled_back"] is True


# Verifying


def verifier(
    verdict: str, questions: str = "- How deep?\n- How cold?"
) -> Callable[[AgentCall], str]:
    def reply(call: AgentCall) -> str:
        if call.agent == "answerer":
            return f"answer to {call.task}"
        if "[COMPARE]" in call.task:
            return verdict
        return f"<questions>{questions}</questions>"

    return reply


async def verified(
    reply: Callable[[AgentCall], str], *, rewrite: bool = False, draft: str = "It is 9 m deep."
) -> tuple[AgentResult, Worker]:
    hooks = Worker(reply)
    through = pipeline(Verify(rewrite=rewrite))
    result = await through.run(CALL, Worker(lambda _: draft), hooks.of_hook)
    return result, hooks


WRONG = (
    "<status>discrepancy</status><discrepancies>- 9 m, not 90 m</discrepancies><final>90 m.</final>"
)


async def test_questions_are_answered_without_the_draft_and_what_disagrees_is_flagged() -> None:
    result, hooks = await verified(verifier(WRONG))
    assert result.answer == "It is 9 m deep."
    assert result.notes["verified_with_discrepancy"] is True
    assert result.notes["verifier_discrepancies"] == ["9 m, not 90 m"]
    asked = [call for call in hooks.calls if call.agent == "answerer"]
    assert [call.task for call in asked] == ["How deep?", "How cold?"]
    assert not any("9 m" in f"{call.task}{call.context}" for call in asked)


NOTHING = [
    *("none", "None", "N/A", "-", "No discrepancies found.", "nothing", "keine", "ninguna"),
    *("aucune différence", "なし", "没有差异", "нет", "(empty)", "[]"),
]


@each_row(
    [
        (nothing, status, notes)
        for nothing in NOTHING
        for status, notes in [
            ("<status>clean</status>", ["verified_clean"]),
            ("<status>discrepancy</status>", ["unverified"]),
            ("", ["unverified"]),
        ]
    ]
)
async def test_no_word_for_nothing_is_a_discrepancy(
    nothing: str, status: str, notes: list[str]
) -> None:
    verdict = f"{status}<discrepancies>{nothing}</discrepancies><final>(unchanged)</final>"
    result, _ = await verified(verifier(verdict), rewrite=True)
    assert (result.answer, list(result.notes)) == ("It is 9 m deep.", notes)


FINALS = [
    *("(unchanged)", "none", "No changes.", "See above.", "The answer stands.", "", "N/A"),
    *("unverändert", "sin cambios", "変更なし", "без изменений"),
]


@each_row(FINALS)
async def test_a_remark_never_takes_the_place_of_the_answer(final: str) -> None:
    verdict = WRONG.replace("90 m.</final>", f"{final}</final>")
    result, _ = await verified(verifier(verdict), rewrite=True)
    assert result.answer == "It is 9 m deep."
    assert result.notes["verified_with_discrepancy"] is True


async def test_an_answer_that_agrees_is_clean_and_stays() -> None:
    result, _ = await verified(verifier("<status>clean</status><final>x</final>"), rewrite=True)
    assert (result.answer, dict(result.notes)) == ("It is 9 m deep.", {"verified_clean": True})


STATUSES = ["", "clean or discrepancy", "not clean", "no discrepancy", "unsure", "ok"]


@each_row(
    [
        *(WRONG.replace(">discrepancy<", f">{status}<") for status in STATUSES),
        "Looks good to me.",
        "",
    ]
)
async def test_a_status_that_is_neither_word_verifies_nothing(verdict: str) -> None:
    result, _ = await verified(verifier(verdict), rewrite=True)
    assert (result.answer, list(result.notes)) == ("It is 9 m deep.", ["unverified"])


@dataclass
class Failing(Worker):
    """Runs of which those of one agent fail, as far as their task names one of these."""

    agent: str = ""
    tasks: Sequence[str] = ("",)

    async def __call__(self, call: AgentCall) -> TurnResult:
        done = await super().__call__(call)
        fails = call.agent == self.agent and any(task in call.task for task in self.tasks)
        text = "There is no answer: the model gave no answer (no key)."
        return (
            replace(done, answer=text, exit_reason="error", ok=False, error="no key")
            if fails
            else done
        )


async def verified_by(hooks: Worker) -> AgentResult:
    through = pipeline(Verify(rewrite=True))
    return await through.run(CALL, Worker(lambda _: "It is 9 m deep."), hooks.of_hook)


@pytest.mark.parametrize(
    ("agent", "tasks", "problem"),
    [
        ("answerer", [""], "no question was answered"),
        ("verifier", ["NUM_QUESTIONS"], "the verifier failed: no key"),
        ("verifier", ["COMPARE"], "the verifier failed: no key"),
    ],
)
async def test_a_run_that_fails_is_no_evidence(
    agent: str, tasks: Sequence[str], problem: str
) -> None:
    result = await verified_by(Failing(verifier(WRONG), agent=agent, tasks=tasks))
    assert (result.answer, dict(result.notes)) == ("It is 9 m deep.", {"unverified": problem})


async def test_questions_without_an_answer_are_left_out_of_the_comparison() -> None:
    hooks = Failing(verifier(WRONG), agent="answerer", tasks=["cold"])
    assert (await verified_by(hooks)).answer == "90 m."
    [compared] = [call.task for call in hooks.calls if "[COMPARE]" in call.task]
    assert "Q: How deep?\nA: answer to How deep?" in compared
    assert "cold" not in compared
    assert "There is no answer" not in compared


async def test_nothing_is_asked_about_an_empty_answer() -> None:
    _, hooks = await verified(verifier(WRONG), draft=" ")
    assert hooks.calls == []


async def test_refining_comes_first_then_verifying_then_hooks_of_your_own() -> None:
    order = list[str]()

    class Learn:
        async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
            del run, result
            order.append("learn")
            return None

    def reply(call: AgentCall) -> str:
        order.append(call.agent)
        return verifier("<status>clean</status>")(call) if call.agent != "refiner" else LONG

    quality = Quality(refine=Refine(), verify=Verify(), after=[Learn()])
    through, hooks = quality.pipeline(FakeClock()), Worker(reply)
    await through.run(CALL, Worker(lambda _: LONG), hooks.of_hook)
    assert order == ["refiner", "verifier", "answerer", "answerer", "verifier", "learn"]


async def test_from_end_to_end_a_wrong_answer_of_an_agent_is_flagged_for_its_caller() -> None:
    model = Scripts(
        {
            "Go": [Call("crew.delegate", agent="reader", task="Read it"), "Ok."],
            "Read it": ["It is 9 m deep."],
            "[NUM_QUESTIONS=3]": ["<questions>1. How deep?</questions>"],
            "How deep?": ["90 m."],
            "[COMPARE]": [WRONG],
        }
    )
    bundle = replace(desk(), quality=Quality(verify=Verify()))
    _, blocks = await play_turn(model, "Go", bundle=bundle)
    [text] = [b.body.text for b in blocks if isinstance(b.body, ToolResult)]
    assert "verified_with_discrepancy: True" in text
    assert "9 m, not 90 m" in text
    assert "9 m" not in model.prompt_of("How deep?")


# Planning first


@pytest.mark.parametrize(
    ("task", "least", "most"),
    [
        ("What is in this file?", 0, 3),
        ("read a.py", 0, 3),
        (
            "Refactor a.py and b.py, then update c.py, test it and finally document the change",
            6,
            10,
        ),
        ("Crie a.py, altere b.py, depois teste c.py e por fim documente", 6, 10),
    ],
)
def test_how_hard_a_task_looks_decides_whether_it_is_planned(
    task: str, least: int, most: int
) -> None:
    assert least <= complexity(task) <= most
    assert PlanFirst().applies_to(task) is (least >= 6)
    assert not PlanFirst(mode="off").applies_to(task)
    assert PlanFirst(mode="always").applies_to(task)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("use #E1", "use a\nb\nc"),
        ("use #E1.head=2", "use a\nb"),
        ("use #E1.last=1", "use c"),
        ("use #E2.summary", "use first"),
        ("use #E9 and #E1.head=1", "use #E9 and a"),
    ],
)
def test_placeholders_stand_for_what_earlier_steps_gave(task: str, expected: str) -> None:
    outputs = {"E1": " a\nb\nc\n", "E2": "first\n\nsecond"}
    assert resolve_placeholders(task, outputs) == expected


STEPS: list[Mapping[str, object]] = [
    {"id": "E1", "agent": "reader", "task": "look"},
    {"id": "E2", "agent": "writer", "task": "write of #E1", "deps": ["E1"]},
]


def plan_text(steps: Sequence[Mapping[str, object]]) -> str:
    written = ", ".join(
        "{"
        + ", ".join(f'"{key}": {value!r}'.replace("'", '"') for key, value in step.items())
        + "}"
        for step in steps
    )
    return f'Here:\n```json\n{{"task_summary": "s", "steps": [{written}]}}\n```'


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([], "no JSON object"),
        ([STEPS[1]], "E2 needs E1"),
        ([STEPS[0], STEPS[0]], "two steps"),
        ([{"id": "1", "agent": "a", "task": "b"}], "a step is such as"),
        ([{"id": "E1", "agent": "a", "task": "see #E1"}], "E1 needs E1"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(
    steps: Sequence[Mapping[str, object]], problem: str
) -> None:
    with pytest.raises(LooplineError, match=problem):
        parse_work_plan(plan_text(steps))


async def planned(reply: Callable[[AgentCall], str]) -> tuple[AgentCall, list[AgentCall]]:
    """What the agent was asked, and the calls for its plan."""
    worker, hooks = Worker(), Worker(reply)
    await pipeline(PlanFirst(mode="always")).run(CALL, worker, hooks.of_hook)
    return worker.calls[0], hooks.calls


async def test_the_steps_of_a_plan_are_run_and_reported_to_the_agent() -> None:
    asked, calls = await planned(
        lambda call: plan_text(STEPS) if call.agent == "planner" else f"<{call.task}>"
    )
    assert [call.task for call in calls[1:]] == ["look", "write of <look>"]
    assert asked.task == "Read"
    assert "E2 (writer, done): write of #E1\n<write of <look>>" in asked.context


async def test_after_a_step_that_fails_its_dependants_read_its_error() -> None:
    def reply(call: AgentCall) -> str:
        if call.agent == "planner":
            return plan_text(STEPS)
        if call.task == "look":
            raise ToolError("no reader")
        return "done"

    asked, calls = await planned(reply)
    assert calls[-1].task == "write of <error: no reader>"
    assert "Some steps failed" in asked.context


async def test_a_plan_that_cannot_be_read_changes_nothing() -> None:
    asked, _ = await planned(lambda call: "I would rather not.")
    assert asked == CALL


@each_row(
    [
        (20_000, "max"),
        (16_384, "max"),
        (16_383, "high"),
        (8_000, "high"),
        (7_999, "medium"),
        (4_096, "medium"),
        (4_095, "low"),
    ]
)
def test_a_budget_of_thinking_means_an_effort(tokens: int, effort: str) -> None:
    assert effort_of_budget(tokens) == effort


# The dispatcher


async def dispatched(
    calls: Sequence[AgentCall],
    execute: Callable[[AgentCall, int], Awaitable[AgentResult]],
    *,
    most: int = 2,
) -> tuple[list[AgentResult], list[tuple[str, str]]]:
    """The results, and the type and task of each event."""
    events = list[AgentEvent]()
    dispatcher = Dispatcher(
        agents=Agents(AGENTS),
        execute=execute,
        clock=FakeClock(),
        on_event=events.append,
        slots=asyncio.Semaphore(most),
    )
    results = await dispatcher.dispatch(calls)
    return results, [(event.type, event.task) for event in events]


@dataclass
class Work:
    """Runs of agents that count how many run at once."""

    running: int = 0
    most: int = 0

    async def __call__(self, call: AgentCall, index: int) -> AgentResult:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(9 - index):
            await asyncio.sleep(0)
        self.running -= 1
        if call.task == "fail":
            raise ToolError("broken")
        return AgentResult(call=call, result=answer(f"{index}"))


async def test_an_empty_list_gives_nothing() -> None:
    assert await dispatched([], Work()) == ([], [])


async def test_without_parallel_calls_run_one_after_the_other() -> None:
    work = Work()
    calls = [AgentCall(agent="reader", task=f"{number}") for number in range(3)]
    results, _ = await dispatched(calls, work, most=1)
    assert (work.most, [result.answer for result in results]) == (1, ["0", "1", "2"])


async def test_each_call_has_one_beginning_and_one_end_whatever_comes_of_it() -> None:
    work = Work()
    calls = [
        AgentCall(agent="reader", task="read"),
        AgentCall(agent="wizard", task="conjure"),
        AgentCall(agent="writer", task="fail"),
    ]
    results, events = await dispatched(calls, work)
    assert [result.problem for result in results][0::2] == ["", "broken"]
    assert "no agent 'wizard'" in results[1].problem
    assert sorted(events) == [
        ("Completed", "read"),
        ("Failed", "conjure"),
        ("Failed", "fail"),
        ("Started", "conjure"),
        ("Started", "fail"),
        ("Started", "read"),
    ]


async def test_a_call_that_is_cancelled_before_its_turn_has_an_end_and_no_beginning() -> None:
    events, begun = list[AgentEvent](), asyncio.Event()

    async def hang(call: AgentCall, index: int) -> AgentResult:
        del call, index
        begun.set()
        await asyncio.Event().wait()
        raise ToolError("never")

    dispatcher = Dispatcher(
        agents=Agents([READER]),
        execute=hang,
        clock=FakeClock(),
        on_event=events.append,
        slots=asyncio.Semaphore(1),
    )
    calls = [AgentCall(agent="reader", task=task) for task in ("a", "b")]
    running = asyncio.ensure_future(dispatcher.dispatch(calls))
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted((event.type, event.task) for event in events) == [
        ("Failed", "a"),
        ("Failed", "b"),
        ("Started", "a"),
    ]


WRONG_DEPTH = (
    "<status>discrepancy</status><discrepancies>- 90 m</discrepancies><final>90 m deep.</final>"
)


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
            "[COMPARE]": [WRONG_DEPTH],
        }
    )
    bundle = own(Quality(refine=Refine(), verify=Verify(rewrite=True)))
    result, blocks = await play_turn(model, "Go", bundle=bundle)
    bodies = [block.body for block in blocks]
    assert result.answer == "90 m deep."
    assert [body.text for body in bodies if isinstance(body, Draft)] == [LONG]
    assert [body.text for body in bodies if isinstance(body, Completion)] == ["90 m deep."]
    agents = [body.agent for body in bodies if isinstance(body, RunChild) and body.reason]
    assert agents == ["refiner", "verifier", "answerer", "verifier"]
    assert "It is 9 m deep" in model.prompt_of("[COMPARE]")
    assert result.usage.input_tokens == 10 * 6


async def test_a_draft_that_its_model_does_not_have_checked_is_the_answer_the_second_time() -> None:
    model = Scripts({"Go": [LONG, "I am sure."]})
    async with talking(model, bundle=own(Quality(refine=Refine()))) as talk:
        assert (await talk.say("Go")).answer == "I am sure."


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
    async with talking(model, bundle=planned) as talk:
        assert (await talk.say(HARD)).answer == "Done."
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
    assert quality.refine == Refine(max_passes=3, excluded=("git", "shell"), strict=True)
    assert quality.verify == Verify(questions=2, rewrite=True)
    assert quality.reflexion == Reflexion(on_discrepancy=False, stale_days=2.0)
    assert quality.plan_first == PlanFirst(mode="always")
    assert quality.hyde == Hyde(keywords=7)
    assert quality.reasoning.effort("scout") == "high"


@each_row(
    [
        ("REFINE_ENABLED", "perhaps"),
        ("VERIFY_NUM_QUESTIONS", "-1"),
        ("PLAN_FIRST_MODE", "sometimes"),
        ("REASONING_MODE", "wild"),
        ("REFLEXION_QUEUE_STALE_AFTER", "soon"),
        ("ENABLED", ""),
    ]
)
def test_junk_in_the_environment_changes_nothing(name: str, text: str) -> None:
    before = Quality(verify=Verify(), reflexion=Reflexion())
    assert with_environment(before, {f"CHATCLI_QUALITY_{name}": text}) == before
    assert with_environment(Quality(), {}) == Quality()


async def test_the_environment_counts_in_the_preset_chatcli_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHATCLI_QUALITY_REFINE_ENABLED", "true")
    go: list[Line] = [Call("crew.delegate", agent="writer", task="Write"), "Ok."]
    model = Scripts({"Go": go, "Write": [LONG], "[REFINE_DRAFT]": ["<revised>Short.</revised>"]})
    async with talking(model, bundle=desk(), properties={"react.preset": "chatcli"}) as talk:
        await talk.say("Go")
        assert len(model.requests["[REFINE_DRAFT]"]) == 1
    async with talking(model, bundle=desk()) as talk:
        await talk.say("Go")
        assert len(model.requests["[REFINE_DRAFT]"]) == 1


PAGE = ROOT / "docs" / "internals" / "quality.md"


@pytest.mark.parametrize("name", ["refine", "verify, rewrites", "plan first"])
async def test_the_row_of_a_quality_is_what_it_did_on_thirty_tasks(name: str) -> None:
    measured = str(await row(name, QUALITIES[name])).rpartition("|")[0].rpartition("|")[0]
    assert f"\n{measured}|" in PAGE.read_text("utf-8")
