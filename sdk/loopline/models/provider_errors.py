"""The errors that model providers document: what they mean, when to ask again, and overflows of the window.

Read on 2026-11-20. Where a page has changed, its latest stored text counts.

When to ask again. `retry-after` counts in seconds or is a date; OpenAI also sends `retry-after-ms`.
Anthropic's `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`
have a reset in RFC 3339 ("Rate limits"), OpenAI's
`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` one such as `6m0s` ("Rate limits").
OpenRouter may send `retry-after` ("Errors and debugging", its section on that header). A 429 for money spent
has none, and asking again does not help.

Errors. Anthropic, "Errors"; OpenAI, "Error codes"; for `invalid_prompt`, the codes of a response that
failed. Anthropic may send an error after a 200, as an event of the stream, and OpenRouter too, with
the status as its code. Groq answers 413 with `rate_limit_exceeded` to a request of more tokens than
a minute allows (ha-groq-cloud-api 27), and 400, or an event of a stream, with `tool_use_failed` to a
call that its model wrote wrong (groq-typescript 28, OpenHands 10048). Azure's filter answers 400 with
`content_filter`, or 200 with that and `"status": 400` (helm 3327, argo-proxy 91). DeepSeek 402 with `invalid_request_error` to an empty
account (aider 4851).

Overflow. Wordings as in public issues: Anthropic (docker-agent 569, claude-code 12186), OpenAI
(opencode 6071, gpt4free 137), xAI (cline 3120), Gemini (gemini-cli 6678, arkavo-edge 371), LM Studio
(lmstudio-bug-tracker 546, openclaude 353), text-generation-inference (628, 695), vLLM (20409, and its sources), SGLang, llama.cpp (15780, textgen 7257),
llama-cpp-python (rllm 55), Ollama (nano-brain 208), OpenRouter (aider 3721, cognee 1061).
Anthropic's newer models write up to the end of the window and stop with
`model_context_window_exceeded` instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from loopline.models.vendors import ApiVendor

ErrorMeaning = Literal[
    "request",
    "key",
    "money",
    "rights",
    "missing",
    "size",
    "rate",
    "busy",
    "server",
    "call",
    "content",
]
"""What an error means. `call`: the model wrote a call that its server cannot read. `content`: a filter
holds the prompt or the reply back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedError:
    """An error as a vendor documents it.

    `name` is the `error.type` of Anthropic, the `error.code` or `error.type` of OpenAI, empty
    where the status alone says it. `again` says that the same request may do better later.
    """

    wire: ApiVendor
    status: int
    name: str
    meaning: ErrorMeaning
    again: bool


def _refusal(wire: ApiVendor, status: int, name: str, meaning: ErrorMeaning) -> DocumentedError:
    again = meaning in {"rate", "busy", "server"}
    return DocumentedError(wire=wire, status=status, name=name, meaning=meaning, again=again)


DOCUMENTED_ERRORS = (
    _refusal("anthropic", 400, "invalid_request_error", "request"),
    _refusal("anthropic", 401, "authentication_error", "key"),
    _refusal("anthropic", 402, "billing_error", "money"),
    _refusal("anthropic", 403, "permission_error", "rights"),
    _refusal("anthropic", 404, "not_found_error", "missing"),
    _refusal("anthropic", 409, "conflict_error", "request"),
    _refusal("anthropic", 413, "request_too_large", "size"),
    _refusal("anthropic", 429, "rate_limit_error", "rate"),
    _refusal("anthropic", 500, "api_error", "server"),
    _refusal("anthropic", 504, "timeout_error", "server"),
    _refusal("anthropic", 529, "overloaded_error", "busy"),
    _refusal("openai", 400, "invalid_request_error", "request"),
    _refusal("openai", 400, "invalid_prompt", "request"),
    _refusal("openai", 400, "context_length_exceeded", "size"),
    _refusal("openai", 400, "tool_use_failed", "call"),
    _refusal("openai", 400, "content_filter", "content"),
    _refusal("openai", 401, "invalid_api_key", "key"),
    _refusal("openai", 402, "", "money"),
    _refusal("openai", 403, "", "rights"),
    _refusal("openai", 404, "model_not_found", "missing"),
    _refusal("openai", 413, "", "size"),
    _refusal("openai", 408, "", "server"),
    _refusal("openai", 429, "rate_limit_exceeded", "rate"),
    _refusal("openai", 413, "rate_limit_exceeded", "size"),
    _refusal("openai", 429, "insufficient_quota", "money"),
    _refusal("openai", 429, "credit_balance_exhausted", "money"),
    _refusal("openai", 500, "server_error", "server"),
    _refusal("openai", 502, "", "server"),
    _refusal("openai", 503, "slow_down", "busy"),
    _refusal("openai", 503, "server_is_overloaded", "busy"),
)
"""The documented errors, of each status the likeliest first. Those without a name are what others
who speak the wire answer."""


def find_documented_error(
    wire: ApiVendor, status: int | None, *names: str
) -> DocumentedError | None:
    """What an error means: by its name where that is known, else by its status, else None.

    An error may have two names, a code and a type. One that says no more than that the request is
    wrong yields to the status, and one that is documented with this very status comes first.
    """
    ours = [refusal for refusal in DOCUMENTED_ERRORS if refusal.wire == wire]
    named = [refusal for name in names if name for refusal in ours if refusal.name == name]
    exact = [refusal for refusal in named if refusal.status == status]
    telling = [refusal for refusal in named if refusal.meaning != "request"]
    stated = [refusal for refusal in ours if refusal.status == status]
    return next(iter([*exact, *telling, *stated, *named]), None)


