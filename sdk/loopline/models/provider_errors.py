"""The errors that model providers document: what they mean, when to retry, and overflows of the window.

Read on 2026-11-20. Where a page has changed, its latest stored text counts.

Retrying. `retry-after` counts in seconds or is a date; OpenAI also sends `retry-after-ms`.
Anthropic's `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`
have a reset in RFC 3339 ("Rate limits"), OpenAI's
`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` one such as `6m0s` ("Rate limits").
OpenRouter may send `retry-after` ("Errors and debugging", its section on that header). A 429 for money spent
has none, and retrying does not help.

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
from collections import defaultdict
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
withholds the prompt or the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedError:
    """An error as a vendor documents it.

    `name` is the `error.type` of Anthropic, the `error.code` or `error.type` of OpenAI, empty if the
    status alone decides. With `again` the same request may succeed later.
    """

    wire: ApiVendor
    status: int
    name: str
    meaning: ErrorMeaning
    again: bool


def _error(wire: ApiVendor, status: int, name: str, meaning: ErrorMeaning) -> DocumentedError:
    again = meaning in {"rate", "busy", "server"}
    return DocumentedError(wire=wire, status=status, name=name, meaning=meaning, again=again)


DOCUMENTED_ERRORS = (
    _error("anthropic", 400, "invalid_request_error", "request"),
    _error("anthropic", 401, "authentication_error", "key"),
    _error("anthropic", 402, "billing_error", "money"),
    _error("anthropic", 403, "permission_error", "rights"),
    _error("anthropic", 404, "not_found_error", "missing"),
    _error("anthropic", 409, "conflict_error", "request"),
    _error("anthropic", 413, "request_too_large", "size"),
    _error("anthropic", 429, "rate_limit_error", "rate"),
    _error("anthropic", 500, "api_error", "server"),
    _error("anthropic", 504, "timeout_error", "server"),
    _error("anthropic", 529, "overloaded_error", "busy"),
    _error("openai", 400, "invalid_request_error", "request"),
    _error("openai", 400, "invalid_prompt", "request"),
    _error("openai", 400, "context_length_exceeded", "size"),
    _error("openai", 400, "tool_use_failed", "call"),
    _error("openai", 400, "content_filter", "content"),
    _error("openai", 401, "invalid_api_key", "key"),
    _error("openai", 402, "", "money"),
    _error("openai", 403, "", "rights"),
    _error("openai", 404, "model_not_found", "missing"),
    _error("openai", 413, "", "size"),
    _error("openai", 408, "", "server"),
    _error("openai", 429, "rate_limit_exceeded", "rate"),
    _error("openai", 413, "rate_limit_exceeded", "size"),
    _error("openai", 429, "insufficient_quota", "money"),
    _error("openai", 429, "credit_balance_exhausted", "money"),
    _error("openai", 500, "server_error", "server"),
    _error("openai", 502, "", "server"),
    _error("openai", 503, "slow_down", "busy"),
    _error("openai", 503, "server_is_overloaded", "busy"),
)
"""The documented errors, of each status the likeliest first. Those without a name come from other servers
with the same API."""


def find_documented_error(
    wire: ApiVendor, status: int | None, *names: str
) -> DocumentedError | None:
    """Return the documented error with one of these names, else with this status, else None.

    An error may have two names, a code and a type. A name documented with this very status comes first; a
    name that only says that the request is wrong comes after the status.
    """
    documented = [error for error in DOCUMENTED_ERRORS if error.wire == wire]
    by_name = [error for name in names if name for error in documented if error.name == name]
    exact = [error for error in by_name if error.status == status]
    specific = [error for error in by_name if error.meaning != "request"]
    by_status = [error for error in documented if error.status == status]
    return next(iter([*exact, *specific, *by_status, *by_name]), None)


def wait_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return how long an error asks to wait before the next request, in seconds; None if it does not say.

    Without a `retry-after` it is until all limits that are used up are reset.
    """
    sent = defaultdict(str, {name.lower(): value.strip() for name, value in headers.items()})
    exhausted = [name for name, value in sent.items() if "ratelimit" in name and value == "0"]
    resets = [sent[name.replace("remaining", "reset")] for name in exhausted]
    waits = [
        _number(sent["retry-after-ms"], 1_000),
        _number(sent["retry-after"], 1),
        _until(sent["retry-after"], now),
        max((_until(reset, now) or _duration(reset) or 0 for reset in resets), default=None),
    ]
    return next((seconds for seconds in waits if seconds is not None), None)


def _number(text: str, per_second: int) -> float | None:
    return float(text) / per_second if _NUMBER.fullmatch(text) else None


def _until(text: str, now: datetime) -> float | None:
    """Return the seconds until a date of HTTP or of RFC 3339."""
    for read in (_http_date, datetime.fromisoformat):
        with suppress(ValueError):
            date = read(text)
            aware = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max((aware - now).total_seconds(), 0.0)
    return None


def _http_date(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


def _duration(text: str) -> float | None:
    """Return the seconds of a duration such as `6m0s` or `120ms`."""
    parts = _DURATION.findall(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts) if parts else None


_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A prompt was too long. `window` and `tokens` are what the message names, in tokens.

    OpenAI may name the limit of the prompt, which is less than the window. `tokens` may include the
    requested output.
    """

    window: int | None = None
    tokens: int | None = None


_OTHER_STATUSES = frozenset({401, 402, 403, 404, 408, 409, 429, 529})
"""Statuses that are never about a prompt, however the message is worded."""
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
    """Return the overflow that an error reports, None if it is not about too long a prompt.

    `status` is None for an error within a stream; `message` may be the full body.
    """
    if status in _OTHER_STATUSES:
        return None
    matches = [match for wording in _WORDINGS if (match := wording.search(message))]
    overflows = [
        Overflow(
            **{
                name: int(digits.replace(",", ""))
                for name, digits in match.groupdict().items()
                if digits is not None
            }
        )
        for match in matches
    ]
    return max(overflows, key=lambda overflow: overflow.window is not None, default=None)
