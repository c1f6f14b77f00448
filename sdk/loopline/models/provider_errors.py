"""The errors that model providers document, and their errors about the number of tokens in a request.

The pages of the documented errors were read on 2026-11-20; if a page has changed, its latest stored text counts. Errors about
tokens, too many for the window or for a minute, are reported only as texts: the comment of each wording below names the
server that sends it and a public issue that quotes it. These issues were read on 2026-11-23.

Retrying. `retry-after` counts in seconds or is a date; OpenAI also sends `retry-after-ms`.
Anthropic's `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`
name the reset time in RFC 3339 ("Rate limits"), OpenAI's
`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` as a duration such as `6m0s` ("Rate limits").
OpenRouter may send `retry-after` ("Errors and debugging", its section on that header). A 429 because the credit
is used up lacks these headers, and retrying does not help.

Errors. Anthropic, "Errors"; OpenAI, "Error codes"; for `invalid_prompt`, the codes of a failed response.
Anthropic may send an error after a 200, as an event of the stream; OpenRouter does so too, with the status
as its code. Groq answers 413 with `rate_limit_exceeded` to a request of more tokens than a minute allows
(ha-groq-cloud-api 27), which is a rate limit. Groq answers 400, or sends an event of the stream, with
`tool_use_failed` if its model wrote an invalid call (groq-typescript 28, OpenHands 10048). Azure's filter
answers 400 with `content_filter`, or 200 with that code and `"status": 400` (helm 3327, argo-proxy 91).
DeepSeek answers 402 with `invalid_request_error` if the account is empty (aider 4851).

Anthropic's newer models do not send an error when the window is full: they stop with
`model_context_window_exceeded`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from loopline.errors import ModelOverflow, ModelRateLimited
from loopline.models.request_limits import ApiVendor

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
"""The meaning of an error. `call`: the model wrote a call that its server cannot parse. `content`: a filter
blocked the prompt or the reply."""


@dataclass(frozen=True, slots=True)
class DocumentedError:
    """An error as a vendor documents it.

    `name` is the `error.type` of Anthropic, or the `error.code` or `error.type` of OpenAI; "" if the status is enough.
    """

    wire: ApiVendor
    status: int
    name: str
    meaning: ErrorMeaning

    @property
    def again(self) -> bool:
        """Whether the same request may succeed later."""
        return self.meaning in {"rate", "busy", "server"}


DOCUMENTED_ERRORS = (
    DocumentedError("anthropic", 400, "invalid_request_error", "request"),
    DocumentedError("anthropic", 401, "authentication_error", "key"),
    DocumentedError("anthropic", 402, "billing_error", "money"),
    DocumentedError("anthropic", 403, "permission_error", "rights"),
    DocumentedError("anthropic", 404, "not_found_error", "missing"),
    DocumentedError("anthropic", 409, "conflict_error", "request"),
    DocumentedError("anthropic", 413, "request_too_large", "size"),
    DocumentedError("anthropic", 429, "rate_limit_error", "rate"),
    DocumentedError("anthropic", 500, "api_error", "server"),
    DocumentedError("anthropic", 504, "timeout_error", "server"),
    DocumentedError("anthropic", 529, "overloaded_error", "busy"),
    DocumentedError("openai", 400, "invalid_request_error", "request"),
    DocumentedError("openai", 400, "invalid_prompt", "request"),
    DocumentedError("openai", 400, "context_length_exceeded", "size"),
    DocumentedError("openai", 400, "tool_use_failed", "call"),
    DocumentedError("openai", 400, "content_filter", "content"),
    DocumentedError("openai", 401, "invalid_api_key", "key"),
    DocumentedError("openai", 402, "", "money"),
    DocumentedError("openai", 403, "", "rights"),
    DocumentedError("openai", 404, "model_not_found", "missing"),
    DocumentedError("openai", 413, "", "size"),
    DocumentedError("openai", 408, "", "server"),
    DocumentedError("openai", 429, "rate_limit_exceeded", "rate"),
    DocumentedError("openai", 413, "rate_limit_exceeded", "rate"),
    DocumentedError("openai", 429, "insufficient_quota", "money"),
    DocumentedError("openai", 429, "credit_balance_exhausted", "money"),
    DocumentedError("openai", 500, "server_error", "server"),
    DocumentedError("openai", 502, "", "server"),
    DocumentedError("openai", 503, "slow_down", "busy"),
    DocumentedError("openai", 503, "server_is_overloaded", "busy"),
)
"""The documented errors; for each status, the most likely one is first. Errors without a name are those of other
servers with the same API."""


def find_documented_error(
    wire: ApiVendor, status: int | None, *names: str
) -> DocumentedError | None:
    """Return the documented error for the names and the status of an error, or None.

    `names` are its code and type. The order of preference is: a name with this status, a name other than that of a wrong
    request, the status, any name.
    """
    documented = [error for error in DOCUMENTED_ERRORS if error.wire == wire]
    by_name = [error for name in names if name for error in documented if error.name == name]
    exact = [error for error in by_name if error.status == status]
    specific = [error for error in by_name if error.meaning != "request"]
    by_status = [error for error in documented if error.status == status]
    return next(iter([*exact, *specific, *by_status, *by_name]), None)


def wait_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait before the next request, from the headers of an error; None if they do not tell.

    `retry-after-ms` precedes `retry-after`. Without both, the wait lasts until all exhausted limits are reset.
    """
    sent = defaultdict(str, {name.lower(): value.strip() for name, value in headers.items()})
    exhausted = [name for name, value in sent.items() if "ratelimit" in name and value == "0"]
    resets = [sent[name.replace("remaining", "reset")] for name in exhausted]
    waits = [
        _number(sent["retry-after-ms"], 1_000),
        _number(sent["retry-after"], 1),
        _until(sent["retry-after"], now),
        max((_until(reset, now) or parse_duration(reset) or 0 for reset in resets), default=None),
    ]
    return next((seconds for seconds in waits if seconds is not None), None)


