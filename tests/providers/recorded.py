"""Replies in the forms of many providers, as files: `python -m tests.providers.recorded` writes them anew.

Each is what a server of ours says in the form of the provider that its name begins with; none is a
copy of anybody's traffic. The forms are those of public issues and of the providers' pages: Groq (groq-typescript 28,
OpenHands 10048), OpenRouter ("Reasoning Tokens", and the schemas of its provider for the AI SDK), Google (earendil-works/pi 3234, dayu-agent 45), Azure (helm 3327,
argo-proxy 91), Mistral (braintrust-sdk-javascript 1857, and `ThinkChunk` of its OpenAPI document), LM Studio (openclaude 353), text-generation-inference (628), xAI (cline
3120), Gemini (gemini-cli 6678), Anthropic (the types of blocks in its Python library, 2.12).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from loopline.errors import (
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelStreamBroken,
)
from loopline.models import Json, JsonObject, dumps
from loopline.providers.http import HttpTransport
from tests.support.peers.streams import PLAIN, Event, event

HERE = Path(__file__).parent / "recordings"
DONE = Event("[DONE]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A response, and what is to come of it: these values of the reply, or this error."""

    wire: str = "chat"
    events: Sequence[Event] = ()
    document: Json = None
    status: int = 200
    gives: Mapping[str, object] = field(default_factory=dict[str, object])
    fails: type[ModelError] | None = None
    window: int | None = None

    @property
    def body(self) -> str:
        """What comes behind the head."""
        if self.events:
            return b"".join(map(PLAIN.lay, self.events)).decode()
        return dumps(self.document)

    @property
    def text(self) -> str:
        """The response, head and body, as its file has it."""
        kind = "text/event-stream" if self.events else "application/json"
        return f"{self.wire} {self.status} {kind}\n{self.body}"


def _delta(delta: JsonObject, finish: str | None = None, **more: Json) -> Event:
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], **more})


def _call(arguments: str = '{"name":"tea"}', **more: Json) -> JsonObject:
    function: JsonObject = {"name": "shop__find", "arguments": arguments}
    return {"tool_calls": [{"id": "call_x1", "type": "function", "function": function, **more}]}


def _detail(kind: str, **more: Json) -> JsonObject:
    return {"reasoning_details": [{"type": f"reasoning.{kind}", "index": 0, **more}]}


USAGE: JsonObject = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "completion_tokens_details": {"reasoning_tokens": 3},
}
TOLD = event({"object": "chat.completion.chunk", "choices": [], "usage": USAGE})
CALLED: Mapping[str, object] = {"stop_reason": "tool_use", "called": ["shop.find"]}
FAILED: JsonObject = {
    "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation'.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
    "failed_generation": '<function=shop__find{"name": "tea"</function>',
}
UNREADABLE: Mapping[str, object] = {"stop_reason": "stop", "repaired": True}
FILTERED: JsonObject = {
    "message": "The response was filtered due to the prompt triggering the content policy.",
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {"code": "ResponsibleAIPolicyViolation"},
}
WHOLE: JsonObject = {
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Tea.", **_call()},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}


def _served(kind: str, result: str) -> Sequence[Event]:
    """A message in which the server itself has called a tool."""
    block: JsonObject = {"type": kind, "id": "srvtoolu_1", "name": "web_search", "input": {}}
    record: JsonObject = {"type": result, "tool_use_id": "srvtoolu_1", "content": []}
    text: JsonObject = {"type": "text", "text": ""}
    return [
        event({"type": "message_start", "message": {"usage": {"input_tokens": 11}}}),
        event({"type": "content_block_start", "index": 0, "content_block": block}),
        *(_block(0, "input_json_delta", "partial_json", text) for text in ('{"query":', '"tea"}')),
        event({"type": "content_block_stop", "index": 0}),
        event({"type": "content_block_start", "index": 1, "content_block": record}),
        event({"type": "content_block_start", "index": 2, "content_block": text}),
        _block(2, "text_delta", "text", "Tea."),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}),
        event({"type": "message_stop"}),
    ]


def _block(index: int, kind: str, name: str, text: str) -> Event:
    delta: JsonObject = {"type": kind, name: text}
    return event({"type": "content_block_delta", "index": index, "delta": delta})


