"""Redaction by two libraries: `detect_secrets` finds keys and tokens, `datafog` finds personal data.

The keys of `VENDOR_KEYS` are found too. Both are used only with patterns, in this process. No model is loaded, and no text is sent.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, cast

from loopline.errors import LooplineError
from loopline.redaction.vendor_keys import NAMED_SECRET, VENDOR_KEYS

SECRET = "secret"
PERSONAL = {
    "email": "EMAIL",
    "card": "CREDIT_CARD",
    "phone": "PHONE",
    "ssn": "SSN",
    "iban": "DE_IBAN",
    "ip": "IP_ADDRESS",
}
"""The names of `datafog` for the kinds of personal data."""
KINDS = (SECRET, *PERSONAL)
ROUNDS = 4
"""How many times a text is searched, because a replaced match may have hidden another match next to it."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))')
"""Escapes of JSON, which are not part of the words next to them."""
_ESCAPED_CHARACTER = re.compile(r"\\u00(2[013-9a-f]|[3-6][0-9a-f]|5[0-9abd-f]|7[0-9a-e])", re.I)
_NO_PROSE = re.compile(r"\S{16}|://|PRIVATE KEY")
"""Every text with a key matches this pattern; most lines of prose do not, so their search is skipped."""
_NO_WORDS = re.compile(r"[0-9@]")
"""All personal data matches this pattern."""
MIN_PERSONAL = 6
"""The length of `a@b.cc`; shorter texts, such as those between two escapes, are not searched."""
_AROUND = " \t\r\n\"'=:,"
MIN_GROUP = 16
"""The minimum length of a group that is the secret itself; a shorter group is its prefix."""

Span = tuple[int, int, str]


class LibraryRedactor:
    """Replaces keys, tokens and personal data of the given kinds with marks such as `[redacted email]`.

    Raises:
        LooplineError: the extra `redaction` is not installed.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        chosen = set(kinds)
        self._types = {PERSONAL[kind]: kind for kind in PERSONAL if kind in chosen}
        try:
            self._datafog = import_module("datafog") if self._types else None
            self._patterns = [*_patterns(), *VENDOR_KEYS] if SECRET in chosen else []
        except ModuleNotFoundError as error:
            raise LooplineError(
                "privacy.redact needs two libraries: pip install 'loopline[redaction]'"
            ) from error
        self._keys = SECRET in chosen

    def redact(self, text: str) -> str:
        """Return the text with each match replaced by a mark.

        A private key in PEM form becomes one mark. If a match is found after JSON escapes of printable characters are
        decoded, the decoded text is redacted and returned.
        """
        if self._keys and "PRIVATE KEY" in text:
            text = _PRIVATE_KEY.sub(_mark(SECRET), text)
        if "\\" not in text:
            return self._redact_between_escapes(text)
        plain = _ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 16)), text)
        if plain != text and self._redact_between_escapes(plain) != plain:
            text = plain
        return self._redact_between_escapes(text)

    def _redact_between_escapes(self, text: str) -> str:
        """Redact secrets by their names, and then each part of the text between escapes of JSON."""
        if self._keys and _NO_PROSE.search(text):
            text = NAMED_SECRET.sub(rf"\1{_mark(SECRET)}", text)
        return "".join(
            part if _ESCAPE.fullmatch(part) else self._redact_matches(part)
            for part in _ESCAPE.split(text)
        )

    def _redact_matches(self, text: str) -> str:
        """Replace each match by a mark, and search the result again while it matches, at most `ROUNDS` times."""
        for _ in range(ROUNDS):
            spans = _merge(self._spans(text)) if text else []
            if not spans:
                break
            parts = list[str]()
            at = 0
            for start, end, kind in spans:
                parts += [text[at:start], _mark(kind)]
                at = end
            text = "".join([*parts, text[at:]])
        return text

    def _spans(self, text: str) -> Iterator[Span]:
        """Yield the spans of secrets, then of personal data, with their kinds; spans may overlap."""
        for pattern in self._patterns if _NO_PROSE.search(text) else ():
            for match in pattern.finditer(text):
                yield (*_find_secret(match), SECRET)
        if len(text) < MIN_PERSONAL or self._datafog is None:
            return
        if _NO_WORDS.search(text):
            annotations = self._datafog.scan(text, engine="regex", entity_types=list(self._types))
            for entity in annotations.entities:
                yield entity.start, entity.end, self._types[entity.type]


def _mark(kind: str) -> str:
    return f"[redacted {kind}]"


def _find_secret(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the secret: the longest group if it has `MIN_GROUP` characters or more, otherwise the match.

    Quotes, spaces and the signs `=`, `:` and `,` around the match do not count.
    """
    parts = [match.span(number) for number in range(1, len(match.groups()) + 1)]
    start, end = max(parts, key=lambda part: part[1] - part[0], default=(0, 0))
    if end - start >= MIN_GROUP:
        return start, end
    matched = match[0]
    start = match.start() + len(matched) - len(matched.lstrip(_AROUND))
    return start, max(start, match.start() + len(matched.rstrip(_AROUND)))


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, without empty spans; overlapping spans are merged with the kind of the first."""
    merged: list[Span] = []
    for start, end, kind in sorted(span for span in spans if span[0] < span[1]):
        if merged and start < merged[-1][1]:
            first, last, name = merged[-1]
            merged[-1] = (first, max(last, end), name)
        else:
            merged.append((start, end, kind))
    return merged


def _patterns() -> Iterator[re.Pattern[str]]:
    """Yield the patterns of all detectors of `detect_secrets`; detectors that measure entropy have no patterns."""
    base = import_module("detect_secrets.plugins.base")
    parent = cast("type[object]", base.RegexBasedDetector)
    package = import_module("detect_secrets.plugins")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            is_own = isinstance(value, type) and value.__module__ == module.name
            if is_own and issubclass(value, parent) and value is not parent:
                yield from cast("Any", value)().denylist
