"""How servers say that a prompt is longer than their context: each by its own status and body.

Sources, read on 2026-11-20: OpenAI and Anthropic, API reference, errors; ggml-org/llama.cpp pull
request 15780; vllm-project/vllm issue 20409; lmstudio-ai/lmstudio-bug-tracker issue 546;
OpenHands/OpenHands issue 1902 (Groq); error texts of Mistral, OpenRouter and text-generation-inference
as their users quote them.
"""

from __future__ import annotations

from loopline.models.json import Json
from tests.support.peers.behaviors import Fault, Status


def _nested(message: str, **fields: Json) -> Status:
    """A refusal whose body has an object `error`."""
    return Status(400, {"error": {"message": message, **fields}})


def _flat(message: str, kind: str, code: Json) -> Status:
    """A refusal whose body is the error."""
    body: dict[str, Json] = {"message": message, "type": kind, "param": None, "code": code}
    return Status(400, {"object": "error", **body})


_INVALID, _EXCEEDED = "invalid_request_error", "context_length_exceeded"
OPENAI = _nested(
    "This model's maximum context length is 128000 tokens. However, your messages resulted in"
    " 130245 tokens. Please reduce the length of the messages.",
    type=_INVALID,
    param="messages",
    code=_EXCEEDED,
)
ANTHROPIC = Status(
    400, fault=Fault(kind=_INVALID, message="prompt is too long: 212345 tokens > 200000 maximum")
)
ANTHROPIC_BYTES = Status(413)
"""More bytes than it takes: request_too_large."""

OPENAI_COMPATIBLE = {
    "openai": OPENAI,
    "openai responses": _nested(
        "Your input exceeds the context window of this model.",
        type=_INVALID,
        param="input",
        code=_EXCEEDED,
    ),
    "vllm": _flat(
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens"
        " (112946 in the messages, 10000 in the completion).",
        "BadRequestError",
        400,
    ),
    "llama.cpp": _nested(
        "the request exceeds the available context size. try increasing the context size or enable"
        " context shift",
        code=400,
        type="exceed_context_size_error",
        n_prompt_tokens=1407,
        n_ctx=256,
    ),
    "groq": _nested(
        "Please reduce the length of the messages or completion.",
        type=_INVALID,
        param="messages",
        code=_EXCEEDED,
    ),
    "mistral": _flat(
        "Prompt contains 66101 tokens and 0 draft tokens, too large for model with 32768 maximum"
        " context length",
        _INVALID,
        "3051",
    ),
    "openrouter": _nested(
        "This endpoint's maximum context length is 131072 tokens. However, you requested about"
        " 150000 tokens (142000 of text input, 8000 in the output).",
        code=400,
        metadata={"provider_name": None},
    ),
    "lm studio": Status(
        400,
        {
            "error": "Trying to keep the first 111490 tokens when context the overflows. However, the"
            " model is loaded with context length of only 32768 tokens, which is not enough."
        },
    ),
    "text-generation-inference": Status(
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given:"
            " 5000 `inputs` tokens and 100 `max_new_tokens`",
            "error_type": "validation",
        },
    ),
}
"""The error of LM Studio is a text, not an object."""
