"""Spans are a fold over the blocks of a turn."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import jsonschema
import pytest
from msgspec import structs

from loopline import timeline as tl
from loopline.events import Caller, ObservedTurn
from loopline.models import Json, JsonObject, Usage
from loopline.telemetry import spans as genai
from loopline.telemetry.spans import FAILED, FinishedSpan, spans_of, trace_id
from tests.support.round_starts import round_start

TURN = ObservedTurn(conversation=tl.ConversationKey(name="talk"), uid="u1", turn=1)
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
PROMPT = tl.UserPrompt(text="the secret question")
HEADER = tl.TurnHeader(bundle="guide", model="openai:gpt-5", protocol="native")
ROUND = round_start(takes=(1,), opened_by="first", model="openai:gpt-5")
USED = Usage(input_tokens=100, output_tokens=7, cache_read_tokens=60, cache_write_tokens=30)
DECIDED = tl.Decision(model="openai:gpt-5", stop_reason="tool_use", calls=1, usage=USED, cost=0.5)
CALLED = tl.ToolCalled(call_id="c1", tool="desk.look", arguments={"text": "secret"})
SEEN = tl.ToolResult(call_id="c1", tool="desk.look", text="a secret", elapsed_ms=250)
ANSWERED = tl.Completion(text="the secret answer")
DONE = tl.Exit(reason="complete", rounds=1)


def blocks(*bodies: tl.Body, turn: int = 1) -> list[tl.Block]:
    """These bodies, a second apart, in the first round."""
    return [
        tl.Block(
            seq=seq, turn=turn, round=1, n=1, ts=START + timedelta(seconds=seq), term=1, body=body
        )
        for seq, body in enumerate(bodies, start=1)
    ]


def spans(*bodies: tl.Body, turn: ObservedTurn = TURN, content: bool = False) -> list[FinishedSpan]:
    return spans_of(turn, blocks(*bodies), content=content)


def at(seq: int) -> datetime:
    return START + timedelta(seconds=seq)


def test_a_turn_is_an_agent_with_its_requests_and_calls_below_it() -> None:
    chat, call, agent = spans(PROMPT, HEADER, ROUND, DECIDED, CALLED, SEEN, ANSWERED, DONE)
    assert [chat.name, call.name, agent.name] == [
        "chat gpt-5",
        "execute_tool desk.look",
        "invoke_agent guide",
    ]
    assert (chat.parent_id, call.parent_id, agent.parent_id) == (agent.span_id, agent.span_id, None)
    assert {chat.trace_id, call.trace_id, agent.trace_id} == {trace_id(TURN)}
    assert (chat.start, chat.end) == (at(3), at(4))
    assert (agent.start, agent.end) == (at(2), at(8))
    assert not any(span.failed for span in (chat, call, agent))


def test_a_call_of_a_program_is_below_the_call_that_runs_it() -> None:
    asked = tl.ProxiedCall(call_id="c1-1", parent="c1", tool="shop.find", arguments={"name": "tea"})
    found = tl.ProxiedResult(
        call_id="c1-1", parent="c1", tool="shop.find", text="none", status="error"
    )
    ran = tl.ToolResult(call_id="c1", tool="exec.python", text="done")
    proxied, call = spans(asked, found, ran, content=True)
    assert (proxied.name, proxied.parent_id) == ("execute_tool shop.find", call.span_id)
    assert (proxied.start, proxied.end, proxied.failed) == (at(1), at(2), True)
    assert proxied.attributes["gen_ai.tool.call.arguments"] == '{"name":"tea"}'


def test_ids_are_of_the_length_that_tracers_want() -> None:
    (agent,) = spans(HEADER, DONE)
    assert (len(bytes.fromhex(agent.trace_id)), len(bytes.fromhex(agent.span_id))) == (16, 8)


def test_a_request_says_what_it_used_and_why_it_ended() -> None:
    (chat,) = spans(ROUND, DECIDED)
    assert chat.kind == "client"
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.response.model": "gpt-5",
        "gen_ai.conversation.id": "talk",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 30,
        "loopline.turn_id": "turn_1",
        "loopline.round": 1,
        "loopline.purpose": "decision",
        "loopline.cost": 0.5,
    }


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("pydantic-ai:google:gemini-3-pro", "gcp.gen_ai", "gemini-3-pro"),
        ("pydantic-ai:mistral:large", "mistral_ai", "large"),
        ("openai-chat:gpt-5", "openai", "gpt-5"),
        ("groq:llama", "groq", "llama"),
        ("ollama:qwen:8b", "ollama", "qwen:8b"),
    ],
)
def test_a_provider_has_the_name_of_the_conventions(name: str, provider: str, model: str) -> None:
    header = structs.replace(HEADER, model=name)
    chat, call, agent = spans(
        header, structs.replace(ROUND, model=name), structs.replace(DECIDED, model=name), SEEN, DONE
    )
    assert {span.attributes[genai.PROVIDER] for span in (chat, call, agent)} == {provider}
    assert {span.attributes[genai.REQUEST_MODEL] for span in (chat, agent)} == {model}


TEXT_PART: JsonObject = {"properties": {"type": {"const": "text"}, "content": {"type": "string"}}}
REASONING: JsonObject = {
    "properties": {"type": {"const": "reasoning"}, "content": {"type": "string"}}
}
CALL_PART: JsonObject = {
    "properties": {
        "type": {"const": "tool_call"},
        "id": {"type": ["string", "null"]},
        "name": {"type": "string"},
    },
    "required": ["type", "name", "arguments"],
}
RESPONSE_PART: JsonObject = {
    "properties": {"type": {"const": "tool_call_response"}, "id": {"type": ["string", "null"]}},
    "required": ["type", "response"],
}
PARTS: list[Json] = [
    {"required": ["type", "content"], **TEXT_PART},
    {"required": ["type", "content"], **REASONING},
    CALL_PART,
    RESPONSE_PART,
]


def messages_schema(required: list[Json], more: JsonObject) -> JsonObject:
    """The schema of messages that have these fields."""
    parts: JsonObject = {"type": "array", "items": {"type": "object", "oneOf": PARTS}}
    roles: JsonObject = {"enum": ["system", "user", "assistant", "tool"]}
    message: JsonObject = {"type": "object", "required": required}
    message["properties"] = {"role": roles, "parts": parts, **more}
    return {"type": "array", "minItems": 1, "items": message}


FINISHES: JsonObject = {"enum": ["stop", "length", "content_filter", "tool_call", "error"]}
SCHEMAS = {
    genai.INPUT_MESSAGES: messages_schema(["role", "parts"], {}),
    genai.OUTPUT_MESSAGES: messages_schema(
        ["role", "parts", "finish_reason"], {"finish_reason": FINISHES}
    ),
}
"""What `docs/gen-ai/gen-ai-input-messages.json` and `gen-ai-output-messages.json` of OpenTelemetry's semantic conventions ask of
messages with these parts (open-telemetry/semantic-conventions-genai); the generic part, which takes anything, is left out."""
REQUIRED = {
    genai.CHAT: {genai.OPERATION, genai.PROVIDER, genai.REQUEST_MODEL},
    genai.INVOKE_AGENT: {genai.OPERATION, genai.PROVIDER, genai.AGENT, genai.CONVERSATION},
    genai.EXECUTE_TOOL: {genai.OPERATION, genai.PROVIDER, genai.TOOL, genai.CALL_ID},
}
"""The attributes that the spans and their measurements have, of those that the conventions require or recommend."""


@pytest.mark.parametrize("reason", ["stop", "tool_use", "length", "refusal"])
def test_messages_and_attributes_are_those_of_the_conventions(reason: str) -> None:
    decided = structs.replace(DECIDED, stop_reason=reason)
    made = spans(
        *(PROMPT, HEADER, ROUND, decided, tl.Thinking(text="hm"), tl.Notes(text="I look."), CALLED),
        *(tl.ToolStarted(call_id="c1", effect="read"), SEEN, tl.UserFollowup(text="and milk")),
        *(ROUND, decided, ANSWERED, DONE),
        content=True,
    )
    assert [span.attributes[genai.OPERATION] for span in made] == [
        *(genai.CHAT, genai.EXECUTE_TOOL, genai.CHAT, genai.INVOKE_AGENT)
    ]
    for span in made:
        attributes = span.attributes
        assert attributes.keys() >= REQUIRED[str(attributes[genai.OPERATION])]
        for name, schema in SCHEMAS.items():
            if attributes[genai.OPERATION] != genai.EXECUTE_TOOL:
                jsonschema.validate(json.loads(str(attributes[name])), schema)


def test_a_request_has_its_new_messages_and_its_reply_if_they_are_asked_for() -> None:
    first, _, cut_off, second, agent = spans(
        *(PROMPT, HEADER, ROUND, DECIDED, tl.Thinking(text="hm"), tl.Notes(text="I look."), CALLED),
        *(SEEN, tl.UserFollowup(text="and milk"), ROUND, ROUND),
        *(structs.replace(DECIDED, stop_reason="stop"), ANSWERED, DONE),
        content=True,
    )
    assert messages(first, genai.INPUT_MESSAGES) == [("user", ["the secret question"])]
    assert messages(first, genai.OUTPUT_MESSAGES) == [
        ("assistant", ["hm", "I look.", {"text": "secret"}])
    ]
    assert (first.start, first.end) == (at(3), at(4))
    assert messages(second, genai.INPUT_MESSAGES) == [
        ("tool", ["a secret"]),
        ("user", ["and milk"]),
    ]
    assert cut_off.attributes[genai.INPUT_MESSAGES] == second.attributes[genai.INPUT_MESSAGES]
    assert messages(second, genai.OUTPUT_MESSAGES) == [("assistant", ["the secret answer"])]
    assert messages(agent, genai.OUTPUT_MESSAGES) == [("assistant", ["the secret answer"])]


def messages(span: FinishedSpan, name: str) -> list[tuple[str, list[Json]]]:
    rows = json.loads(str(span.attributes[name]))
    return [
        (row["role"], [next(part[k] for k in CONTENTS if k in part) for part in row["parts"]])
        for row in rows
    ]


CONTENTS = ("content", "arguments", "response")


def test_the_request_of_a_turn_that_waits_is_told_before_the_answer() -> None:
    asks = tl.ToolPending(call_id="c1", kind="question", question="Which?", digest="")
    (chat,) = spans(HEADER, ROUND, DECIDED, CALLED, asks, content=True)
    assert messages(chat, genai.OUTPUT_MESSAGES) == [("assistant", [{"text": "secret"}])]


def test_a_model_whose_name_tells_of_no_provider_runs_here() -> None:
    (chat,) = spans(
        structs.replace(ROUND, model="offline"), structs.replace(DECIDED, model="offline")
    )
    assert (chat.kind, chat.attributes[genai.PROVIDER]) == ("internal", "loopline")


def test_a_call_began_its_elapsed_time_before_its_result() -> None:
    (call,) = spans(CALLED, SEEN)
    assert (call.start, call.end) == (at(2) - timedelta(milliseconds=250), at(2))


def test_a_call_that_was_started_began_then() -> None:
    call, _ = spans(HEADER, CALLED, tl.ToolStarted(call_id="c1", effect="write"), SEEN, DONE)
    assert (call.start, call.end) == (at(3), at(4))


@pytest.mark.parametrize(
    "status", [get_arg for get_arg in get_args(tl.ResultStatus) if get_arg != "ok"]
)
def test_a_call_without_an_outcome_has_failed_and_says_how(status: tl.ResultStatus) -> None:
    (call,) = spans(CALLED, structs.replace(SEEN, status=status))
    assert (call.failed, call.attributes[genai.ERROR]) == (True, status)


@pytest.mark.parametrize("reason", get_args(tl.ExitReason))
def test_a_turn_has_failed_if_it_broke_or_was_left(reason: tl.ExitReason) -> None:
    (agent,) = spans(HEADER, tl.Exit(reason=reason))
    assert agent.failed == (reason in FAILED)
    assert (agent.attributes.get(genai.ERROR) == reason) == agent.failed
    assert agent.attributes["loopline.exit_reason"] == reason


def test_a_request_that_the_model_could_not_answer_has_failed() -> None:
    (chat,) = spans(ROUND, tl.Notice(code="model_error", text="secret"))
    assert (chat.failed, chat.attributes[genai.ERROR]) == (True, "model_error")
    assert chat.attributes[genai.FINISH_REASONS] == ("error",)
    assert genai.INPUT_TOKENS not in chat.attributes


def test_a_request_that_was_refused_ended_so_and_one_that_could_not_be_made_has_failed() -> None:
    used = Usage(input_tokens=9, output_tokens=1)
    refused = tl.ModelSwitched(model="openai:gpt-5", to="b", why="refusal", place=1, usage=used)
    model_switched = tl.ModelSwitched(model="b", to="c", why="unavailable", place=2, text="secret")
    first, second, third = spans(ROUND, refused, ROUND, model_switched, ROUND, DECIDED)
    assert (first.failed, first.attributes[genai.FINISH_REASONS]) == (False, ("refusal",))
    assert first.attributes[genai.INPUT_TOKENS] == 9
    assert (second.failed, second.attributes[genai.ERROR]) == (True, "unavailable")
    assert not third.failed


def test_a_request_that_was_too_long_ended_where_the_model_said_so() -> None:
    too_long = tl.ModelOverflowed(model="openai:gpt-5", tokens=9_000, window=4_000, text="secret")
    first, second = spans(ROUND, too_long, structs.replace(HEADER, model="b"), ROUND, DECIDED)
    assert (first.end, first.attributes[genai.ERROR], second.failed) == (at(2), "overflow", False)


CHOSEN = tl.ToolsSelected(names=(), model="openai:gpt-5", elapsed_ms=250, usage=USED, cost=0.5)
SUMMED_UP = tl.RangeSummary(
    covers=1, first_turn=1, last_turn=1, model="openai:gpt-5", elapsed_ms=250, usage=USED, cost=0.5
)


@pytest.mark.parametrize(("body", "purpose"), [(CHOSEN, "selection"), (SUMMED_UP, "summary")])
def test_a_request_beside_the_rounds_is_a_chat_too_and_none_if_no_model_was_asked(
    body: tl.ToolsSelected | tl.RangeSummary, purpose: str
) -> None:
    chat, failed, agent = spans(HEADER, body, structs.replace(body, why="secret"), DONE)
    assert (chat.name, chat.parent_id, chat.failed) == ("chat gpt-5", agent.span_id, False)
    assert (chat.start, chat.end) == (at(2) - timedelta(milliseconds=250), at(2))
    assert (chat.attributes[genai.PURPOSE], chat.attributes[genai.COST]) == (purpose, 0.5)
    assert chat.attributes[genai.INPUT_TOKENS] == USED.input_tokens
    assert genai.FINISH_REASONS not in chat.attributes
    assert (failed.attributes[genai.ERROR], failed.span_id != chat.span_id) == ("no_result", True)
    assert spans(structs.replace(body, model="")) == []


def test_a_turn_began_when_its_header_says() -> None:
    began = at(-3)
    (agent,) = spans(structs.replace(HEADER, began=began), DONE)
    assert agent.start == began


def test_a_request_that_was_begun_anew_was_cut_off() -> None:
    first, second = spans(ROUND, ROUND, DECIDED)
    assert (first.attributes[genai.ERROR], second.failed) == ("cut_off", False)
    assert first.span_id != second.span_id


def test_a_request_that_the_end_of_the_turn_finds_open_ends_with_it() -> None:
    chat, agent = spans(HEADER, ROUND, tl.Exit(reason="stopped"))
    assert (chat.end, chat.attributes[genai.ERROR]) == (agent.end, "stopped")


def test_an_answer_without_a_model_is_no_request() -> None:
    without = structs.replace(DECIDED, model="")
    assert spans(structs.replace(ROUND, model=""), without) == []


def test_a_turn_that_waits_is_not_over() -> None:
    asks = tl.ToolPending(call_id="c1", kind="question", question="Which?", digest="")
    assert [span.name for span in spans(HEADER, ROUND, DECIDED, CALLED, asks)] == ["chat gpt-5"]


def test_a_turn_that_never_began_lasted_as_long_as_it_says() -> None:
    (agent,) = spans(PROMPT, tl.Exit(reason="stopped", elapsed_ms=500))
    assert (agent.name, agent.end - agent.start) == ("invoke_agent", timedelta(milliseconds=500))


def test_no_span_ends_before_it_begins_though_the_clock_was_set_back() -> None:
    first, second = blocks(HEADER, DONE)
    (agent,) = spans_of(TURN, [first, structs.replace(second, ts=at(-60))])
    assert agent.start == agent.end == at(-60)


def test_blocks_of_other_turns_are_passed_over() -> None:
    assert spans_of(TURN, blocks(HEADER, ROUND, DECIDED, SEEN, DONE, turn=2)) == []


def test_the_agent_says_what_the_turn_used_that_of_its_children_included() -> None:
    agent = spans(HEADER, ROUND, DECIDED, ROUND, DECIDED, structs.replace(DONE, rounds=2))[-1]
    assert agent.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "guide",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.conversation.id": "talk",
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 14,
        "loopline.turn_id": "turn_1",
        "loopline.exit_reason": "complete",
        "loopline.rounds": 2,
        "loopline.cost": 1.0,
    }


def test_nothing_that_was_said_is_told_unless_it_is_asked_for() -> None:
    said = (PROMPT, HEADER, ROUND, DECIDED, CALLED, SEEN, ANSWERED, DONE)
    assert "secret" not in str(spans(*said))
    _, call, agent = spans(*said, content=True)
    assert call.attributes[genai.ARGUMENTS] == '{"text":"secret"}'
    assert call.attributes[genai.RESULT] == "a secret"
    assert "the secret question" in str(agent.attributes[genai.INPUT_MESSAGES])
    assert "the secret answer" in str(agent.attributes[genai.OUTPUT_MESSAGES])


@pytest.mark.parametrize(("ran_with", "message"), [({}, "{}"), ({"text": "x"}, '{"text":"x"}')])
def test_a_call_is_told_with_the_arguments_that_a_guard_left_it(
    ran_with: JsonObject, message: str
) -> None:
    (call,) = spans(CALLED, structs.replace(SEEN, ran_with=ran_with), content=True)
    assert call.attributes[genai.ARGUMENTS] == message


def test_a_child_run_stands_below_the_call_that_began_it_in_the_same_trace() -> None:
    call = spans(CALLED, SEEN)[0]
    child = ObservedTurn(
        conversation=tl.ConversationKey(name="talk~c1"), uid="u2", turn=1, caller=Caller(TURN, "c1")
    )
    (agent,) = spans(HEADER, DONE, turn=child)
    assert (agent.parent_id, agent.trace_id) == (call.span_id, call.trace_id)


def test_the_same_blocks_have_the_same_ids_and_other_turns_others() -> None:
    ids = [
        spans(HEADER, DONE, turn=turn)[0].span_id if turn.turn == 1 else trace_id(turn)
        for turn in (TURN, TURN, replace(TURN, uid="u2"), replace(TURN, turn=2))
    ]
    assert ids[0] == ids[1]
    assert len({*ids, trace_id(TURN)}) == 4
