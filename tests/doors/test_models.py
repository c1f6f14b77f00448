"""Models by name on the command line: over a wire, without a key, and with a chain."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.doors.command import Loopline, at_openai
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Status
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like

SEALED = ant.Thinking("Hm.", "c2ln")


async def test_a_bundle_is_asked_with_a_model_over_a_wire(tea: Loopline) -> None:
    async with openai_like(oai.Says("Green tea, I should say.")) as peer:
        at = at_openai(tea, peer)
        ran = await asyncio.to_thread(at, "run", "guide", "Which tea?", "--model", "openai:small")
    assert (ran.code, ran.out.strip()) == (0, "Green tea, I should say.")
    assert "openai:small" in ran.err
    assert "sk-secret" not in ran.out + ran.err


async def test_a_model_that_refuses_the_key_says_which_variable_to_check(tea: Loopline) -> None:
    async with openai_like(Status(401)) as peer:
        at = at_openai(tea, peer)
        ran = await asyncio.to_thread(at, "run", "guide", "Which tea?", "--model", "openai:small")
    assert (ran.code, "check OPENAI_API_KEY" in ran.err) == (1, True)


def test_without_a_key_nothing_is_asked(tea: Loopline) -> None:
    ran = tea("run", "guide", "Which tea?", "--model", "anthropic:claude-sonnet-5")
    assert (ran.code, "set ANTHROPIC_API_KEY" in ran.err) == (2, True)


def test_a_model_that_there_is_not_is_refused_with_what_one_begins_with(tea: Loopline) -> None:
    ran = tea("run", "guide", "Which tea?", "--model", "gpt-5")
    assert (ran.code, "openai:" in ran.err) == (2, True)


async def test_a_prompt_is_shown_with_the_thinking_and_the_tail_that_were_sent(
    tea: Loopline,
) -> None:
    replies = (
        ant.Says("I look.", (Call("react__read", '{"paths": []}', "toolu_1"),), (SEALED,)),
        ant.Says("Green tea, I should say."),
    )
    async with anthropic_like(*replies) as peer:
        at = replace(
            tea, settings={"ANTHROPIC_BASE_URL": peer.url, "ANTHROPIC_API_KEY": "sk-ant-1"}
        )
        model = "anthropic:claude-opus-5-5"
        ran = await asyncio.to_thread(at, "run", "guide", "Which tea?", "--model", model)
    shown = tea("prompt")
    assert ran.code == 0
    assert 'as it came: {"type":"thinking","thinking":"Hm.","signature":"c2ln"}' in shown.out
    assert "── 2 tail of before ar:turn_1.react.round.start.1" in shown.out
    assert "── tail, cleared" in shown.out


async def test_a_bundle_is_asked_with_a_model_by_way_of_pydantic_ai(tea: Loopline) -> None:
    async with openai_like(oai.Says("Green tea, I should say.")) as peer:
        at = at_openai(tea, peer)
        ran = await asyncio.to_thread(
            at, "run", "guide", "Which tea?", "--model", "pydantic-ai:openai:small"
        )
    assert (ran.code, ran.out.strip()) == (0, "Green tea, I should say.")
