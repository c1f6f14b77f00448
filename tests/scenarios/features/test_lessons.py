"""A lesson is drawn from what went wrong, after the answer, and found again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from loopline import Agent, Bundle, Harness, ToolError, TurnResult
from loopline.crew import (
    AgentCall,
    AgentResult,
    GraphOptions,
    HookedRun,
    LessonWriter,
    Quality,
    Reflexion,
    Verify,
    reflection_due,
)
from loopline.crew.pipeline import PostOutcome, with_notes
from loopline.crew.reflexion import parse_lesson
from loopline.errors import ModelError, StoreBusy
from loopline.harness.harness import record_lesson
from loopline.models import ModelRegistry, Prompt, Reply, TextDelta
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import (
    NEW_TURN,
    Body,
    ConversationKey,
    Entry,
    ExitReason,
    Lesson,
    LessonTrigger,
    MemoryLog,
    ReflectionDue,
    TurnHeader,
    UserPrompt,
)
from tests.support.child_runs import Line
from tests.support.crews import READER, Scripts, desk
from tests.support.forked_processes import forked

LESSON = (
    "<situation>Reading a page of a lake</situation><mistake>It guessed\nthe depth</mistake>"
    "<correction>Look the depth up first</correction><tags>Lake, DEPTH</tags>"
)
WRONG = "<status>discrepancy</status><discrepancies>- 90 m</discrepancies><final>90 m.</final>"
GO: list[Line] = [Call("crew.delegate", agent="reader", task="Read it"), "Ok."]
CALL = AgentCall(agent="reader", task="Read it")


def learning(verify: Verify | None = None) -> Bundle:
    return replace(desk(), quality=Quality(reflexion=Reflexion(), verify=verify))


def failing(lesson: Sequence[Line]) -> Scripts:
    """Return a model whose agent makes calls until its rounds are over."""
    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
    return Scripts({"Go": GO, "Read it": calls, "[REFLEXION]": lesson})


async def lessons(
    model: Scripts, bundle: Bundle, store: str = "memory:"
) -> tuple[list[ReflectionDue], list[Lesson]]:
    """Run the turn; return what was due, and what was learnt once nothing is being written."""
    async with Harness.open(bundle, store=store, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        await talk.say("Go")
        assert await harness.drain(1_000)
        bodies = [block.body for block in await talk.blocks()]
    return (
        [body for body in bodies if isinstance(body, ReflectionDue)],
        [body for body in bodies if isinstance(body, Lesson)],
    )


async def test_a_lesson_of_a_run_that_failed_is_written_and_found_by_memory_search() -> None:
    model = failing([LESSON])
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Go")
        assert await harness.drain(5)
        blocks = list(await talk.blocks())
        [hit] = await harness.memory.search("depth", user="local", targets=["lesson"])
        [read] = await talk.read([hit.ref])
    [lesson] = [block.body for block in blocks if isinstance(block.body, Lesson)]
    assert (result.answer, lesson.trigger, lesson.agent) == ("Ok.", "error", "reader")
    assert lesson.mistake == "It guessed the depth"
    assert lesson.tags == ("lake", "depth", "reflexion", "trigger:error")
    assert lesson.usage.input_tokens == 10
    assert "correction: Look the depth up first" in read.text
    order = [block.type for block in blocks]
    assert order.index("react.exit") < order.index("crew.lesson") == len(order) - 1
    assert "max_iterations" in str(model.requests["[REFLEXION]"][0])


LEADER = Agent(name="leader", description="Leads.", instructions="Lead.", tools=["crew.*"])
SUB = Call("crew.delegate", agent="reader", task="Read it")


@pytest.mark.parametrize("begin", ["crew.delegate", "crew.graph"])
async def test_a_lesson_of_an_agent_that_an_agent_has_called_is_written_once(
    begin: str,
) -> None:
    plan = json.dumps({"steps": [{"id": "a", "task": "do a"}]})
    calls: Mapping[str, list[Line]] = {
        "crew.delegate": [Call("crew.delegate", agent="leader", task="Lead it"), "Ok."],
        "crew.graph": [Call("crew.graph", goal="the goal"), "Ok."],
    }
    model = Scripts(
        {
            "Go": calls[begin],
            "Lead it": [SUB, "Led."],
            "Plan how": [plan],
            "Goal: the goal\n\nYour step: do a": [SUB, "Done."],
            "Say whether": [json.dumps({"achieved": True, "confidence": 1, "answer": "Done."})],
            "Read it": [Call("desk.find", name=f"{n}") for n in range(40)],
            "[REFLEXION]": [LESSON],
        }
    )
    bundle = replace(
        desk(READER, LEADER), quality=Quality(reflexion=Reflexion()), graph=GraphOptions()
    )
    due, [lesson] = await lessons(model, bundle)
    assert [(body.agent, body.task) for body in due] == [("reader", "Read it")]
    assert (lesson.agent, lesson.correction) == ("reader", "Look the depth up first")


class Slow:
    """A model that answers at once, and draws a lesson only when it is told to."""

    def __init__(self) -> None:
        self.inner = failing([LESSON])
        self.name, self.capabilities = self.inner.name, self.inner.capabilities
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Wait before a lesson."""
        if "[REFLEXION]" in str(prompt.messages[0]):
            self.asked.set()
            await self.go.wait()
        async for piece in self.inner.stream(prompt):
            yield piece


