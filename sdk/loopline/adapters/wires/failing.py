"""What a vendor's server says when it does not answer, as one of our errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
)
from loopline.models import Json, JsonObject, extract_json
from loopline.models.limits import overflow, wait_seconds

_LONGEST = 600


@dataclass(frozen=True, slots=True)
class Account:
    """Who asks: the model's name for people, the variable of its key, and the key, which is never shown."""

    model: str
    variable: str
    key: str = field(repr=False)

    def without_key(self, text: str) -> str:
        """The text, in which the key can not be read: neither as it is nor as a URL has it."""
        if not self.key:
            return text
        written = "|".join(re.escape(one) for one in (self.key, quote(self.key, safe="")))
        return re.sub(written, "…", text, flags=re.IGNORECASE)

    def told(self, text: str, longest: int = _LONGEST) -> str:
        """The beginning of what a server said; the key is out of it before anything is cut off."""
        return self.without_key(text)[:longest]


def failure(status: int, headers: Mapping[str, str], body: str, account: Account) -> ModelError:
    """What a response means that is none.

    `body` is what the server said, JSON or not; of long ones only the beginning is told.
    """
    kind, said = _said(body)
    words = f"{account.model}: {account.told(said) or 'no reason given'} ({status})"
    if status in (401, 403):
        return ModelAccessError(f"{words}: check {account.variable}")
    if kind == "insufficient_quota" or status == 402:
        return ModelAccessError(f"{words}: the account has nothing left to spend")
    too_long = overflow(status, body)
    if too_long is not None or kind == "context_length_exceeded" or status == 413:
        return ModelOverflow(words, window=too_long.window if too_long else None)
    return _by_status(status, words, wait_seconds(headers, datetime.now(UTC)))


def failed_midway(kind: str, said: str, account: Account) -> ModelError:
    """What an error means that came where a piece of the reply was to come."""
    words = f"{account.model}: {account.told(said or kind)}"
    too_long = overflow(None, said)
    if too_long is not None or kind == "context_length_exceeded":
        return ModelOverflow(words, window=too_long.window if too_long else None)
    match kind:
        case "rate_limit_error" | "rate_limit_exceeded":
            return ModelRateLimited(words)
        case "invalid_request_error":
            return ModelRequestError(words)
        case "authentication_error" | "permission_error":
            return ModelAccessError(f"{words}: check {account.variable}")
        case _:
            return ModelOverloaded(words)


def piece(data: str, account: Account) -> JsonObject:
    """A piece of a reply, read.

    Raises:
        ModelStreamBroken: it is no JSON object.
    """
    try:
        read: Json = json.loads(data)
    except ValueError as error:
        raise ModelStreamBroken(f"{account.model}: a piece is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ModelStreamBroken(f"{account.model}: a piece is no object: {account.told(data, 80)}")
    return read


def _by_status(status: int, words: str, seconds: float | None) -> ModelError:
    match status:
        case 429:
            return ModelRateLimited(words, retry_after=seconds)
        case 408 | 504:
            return ModelTimedOut(words, retry_after=seconds)
        case _ if status >= 500:
            return ModelOverloaded(words, retry_after=seconds)
        case _:
            return ModelRequestError(words)


def _said(body: str) -> tuple[str, str]:
    """The kind of error and its words, as the vendors wrap them; else what there is."""
    document = extract_json(body)
    if document is None:
        return "", " ".join(body.split())
    error: Json = document.get("error", document)
    if isinstance(error, str):
        return "", error
    found = error if isinstance(error, dict) else document
    words = str(found.get("message") or found.get("detail") or body)
    part = f" (in {found['param']})" if found.get("param") else ""
    return str(found.get("code") or found.get("type") or ""), f"{words}{part}"