def _number(text: str, per_second: int) -> float | None:
    return float(text) / per_second if _NUMBER.fullmatch(text) else None


def _until(text: str, now: datetime) -> float | None:
    """Return the seconds until a date of HTTP or RFC 3339, 0 for a past date; None if the text is not a date."""
    for read in (_http_date, datetime.fromisoformat):
        with suppress(ValueError):
            date = read(text)
            aware = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max((aware - now).total_seconds(), 0.0)
    return None


def _http_date(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


def parse_duration(text: str) -> float | None:
    """Return the sum of the durations in a text such as `6m0s` or `120ms`, in seconds; None if it contains none."""
    parts = _DURATION.findall(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts) if parts else None


_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


_OTHER_STATUSES = frozenset({401, 402, 403, 404, 408, 409, 429, 529})
"""Statuses that are never about the window, even if the message looks like it."""
_TOO_MANY_BYTES = 413


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A request was too long for the model's window. Each number is in tokens, None if the message does not name it.

    `window` is the named limit; OpenAI, Gemini and xAI may name the limit of the prompt, which is less than the window.
    `tokens` is the size of the request, and may include the requested output. `prompt` is the size of the prompt.
    """

    window: int | None = None
    tokens: int | None = None
    prompt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRate:
    """A request exceeds the tokens that its account may use in a period, alone or together with earlier requests.

    `excess` is the number of tokens by which the request alone exceeds the limit; 0 if it fits after a wait. `wait` is the
    wait in seconds that the message names, or None.
    """

    excess: int = 0
    wait: float | None = None


_NAMES = {"W": "window", "T": "tokens", "P": "prompt", "L": "limit", "R": "requested"}


_FLAGS = re.ASCII | re.IGNORECASE | re.DOTALL


def _name_numbers(wording: str) -> str:
    """Replace `<W>` and the other letters of `_NAMES` by groups that match a number and have that name."""
    for letter, name in _NAMES.items():
        wording = wording.replace(f"<{letter}>", rf"(?P<{name}>\d[\d,]{{0,11}})")
    return wording


_OVERFLOW_WORDINGS = (
    # OpenAI, vLLM: prompt and output (vllm-project/vllm 20409, docker/docker-agent 569, run-llama/llama_index 948)
    r"maximum context length is <W> tokens.{1,20}?you requested <T> tokens"
    r" \(<P> (?:in|of) (?:the |your )?(?:messages|prompt)",
    # OpenRouter: prompt and output (Aider-AI/aider 3721, refly-ai/refly 1177)
    r"maximum context length is <W> tokens.{1,20}?you requested about <T> tokens"
    r" \(<P> of text input",
    # OpenAI: the prompt (gpt4free 137, Nutlope/aicommits 259)
    r"maximum context length is <W> tokens.{1,20}?your messages resulted in <P> tokens",
    # vLLM: the prompt, and the tokens reserved for the output (vllm-project/vllm 33418 and 33425)
    r"maximum context length is <W> tokens.{1,20}?your request has <P> (?:input )?tokens",
    # vLLM: the least that the prompt can have (vllm-project/vllm 42474)
    r"maximum context length is <W> tokens.{0,120}?contains at least <T> input tokens",
    # OpenAI, vLLM, OpenRouter: other endings (opencode 6071, cline/cline 3120, langchain-ai/langchain 24058)
    r"maximum context length (?:is|of) <W>"
    r"(?:.{0,200}?(?:requested(?: about)? |resulted in |request has )<T> (?:input )?tokens)?",
    # OpenAI: the limit of the prompt (opencode 6071)
    r"input tokens exceed the configured limit of <W>(?:.{0,80}?resulted in <P> tokens)?",
    # OpenAI, Responses (opencode 6071)
    r"exceeds the context window of this model",
    # OpenAI, Groq (OpenHands/OpenHands 1902)
    r"\bcontext_length_exceeded\b",
    # Cerebras (cline/cline 5140, opencode 1551)
    r"reduce the length of the messages or completion\. Current length is <T> while limit is <W>",
    # Anthropic: the prompt (anthropics/claude-code 12186)
    r"prompt is too long: <P> tokens > <W> maximum",
    # Anthropic: prompt and output (docker/docker-agent 569, anthropics/claude-code 228)
    r"exceed context limit: <P> \+ \d+ > <W>",
    # Anthropic through proxies (claude-code 12186)
    r"prompt is too long",
    # Anthropic, in a reply (its docs)
    r"\bmodel_context_window_exceeded\b",
    # vLLM, before the model is asked (its sources)
    r"prompt \((?:total )?length <P>\) is longer than the maximum model length of <W>",
    # vLLM, with images (its sources)
    r"prompt \((?:total )?length <P>\) is too long to fit into the model \(context length <W>\)",
    # SGLang (its sources)
    r"input \(<P> tokens\) is longer than the model's context length \(<W> tokens\)",
    # llama.cpp, in words (ggml-org/llama.cpp 15780)
    r"request \(<P> tokens\) exceeds the available context size \(<W> tokens\)",
    # llama.cpp, in fields (ggml-org/llama.cpp 15780, oobabooga/textgen 7257)
    r"\bn_prompt_tokens\W{1,6}<P>\W{1,6}n_ctx\W{1,6}<W>",
    # llama.cpp, as it was (llama.cpp 15780)
    r"exceeds the available context size",
    # llama-cpp-python (rllm-team/rllm 55)
    r"requested tokens \(<P>\) exceed context window of <W>",
    # Ollama (nano-brain 208)
    r"prompt too long; exceeded (?:max )?context length",
    # Ollama, embedding (nano-brain 208)
    r"input length exceeds (?:the |maximum )?context length",
    # Mistral (error texts that its users quote)
    r"prompt contains <P> tokens.{0,60}?too large for model with <W> maximum context length",
    # LM Studio (lmstudio-ai/lmstudio-bug-tracker 546)
    r"keep the first <P> tokens when.{0,80}?context length of only <W> tokens",
    # LM Studio, later (openclaude 353)
    r"tokens to keep from the initial prompt is greater than the context length"
    r"(?: \(n_keep: <P> ?>= ?n_ctx: <W>\))?",
    # text-generation-inference (text-generation-inference 628)
    r"`inputs` tokens \+ `max_new_tokens` must be <= <W>(?:\. given: <P> `inputs`)?",
    # text-generation-inference: the limit of the prompt (text-generation-inference 695)
    r"`inputs` must have less than <W> tokens(?:\. given: <P>)?",
    # xAI: the limit of the prompt (cline/cline 3120)
    r"maximum prompt length is <W>(?: but the request contains <P> tokens)?",
    # Gemini: the limit of the prompt (gemini-cli 6678, arkavo-edge 371)
    r"input token count (?:\(<P>\) )?exceeds the maximum number of tokens allowed(?: \(<W>\))?",
)
"""The wordings of an overflow. If several match, the one with the most numbers counts, or the first of them."""

_TOKEN_RATE_WORDINGS = (
    # Groq, OpenAI (ha-groq-cloud-api 27, continuedev/continue 10218 and 10920, vanna-ai/vanna-flask 11)
    r"on tokens per (?:min(?:ute)?|day|hour) \(TP[MDH]\): limit <L>"
    r"(?:, used [\d,]{1,12})?, requested ~?<R>"
    r"(?:\. please try again in (?P<wait>[\dhms.]{1,24}[hms]))?",
    # Cerebras (continuedev/continue 9800)
    r"tokens per (?:minute|hour|day) limit exceeded",
    # xAI (cline/cline 4826)
    r"tokens per minute \(actual/limit\): <R>/<L>",
)
"""The wordings of a limit for the tokens of a period. Groq sends it with the status 413 if the request alone exceeds the
limit, and counts the requested output (zeeyado/koassistant 106)."""

_OVERFLOWS = [re.compile(_name_numbers(wording), _FLAGS) for wording in _OVERFLOW_WORDINGS]
_TOKEN_RATES = [re.compile(_name_numbers(wording), _FLAGS) for wording in _TOKEN_RATE_WORDINGS]


def find_overflow(status: int | None, message: str) -> Overflow | None:
    """Parse an error message about a request that is too long; return None for other errors.

    `status` is None for an error in a stream; `message` may be the complete body.
    """
    if status in _OTHER_STATUSES or find_token_rate(message) is not None:
        return None
    overflows: list[Overflow] = []
    for pattern in _OVERFLOWS:
        match = pattern.search(message)
        if match is None:
            continue
        overflow = Overflow(**_numbers(match))
        if overflow.tokens is None:
            overflow = replace(overflow, tokens=overflow.prompt)
        overflows.append(overflow)
    # The window counts more than the size of the prompt.
    return max(overflows, key=lambda o: (o.window is not None, o.prompt is not None), default=None)


def find_token_rate(message: str) -> TokenRate | None:
    """Parse an error message about a limit for the tokens of a period; return None for other errors."""
    for pattern in _TOKEN_RATES:
        match = pattern.search(message)
        if match is not None:
            numbers = _numbers(match)
            requested, limit = (numbers.get(name, 0) for name in ("requested", "limit"))
            wait = {"wait": None, **match.groupdict()}["wait"]
            return TokenRate(
                excess=max(requested - limit, 0), wait=parse_duration(wait) if wait else None
            )
    return None


def overflow_error(words: str, status: int | None, overflow: Overflow | None) -> ModelOverflow:
    """Return the error for a request that is too long, with the message `words`.

    Without an `overflow`, its numbers are None, and the status 413 means a limit of bytes, not of tokens.
    """
    numbers = overflow or Overflow()
    return ModelOverflow(
        words,
        window=numbers.window,
        prompt_tokens=numbers.prompt,
        in_bytes=overflow is None and status == _TOO_MANY_BYTES,
    )


def rate_error(words: str, rate: TokenRate | None, wait: float | None) -> ModelRateLimited:
    """Return the error for a rate limit with the message `words`; the seconds in `wait` override those of `rate`."""
    numbers = rate or TokenRate()
    return ModelRateLimited(
        words, retry_after=numbers.wait if wait is None else wait, excess=numbers.excess
    )


def _numbers(match: re.Match[str]) -> dict[str, int]:
    """Return the numbers in a message, by the names in its wording."""
    return {
        name: int(text.replace(",", ""))
        for name, text in match.groupdict().items()
        if text is not None and name != "wait"
    }
