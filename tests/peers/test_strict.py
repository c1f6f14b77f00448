"""A strict peer takes a well-formed conversation, and refuses what some real servers refuse."""

from __future__ import annotations

import httpx2
import pytest
from openai import BadRequestError

from loopline.models.json import Json, JsonObject
from tests.peers.clients import GPT, openai_at
from tests.support.peers.openai_like import CHAT
from tests.support.peers.openai_replies import Says
from tests.support.peers.strict_server import strict

USER: JsonObject = {"role": "user", "content": "What is it?"}
ANSWER: JsonObject = {"role": "assistant", "content": "It is 4."}


def calls(*ids: str) -> JsonObject:
    function: JsonObject = {"name": "read", "arguments": "{}"}
    records: list[Json] = [{"id": item, "type": "function", "function": function} for item in ids]
    return {"role": "assistant", "content": None, "tool_calls": records}


def answers(id: str, content: Json = "Two.") -> JsonObject:
    return {"role": "tool", "tool_call_id": id, "content": content}


async def sent(messages: list[JsonObject], **more: Json) -> httpx2.Response:
    body: JsonObject = {"model": GPT, "messages": [*messages], **more}
    async with (
        strict(Says("Yes.")) as peer,
        httpx2.AsyncClient(trust_env=False, verify=False) as client,
    ):
        return await client.post(peer.url + CHAT, json=body)


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "You read."}, USER, ANSWER, USER],
        [USER, USER],
        [USER, calls("a", "b"), answers("b"), answers("a")],
        [USER, calls("a"), answers("a", ""), ANSWER, USER],
        [USER, calls("a"), answers("a"), calls("a"), answers("a")],
        [{"role": "user", "content": [{"type": "text", "text": "What is it?"}]}],
    ],
)
async def test_a_well_formed_conversation_is_taken(messages: list[JsonObject]) -> None:
    assert (await sent(messages)).status_code == 200


BROKEN: list[tuple[list[JsonObject], str]] = [
    ([USER, calls("a"), answers("a"), USER], "Unexpected role 'user' after role 'tool'"),
    (
        [USER, calls("a"), answers("a"), {"role": "system", "content": "Be quick."}],
        "Unexpected role 'system' after role 'tool'",
    ),
    ([USER, ANSWER], "Expected last role User or Tool"),
    ([USER, calls("a", "b"), answers("a")], "no response: b"),
    ([USER, calls("a"), USER], "no response: a"),
    ([USER, calls("a"), ANSWER, USER], "no response: a"),
    ([USER, answers("a")], "'a' answers no call"),
    ([USER, calls("a"), answers("a"), answers("a")], "'a' answers no call"),
    ([USER, calls("a"), answers("a"), ANSWER, answers("a")], "'a' answers no call"),
    ([{"role": "user", "content": ""}], "Empty content"),
    ([{"role": "user"}], "Empty content"),
    ([{"role": "user", "content": []}], "Empty content"),
    ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "Invalid 'messages.0"),
    ([{"role": "system", "content": ""}, USER], "Empty content"),
    ([USER, {"role": "assistant", "content": ""}, USER], "content or 'tool_calls'"),
    ([USER, {**calls("a"), "content": ""}, answers("a")], "leave it out"),
    ([USER, {**calls("a"), "tool_calls": []}, USER], "Invalid 'messages.1.tool_calls'"),
    ([USER, calls("a"), answers("a", None)], "A tool message has content"),
    ([{**ANSWER, "reasoning_content": "Hm."}], "Unknown parameter"),
    ([{**USER, "cache_control": {"type": "ephemeral"}}], "Unknown parameter"),
    ([{**USER, "tool_call_id": "a"}], "Only a tool message"),
    ([], "Invalid 'messages'"),
]


@pytest.mark.parametrize(("messages", "words"), BROKEN)
async def test_a_conversation_that_breaks_a_rule_is_refused(
    messages: list[JsonObject], words: str
) -> None:
    response = await sent(messages)
    assert response.status_code == 400
    assert words in response.text


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "enabled"}},
        {"tools": []},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"max_tokens": 0},
        {"stream_options": {"include_usage": True}},
    ],
)
async def test_a_field_that_is_unknown_or_wrong_is_refused(more: JsonObject) -> None:
    assert (await sent([USER], **more)).status_code == 400


async def test_a_refusal_is_a_bad_request_to_the_official_client() -> None:
    async with strict(Says("Yes.")) as peer, openai_at(peer) as client:
        with pytest.raises(BadRequestError, match="Empty content") as caught:
            await client.chat.completions.create(
                model=GPT, messages=[{"role": "user", "content": ""}]
            )
        assert caught.value.type == "invalid_request_error"
        completion = await client.chat.completions.create(
            model=GPT, messages=[{"role": "user", "content": "Hello"}]
        )
    assert completion.choices[0].message.content == "Yes."
