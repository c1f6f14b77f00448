"""The end of a prompt, in each of the ways in which a provider takes it, over long random conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest

from loopline.conversations import Conversation
from loopline.models import Capabilities, JsonObject, ModelFacts, TailKind
from loopline.providers.http import HttpModel
from loopline.testing import FakeClock
from loopline.timeline import Block, Decision, Exit, RoundStart, ToolCalled, ToolResult
from tests.providers.flat_request import parts, wired
from tests.support.examples import sampled
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Behaviour
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Request
from tests.support.peers.signing_server import signing
from tests.support.peers.strict_server import strict
from tests.support.workbench import at_work, bodies, interrupted, workbench

SIGNED = ModelFacts(api="messages", thinking="signed", thinking_by="adaptive")
TURNS = 6
COLD = timedelta(minutes=5)


def claude(url: str, name: str, tail: TailKind, window: int = 32_000) -> HttpModel:
    """A model behind the signing server."""
    facts = ModelFacts(api="messages", thinking="signed", thinking_by="adaptive", tail=tail)
    capabilities = Capabilities(tail=tail, window=window, output_limit=2_000)
    return wired("messages", url, capabilities, facts, name)


def calls(drawn: Random, number: int) -> tuple[Call, ...]:
    """Some calls; now and then one of them hides what was looked up before."""
    if number and drawn.random() < 0.1:
        hidden: JsonObject = {"path": f"tc:turn_1.c{drawn.randint(1, 2)}.result"}
        hidden["replacement"] = "seen"
        return (Call("react__hide", json.dumps(hidden), f"toolu_{number}"),)
    size = drawn.choice([10, 200, 3_000])
    return tuple(
        Call("w__big", json.dumps({"size": size}), f"toolu_{number}_{at}")
        for at in range(drawn.randint(1, 3))
    )


def thoughts(drawn: Random, number: int) -> tuple[ant.Thinking | ant.Redacted, ...]:
    """Thinking that is shown, kept back or sealed."""
    if drawn.random() < 0.2:
        return ()
    seen: Sequence[ant.Thinking | ant.Redacted] = (ant.Thinking(f"Hm {number}."), ant.Redacted())
    return (drawn.choice((*seen, ant.Thinking(""))),)


def replies(drawn: Random, *, thinks: bool) -> list[Behaviour[ant.Says]]:
    """The rounds of some turns, with text and thinking in any order; now and then a refusal."""
    said: list[Behaviour[ant.Says]] = []
    number = 0
    for turn in range(TURNS):
        for _ in range(drawn.randint(4, 10)):
            number += 1
            new_calls = calls(drawn, number if turn else 0)
            new_calls = tuple(
                Call(call.name, call.arguments, f"toolu_{number}_{call.id}") for call in new_calls
            )
            before = thoughts(drawn, number) if thinks else ()
            between = (*(thoughts(drawn, number) if thinks else ()), *new_calls)
            said.append(
                ant.Says(drawn.choice(["", f"note {number} "]), thinking=before, more=between)
            )
        if drawn.random() < 0.2:
            said.append(ant.Says("No.", stop="refusal"))
        said.append(ant.Says(f"Done {turn}.", thinking=thoughts(drawn, number) if thinks else ()))
    return said


async def talked(talk: Conversation, drawn: Random, clock: FakeClock) -> None:
    """Some turns, with more said into them and long pauses between."""
    for turn in range(TURNS):
        texts = ["And quickly."] if drawn.random() < 0.5 else []
        await interrupted(talk, f"go {turn}", *texts, at=ToolResult, max_iterations=60)
        if drawn.random() < 0.4:
            clock.advance(3_600.0)


def extend_one_another(
    requests: Sequence[Request], begun: Sequence[RoundStart], tails: int
) -> None:
    """Each request begins with the stable parts of the one before, unless an epoch was opened."""
    flat = [parts(request.body) for request in requests]
    for (before, after), (_, opened) in zip(pairwise(flat), pairwise(begun), strict=True):
        if not opened.opened_by:
            stable = before[: len(before) - tails]
            assert after[: len(stable)] == stable


def read_again(blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """What a request had in the cache, and what the next one of its epoch read, if that came in time."""
    before, begun = None, None
    for block in blocks:
        match block.body:
            case RoundStart() as body:
                begun = body
            case Decision(usage=usage):
                if begun and not begun.opened_by and before and block.ts - before[0] < COLD:
                    yield before[1], usage.cache_read_tokens
                before = block.ts, usage.cache_read_tokens + usage.cache_write_tokens
            case _:
                pass


@pytest.mark.parametrize("seed", sampled(range(2), 2))
@pytest.mark.parametrize("tail", ["dropped", "kept", "cleared"])
async def test_fifty_rounds_are_never_refused_and_each_cache_miss_has_a_recorded_cause(
    tail: TailKind, seed: int
) -> None:
    drawn, clock, thinks = Random(seed), FakeClock(), tail != "dropped"
    async with signing(*replies(drawn, thinks=thinks), minimum=0, clock=clock) as peer:
        models = claude(peer.url, "claude-a", tail), claude(peer.url, "claude-b", tail)
        bundle = workbench(cache_ttl_seconds=300, keep_recent_turns=3, keep_recent_intact_turns=1)
        async with at_work(models, bundle, clock=clock) as talk:
            await talked(talk, drawn, clock)
            blocks = await talk.blocks()
    rounds = [block.body for block in blocks]
    reasons = [body.reason for body in rounds if isinstance(body, Exit)]
    assert set(reasons) <= {"complete", "refused"}, reasons
    starts = [body for body in rounds if isinstance(body, RoundStart)]
    assert len(starts) >= 30
    assert any(body.opened_by for body in starts[1:])
    assert any(b'"signature"' in request.raw for request in peer.requests) == thinks
    if len(starts) == len(peer.requests):
        extend_one_another(peer.requests, starts, tails=tail == "dropped")
    assert all(after >= before for before, after in read_again(blocks))


async def test_a_server_that_takes_no_user_behind_a_result_gets_all_of_it_inside() -> None:
    drawn, number = Random(1), 0
    said: list[Behaviour[oai.Says]] = []
    for turn in range(TURNS):
        for _ in range(8):
            number += 1
            said.append(oai.Says(f"note {number}", calls(drawn, number if turn else 0)))
        said.append(oai.Says(f"Done {turn}."))
    async with strict(*said) as peer:
        facts = ModelFacts(tail="inside")
        capabilities = Capabilities(tail="inside", window=32_000, output_limit=2_000)
        model = wired("chat", f"{peer.url}/v1", capabilities, facts)
        async with at_work(model, clock=FakeClock()) as talk:
            await talked(talk, drawn, FakeClock())
            ends = await bodies(talk, Exit)
            starts = await bodies(talk, RoundStart)
            new_calls = await bodies(talk, ToolCalled)
    assert {end.reason for end in ends} == {"complete"}
    assert len(starts) == len(peer.requests) == TURNS * 9
    assert new_calls
    extend_one_another(peer.requests, starts, tails=1)


HELD = workbench(min_rounds=2)


@pytest.mark.parametrize("tail", ["kept", "cleared"])
async def test_an_answer_that_is_held_leaves_a_prompt_that_is_taken(tail: TailKind) -> None:
    replies: list[Behaviour[ant.Says]] = [
        ant.Says("Brief.", thinking=(ant.Thinking("Hm."),)),
        ant.Says("Done.", thinking=(ant.Thinking("So."),)),
        ant.Says("Yes."),
    ]
    async with signing(*replies, minimum=0) as peer:
        model = claude(peer.url, "claude-a", tail)
        async with at_work(model, HELD) as talk:
            answers = [(await talk.say(text)).answer for text in ("go", "And?")]
    assert answers[0] == "Done."
    assert len(peer.requests) >= 3


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens"])
async def test_a_reply_of_white_space_leaves_a_prompt_that_is_taken(stop: ant.Stop) -> None:
    replies: list[Behaviour[ant.Says]] = [
        ant.Says(" \n", thinking=(ant.Thinking("Hm."),), stop=stop),
        ant.Says("Done."),
        ant.Says("Yes."),
    ]
    async with signing(*replies, minimum=0) as peer:
        model = claude(peer.url, "claude-a", "cleared")
        async with at_work(model) as talk:
            answers = [(await talk.say(text)).answer for text in ("go", "And?")]
    assert answers == ["Done.", "Yes."]


@pytest.mark.parametrize("ids", [("t1", "t1"), ("", "")])
async def test_calls_whose_ids_are_not_their_own_go_back_under_ours(ids: tuple[str, str]) -> None:
    twice = tuple(Call("w__count", f'{{"number": {n}}}', item) for n, item in enumerate(ids))
    replies: list[Behaviour[ant.Says]] = [
        ant.Says("", twice, thinking=(ant.Thinking("Hm."),)),
        ant.Says("Done."),
    ]
    async with signing(*replies, minimum=0) as peer:
        model = claude(peer.url, "claude-a", "cleared")
        async with at_work(model) as talk:
            result = await talk.say("go")
    assert (result.answer, len(peer.requests)) == ("Done.", 2)
    assert [data in peer.requests[1].raw for data in (b'"c1"', b'"c2"', b'"t1"')] == [
        True,
        True,
        False,
    ]
