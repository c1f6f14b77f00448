"""A bundle as a model: OpenAI's own client asks it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall, Usage
from loopline.server import app
from tests.support.echo_model import answered
from tests.support.live_server import SHOP, serving

WAITED = "The tool said: [tc:turn_1.c1.result]\nwaited"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class TalkativeModel:
    """Says what it is about to do before it calls a tool, and counts tokens; `break` breaks it."""

    name = "talkative"
    capabilities = Capabilities(window=1_000_000, tool_call=True, vision=True)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Reply to the last message."""
        reply = answered(prompt)
        if "break" in reply.text:
            raise ValueError("broken")
        text = "Let me see." if reply.calls else reply.text
        for word in text.split(" "):
            yield TextDelta(text=word if text.startswith(word) else f" {word}")
        calls: tuple[ToolCall, ...] = tuple(reply.calls)
        usage = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=4)
        yield Reply(text=text, calls=calls, stop_reason=reply.stop_reason, usage=usage)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder: Path = tmp_path_factory.mktemp("server")
    served = app(SHOP, store=f"sqlite:///{folder}/talk.db", model=TalkativeModel())
    with serving(served) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Generator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as opened:
        yield opened


def contents(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_bundles_are_the_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["shop"]
    assert client.models.retrieve("shop").owned_by == "loopline"
    with pytest.raises(openai.NotFoundError, match="no bundle 'gpt-5' is served here: shop"):
        client.models.retrieve("gpt-5")


def test_an_answer_comes_in_one_piece(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="shop", messages=[{"role": "user", "content": "tea"}], user="someone"
    )
    assert answer.choices[0].message.content == "You said: tea"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 3)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_an_answer_is_streamed_in_pieces_with_its_usage_at_the_end(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="shop",
        messages=[{"role": "user", "content": "green tea"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert contents(chunks) == "You said: green tea"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 13
    assert len({chunk.id for chunk in chunks}) == 1


def test_calls_of_tools_stay_inside_and_notes_are_paragraphs(client: OpenAI) -> None:
    said = "call shop.wait name=0"
    stream = client.chat.completions.create(
        model="shop", messages=[{"role": "user", "content": said}], stream=True
    )
    chunks = list(stream)
    assert contents(chunks) == f"Let me see.\n\n{WAITED}"
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    details = chunks[-1].to_dict()["loopline"]
    assert isinstance(details, dict)
    assert details["answer"] == WAITED
    whole = client.chat.completions.create(
        model="shop", messages=[{"role": "user", "content": said}]
    )
    assert whole.choices[0].message.content == WAITED


def test_a_conversation_is_named_by_a_header_or_in_the_metadata(client: OpenAI) -> None:
    first = client.chat.completions.with_raw_response.create(
        model="shop",
        messages=[{"role": "user", "content": "one"}],
        extra_headers={"Loopline-Conversation": "named"},
    )
    assert first.headers["loopline-conversation"] == "named"
    second = client.chat.completions.create(
        model="shop",
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "You said: one"},
            {"role": "user", "content": "two"},
        ],
        metadata={"conversation_id": "named"},
    )
    assert second.id == "chatcmpl-named-turn_2"
    assert second.choices[0].message.content == "You said: two"


def test_without_a_name_the_messages_before_are_told_in_a_new_conversation(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="shop",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "You said: one"},
            {"role": "user", "content": "two"},
        ],
    )
    assert answer.id.endswith("turn_1")
    assert answer.choices[0].message.content == (
        "You said: [Earlier in this conversation]\n"
        "system: Be brief.\nuser: one\nassistant: You said: one\n[Now]\ntwo"
    )


def test_a_question_is_the_answer_and_the_next_message_answers_it(client: OpenAI) -> None:
    def say(text: str) -> str | None:
        return (
            client.chat.completions.create(
                model="shop",
                messages=[{"role": "user", "content": text}],
                metadata={"conversation_id": "asked"},
            )
            .choices[0]
            .message.content
        )

    assert say("call shop.book name=tea") == "Book tea?"
    assert say("at noon") == WAITED.replace("waited", "at noon")


def test_an_idempotency_key_runs_one_turn(client: OpenAI) -> None:
    answers = [
        client.chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "once"}],
            extra_headers={"Idempotency-Key": "k1"},
        )
        for _ in range(2)
    ]
    assert answers[0].id == answers[1].id
    assert answers[0] == answers[1]


def test_an_image_is_attached_and_an_address_is_not_fetched(client: OpenAI, url: str) -> None:
    def say(address: str) -> str | None:
        return (
            client.chat.completions.create(
                model="shop",
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "look"},
                            {"type": "image_url", "image_url": {"url": address}},
                        ],
                    }
                ],
            )
            .choices[0]
            .message.content
        )

    assert "look" in (say(f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}") or "")
    with pytest.raises(openai.UnprocessableEntityError, match="send its bytes in a data URL"):
        say(f"{url}/image.png")


def test_errors_have_the_form_of_the_api(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "tea"}])
    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "tea"}],
            tools=[{"type": "function", "function": {"name": "f"}}],
        )


def test_a_turn_that_fails_is_an_error_and_is_not_run_again(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2) as client:
        headers = {"Loopline-Conversation": "broken"}
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(
                model="shop", messages=[{"role": "user", "content": "break"}], extra_headers=headers
            )
        answer = client.chat.completions.create(
            model="shop", messages=[{"role": "user", "content": "tea"}], extra_headers=headers
        )
        assert answer.id == "chatcmpl-broken-turn_2"
        stream = client.chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "break"}],
            extra_headers=headers,
            stream=True,
        )
        with pytest.raises(openai.APIError):
            list(stream)
