"""The errors that model providers document, their meaning, and the time to wait before a retry.

The pages were read on 2026-11-20; if a page has changed, its latest stored text counts.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedError:
    """An error as a vendor documents it.

    `name` is the `error.type` of Anthropic, or the `error.code` or `error.type` of OpenAI; "" if the status is enough.
    With `again` the same request may succeed later.
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
    _error("openai", 413, "rate_limit_exceeded", "rate"),
    _error("openai", 429, "insufficient_quota", "money"),
    _error("openai", 429, "credit_balance_exhausted", "money"),
    _error("openai", 500, "server_error", "server"),
    _error("openai", 502, "", "server"),
    _error("openai", 503, "slow_down", "busy"),
    _error("openai", 503, "server_is_overloaded", "busy"),
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

    Without a `retry-after` header, the wait lasts until all exhausted limits are reset.
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
    """Return the seconds until a date in the format of HTTP or RFC 3339; None if the text is not a date."""
    for read in (_http_date, datetime.fromisoformat):
        with suppress(ValueError):
            date = read(text)
            aware = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max((aware - now).total_seconds(), 0.0)
    return None


def _http_date(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as `6m0s` or `120ms`; None if the text is not a duration."""
    parts = _DURATION.findall(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts) if parts else None


_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
