"""How servers say that a prompt is longer than their context: each by its own status and body.

Sources, read on 2026-11-20: OpenAI and Anthropic, API reference, errors; ggml-org/llama.cpp pull
request 15780; vllm-project/vllm issue 20409; lmstudio-ai/lmstudio-bug-tracker issue 546;
OpenHands/OpenHands issue 1902 (Groq); error texts of Mistral, OpenRouter and text-generation-inference
as their users quote them.
"""

from __future__ import annotations

from tests.support.peers.behaviors import Fault, Status

OPENAI = Status(
    400,
    {
        "error": {
            "message": "This model's maximum context length is 128000 tokens. However, your messages"
            " resulted in 130245 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
)
OPENAI_RESPONSES = Status(
    400,
    {
        "error": {
            "message": "Your input exceeds the context window of this model.",
            "type": "invalid_request_error",
            "param": "input",
            "code": "context_length_exceeded",
        }
    },
)
VLLM = Status(
    400,
    {
        "object": "error",
        "message": "This model's maximum context length is 16384 tokens. However, you requested"
        " 122946 tokens (112946 in the messages, 10000 in the completion).",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
)
LLAMA_CPP = Status(
    400,
    {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size. try increasing the context"
            " size or enable context shift",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 1407,
            "n_ctx": 256,
        }
    },
)
GROQ = Status(
    400,
    {
        "error": {
            "message": "Please reduce the length of the messages or completion.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
)
MISTRAL = Status(
    400,
    {
        "object": "error",
        "message": "Prompt contains 66101 tokens and 0 draft tokens, too large for model with 32768"
        " maximum context length",
        "type": "invalid_request_error",
        "param": None,
        "code": "3051",
    },
)
OPENROUTER = Status(
    400,
    {
        "error": {
            "message": "This endpoint's maximum context length is 131072 tokens. However, you"
            " requested about 150000 tokens (142000 of text input, 8000 in the output).",
            "code": 400,
            "metadata": {"provider_name": None},
        }
    },
)
LM_STUDIO = Status(
    400,
    {
        "error": "Trying to keep the first 111490 tokens when context the overflows. However, the"
        " model is loaded with context length of only 32768 tokens, which is not enough."
    },
)
"""Its error is a text, not an object."""
TEXT_GENERATION_INFERENCE = Status(
    422,
    {
        "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given:"
        " 5000 `inputs` tokens and 100 `max_new_tokens`",
        "error_type": "validation",
    },
)
ANTHROPIC = Status(
    400,
    fault=Fault(
        kind="invalid_request_error",
        message="prompt is too long: 212345 tokens > 200000 maximum",
    ),
)
ANTHROPIC_BYTES = Status(413)
"""More bytes than it takes: request_too_large."""

OPENAI_COMPATIBLE = {
    "openai": OPENAI,
    "openai responses": OPENAI_RESPONSES,
    "vllm": VLLM,
    "llama.cpp": LLAMA_CPP,
    "groq": GROQ,
    "mistral": MISTRAL,
    "openrouter": OPENROUTER,
    "lm studio": LM_STUDIO,
    "text-generation-inference": TEXT_GENERATION_INFERENCE,
}
