"""Replies in the forms of many providers: a file each, and what is to come of it.

Each is what a server of ours says in the form of the provider that its name begins with; none is a
copy of anybody's traffic. The forms are those of public issues and of the providers' pages: Groq (groq-typescript 28,
OpenHands 10048), OpenRouter ("Reasoning Tokens", and the schemas of its provider for the AI SDK), Google (earendil-works/pi 3234, dayu-agent 45), Azure (helm 3327,
argo-proxy 91), Mistral (braintrust-sdk-javascript 1857, and `ThinkChunk` of its OpenAPI document), LM Studio (openclaude 353), text-generation-inference (628), xAI (cline
3120), Gemini (gemini-cli 6678), Anthropic (the types of blocks in its Python library, 2.12).
"""

from __future__ import annotations

import json
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
from loopline.models import JsonObject
from loopline.providers.http import HttpTransport

HERE = Path(__file__).parent / "recordings"
"""The files: a line with the API, the status and the type, then the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is to come of a response: these values of the reply, or this error."""

    gives: Mapping[str, object] = field(default_factory=dict[str, object])
    fails: type[ModelError] | None = None
    window: int | None = None


CALLED: Mapping[str, object] = {"stop_reason": "tool_use", "called": ["shop.find"]}
UNREADABLE: Mapping[str, object] = {"stop_reason": "stop", "repaired": True}
SIGNED: JsonObject = {"google": {"thought_signature": "EjQKMgEM"}}

FORMS: Mapping[str, Form] = {
    "groq-tool_use_failed": Form(gives=UNREADABLE),
    "groq-tool_use_failed-in-a-stream": Form(gives={**UNREADABLE, "text": "I look."}),
    "openrouter-reasoning_details-of-claude": Form(
        gives={**CALLED, "thinking": "Hm.", "bound": True, "details": 1}
    ),
    "openrouter-reasoning_details-of-gemini": Form(gives={**CALLED, "bound": False, "details": 1}),
    "openrouter-reasoning_details-of-openai": Form(
        gives={**CALLED, "thinking": "Hm.", "bound": False, "details": 2}
    ),
    "openrouter-finish_reason-error": Form(fails=ModelOverloaded),
    "google-thought_signature": Form(gives={**CALLED, "extra": SIGNED, "bound": False}),
    "snowflake-done-without-a-reason": Form(gives={"text": "Tea.", "stop_reason": "stop"}),
    "nebius-done-without-a-reason": Form(gives={**CALLED}),
    "nebius-done-within-a-call": Form(fails=ModelStreamBroken),
    "azure-content_filter": Form(gives={"stop_reason": "refusal"}),
    "azure-content_filter-with-200": Form(gives={"stop_reason": "refusal"}),
    "azure-content_filter-in-a-stream": Form(gives={"stop_reason": "refusal", "text": "Te"}),
    "mistral-content-lists": Form(gives={"text": "Tea.", "thinking": "Hm."}),
    "vllm-think-tags": Form(gives={"text": "Tea.", "thinking": "Hm."}),
    "openai-refusal-cut-off": Form(fails=ModelStreamBroken),
    "ollama-without-usage": Form(gives={"text": "Tea.", "thinking": "Hm.", "unreported": 1}),
    "proxy-document": Form(gives={**CALLED, "text": "Tea.", "reasoning_tokens": 3}),
    "mistral-overflow": Form(fails=ModelOverflow, window=32_768),
    "lm-studio-overflow": Form(fails=ModelOverflow, window=4_096),
    "tgi-overflow": Form(fails=ModelOverflow, window=4_096),
    "xai-overflow": Form(fails=ModelOverflow, window=131_072),
    "gemini-overflow": Form(fails=ModelOverflow, window=1_048_576),
    "anthropic-server_tool_use": Form(gives={"text": "Tea.", "stop_reason": "stop", "called": []}),
    "anthropic-mcp_tool_use": Form(gives={"text": "Tea.", "stop_reason": "stop", "called": []}),
    "anthropic-document": Form(gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "bound": True}),
    "openai-response-document": Form(
        gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "reasoning_tokens": 3}
    ),
    "openai-response": Form(
        gives={**CALLED, "text": "Tea.", "thinking": "Hm.", "reasoning_tokens": 3}
    ),
    "openai-response-refusal-cut-off": Form(fails=ModelStreamBroken),
    "openai-response-failed-without-error": Form(fails=ModelOverloaded),
    "openai-response-document-failed-without-error": Form(fails=ModelOverloaded),
    "openai-response-document-cancelled": Form(fails=ModelOverloaded),
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


def _error(name: str) -> JsonObject:
    document: dict[str, JsonObject] = json.loads(recorded(name).body)
    return document["error"]


FAILED = _error("groq-tool_use_failed")
FILTERED = _error("azure-content_filter")
