"""What the providers' errors mean: too long a prompt, a wait, a reason to ask again or not to."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.models import (
    ATTACHMENTS,
    ApiVendor,
    ErrorMeaning,
    Overflow,
    TokenRate,
    find_documented_error,
    find_overflow,
    find_token_rate,
    wait_seconds,
)
from loopline.models.provider_errors import DOCUMENTED_ERRORS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

TOO_LONG: list[tuple[str, int | None, str, int | None, int | None, int | None]] = [
    (
        "OpenAI, chat",
        400,
        "This model's maximum context length is 4097 tokens. However, your messages resulted in"
        " 13393 tokens. Please reduce the length of the messages.",
        4_097,
        13_393,
        13_393,
    ),
    (
        "OpenAI, chat, with what was to be written",
        400,
        "This model's maximum context length is 8191 tokens, however you requested 8238 tokens"
        " (8238 in your prompt; 0 for the completion).",
        8_191,
        8_238,
        8_238,
    ),
    (
        "OpenAI, chat, by the limit of the prompt",
        400,
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in"
        " 402740 tokens.",
        272_000,
        402_740,
        402_740,
    ),
    (
        "OpenAI, Responses, in the stream",
        None,
        '{"type":"error","error":{"code":"context_length_exceeded","message":"Your input exceeds'
        ' the context window of this model."}}',
        None,
        None,
        None,
    ),
    (
        "Anthropic",
        400,
        '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long:'
        ' 208310 tokens > 200000 maximum"}}',
        200_000,
        208_310,
        208_310,
    ),
    (
        "Anthropic, with what was to be written",
        400,
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease",
        200_000,
        178_959,
        178_959,
    ),
    ("Anthropic by way of others", 413, "Prompt is too long", None, None, None),
    (
        "vLLM",
        400,
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens"
        " (112946 in the messages, 10000 in the completion).",
        16_384,
        122_946,
        112_946,
    ),
    (
        "vLLM, counted before",
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 16 output"
        " tokens and your prompt contains at least 4081 input tokens",
        4_096,
        4_081,
        None,
    ),
    (
        "vLLM, for what was to be written",
        400,
        "'max_tokens' is too large: 16384. This model's maximum context length is 262144 tokens"
        " and your request has 246773 input tokens",
        262_144,
        246_773,
        246_773,
    ),
    (
        "vLLM, the prompt alone",
        400,
        "The decoder prompt (length 5951) is longer than the maximum model length of 4096.",
        4_096,
        5_951,
        5_951,
    ),
    (
        "vLLM, with images",
        400,
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        4_096,
        25_938,
        25_938,
    ),
    (
        "SGLang",
        400,
        "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
        262_144,
        516_368,
        516_368,
    ),
    (
        "llama.cpp, in fields",
        400,
        '{"error":{"code":400,"message":"the request exceeds the available context size. try'
        ' increasing the context size","n_prompt_tokens":14429,"n_ctx":8192}}',
        8_192,
        14_429,
        14_429,
    ),
    (
        "llama.cpp, in words",
        400,
        "request (5951 tokens) exceeds the available context size (4096 tokens), try increasing it",
        4_096,
        5_951,
        5_951,
    ),
    (
        "llama.cpp, as it was",
        500,
        "the request exceeds the available context size, try increasing it",
        None,
        None,
        None,
    ),
    (
        "llama-cpp-python",
        500,
        "Requested tokens (2285) exceed context window of 2048",
        2_048,
        2_285,
        2_285,
    ),
    ("Ollama", 400, "prompt too long; exceeded max context length by 4 tokens", None, None, None),
    ("Ollama, embedding", 400, "the input length exceeds the context length", None, None, None),
    (
        "vLLM, beside what is reserved",
        400,
        "This model's maximum context length is 2048 tokens. However, your request has 8 input tokens"
        " plus 2045 'max_tokens'. Please reduce one or the other.",
        2_048,
        8,
        8,
    ),
    (
        "Cerebras",
        400,
        "Please reduce the length of the messages or completion. Current length is 42328 while limit"
        " is 40000",
        40_000,
        42_328,
        None,
    ),
    (
        "Groq",
        400,
        '{"error":{"message":"Please reduce the length of the messages or completion.",'
        '"code":"context_length_exceeded"}}',
        None,
        None,
        None,
    ),
    (
        "OpenRouter",
        400,
        "This endpoint's maximum context length is 131072 tokens. However, you requested about"
        " 141607 tokens (10535 of text input, 131072 in the output).",
        131_072,
        141_607,
        10_535,
    ),
]


@pytest.mark.parametrize(
    ("status", "message", "window", "tokens", "prompt"),
    [row[1:] for row in TOO_LONG],
    ids=[row[0] for row in TOO_LONG],
)
def test_too_long_a_prompt_is_recognised_and_the_window_read(
    status: int | None, message: str, window: int | None, tokens: int | None, prompt: int | None
) -> None:
    assert find_overflow(status, message) == Overflow(window=window, tokens=tokens, prompt=prompt)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000"),
        (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000"),
        (429, "prompt is too long: 208310 tokens > 200000 maximum"),
        (
            413,
            "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7500",
        ),
        (413, "Request exceeds the maximum size"),
        (400, "messages.0.content.1.image.source.base64: image exceeds 10 MB maximum"),
        (400, "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens"),
        (400, '"thinking.type.disabled" is not supported for this model.'),
        (400, "Function tools with reasoning_effort are not supported for gpt-5.4"),
        (402, "This request requires more credits, or fewer max_tokens."),
        (529, "Overloaded"),
        (500, ""),
        (None, "the connection was lost"),
    ],
)
def test_other_trouble_is_no_overflow(status: int | None, message: str) -> None:
    assert find_overflow(status, message) is None


@pytest.mark.parametrize(
    ("message", "rate"),
    [
        (
            "Request too large for model `llama-3.3-70b-versatile` in organization `o` service tier"
            " `on_demand` on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce",
            TokenRate(excess=2_137),
        ),
        (
            "Rate limit reached for model `m` on tokens per day (TPD): Limit 100000, Used 97050,"
            " Requested 3619. Please try again in 9m38.016s. Need more tokens?",
            TokenRate(wait=578.016),
        ),
        (
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.",
            TokenRate(excess=312_389),
        ),
        ("Tokens per minute limit exceeded - too many tokens processed.", TokenRate()),
        (
            "rate limit is - Tokens per Minute (actual/limit): 65605/16000.",
            TokenRate(excess=49_605),
        ),
        ("prompt is too long: 208310 tokens > 200000 maximum", None),
    ],
)
def test_a_limit_of_the_tokens_of_a_period_is_recognised(
    message: str, rate: TokenRate | None
) -> None:
    assert find_token_rate(message) == rate


WORDS = st.lists(
    st.sampled_from([*(row[2] for row in TOO_LONG), "9" * 5_000, "maximum context length is ", ","])
    | st.text(max_size=20)
)


@given(st.none() | st.integers(), WORDS.map("".join))
def test_reading_an_error_never_fails(status: int | None, message: str) -> None:
    found = find_overflow(status, message)
    assert found is None or found.window is None or found.window >= 0
    assert find_documented_error("openai", status, message) is None or status is not None


# What an error means


@pytest.mark.parametrize(
    ("wire", "status", "name", "meaning", "again"),
    [
        ("anthropic", 529, "overloaded_error", "busy", True),
        ("anthropic", None, "overloaded_error", "busy", True),
        ("anthropic", 200, "api_error", "server", True),
        ("anthropic", 429, "rate_limit_error", "rate", True),
        ("anthropic", 402, "billing_error", "money", False),
        ("anthropic", 413, "request_too_large", "size", False),
        ("anthropic", 400, "something_new", "request", False),
        ("openai", 429, "rate_limit_exceeded", "rate", True),
        ("openai", 429, "", "rate", True),
        ("openai", 429, "insufficient_quota", "money", False),
        ("openai", 429, "credit_balance_exhausted", "money", False),
        ("openai", 503, "slow_down", "busy", True),
        ("openai", 401, "invalid_api_key", "key", False),
        ("openai", 400, "context_length_exceeded", "size", False),
    ],
)
def test_an_error_means_what_its_name_says_else_what_its_status_says(
    wire: ApiVendor, status: int | None, name: str, meaning: ErrorMeaning, again: bool
) -> None:
    refusal = find_documented_error(wire, status, name)
    assert refusal is not None
    assert (refusal.meaning, refusal.again) == (meaning, again)


@pytest.mark.parametrize(
    ("status", "names", "meaning"),
    [
        (402, ("invalid_request_error", "unknown_error"), "money"),
        (401, ("", "invalid_request_error"), "key"),
        (413, ("rate_limit_exceeded", "tokens"), "rate"),
        (400, ("context_length_exceeded", "invalid_request_error"), "size"),
        (None, ("", "invalid_request_error"), "request"),
        (200, ("", "server_error"), "server"),
    ],
)
def test_of_two_names_the_one_counts_that_says_more_than_its_status(
    status: int | None, names: tuple[str, ...], meaning: ErrorMeaning
) -> None:
    refusal = find_documented_error("openai", status, *names)
    assert refusal is not None
    assert refusal.meaning == meaning


@pytest.mark.parametrize(("status", "name"), [(None, ""), (418, "teapot"), (200, "")])
def test_of_an_error_that_nobody_documents_nothing_is_said(status: int | None, name: str) -> None:
    assert find_documented_error("anthropic", status, name) is None


def test_every_refusal_is_found_by_its_name() -> None:
    named = [refusal for refusal in DOCUMENTED_ERRORS if refusal.name]
    assert [
        find_documented_error(result.wire, result.status, result.name) for result in named
    ] == named
    assert all(refusal.name for refusal in DOCUMENTED_ERRORS if refusal.wire == "anthropic")


# How long to wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20),
        ({"Retry-After": "0"}, 0),
        ({"retry-after": "20", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Fri, 20 Nov 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Fri, 20 Nov 2026 11:00:00 GMT"}, 0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-11-20T12:00:05Z",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-20T12:00:45Z",
                "anthropic-ratelimit-output-tokens-remaining": "9000",
                "anthropic-ratelimit-output-tokens-reset": "2026-11-20T13:00:00Z",
            },
            45,
        ),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf", "retry-after-ms": "-5"}, None),
        ({}, None),
    ],
)
def test_a_refusal_says_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_seconds(headers, NOON) == (None if seconds is None else pytest.approx(seconds))


HEADERS = st.sampled_from(
    [
        "retry-after",
        "retry-after-ms",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ]
)
VALUES = (
    st.text(max_size=12)
    | st.datetimes().map(str)
    | st.sampled_from(
        ["0", "1s", "9" * 400, "nan", "inf", "1e400", "Fri, 31 Dec 9999 23:59:59 GMT"]
    )
)


@given(st.dictionaries(HEADERS, VALUES))
def test_reading_the_headers_never_fails(headers: dict[str, str]) -> None:
    seconds = wait_seconds(headers, NOON)
    assert seconds is None or 0 <= seconds < math.inf


# Attachments


@pytest.mark.parametrize("wire", list(ATTACHMENTS))
def test_what_may_be_attached_fits_its_request(wire: ApiVendor) -> None:
    limits = ATTACHMENTS[wire]
    assert (limits.image_bytes or 0) <= limits.request_bytes
    assert limits.pdf_bytes <= limits.request_bytes
    assert limits.images_small <= limits.images
    assert (limits.pdf_pages_small or 0) <= (limits.pdf_pages or 0)
    assert all(kind.startswith("image/") for kind in limits.image_types)