async def test_the_answer_and_the_next_turn_do_not_wait_for_a_lesson() -> None:
    model = Slow()
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("Go")).answer == "Ok."
        await model.asked.wait()
        assert (await harness.conversation("d").say("Go")).answer == "Ok."
        assert [b for b in await talk.blocks() if isinstance(b.body, Lesson)] == []
        model.go.set()
        assert await harness.drain(5)
        assert any(isinstance(block.body, Lesson) for block in await talk.blocks())


class Deadly(Scripts):
    """A model that kills its process when it is asked for a lesson."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Die, or answer."""
        if "[REFLEXION]" in str(prompt.messages[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        async for piece in super().stream(prompt):
            yield piece


def _die(store: str) -> None:
    async def live() -> None:
        calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
        model = Deadly({"Go": GO, "Read it": calls})
        async with Harness.open(learning(), store=store, model=model) as harness:
            await harness.conversation("c").say("Go")
            await harness.drain(30)

    asyncio.run(live())


async def test_a_lesson_that_a_kill_took_is_written_by_the_next_process(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    process = forked.Process(target=_die, args=(store,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    async with Harness.open(learning(), store=store, model=failing([LESSON])) as harness:
        assert await harness.drain(30)
        blocks = await harness.conversation("c").blocks()
    assert [b.body.correction for b in blocks if isinstance(b.body, Lesson)] == [
        "Look the depth up first"
    ]


async def test_a_discrepancy_is_learnt_from() -> None:
    model = Scripts(
        {
            "Go": GO,
            "Read it": ["It is 9 m deep."],
            "[NUM_QUESTIONS=3]": ["<questions>1. How deep?</questions>"],
            "How deep?": ["90 m."],
            "[COMPARE]": [WRONG],
            "[REFLEXION]": [LESSON],
        }
    )
    due, learnt = await lessons(model, learning(Verify()))
    assert [body.trigger for body in due] == ["discrepancy"]
    assert "90 m" in due[0].outcome
    assert [body.correction for body in learnt] == ["Look the depth up first"]


def ended(reason: ExitReason, **notes: bool) -> AgentResult:
    result = TurnResult(answer="x", turn_id="turn_1", exit_reason=reason, ok=reason == "complete")
    return with_notes(AgentResult(call=CALL, result=result), notes)


@pytest.mark.parametrize(
    ("hook", "result", "trigger"),
    [
        (Reflexion(), ended("complete"), None),
        (Reflexion(), ended("error"), "error"),
        (Reflexion(on_error=False), ended("error"), None),
        (Reflexion(), ended("stopped"), None),
        (Reflexion(), ended("complete", verified_with_discrepancy=True), "discrepancy"),
        (Reflexion(on_discrepancy=False), ended("complete", verified_with_discrepancy=True), None),
        (Reflexion(), ended("complete", refine_low_quality=True), None),
        (Reflexion(on_low_quality=True), ended("complete", refine_low_quality=True), "low_quality"),
        (Reflexion(), ended("error", reflect=True), "manual"),
        (Reflexion(), ended("error", verified_with_discrepancy=True), "error"),
        (Reflexion(on_error=False), AgentResult(call=CALL, error="broken"), None),
        (Reflexion(), AgentResult(call=CALL, error="broken"), "error"),
    ],
)
def test_each_cause_makes_a_lesson_due_and_what_the_user_stopped_none(
    hook: Reflexion, result: AgentResult, trigger: LessonTrigger | None
) -> None:
    assert hook.trigger(result) == trigger


async def test_a_hook_of_your_own_may_ask_for_a_lesson() -> None:
    class Asking:
        async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
            del run
            return with_notes(result, {"reflect": True})

    model = Scripts({"Go": GO, "Read it": ["Fine."], "[REFLEXION]": [LESSON]})
    bundle = replace(desk(), quality=Quality(reflexion=Reflexion(), after=[Asking()]))
    due, _ = await lessons(model, bundle)
    assert [body.trigger for body in due] == ["manual"]


DUE = reflection_due("error", "Read", "a", "b")


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("<skip>It was the network.</skip>", "It was the network."),
        ("<situation>s</situation>", "the reply has no situation and correction"),
        ("Nothing.", "the reply has no situation and correction"),
        (f"{LESSON}<skip>no</skip>", "no"),
    ],
)
def test_a_reply_without_situation_and_correction_is_no_lesson(text: str, skipped: str) -> None:
    lesson = parse_lesson(DUE, Reply(text=text))
    assert (lesson.skipped, lesson.text) == (skipped, "")


def test_the_same_failure_of_the_same_task_is_one_lesson() -> None:
    same = reflection_due("error", " READ ", "a", "b")
    assert same.lesson_id == DUE.lesson_id
    assert reflection_due("error", "Read", "a", "c").lesson_id != DUE.lesson_id


async def test_a_lesson_whose_model_fails_is_tried_five_times_and_then_given_up_for_good() -> None:
    class Failing(Scripts):
        asked = 0

        async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
            """Fail for lessons."""
            if "[REFLEXION]" in str(prompt.messages[0]):
                Failing.asked += 1
                raise ModelError("no network")
            async for piece in super().stream(prompt):
                yield piece

    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
    _, [lesson] = await lessons(Failing({"Go": GO, "Read it": calls}), learning())
    assert Failing.asked == 5
    assert lesson.skipped == "no lesson after 5 attempts: no network"


def writer(log: MemoryLog, model: ScriptedModel) -> LessonWriter:
    """Return a writer of lessons as each process that has the store open has one."""

    @asynccontextmanager
    async def models(_: ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        yield ModelRegistry({"fast": (model,)})

    return LessonWriter(
        bundle="desk",
        log=log,
        record=partial(record_lesson, log),
        models=models,
        clock=FakeClock(),
        options=Reflexion(),
    )


TALK = ConversationKey(name="c")


async def append(log: MemoryLog, body: Body) -> None:
    """Append a body to the first turn, as its runner does."""
    async with log.lease(TALK) as term:
        await log.append(TALK, [Entry(body=body, turn=1)], seen=0, term=term)


HEADER = TurnHeader(bundle="desk", model="scripted", protocol="native")


async def written(log: MemoryLog) -> list[Lesson]:
    """Return the lessons in the log."""
    return [block.body for block in await log.read(TALK) if isinstance(block.body, Lesson)]


async def test_a_lesson_that_could_not_be_recorded_is_written_after_a_later_turn() -> None:
    log = MemoryLog(FakeClock())
    await log.append(TALK, [Entry(body=UserPrompt(text="Go"), turn=NEW_TURN)], seen=0)
    await append(log, HEADER)
    await append(log, DUE)
    outcomes = list[str]()

    async def record(conversation: ConversationKey, turn: int, lesson: Lesson) -> None:
        outcomes.append("busy" if not outcomes else "recorded")
        if outcomes == ["busy"]:
            raise StoreBusy("the store is busy")
        await record_lesson(log, conversation, turn, lesson)

    lessons = replace(writer(log, ScriptedModel([LESSON, LESSON])), record=record)
    lessons.follow(TALK)
    await lessons.idle()
    await append(log, HEADER)  # of a later turn
    lessons.follow(TALK)
    await lessons.idle()
    assert outcomes == ["busy", "recorded"]
    assert len(await written(log)) == 1


async def test_a_lesson_is_due_in_a_turn_whose_beginning_was_read_before() -> None:
    log, model = MemoryLog(FakeClock()), ScriptedModel([LESSON])
    await log.append(TALK, [Entry(body=UserPrompt(text="Go"), turn=NEW_TURN)], seen=0)
    await append(log, HEADER)
    lesson_writer = writer(log, model)
    lesson_writer.follow(TALK)  # the turn before has ended
    await lesson_writer.idle()
    await append(log, DUE)
    lesson_writer.follow(TALK)
    await lesson_writer.idle()
    assert [lesson.lesson_id for lesson in await written(log)] == [DUE.lesson_id]


async def test_a_lesson_that_two_processes_write_is_recorded_once() -> None:
    log = MemoryLog(FakeClock())
    await log.append(TALK, [Entry(body=UserPrompt(text="Go"), turn=NEW_TURN)], seen=0)
    await append(log, HEADER)
    await append(log, DUE)
    writers = [writer(log, ScriptedModel([LESSON])) for _ in range(2)]
    for lesson_writer in writers:
        lesson_writer.follow(TALK)
    for lesson_writer in writers:
        await lesson_writer.idle()
    assert [lesson.lesson_id for lesson in await written(log)] == [DUE.lesson_id]


async def test_an_agent_whose_run_cannot_be_begun_is_learnt_from_too() -> None:
    async def broken(call: AgentCall) -> TurnResult:
        raise ToolError("it broke")

    through = Quality(reflexion=Reflexion()).pipeline(FakeClock())
    result = await through.run(CALL, broken, lambda _: broken)
    assert [due.outcome for due in result.reflections] == ["it broke"]


async def test_a_lesson_comes_back_for_a_similar_task_and_for_no_other() -> None:
    model = Scripts(
        {
            "Go": [
                Call("crew.delegate", agent="reader", task="Read it: the depth of a lake"),
                "Ok.",
            ],
            "Again": [Call("crew.delegate", agent="reader", task="Find the depth"), "Ok."],
            "Other": [Call("crew.delegate", agent="reader", task="Write a poem"), "Ok."],
            "Read it": [Call("desk.find", name=f"{n}") for n in range(40)],
            "Find the depth": ["90 m."],
            "Write a poem": ["Roses."],
            "[REFLEXION]": [LESSON],
        }
    )
    async with Harness.open(learning(), store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("Go")
        assert await harness.drain(5)
        async with Harness.open(learning(), store=harness.log, model=model) as later:
            await later.conversation("d").say("Again")
            await later.conversation("e").say("Other")
    found = model.requests["Find the depth"][0].system
    assert "no instructions:\nsituation" in found
    assert "Look the depth up first" in found
    for task in ("Write a poem", "Read it"):
        assert "Look the depth up first" not in model.requests[task][0].system
        assert "Lessons" not in model.requests[task][0].system