def wait_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long a refusal asks to wait before the next request; None where it does not say.

    Without a `retry-after` it is until every limit that is used up begins anew.
    """
    sent = {name.lower(): value.strip() for name, value in headers.items()}
    used_up = [name for name, value in sent.items() if "ratelimit" in name and value == "0"]
    resets = [sent.get(name.replace("remaining", "reset"), "") for name in used_up]
    asked = [
        _number(sent.get("retry-after-ms", ""), 1_000),
        _number(sent.get("retry-after", ""), 1),
        _until(sent.get("retry-after", ""), now),
        max((_until(reset, now) or _duration(reset) or 0 for reset in resets), default=None),
    ]
    return next((seconds for seconds in asked if seconds is not None), None)


def _number(text: str, per_second: int) -> float | None:
    return float(text) / per_second if _NUMBER.fullmatch(text) else None


def _until(text: str, now: datetime) -> float | None:
    """The seconds until a date of HTTP or of RFC 3339."""
    for read in (_http_date, datetime.fromisoformat):
        with suppress(ValueError):
            date = read(text)
            aware = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max((aware - now).total_seconds(), 0.0)
    return None


def _http_date(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


def _duration(text: str) -> float | None:
    """The seconds of a duration such as `6m0s` or `120ms`."""
    parts = _DURATION.findall(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts) if parts else None


_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A prompt was too long. `window` and `tokens` are what the message names, in tokens.

    OpenAI may name the limit of the prompt, which is less than the window. `tokens` may hold what
    was to be written.
    """

    window: int | None = None
    tokens: int | None = None


_OTHER_TROUBLE = frozenset({401, 402, 403, 404, 408, 409, 429, 529})
"""Statuses that never speak of a prompt, however the message is worded."""


_COUNT = r"(?P<{}>\d[\d,]{{0,11}})"


_WINDOW, _TOKENS = _COUNT.format("window"), _COUNT.format("tokens")


_WORDINGS = tuple(
    re.compile(wording, re.ASCII | re.IGNORECASE | re.DOTALL)
    for wording in (
        # OpenAI, OpenRouter, vLLM and many who follow them
        rf"maximum context length (?:is|of) {_WINDOW}"
        r"(?:.{0,200}?(?:requested(?: about)? |resulted in |request has |contains at least )"
        rf"{_TOKENS} (?:input )?tokens)?",
        rf"input tokens exceed the configured limit of {_WINDOW}"
        rf"(?:.{{0,80}}?resulted in {_TOKENS} tokens)?",
        r"exceeds the context window of this model",
        r"\bcontext_length_exceeded\b",
        # Anthropic
        rf"prompt is too long: {_TOKENS} tokens > {_WINDOW} maximum",
        rf"exceed context limit: {_TOKENS} \+ \d+ > {_WINDOW}",
        r"prompt is too long",
        r"\bmodel_context_window_exceeded\b",
        # vLLM and SGLang, before the model is asked
        rf"prompt \((?:total )?length {_TOKENS}\) is longer than the maximum model length of {_WINDOW}",
        rf"prompt \((?:total )?length {_TOKENS}\) is too long to fit into the model"
        rf" \(context length {_WINDOW}\)",
        rf"input \({_TOKENS} tokens\) is longer than the model's context length \({_WINDOW} tokens\)",
        # llama.cpp, in words and in fields, and llama-cpp-python
        rf"request \({_TOKENS} tokens\) exceeds the available context size \({_WINDOW} tokens\)",
        rf"\bn_prompt_tokens\W{{1,6}}{_TOKENS}\W{{1,6}}n_ctx\W{{1,6}}{_WINDOW}",
        r"exceeds the available context size",
        rf"requested tokens \({_TOKENS}\) exceed context window of {_WINDOW}",
        # Ollama
        r"prompt too long; exceeded (?:max )?context length",
        r"input length exceeds the context length",
        # Mistral
        rf"prompt contains {_TOKENS} tokens.{{0,60}}?too large for model with {_WINDOW}"
        r" maximum context length",
        # LM Studio, of several versions
        rf"keep the first {_TOKENS} tokens when.{{0,80}}?context length of only {_WINDOW} tokens",
        rf"tokens to keep from the initial prompt is greater than the context length"
        rf"(?: \(n_keep: {_TOKENS} ?>= ?n_ctx: {_WINDOW}\))?",
        # text-generation-inference
        rf"`inputs` tokens \+ `max_new_tokens` must be <= {_WINDOW}"
        rf"(?:\. given: {_TOKENS} `inputs`)?",
        rf"`inputs` must have less than {_WINDOW} tokens(?:\. given: {_TOKENS})?",
        # xAI
        rf"maximum prompt length is {_WINDOW}(?: but the request contains {_TOKENS} tokens)?",
        # Gemini
        rf"input token count (?:\({_TOKENS}\) )?exceeds the maximum number of tokens allowed"
        rf"(?: \({_WINDOW}\))?",
    )
)


def find_overflow(status: int | None, message: str) -> Overflow | None:
    """Whether an error says that the prompt was too long, and for what.

    `status` is None for an error within a stream; `message` may be the whole body.
    """
    if status in _OTHER_TROUBLE:
        return None
    said = [match for wording in _WORDINGS if (match := wording.search(message))]
    found = [_counted(match) for match in said]
    return max(found, key=lambda one: one.window is not None, default=None)


def _counted(match: re.Match[str]) -> Overflow:
    counts = {
        name: int(digits.replace(",", ""))
        for name, digits in match.groupdict().items()
        if digits is not None
    }
    return Overflow(window=counts.get("window"), tokens=counts.get("tokens"))
