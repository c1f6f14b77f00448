"""A bundle as a model: OpenAI's own client asks it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Generator
from itertools import pairwise
from pathlib import Path

import httpx2
import openai
import pytest
from openai import OpenAI, omit
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionAssistantMessageParam,
    ChatCompletionChunk,
    ChatCompletionMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionToolParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.chat_completion_message_function_tool_call_param import Function
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ToolParam,
)
from openai.types.shared_params import FunctionDefinition

from loopline import Bundle
from loopline.models import Capabilities, Prompt, Reply, StopReason, TextDelta, ToolCall, Usage
from loopline.server import app
from tests.support.echo_model import answered
from tests.support.live_server import SHOP, in_process, serving

HERE = "/conversations/default/default"
WAITED = "The tool said: [tc:turn_1.c1.result]\nwaited"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class TalkativeModel:
    """Says what it is about to do before it calls a tool, and counts tokens.

    A message with `break` breaks it, one with `think` has it think first in each round, and one with `length` is cut off each time.
    """

    name = "talkative"
    capabilities = Capabilities(window=1_000_000, tool_call=True, vision=True)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        reply = answered(prompt)
        if "break" in reply.text:
            raise ValueError("broken")
        text = "Let me see." if reply.calls else reply.text
        is_cut, thinks = "length" in text, "think" in str(prompt.messages)
        thought = "Hm, tea." if thinks else ""
        if thought:
            yield TextDelta(text=thought, channel="thinking")
        for word in text.split(" "):
            yield TextDelta(text=word if text.startswith(word) else f" {word}")
        calls: tuple[ToolCall, ...] = tuple(reply.calls)
        usage = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=4)
        stop_reason: StopReason = "length" if is_cut else reply.stop_reason
        yield Reply(text=text, calls=calls, stop_reason=stop_reason, usage=usage, thinking=thought)


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


@pytest.mark.parametrize("place", ["team/shop", "team%2Fshop"])
async def test_a_bundle_whose_id_has_a_slash_is_a_model(place: str) -> None:
    served = app(Bundle(id="team/shop"), store="memory:", model=TalkativeModel())
    async with in_process(served) as client:
        assert (await client.get(f"/v1/models/{place}")).json()["id"] == "team/shop"


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


@pytest.mark.parametrize("name", ["tea \u2615", "two\nlines", "tea "])
def test_a_conversation_whose_name_does_not_fit_in_a_header_is_continued_by_its_name(
    client: OpenAI, name: str
) -> None:
    for number in (1, 2):
        answer = client.chat.completions.with_raw_response.create(
            model="shop",
            messages=[{"role": "user", "content": "tea"}],
            metadata={"conversation_id": name},
        )
        assert answer.parse().id == f"chatcmpl-{name}-turn_{number}"
        assert "loopline-conversation" not in answer.headers


def test_a_name_has_the_same_limit_here_and_in_the_path_of_a_route(client: OpenAI) -> None:
    def create(name: str) -> ChatCompletion:
        return client.chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "tea"}],
            metadata={"conversation_id": name},
        )

    assert create("n" * 200).choices[0].message.content == "You said: tea"
    with pytest.raises(openai.UnprocessableEntityError, match="may have 200 characters"):
        create("n" * 201)


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


def ask(client: OpenAI, text: str, name: str, *, how: str) -> str | None:
    """Send a text in a conversation in one of four ways, and return the text of the reply."""
    match how:
        case "chat" | "chat stream":
            create = client.chat.completions.create
            message: ChatCompletionUserMessageParam = {"role": "user", "content": text}
            metadata = {"conversation_id": name}
            if how == "chat":
                whole = create(model="shop", messages=[message], metadata=metadata)
                return whole.choices[0].message.content
            return contents(
                list(create(model="shop", messages=[message], metadata=metadata, stream=True))
            )
        case "response":
            return client.responses.create(model="shop", input=text, conversation=name).output_text
        case _:
            with client.responses.stream(model="shop", input=text, conversation=name) as stream:
                return stream.get_final_response().output_text


@pytest.mark.parametrize("how", ["chat", "chat stream", "response", "response stream"])
def test_a_question_is_the_answer_and_the_next_message_answers_it(client: OpenAI, how: str) -> None:
    notes = {"chat stream": "Let me see.\n\n", "response stream": "Let me see."}
    assert ask(client, "call shop.book name=tea", f"asked {how}", how=how) == (
        f"{notes.get(how, '')}Book tea?"
    )
    answer = ask(client, "at noon", f"asked {how}", how=how)
    assert answer == WAITED.replace("waited", "at noon")


def test_reasoning_is_in_the_reply_whole_and_streamed(client: OpenAI) -> None:
    chat: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "think"}]
    whole = client.chat.completions.create(model="shop", messages=chat)
    chunks = client.chat.completions.create(model="shop", messages=chat, stream=True)
    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks if chunk.choices]
    assert whole.choices[0].message.to_dict()["reasoning_content"] == "Hm, tea."
    assert [item["reasoning_content"] for item in deltas if "reasoning_content" in item] == [
        "Hm, tea."
    ]
    with client.responses.stream(model="shop", input="think") as stream:
        streamed = stream.get_final_response()
    for response in (client.responses.create(model="shop", input="think"), streamed):
        reasoning, message = response.output
        assert isinstance(reasoning, ResponseReasoningItem)
        assert [part.text for part in reasoning.summary] == ["Hm, tea."]
        assert message.type == "message"
        assert response.output_text == "You said: think"


def test_a_truncated_answer_says_so(client: OpenAI, url: str) -> None:
    for text in ("length", "all"):
        sent = httpx2.post(f"{url}{HERE}/{text}/messages", json={"text": text})
        assert sent.json()["truncated"] == (text == "length")
    message: ChatCompletionUserMessageParam = {"role": "user", "content": "length"}
    whole = client.chat.completions.create(model="shop", messages=[message])
    chunks = list(client.chat.completions.create(model="shop", messages=[message], stream=True))
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    events = list(client.responses.create(model="shop", input="length", stream=True))
    last = events[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    for response in (client.responses.create(model="shop", input="length"), last.response):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


def test_a_response_has_the_events_of_the_api(client: OpenAI) -> None:
    stream = client.responses.create(
        model="shop", input="call shop.wait name=0", stream=True, metadata={"a": "b"}
    )
    events = list(stream)
    for event in events:
        assert type(event).model_validate(event.to_dict()) == event
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    message = ["output_item.added", "content_part.added", "output_text.delta"]
    message += ["output_text.done", "content_part.done", "output_item.done"]
    lasting = [kind for kind, following in pairwise([*kinds, ""]) if kind != following]
    assert lasting == ["created", "in_progress", *message, *message, "completed"]
    final = events[-1]
    assert isinstance(final, ResponseCompletedEvent)
    note, answer = final.response.output
    assert isinstance(note, ResponseOutputMessage)
    assert isinstance(answer, ResponseOutputMessage)
    assert (note.phase, answer.phase) == ("commentary", "final_answer")
    whole = client.responses.create(model="shop", input="call shop.wait name=0")
    assert whole.output_text == WAITED
    assert final.response.metadata == {"a": "b"}
    assert final.response.usage is not None
    assert final.response.usage.total_tokens == 26
    assert final.response.usage == whole.usage


def test_a_response_continues_the_one_before_it(client: OpenAI) -> None:
    def respond(text: str, previous: Response | None = None) -> Response:
        before = previous.id if previous else omit
        return client.responses.create(model="shop", input=text, previous_response_id=before)

    first = respond("one")
    second = respond("two", first)
    assert second.conversation == first.conversation
    assert (second.id, second.previous_response_id) == (
        first.id.replace("turn_1", "turn_2"),
        first.id,
    )
    other = respond("another two", first)
    assert other.conversation != first.conversation
    assert other.id.endswith("turn_2")
    assert respond("three", other).conversation == other.conversation
    assert respond("three", second).conversation == first.conversation
    for unknown in (
        "resp_x",
        "resp_nowhere-turn_1",
        first.id.replace("turn_1", "turn_x"),
        "turn_1",
    ):
        with pytest.raises(openai.BadRequestError, match="no response"):
            client.responses.create(model="shop", input="x", previous_response_id=unknown)


def test_the_input_of_a_response_is_messages_with_files_and_instructions(client: OpenAI) -> None:
    pixel = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    answer = client.responses.create(
        model="shop",
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "You said: one"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": pixel, "detail": "auto"},
                ],
            },
        ],
    )
    assert answer.output_text.startswith(
        "You said: [Earlier in this conversation]\n"
        "system: Be brief.\nuser: one\nassistant: You said: one\n[Now]\nlook"
    )
    with pytest.raises(openai.BadRequestError, match="no call 'c1' of yours waits"):
        client.responses.create(
            model="shop", input=[{"type": "function_call_output", "call_id": "c1", "output": "x"}]
        )


FUNCTION: FunctionDefinition = {
    "name": "where",
    "description": "Where is the user?",
    "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}},
}


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_runs_its_own_function_and_sends_the_result(
    client: OpenAI, *, streams: bool
) -> None:
    tools: list[ChatCompletionToolParam] = [{"type": "function", "function": FUNCTION}]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "call where unit=m"}]
    answered: ChatCompletion
    if streams:
        with client.chat.completions.stream(model="shop", messages=messages, tools=tools) as stream:
            answered = stream.get_final_completion()
    else:
        answered = client.chat.completions.create(model="shop", messages=messages, tools=tools)
    [choice] = answered.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("where", '{"unit":"m"}')
    function: Function = {"name": call.function.name, "arguments": call.function.arguments}
    called: ChatCompletionAssistantMessageParam = {
        "role": "assistant",
        "content": choice.message.content,
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    result: ChatCompletionToolMessageParam = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": "in Rome",
    }
    messages = [*messages, called, result]
    answer = client.chat.completions.create(model="shop", messages=messages, tools=tools)
    assert answer.choices[0].message.content == WAITED.replace("waited", "in Rome")
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.ConflictError, match='answered already: "in Rome"'):
        client.with_options(max_retries=0).chat.completions.create(
            model="shop", messages=messages, tools=tools
        )


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_a_response_calls_a_function_and_the_next_one_has_its_result(
    client: OpenAI, *, streams: bool, names: bool
) -> None:
    tools: list[ToolParam] = [
        {"type": "function", "name": "where", "strict": None, "parameters": {"type": "object"}}
    ]
    first: Response
    if streams:
        with client.responses.stream(
            model="shop", input="call where unit=m", tools=tools
        ) as stream:
            events = list(stream)
            first = stream.get_final_response()
        kinds = [event.type for event in events]
        assert "response.function_call_arguments.done" in kinds
        assert [event.sequence_number for event in events] == list(range(len(events)))
    else:
        first = client.responses.create(model="shop", input="call where unit=m", tools=tools)
    assert first.status == "completed"
    call = first.output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments, call.status) == ("where", '{"unit":"m"}', "completed")
    answer = client.responses.create(
        model="shop",
        previous_response_id=first.id if names else omit,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "in Rome"}],
    )
    assert answer.output_text == WAITED.replace("waited", "in Rome")
    assert answer.conversation == first.conversation


def test_a_choice_of_no_tools_has_none_and_other_choices_are_refused(client: OpenAI) -> None:
    tools: list[ChatCompletionToolParam] = [{"type": "function", "function": FUNCTION}]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "call where unit=m"}]
    create = client.chat.completions.create
    none = create(model="shop", messages=messages, tools=tools, tool_choice="none")
    assert "no tool 'where'" in (none.choices[0].message.content or "")
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        create(model="shop", messages=messages, tools=tools, tool_choice="required")


def test_a_response_that_fails_is_an_error_or_a_failed_event(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="shop", input="break")
    last = list(client.responses.create(model="shop", input="break", stream=True))[-1]
    assert isinstance(last, ResponseFailedEvent)
    assert last.response.error is not None


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
        client.responses.create(model="shop", input="tea", tools=[{"type": "web_search"}])


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
