"""A signing peer refuses what breaks a rule of Anthropic's wire, in the words of that rule."""

from __future__ import annotations

import pytest
from anthropic import BadRequestError

from loopline.models.json import Json, JsonObject
from tests.peers.anthropic_dialogue import opening, result, text
from tests.peers.clients import anthropic_at
from tests.support.peers.anthropic_replies import Says
from tests.support.peers.signing_server import signing

USE: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
OTHER: JsonObject = {**USE, "id": "toolu_2"}


def marked_as(block: JsonObject, ttl: str = "5m") -> JsonObject:
    marker: JsonObject = {"type": "ephemeral", "ttl": ttl}
    return {**block, "cache_control": marker}


def says(role: str, *blocks: Json) -> JsonObject:
    return {"role": role, "content": [*blocks]}


ASKED = says("user", text("What?"))
CALLED = says("assistant", USE, OTHER)


BROKEN: list[tuple[list[JsonObject], str]] = [
    ([says("assistant", text("Hi"))], 'first message must use the "user" role'),
    ([ASKED, ASKED], "roles must alternate"),
    ([ASKED, says("tool", text("Two."))], 'Unexpected role "tool"'),
    ([says("user", text(" "))], "must contain non-whitespace text"),
    ([ASKED, says("assistant"), ASKED], "must have non-empty content"),
    ([ASKED, CALLED], "without `tool_result` blocks immediately after: toolu_1, toolu_2"),
    ([ASKED, CALLED, ASKED], "without `tool_result` blocks immediately after"),
    ([ASKED, CALLED, says("user", result("toolu_1"))], "immediately after: toolu_2"),
    (
        [ASKED, CALLED, says("user", result("toolu_1"), text("So?"), result("toolu_2"))],
        "must come first",
    ),
    (
        [ASKED, CALLED, says("user", *[result("toolu_1")] * 2, result("toolu_2"))],
        "must have a single result: toolu_1",
    ),
    ([says("user", result("toolu_9"))], "unexpected `tool_use_id`"),
    (
        [says("user", *[marked_as(text("A"))] * 5)],
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    (
        [
            says(
                "user",
                marked_as(text("A")),
                marked_as(text("B"), "1h"),
            )
        ],
        "must not come after",
    ),
    (
        [ASKED, says("assistant", marked_as({"type": "thinking"}))],
        "cache_control cannot be set",
    ),
    ([says("user", marked_as(text("A"), "1h"))], "keeps a cache for 5m"),
    ([{"role": "user", "content": "What?", "name": "Ann"}], "Extra inputs are not permitted"),
    ([{"role": "user"}], "should be a valid list"),
    ([says("user", {"text": "What?"})], "type: Field required"),
]


@pytest.mark.parametrize(("messages", "words"), BROKEN)
async def test_a_request_that_breaks_a_rule_is_refused(
    messages: list[JsonObject], words: str
) -> None:
    async with signing(Says("Never.")) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        talk.messages.extend(messages)
        with pytest.raises(BadRequestError) as caught:
            await talk.send()
    assert caught.value.type == "invalid_request_error"
    assert words in str(caught.value.api_message)


async def test_a_system_message_may_stand_among_the_others() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        talk.messages.extend([ASKED, says("system", text("It is late."))])
        assert (await talk.send()).stop_reason == "end_turn"


async def test_a_request_that_is_refused_leaves_the_script_where_it_was() -> None:
    async with signing(Says("One."), Says("Two.")) as peer, anthropic_at(peer) as client:
        talk = opening(client)
        with pytest.raises(BadRequestError, match="at least one message"):
            await talk.send()
        (block,) = (await talk.go_on(text("Which?"))).content
    assert block.type == "text"
    assert block.text == "One."
