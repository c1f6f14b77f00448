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
from loopline.models import (
    MAX_VALUES,
    ApiVendor,
    ErrorMeaning,
    Json,
    JsonObject,
    dumps,
    extract_json,
    find_documented_error,
    find_overflow,
    has_many_values,
    public_url,
    wait_seconds,
)

_LONGEST = 600
_STATUS = re.compile(r"[45]\d\d", re.ASCII)
_TELLING = 3
"""More letters of a key than that are too many."""
_TIMED_OUT = frozenset({408, 504})
_VAGUE = frozenset[ErrorMeaning]({"request", "missing", "busy", "server"})
"""What may be meant by an error whose words speak of too long a prompt."""
_ADVICE: Mapping[ErrorMeaning, str] = {
    "key": "check",
    "money": "nothing is left to spend with",
    "rights": "that is not allowed with",
}


class AnsweredError(ModelError):
    """A server's error that ends a reply: `problem` is what is wrong with it, empty where it is a refusal."""

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks: the model's name for people, what its key is set by, the key, and its server's wire.

    `url_variable` is what the base URL is set by. The key is never shown, and neither are the `secrets` of that
    URL.
    """

    model: str
    variable: str
    key: str = field(repr=False)
    wire: ApiVendor
    secrets: tuple[str, ...] = field(default=(), repr=False)
    url_variable: str = "base_url"

    def without_key(self, text: str) -> str:
        """The text, in which no secret can be read: not as a URL has it, nor half of it at the end."""
        secrets = (self.key, *self.secrets)
        for written in {*secrets, *(quote(one, safe="") for one in secrets)} - {""}:
            text = re.sub(re.escape(written), "…", text, flags=re.IGNORECASE)
            halves = (written[:size] for size in range(len(written) - 1, _TELLING, -1))
            half = next((one for one in halves if text.lower().endswith(one.lower())), "")
            text = f"{text[: -len(half)]}…" if half else text
        return text

    def told(self, text: str, longest: int = _LONGEST) -> str:
        """The beginning of what a server said; the key is out of it before anything is cut off."""
        return self.without_key(text)[:longest]


def failure(status: int, headers: Mapping[str, str], body: str, account: Credentials) -> ModelError:
    """What a response means that is none.

    `body` is what the server said, JSON or not; of long ones only the beginning is told.
    """
    document = extract_json(body)
    said = _Said(words=" ".join(body.split())) if document is None else _said(document)
    wait = wait_seconds(headers, datetime.now(UTC))
    return _meant(said, status if status >= 400 else said.status, body, account, wait)


def no_events(
    url: str, status: int, headers: Mapping[str, str], body: str, account: Credentials
) -> ModelError:
    """What a response means that is no stream of events."""
    if status >= 400 or is_error(body):
        return failure(status, headers, body, account)
    place = f"{account.model}: {account.told(public_url(url))}"
    if status >= 300:
        elsewhere = account.told(headers.get("location", "")) or "nowhere"
        return ModelRequestError(f"{place} sends to {elsewhere}: change the base URL ({status})")
    kind = account.told(headers.get("content-type", ""))
    return ModelRequestError(f"{place} answers with {kind}, not with a stream of events ({status})")


def is_error(body: str) -> bool:
    """Return whether a document speaks of an error, whatever its status was."""
    document = extract_json(body)
    return document is not None and bool(document.get("error"))


def failed_midway(event: JsonObject, account: Credentials) -> ModelError:
    """What an error means that came where a piece of the reply was to come; `event` is all of it."""
    said = _said(event)
    return _meant(said, said.status, dumps(event.get("error") or event), account)


def piece(data: str, account: Credentials) -> JsonObject:
    """A piece of a reply, read.

    Raises:
        ModelStreamBroken: it is no JSON object, or one of more values than are read.
    """
    if has_many_values(data):
        raise ModelStreamBroken(
            f"{account.model}: a piece has more than {MAX_VALUES:,} values: ask for less at once"
        )
    try:
        read: Json = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelStreamBroken(f"{account.model}: a piece is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ModelStreamBroken(f"{account.model}: a piece is no object: {account.told(data, 80)}")
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a server says of an error, as the vendors wrap it: words, names, and the part meant.

    A status is in it where the body names one, as OpenRouter, llama.cpp and Azure have it. The words of
    OpenRouter end with those of the provider behind it; those of Groq, with what the model wrote.
    """

    words: str
    names: tuple[str, ...] = ()
    part: str = ""
    status: int | None = None


def _said(document: JsonObject) -> _Said:
    error: Json = document.get("error", document)
    if isinstance(error, str):
        return _Said(words=error)
    found = error if isinstance(error, dict) else document
    names = tuple(str(found.get(name) or "") for name in ("code", "type"))
    more = found.get("metadata")
    behind = more.get("raw") if isinstance(more, dict) else found.get("failed_generation")
    words = str(found.get("message") or found.get("detail") or dumps(document))
    return _Said(
        words=f"{words}: {behind}" if behind else words,
        names=names,
        part=str(found.get("param") or ""),
        status=_status(found, "code", "status", "status_code"),
    )


def _status(error: JsonObject, *names: str) -> int | None:
    """The status that an error names, under the first of these names that holds one."""
    told = (str(error.get(name) or "") for name in names)
    return next((int(one) for one in told if _STATUS.fullmatch(one)), None)


def _meant(
    said: _Said, status: int | None, text: str, account: Credentials, wait: float | None = None
) -> ModelError:
    """The error that it is; `text` is all that was said."""
    words = _words(said, status, account)
    refusal = find_documented_error(account.wire, status, *said.names)
    meaning = refusal.meaning if refusal else _by_status(status)
    too_long = find_overflow(status, text)
    match "size" if too_long and meaning in _VAGUE else meaning:
        case "key" | "money" | "rights":
            return ModelAccessError(f"{words}: {_ADVICE[meaning]} {account.variable}")
        case "rate":
            return ModelRateLimited(words, retry_after=wait)
        case "size":
            return ModelOverflow(words, window=too_long.window if too_long else None)
        case "request" | "missing":
            return ModelRequestError(words)
        case "busy" | "server":
            late = (status or (refusal and refusal.status)) in _TIMED_OUT
            return (ModelTimedOut if late else ModelOverloaded)(words, retry_after=wait)
        case "call":
            told = account.told(said.words) or "no reason given"
            return AnsweredError(words, f"The call cannot be read: {told}")
        case "content":
            return AnsweredError(words)


def _words(said: _Said, status: int | None, account: Credentials) -> str:
    part = f" (in {account.told(said.part)})" if said.part else ""
    number = f" ({status})" if status else ""
    return f"{account.model}: {account.told(said.words) or 'no reason given'}{part}{number}"


def _by_status(status: int | None) -> ErrorMeaning:
    """What an undocumented error means; where nothing but a reply could come, it may pass."""
    return "request" if status and status < 500 else "server"
