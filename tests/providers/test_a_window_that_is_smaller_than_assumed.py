"""A server whose window is smaller than assumed: it is learned from the error, and forgotten when it is larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline.models import JsonObject
from loopline.store import SqlLog
from loopline.timeline import Body, ConversationKey, ModelOverflowed, RangeSummary
from tests.support.peers.behaviors import Status
from tests.support.peers.window_server import WindowServer, say, say_elsewhere

TRANSIENT = Status(
    400, body={"error": {"code": "context_length_exceeded", "message": "Please reduce the length."}}
)


def tokens_a_minute(status: int, message: str) -> Status:
    error: JsonObject = {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}
    return Status(status, body={"error": error})


TOKEN_RATES = {
    "the request alone": tokens_a_minute(
        413,
        "Request too large for model `m` in organization `o` service tier `on_demand` on tokens per"
        " minute (TPM): Limit 6000, Requested 7500, please reduce your message size and try again.",
    ),
    "with earlier requests": tokens_a_minute(
        429,
        "Rate limit reached for model `m` in organization `o` on tokens per minute (TPM): Limit 6000,"
        " Used 5034, Requested 1443. Please try again in 4.77s.",
    ),
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    return f"sqlite:///{tmp_path}/c.db"


async def recorded(store: str, kind: type[Body]) -> list[Body]:
    async with await SqlLog.open(store) as log:
        blocks = await log.read(ConversationKey(name="c"))
    return [block.body for block in blocks if isinstance(block.body, kind)]


async def test_a_shorter_reply_is_asked_for_before_content_is_dropped(store: str) -> None:
    async with WindowServer().serve() as server:
        result = await say(store, server.url, "Hello there")
    (learned,) = await recorded(store, ModelOverflowed)
    refused, served = server.asked
    assert (result.answer, result.exit_reason) == ("Hello.", "complete")
    assert (refused.prompt, refused.output, served.prompt) == (served.prompt, 8_000, served.prompt)
    assert served.output > 6_000
    assert isinstance(learned, ModelOverflowed)
    assert (learned.named, learned.window, learned.prompt) == (8_192, 8_192, refused.prompt)
    assert learned.output == served.output


async def test_later_turns_know_the_window_also_in_another_process(store: str) -> None:
    async with WindowServer().serve() as server:
        await say(store, server.url, "Hello there")
        elsewhere = await say_elsewhere(store, server.url, "And there?")
        here = await say(store, server.url, "And here?")
    assert (elsewhere, here.answer, server.refused) == ("Hello.", "Hello.", 1)


async def test_content_is_dropped_when_a_shorter_reply_is_not_enough(store: str) -> None:
    async with WindowServer(calls=4).serve() as server:
        result = await say(store, server.url, "Look at it")
        later = await say(store, server.url, "And?")
    assert (result.answer, later.answer) == ("Hello.", "Hello.")
    assert server.refused <= 3
    assert all(asked.output >= 1_000 for asked in server.asked)


async def test_a_window_that_has_grown_is_used_again(store: str) -> None:
    server = WindowServer()
    async with server.serve():
        await say(store, server.url, "Hello there")
        server.window, server.calls = 64_000, 5
        result = await say(store, server.url, "Look at it")
        await say(store, server.url, "And?")
    assert (result.answer, server.refused) == ("Hello.", 1)
    assert max(asked.prompt for asked in server.asked) > 12_000
    assert server.asked[-1].output == 8_000
    assert await recorded(store, RangeSummary) == []


async def test_one_transient_refusal_ends_neither_the_turn_nor_the_conversation(store: str) -> None:
    async with WindowServer(window=32_000, once=[TRANSIENT]).serve() as server:
        first = await say(store, server.url, "Hello there")
        later = await say(store, server.url, "And?")
    assert (first.answer, later.answer, server.refused) == ("Hello.", "Hello.", 1)
    assert server.asked[0].prompt == server.asked[1].prompt
    assert server.asked[1].output < 8_000
    assert server.asked[2].output == 8_000


async def test_a_server_that_never_takes_less_is_asked_again_in_the_next_turn(store: str) -> None:
    async with WindowServer(window=32_000, once=[TRANSIENT] * 4).serve() as server:
        first = await say(store, server.url, "Hello there")
        later = await say(store, server.url, "And?")
    assert (first.exit_reason, later.answer) == ("error", "Hello.")


async def test_a_limit_in_the_error_that_cannot_be_true_is_not_learned(store: str) -> None:
    error: JsonObject = {
        "message": "This model's maximum context length is 192 tokens. However, your request has"
        " 800 input tokens. Please reduce the length of the input messages.",
        "type": "BadRequestError",
        "code": 400,
    }
    async with WindowServer(once=[Status(400, body={"error": error})]).serve() as server:
        result = await say(store, server.url, "Hello there")
    (learned, *_) = await recorded(store, ModelOverflowed)
    assert isinstance(learned, ModelOverflowed)
    assert (result.answer, learned.named) == ("Hello.", 0)


@pytest.mark.parametrize("error", TOKEN_RATES)
async def test_a_limit_of_the_tokens_of_a_minute_is_waited_for(store: str, error: str) -> None:
    async with WindowServer(window=32_000, once=[TOKEN_RATES[error]]).serve() as server:
        result = await say(store, server.url, "Hello there")
    first, second = server.asked
    assert (result.answer, await recorded(store, ModelOverflowed)) == ("Hello.", [])
    assert second.prompt == first.prompt
    assert second.output == (6_500 if error == "the request alone" else 8_000)
