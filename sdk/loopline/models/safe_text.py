"""Text that is safe to show: text from outside on one line, URLs without secrets, and text without base64."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from string import ascii_letters, digits
from typing import Final
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from loopline.models.json import well_formed

TITLE_CHARACTERS = 200
ADDRESS_CHARACTERS = 2_000
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BRACKET = re.compile(r"\[(?=\[)")


def one_line(text: str, limit: int = TITLE_CHARACTERS) -> str:
    """Return the text on one line of at most `limit` characters, without control characters and citations.

    Use it for titles, names, types and addresses from outside: they must not start a new line, reverse the writing
    direction, or look like a citation such as `[[S:1]]`.
    """
    # The text is cut first, so that the cost does not depend on its length.
    line = " ".join(_CONTROLS.sub(" ", well_formed(text[: 4 * limit])).split())
    line = _BRACKET.sub("[ ", line)
    is_short = len(line) <= limit and len(text) <= 4 * limit
    return line if is_short else f"{line[: limit - 1].rstrip()}…"


MIN_SECRET_CHARACTERS: Final = 8
"""The length from which a secret is removed from texts; a shorter one could be an ordinary word."""
_HARMLESS_CHARACTERS = 3
"""A beginning of a secret with more characters is redacted too."""
_HARMLESS = "api-version="
_USER_INFO = re.compile(r"//(?P<user_info>[^/]*)@")

# In an HTTP URL the user name may be a token; in other URLs it is usually `git`.
HTTP_LOGIN: Final = re.compile(r"(https?://)([^/\s]*)@", re.IGNORECASE)
"""The start of an HTTP URL with a user: its scheme, and the user with the password."""
_PASSWORD = re.compile(r"(://[^\s/:@]*):[^\s/]*@")
_QUERY = re.compile(r"(?<=://)([^\s?#]*)[?#][^\s'\"]*")


def hide_password(text: str) -> str:
    """Return the text without the passwords, queries and fragments of its URLs, and without the users of its HTTP URLs."""
    return _QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", HTTP_LOGIN.sub(r"\1", text)))


def is_address(url: str) -> bool:
    """Return whether the text is an `http` or `https` URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, or an invalid port
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback IP address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def remove_secrets(url: str) -> str:
    """Return a URL without its user, its password and the values of its query; the names of the query stay.

    The value of `api-version` stays too; a query parameter without `=` is removed.
    """
    address, _, query = url.partition("?")
    names = (f"{name}{value}" if name == _HARMLESS else name for name, value in _pairs(query))
    public_query = "&".join(names)
    return _USER_INFO.sub("//", address) + (f"?{public_query}" if public_query else "")


def secrets_in(url: str) -> tuple[str, ...]:
    """Return the password and the query values of a URL, both as written and decoded, each once.

    Those shorter than 8 characters, and the value of `api-version`, are left out.
    """
    address, _, query = url.partition("?")
    values = [value for name, value in _pairs(query) if name != _HARMLESS]
    values += [match["user_info"].partition(":")[2] for match in _USER_INFO.finditer(address)]
    forms = (form for value in values for form in (value, unquote(value), unquote_plus(value)))
    return tuple(dict.fromkeys(form for form in forms if len(form) >= MIN_SECRET_CHARACTERS))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without secrets, also percent-encoded ones and the first part of one at the end of the text."""
    plain = frozenset(secrets) - {""}
    for secret in plain | {quote(secret, safe="") for secret in plain}:
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
        for size in range(len(secret) - 1, _HARMLESS_CHARACTERS, -1):
            if text[-size:].lower() == secret[:size].lower():
                text = f"{text[:-size]}…"
                break
    return text


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    """Yield each name of a query with its `=`, and its value; the name is "" for a value without `=`."""
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        yield (f"{name}=", value) if equals else ("", name)


BASE64_LIMIT = 4_000
_DIGITS_OF_64 = ascii_letters + digits + "+/_-"
_RUN_OF_64 = re.compile(r"[A-Za-z0-9+/_-]*+={0,2}")
_DATA_URL = re.compile(r"data:[\w.+/-]{1,100};base64,\Z")
_DATA_URL_LENGTH = 120
_CLASSES = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))


def remove_base64(text: str, ref: str) -> str:
    """Return the text with a placeholder, which names `ref`, for each run of more than 4,000 characters of base64.

    A run is base64 if it has capital letters, small letters and digits, or if it is the data of a `data:` URL.
    """
    if len(text) <= BASE64_LIMIT:
        return text
    pieces: list[str] = []
    at = 0
    for start, end in _runs_of_64(text):
        url = _DATA_URL.search(text, max(at, start - _DATA_URL_LENGTH), start)
        if url or all(kind.search(text, start, end) for kind in _CLASSES):
            start = url.start() if url else start
            pieces += [text[at:start], f"[base64, {end - start} characters: {ref}]"]
            at = end
    return "".join([*pieces, text[at:]])


def _runs_of_64(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of more than 4,000 digits of base64.

    Such a run includes at least one position that is a multiple of 4,000, so only those positions are checked.
    """
    end = 0
    step = BASE64_LIMIT
    for position in range(step, len(text), step):
        if position < end or text[position] not in _DIGITS_OF_64:
            continue
        before = text[max(end, position - step) : position]
        start = position - len(before) + len(before.rstrip(_DIGITS_OF_64))
        run = _RUN_OF_64.match(text, position)
        end = run.end() if run else position
        if len(text[start:end].rstrip("=")) > BASE64_LIMIT:
            yield start, end
