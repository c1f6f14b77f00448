"""Laws 3, 4, 8 and 10: over random conversations of turns, tools, failures and followups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from loopline import Harness
from loopline.conversations import Talk
from loopline.models import (
    Abilities,
    AssistantMessage,
    Message,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    ToolMessage,
)
from loopline.prompt import JsonAction, Native, View
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel
from loopline.timeline import Block, RoundStart, Timeline, UserFollowup, UserPrompt
from tests.support.playground import bundle

calls = st.sampled_from(
    [
        Call("play.look", text="x"),
        Call("play.find", url="https://example.com/a"),
        Call("play.find", url="https://EXAMPLE.com:443/a/#b"),
        Call("play.alone", text="y"),
        Call("play.fail", message="no"),
        Call("play.crash"),
        Call("play.nothing"),
        Call("play.look", wrong=1),
        Call("react.plan", mode="new", steps=["one", "two"]),
        Call("react.plan", mode="close", plan_id="unknown"),
        Call("react.read", paths=["ar:turn_1.user.prompt", "tc:turn_1.c1.result", "x"]),
    ]
)
notes = st.sampled_from(["", "… [1] going", "✓ [1] done\n✗ [2] not", "thinking aloud"])


@dataclass(frozen=True)
class Step:
    """What the model says in a round, and whether the user adds something meanwhile."""

    say: Say | Raw
    followup: bool


def say(text: str, made: list[ToolCall]) -> Say:
    return Say(text, *made)


acting = st.builds(
    Step, st.builds(say, notes, st.lists(calls, min_size=1, max_size=3)), st.booleans()
)
failing = st.builds(Step, st.just(Raw("")), st.booleans())
answering = st.builds(
    Step, st.sampled_from([Say("It is [[S:1]]."), Say("✓ [1]\nSo.")]), st.booleans()
)
turns = st.lists(
    st.tuples(st.lists(acting | failing, max_size=3), answering), min_size=1, max_size=3
)


class Interrupted:
    """The scripted model, with a user who speaks while it writes."""

    name = "scripted"

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._script = ScriptedModel([step.say for step in steps], strict=False)
        self.abilities: Abilities = self._script.abilities
        self.requests: list[Prompt] = self._script.requests
        self.talk: Talk | None = None

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next step, or an answer when the script is over."""
        number = len(self.requests)
        if self.talk is not None and number < len(self._steps) and self._steps[number].followup:
            await self.talk.followup(f"also {number}")
        if number >= len(self._steps):
            self.requests.append(prompt)
            yield Reply(text="That is all.")
            return
        async for piece in self._script.stream(prompt):
            yield piece


@dataclass(frozen=True)
class Lived:
    requests: list[Prompt]
    blocks: list[Block]


def live(script: list[tuple[list[Step], Step]]) -> Lived:
    async def run() -> Lived:
        steps = [step for before, last in script for step in (*before, last)]
        model = Interrupted(steps)
        async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
            talk = model.talk = harness.conversation("c")
            for number, _ in enumerate(script):
                await talk.say(f"question {number}", max_iterations=6)
            return Lived(model.requests, list(await talk.blocks()))

    return asyncio.run(run())


@settings(max_examples=40)
@given(turns)
def test_carrying_on_only_extends_the_prompt(script: list[tuple[list[Step], Step]]) -> None:
    lived = live(script)
    starts = [b.body for b in lived.blocks if isinstance(b.body, RoundStart)]
    assert len(starts) == len(lived.requests)
    assert {start.epoch for start in starts} == {1}
    for before, after in zip(lived.requests, lived.requests[1:], strict=False):
        assert (after.system, after.tools) == (before.system, before.tools)
        assert after.messages[: len(before.messages)] == before.messages


@settings(max_examples=40)
@given(turns)
def test_a_result_follows_its_call_in_every_request(script: list[tuple[list[Step], Step]]) -> None:
    for request in live(script).requests:
        assert in_pairs(request.messages)


def in_pairs(messages: tuple[Message, ...]) -> bool:
    expected: list[ToolCall] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not expected or expected.pop(0).call_id != message.call_id:
                return False
        elif expected:
            return False
        elif isinstance(message, AssistantMessage):
            expected = list(message.calls)
    return not expected


@settings(max_examples=40)
@given(turns)
def test_every_user_input_is_pending_or_taken_by_one_round(
    script: list[tuple[list[Step], Step]],
) -> None:
    lived = live(script)
    said = [b.seq for b in lived.blocks if isinstance(b.body, UserPrompt | UserFollowup)]
    taken = [seq for b in lived.blocks if isinstance(b.body, RoundStart) for seq in b.body.takes]
    pending = list(Timeline(lived.blocks).pending)
    assert sorted([*taken, *pending]) == said


@settings(max_examples=40)
@given(turns, st.integers(1, 5))
def test_in_one_go_equals_in_steps(script: list[tuple[list[Step], Step]], stride: int) -> None:
    blocks = live(script).blocks
    for protocol in (Native(), JsonAction()):
        whole, stepped = View(protocol, blocks), View(protocol)
        for at in range(0, len(blocks), stride):
            stepped.extend(blocks[at : at + stride])
        assert (stepped.messages, stepped.sha256) == (whole.messages, whole.sha256)
    one, steps = Timeline(blocks), Timeline()
    for at in range(0, len(blocks), stride):
        steps.extend(blocks[at : at + stride])
    assert (one.pool, one.plans, one.pending) == (steps.pool, steps.plans, steps.pending)
    assert (one.turns, one.shown, one.calls) == (steps.turns, steps.shown, steps.calls)


@settings(max_examples=40)
@given(turns)
def test_any_past_prompt_is_rendered_again_from_the_log_alone(
    script: list[tuple[list[Step], Step]],
) -> None:
    lived = live(script)
    rounds = [b for b in lived.blocks if isinstance(b.body, RoundStart)]
    for block, request in zip(rounds, lived.requests, strict=True):
        again = View(Native(), lived.blocks[: block.seq])
        assert tuple(again.messages) == request.messages
        assert isinstance(block.body, RoundStart)
        assert block.body.tail == request.tail


@settings(max_examples=30)
@given(turns)
def test_every_pinned_ref_that_was_shown_reads_again_as_the_same(
    script: list[tuple[list[Step], Step]],
) -> None:
    async def read(blocks: list[Block]) -> list[tuple[str, str, str]]:
        from loopline.reader import Conversed, Reader

        reading = await Reader(here=Conversed(Timeline(blocks))).read([b.ref for b in blocks])
        return [(item.ref, item.status, item.text) for item in reading]

    lived = live(script)
    for end in range(1, len(lived.blocks) + 1, 7):
        then = asyncio.run(read(lived.blocks[:end]))
        now = asyncio.run(read(lived.blocks))
        assert then == now[:end]
        assert {status for _, status, _ in then} == {"ok"}