SIGNED: JsonObject = {"google": {"thought_signature": "EjQKMgEM"}}
OF_CLAUDE: Mapping[str, Json] = {"format": "anthropic-claude-v1"}
OF_GEMINI: Mapping[str, Json] = {"format": "google-gemini-v1", "id": "call_x1", "data": "c2VhbA=="}
OF_OPENAI: Mapping[str, Json] = {"format": "openai-responses-v1", "id": "rs_1"}
MESSAGE_ITEM: JsonObject = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Tea."}],
}
CALL_ITEM: JsonObject = {
    "type": "function_call",
    "call_id": "call_x1",
    "name": "shop__find",
    "arguments": '{"name":"tea"}',
}
THOUGHT_ITEM: JsonObject = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "c2VhbA==",
}
USED: JsonObject = {
    "input_tokens": 11,
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
}

FORMS: Mapping[str, Form] = {
    "groq-tool_use_failed": Form(document={"error": FAILED}, status=400, gives=UNREADABLE),
    "groq-tool_use_failed-in-a-stream": Form(
        events=[_delta({"content": "I look."}), Event(dumps({"error": FAILED}), "error")],
        gives={**UNREADABLE, "text": "I look."},
    ),
    "openrouter-reasoning_details-of-claude": Form(
        events=[
            _delta({"reasoning": "Hm", **_detail("text", text="Hm", **OF_CLAUDE)}),
            _delta({"reasoning": ".", **_detail("text", text=".", **OF_CLAUDE)}),
            _delta(_detail("text", signature="c2ln", **OF_CLAUDE)),
            _delta(_call(index=0)),
            _delta({}, "tool_calls"),
            TOLD,
            DONE,
        ],
        gives={**CALLED, "thinking": "Hm.", "bound": True, "details": 1},
    ),
    "openrouter-reasoning_details-of-gemini": Form(
        events=[
            _delta(_detail("encrypted", **OF_GEMINI)),
            _delta(_call(index=0), "tool_calls"),
            TOLD,
            DONE,
        ],
        gives={**CALLED, "bound": False, "details": 1},
    ),
    "openrouter-reasoning_details-of-openai": Form(
        events=[
            _delta(_detail("summary", summary="Hm.", **OF_OPENAI)),
            _delta(_detail("encrypted", data="c2VhbA==", **OF_OPENAI)),
            _delta(_call(index=0), "tool_calls"),
            TOLD,
            DONE,
        ],
        gives={**CALLED, "thinking": "Hm.", "bound": False, "details": 2},
    ),
    "openrouter-finish_reason-error": Form(
        events=[_delta({"content": "Te"}), _delta({}, "error"), DONE], fails=ModelOverloaded
    ),
    "google-thought_signature": Form(
        events=[_delta(_call(extra_content=SIGNED)), _delta({}, "stop"), TOLD, DONE],
        gives={**CALLED, "extra": SIGNED, "bound": False},
    ),
    "snowflake-done-without-a-reason": Form(
        events=[_delta({"content": "Tea."}), TOLD, DONE],
        gives={"text": "Tea.", "stop_reason": "stop"},
    ),
    "nebius-done-without-a-reason": Form(
        events=[_delta(_call(index=0)), TOLD, DONE], gives={**CALLED}
    ),
    "nebius-done-within-a-call": Form(
        events=[_delta(_call('{"name":"t', index=0)), TOLD, DONE], fails=ModelStreamBroken
    ),
    "azure-content_filter": Form(
        document={"error": FILTERED}, status=400, gives={"stop_reason": "refusal"}
    ),
    "azure-content_filter-with-200": Form(
        document={"error": FILTERED}, gives={"stop_reason": "refusal"}
    ),
    "azure-content_filter-in-a-stream": Form(
        events=[
            event({"choices": [], "prompt_filter_results": []}),
            _delta({"content": "Te"}),
            event({"error": FILTERED}),
        ],
        gives={"stop_reason": "refusal", "text": "Te"},
    ),
    "mistral-content-lists": Form(
        events=[
            _delta(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
            ),
            _delta({"content": [{"type": "text", "text": "Te"}]}),
            _delta({"content": "a."}, "stop"),
            TOLD,
            DONE,
        ],
        gives={"text": "Tea.", "thinking": "Hm."},
    ),
    "vllm-think-tags": Form(
        events=[
            *(_delta({"content": text}) for text in ("\n<thi", "nk>Hm.</think>", "\n", "\nTea.")),
            _delta({}, "stop"),
            TOLD,
            DONE,
        ],
        gives={"text": "Tea.", "thinking": "Hm."},
    ),
    "openai-refusal-cut-off": Form(events=[_delta({"refusal": "I can"})], fails=ModelStreamBroken),
    "ollama-without-usage": Form(
        events=[_delta({"reasoning": "Hm."}), _delta({"content": "Tea."}, "stop"), DONE],
        gives={"text": "Tea.", "thinking": "Hm.", "unreported": 1},
    ),
    "proxy-document": Form(document=WHOLE, gives={**CALLED, "text": "Tea.", "reasoning_tokens": 3}),
    "mistral-overflow": Form(
        document={
            "object": "error",
            "message": "Prompt contains 66101 tokens and 0 draft tokens, too large for model with"
            " 32768 maximum context length",
            "type": "invalid_request_error",
            "code": "3051",
        },
        status=400,
        fails=ModelOverflow,
        window=32_768,
    ),
    "lm-studio-overflow": Form(
        document={
            "error": "The number of tokens to keep from the initial prompt is greater than the"
            " context length (n_keep: 13055>= n_ctx: 4096). Try to load the model with a larger"
            " context length, or provide a shorter input."
        },
        status=400,
        fails=ModelOverflow,
        window=4_096,
    ),
    "tgi-overflow": Form(
        document={
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."
            " Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
            "error_type": "validation",
        },
        status=422,
        fails=ModelOverflow,
        window=4_096,
    ),
    "xai-overflow": Form(
        document={
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 136973"
            " tokens.",
        },
        status=400,
        fails=ModelOverflow,
        window=131_072,
    ),
    "gemini-overflow": Form(
        document=[
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200293) exceeds the maximum number of"
                    " tokens allowed (1048576).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        status=400,
        fails=ModelOverflow,
        window=1_048_576,
    ),
    "anthropic-server_tool_use": Form(
        wire="messages",
        events=_served("server_tool_use", "web_search_tool_result"),
        gives={"text": "Tea.", "stop_reason": "stop", "called": []},
    ),
    "anthropic-mcp_tool_use": Form(
        wire="messages",
        events=_served("mcp_tool_use", "mcp_tool_result"),
        gives={"text": "Tea.", "stop_reason": "stop", "called": []},
    ),
    "anthropic-document": Form(
        wire="messages",
        document={
            "type": "message",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "Tea."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "shop__find",
                    "input": {"name": "tea"},
                },
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 11, "output_tokens": 7},
        },
        gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "bound": True},
    ),
    "openai-response-document": Form(
        wire="responses",
        document={
            "object": "response",
            "status": "completed",
            "output": [THOUGHT_ITEM, MESSAGE_ITEM, CALL_ITEM],
            "usage": USED,
        },
        gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "reasoning_tokens": 3},
    ),
    "openai-response": Form(
        wire="responses",
        events=[
            event({"type": "response.reasoning_summary_text.delta", "delta": "Hm."}),
            event({"type": "response.output_item.done", "output_index": 0, "item": THOUGHT_ITEM}),
            event({"type": "response.output_text.delta", "delta": "Tea."}),
            event({"type": "response.output_item.done", "output_index": 1, "item": MESSAGE_ITEM}),
            event(
                {
                    "type": "response.output_item.added",
                    "output_index": 2,
                    "item": {**CALL_ITEM, "arguments": ""},
                }
            ),
            event(
                {
                    "type": "response.function_call_arguments.delta",
                    "output_index": 2,
                    "delta": '{"name":"tea"}',
                }
            ),
            event({"type": "response.output_item.done", "output_index": 2, "item": CALL_ITEM}),
            event(
                {"type": "response.completed", "response": {"status": "completed", "usage": USED}}
            ),
        ],
        gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "reasoning_tokens": 3},
    ),
    "openai-response-refusal-cut-off": Form(
        wire="responses",
        events=[event({"type": "response.refusal.delta", "delta": "I can"})],
        fails=ModelStreamBroken,
    ),
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A response as its file has it."""

    wire: str
    status: int
    kind: str
    body: bytes


def recorded(name: str) -> Recorded:
    """The response of that file."""
    head, _, body = (HERE / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    wire, status, kind = head.split(" ")
    return Recorded(wire, int(status), kind, body.encode())


@dataclass(slots=True)
class _Pieces(httpx2.AsyncByteStream):
    pieces: Sequence[bytes]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


@dataclass(slots=True)
class _Answering(httpx2.AsyncBaseTransport):
    response: Recorded
    pieces: Sequence[bytes]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        del request
        headers = {"content-type": self.response.kind}
        return httpx2.Response(self.response.status, headers=headers, stream=_Pieces(self.pieces))


def replaying(response: Recorded, pieces: Sequence[bytes] | None = None) -> HttpTransport:
    """A client to which every request is answered with that response, in these pieces."""
    transport = _Answering(response, [response.body] if pieces is None else pieces)
    return HttpTransport(lambda: httpx2.AsyncClient(transport=transport))


def _write() -> None:
    for name, form in FORMS.items():
        (HERE / f"{name}.txt").write_text(form.text, encoding="utf-8")


if __name__ == "__main__":
    _write()
