"""Converts the errors that a provider's server reports to errors of Loopline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from loopline import errors, models
from loopline.models.safe_text import redact

_decode: Callable[[str], models.Json] = json.JSONDecoder().decode
_EXCERPT_CHARACTERS = 600
_STATUS = re.compile(r"[45]\d\d", re.ASCII)
_TIMEOUT_STATUSES = frozenset({408, 504})
_VAGUE = frozenset[models.ErrorMeaning]({"request", "missing", "busy", "server"})
"""Errors with these meanings may be caused by a prompt that is too long; their text decides."""
_ADVICE: Mapping[models.ErrorMeaning, str] = {
    "key": "check",
    "money": "no credit is left for",
    "rights": "the request is not allowed with",
}


_ERROR_FIELDS: models.JsonObject = dict.fromkeys(
    [
        *("code", "type", "message", "detail", "param", "status", "status_code"),
        *("metadata", "failed_generation"),
    ]
)


class AnsweredError(errors.ModelError):
    """An error of the server that ends a reply; `problem` describes the fault of the reply, and is empty for a refusal."""

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key of a model, and the names that error messages use.

    `key_variable` and `url_variable` are the settings for the key and the base URL. Error messages contain neither the
    key nor the `secrets` of the URL.
    """

    model: str
    key_variable: str
    key: str = field(repr=False)
    api_vendor: models.ApiVendor
    secrets: tuple[str, ...] = field(default=(), repr=False)
    url_variable: str = "base_url"

    def redact(self, text: str) -> str:
        """Return the text without the key and the secrets (`safe_text.redact`)."""
        return redact(text, (self.key, *self.secrets))

    def excerpt(self, text: str, limit: int = _EXCERPT_CHARACTERS) -> str:
        """Return the first `limit` characters of a server's text; secrets are redacted before it is cut."""
        return self.redact(text)[:limit]


def response_error(
    status: int, headers: Mapping[str, str], body: str, credentials: Credentials
) -> errors.ModelError:
    """Return the error for a response without a reply; its class depends on the status and the text of the body.

    `body` is the text of the response, JSON or not; the message quotes at most 600 characters.
    """
    document = models.extract_json(body)
    if document is None:
        report = _ErrorReport(message=" ".join(body.split()))
    else:
        report = _ErrorReport.of(document)
    wait = models.wait_seconds(headers, datetime.now(UTC))
    return _error(report, status if status >= 400 else report.status, body, credentials, wait)


def not_a_stream_error(
    url: str, status: int, headers: Mapping[str, str], body: str, credentials: Credentials
) -> errors.ModelError:
    """Return the error for a response without events: an error, a redirect, or another content type."""
    if status >= 400 or is_error_document(body):
        return response_error(status, headers, body, credentials)
    server = f"{credentials.model}: {credentials.excerpt(models.public_url(url))}"
    if status >= 300:
        target = credentials.excerpt(headers.get("location", "")) or "nowhere"
        return errors.ModelRequestError(
            f"{server} redirects to {target}: change the base URL ({status})"
        )
    content_type = credentials.excerpt(headers.get("content-type", ""))
    return errors.ModelRequestError(
        f"{server} answers with {content_type}, not with a stream of events ({status})"
    )


def is_error_document(body: str) -> bool:
    """Return whether a response body is JSON that reports an error."""
    document = models.extract_json(body)
    return document is not None and reports_error(document)


def reports_error(document: models.JsonObject) -> bool:
    """Return whether the document has a non-empty `error` field."""
    return bool(document.get("error"))


def stream_error(event: models.JsonObject, credentials: Credentials) -> errors.ModelError:
    """Return the error that an event of a stream reports; its class depends on its status, code, type and text."""
    report = _ErrorReport.of(event)
    body = models.dumps(event["error"] if reports_error(event) else event)
    return _error(report, report.status, body, credentials)


def parse_chunk(data: str, credentials: Credentials) -> models.JsonObject:
    """Return the JSON object in one event of a reply.

    Raises:
        ModelStreamBroken: the event is not a JSON object, or has too many values.
    """
    if len(data) > models.MAX_VALUES and models.has_many_values(data):
        raise errors.ModelStreamBroken(
            f"{credentials.model}: an event has more than {models.MAX_VALUES:,} values: request less output at once"
        )
    try:
        chunk: models.Json = _decode(data)
    except (ValueError, RecursionError) as error:
        raise errors.ModelStreamBroken(
            f"{credentials.model}: an event is not JSON: {error}"
        ) from error
    if not isinstance(chunk, dict):
        raise errors.ModelStreamBroken(
            f"{credentials.model}: an event is not a JSON object: {credentials.excerpt(data, 80)}"
        )
    return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorReport:
    """An error as a server reports it: its message, its code and type, and the parameter that caused it.

    `status` is the status in the body, which OpenRouter, llama.cpp and Azure send. The message of OpenRouter is followed
    by the message of its provider, the message of Groq by the output of the model.
    """

    message: str
    names: tuple[str, ...] = ()
    parameter: str = ""
    status: int | None = None

    @classmethod
    def of(cls, document: models.JsonObject) -> _ErrorReport:
        """Decode a body: the error is its `error` field, or the body itself."""
        error: models.Json = document.get("error", document)
        if isinstance(error, str):
            return cls(message=error)
        fields = {**_ERROR_FIELDS, **(error if isinstance(error, dict) else document)}
        match fields["metadata"]:
            case {"raw": cause}:
                pass
            case dict():
                cause = None
            case _:
                cause = fields["failed_generation"]
        message = str(fields["message"] or fields["detail"] or models.dumps(document))
        statuses = (str(fields[name] or "") for name in ("code", "status", "status_code"))
        return cls(
            message=f"{message}: {cause}" if cause else message,
            names=(str(fields["code"] or ""), str(fields["type"] or "")),
            parameter=str(fields["param"] or ""),
            status=next((int(text) for text in statuses if _STATUS.fullmatch(text)), None),
        )


def _error(
    report: _ErrorReport,
    status: int | None,
    body: str,
    credentials: Credentials,
    wait: float | None = None,
) -> errors.ModelError:
    """Return the error for a report; `body` is the whole response, which may have numbers of an overflow."""
    message = credentials.excerpt(report.message) or "no reason given"
    parameter = f" (in {credentials.excerpt(report.parameter)})" if report.parameter else ""
    words = f"{credentials.model}: {message}{parameter}{f' ({status})' if status else ''}"
    documented = models.find_documented_error(credentials.api_vendor, status, *report.names)
    # An error event without a status may be temporary, so it counts as a fault of the server.
    by_status: models.ErrorMeaning = "request" if status and status < 500 else "server"
    meaning = documented.meaning if documented else by_status
    overflow = models.find_overflow(status, body)
    rate = models.find_token_rate(body)
    if overflow and meaning in _VAGUE:
        meaning = "size"
    elif rate and (meaning in _VAGUE or meaning == "size"):
        meaning = "rate"
    match meaning:
        case "key" | "money" | "rights":
            return errors.ModelAccessError(
                f"{words}: {_ADVICE[meaning]} {credentials.key_variable}"
            )
        case "rate":
            return models.rate_error(words, rate, wait)
        case "size":
            return models.overflow_error(words, status, overflow)
        case "request" | "missing":
            return errors.ModelRequestError(words)
        case "busy" | "server":
            late = (status or (documented and documented.status)) in _TIMEOUT_STATUSES
            return (errors.ModelTimedOut if late else errors.ModelOverloaded)(
                words, retry_after=wait
            )
        case "call":
            return AnsweredError(words, f"The call cannot be read: {message}")
        case "content":
            return AnsweredError(words)
