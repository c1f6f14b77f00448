"""A signing peer takes a conversation that only grows, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import pytest
from anthropic import BadRequestError
from anthropic.types import MessageParam

from loopline.models.json import Json, JsonObject
from tests.peers.anthropic_dialogue import Talk, opening, result, text
from tests.peers.clients import CLAUDE, HELLO, anthropic_at
from tests.support.peers.anthropic_replies import Redacted, Says, Thinking
from tests.support.peers.call_replies import Call
from tests.support.peers.signing_server import signing

READS = Says(
    "Let me look.",
    thinking=(Thinking("They want a reading."), Redacted()),
    calls=(Call("read", '{"ref":"ks:a","size":1.0}', "toolu_1"),),
    more=(Call("read", '{"ref":"ks:b"}', "toolu_2"),),
)
ANSWERS = Says("It is 4.", thinking=(Thinking("Now I know."),))


async def three_rounds(talk: Talk) -> None:
    """A question, two calls answered, one question more."""
    await talk.go_on(text("What is it?"))
    await talk.go_on(result("toolu_1"), result("toolu_2"), text("Be quick."))
    await talk.go_on(text("Sure?"))


async def test_a_conversation_that_only_grows_is_taken() -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        await three_rounds(opening(client))
    assert len(peer.requests) == 3


async def test_what_the_client_streams_it_can_send_back() -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        said = HELLO
        async with client.messages.stream(model=CLAUDE, max_tokens=100, messages=said) as stream:
            first = await stream.get_final_message()
        results: MessageParam = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Two."},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "Two."},
            ],
        }
        said = [*said, first.to_param(), results]
        second = await client.messages.create(model=CLAUDE, max_tokens=100, messages=said)
    assert second.stop_reason == "end_turn"


Change: TypeAlias = Callable[[Talk], None]


def another_system(talk: Talk) -> None:
    talk.body["system"] = "You write."


def another_tool(talk: Talk) -> None:
    tools = cast("list[JsonObject]", talk.body["tools"])
    tools.append({"name": "write", "input_schema": {"type": "object"}})


def another_question(talk: Talk) -> None:
    talk.block(0, 0)["text"] = "What was it?"


def another_result(talk: Talk) -> None:
    talk.block(2, 0)["content"] = "Three."


def words_taken_back(talk: Talk) -> None:
    cast("list[Json]", talk.messages[2]["content"]).pop()


def thinking_left_out(talk: Talk) -> None:
    cast("list[Json]", talk.messages[1]["content"]).pop(0)


def other_arguments(talk: Talk) -> None:
    talk.block(1, 3)["input"] = {"ref": "ks:c"}


@pytest.mark.parametrize(
    "change",
    [
        another_system,
        another_tool,
        another_question,
        another_result,
        words_taken_back,
        thinking_left_out,
        other_arguments,
    ],
)
async def test_thinking_behind_anything_else_is_refused(change: Change) -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        await three_rounds(talk)
        change(talk)
        with pytest.raises(BadRequestError, match="is bound to a different conversation"):
            await talk.go_on(text("And now?"))


@pytest.mark.parametrize(("at", "held"), [(0, "thinking"), (0, "signature"), (1, "data")])
async def test_altered_thinking_is_refused(at: int, held: str) -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        await three_rounds(talk)
        talk.block(1, at)[held] = "bm90IG1pbmU="
        with pytest.raises(BadRequestError, match=r"messages\.1\.content\.\d: Invalid `"):
            await talk.go_on(text("And now?"))


def marked(talk: Talk) -> None:
    talk.block(0, 0)["cache_control"] = {"type": "ephemeral"}


def as_a_string(talk: Talk) -> None:
    talk.body["system"] = "You read."


def in_another_order(talk: Talk) -> None:
    block = talk.block(2, 0)
    block["type"] = block.pop("type")


@pytest.mark.parametrize("change", [marked, as_a_string, in_another_order])
async def test_what_says_the_same_is_taken(change: Change) -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        await three_rounds(talk)
        change(talk)
        await talk.go_on(text("And now?"))


async def test_the_thinking_of_another_model_is_passed_over() -> None:
    async with signing(READS, ANSWERS) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        await talk.go_on(text("What is it?"))
        talk.body["model"] = "claude-sonnet-5-5"
        another_system(talk)
        await talk.go_on(result("toolu_1"), result("toolu_2"))


async def test_a_turn_that_was_paused_goes_on_in_one_message() -> None:
    paused = Says("Wait.", thinking=(Thinking("This is long."),), stop="pause_turn")
    async with signing(paused, ANSWERS) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        await talk.go_on(text("What is it?"))
        rest = await talk.send()
        answered = cast("list[Json]", talk.messages[1]["content"])
        answered.extend(cast("Json", block.to_dict()) for block in rest.content)
        await talk.go_on(text("Sure?"))
    assert len(peer.requests) == 3
