"""The source pool: every source that an answer may cite, each under a fixed number (its sid)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from typing import ClassVar, Literal
from urllib.parse import quote, unquote

from msgspec import Struct, structs

_TRACKING = frozenset({"gclid", "fbclid"})
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_WEB = re.compile(r"(https?)://([^/?#\s]+)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?", re.I | re.S)
_AUTHORITY = re.compile(r"(?:.*@)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]*))?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_PRINTED = string.digits + string.ascii_letters + string.punctuation
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_HOST_CHARACTERS = 253
_LABEL_CHARACTERS = 63
_NO_HOST = re.compile(r"[/?#@:%\[\]\\\s\x00-\x1f]")


SourceType = Literal["web", "file", "attachment", "manual"]


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source that a tool found and that answers can cite.

    `url` is a web address or a pinned ref; `commit` is a full commit id, `lines` counts from 1 with both ends
    included. `text` is the text that was shown of the source: the log stores it, so that it can be read when the source
    is gone. `objective_relevance` is from 0 to 1, None if it was not measured.
    """

    url: str
    title: str = ""
    source_type: SourceType = "web"
    path: str = ""
    commit: str = ""
    lines: tuple[int, int] | None = None
    text: str = ""
    objective_relevance: float | None = None
    published_time_iso: str = ""
    favicon_url: str = ""


class AnswerSource(Source, frozen=True, kw_only=True, omit_defaults=True):
    """A source that an answer cites, with its number in the pool of the conversation."""

    sid: int = 0


class SourceSpan(Struct, frozen=True, kw_only=True):
    """The characters `start` to `end` of a result's text, which show the source `sid` with a text that was not recorded."""

    sid: int
    start: int
    end: int


class SourceAdded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source was added to the pool under the number `sid`."""

    sid: int
    source: Source
    type: ClassVar[Literal["source.added"]] = "source.added"


class SourcePool(Struct):
    """The sources of a conversation by number.

    A number keeps its first source: a repeated source, or a second source under a used number, changes nothing.
    `newest` is the highest number so far, 0 without sources.
    """

    sources: dict[int, Source] = {}
    _sids: dict[tuple[str, ...], int] = {}
    newest: int = 0

    def take(self, added: SourceAdded) -> None:
        """Fold one more source."""
        self.sources.setdefault(added.sid, added.source)
        self._sids.setdefault(_name(added.source), added.sid)
        self.newest = max(self.newest, added.sid)

    def find(self, url: str) -> Source | None:
        """Return the source with that address, None if the pool does not have it."""
        sid = self._sids.get(("url", identity(url)))
        return None if sid is None else self.sources[sid]

    def assign_numbers(self, sources: Sequence[Source]) -> tuple[list[int], list[SourceAdded]]:
        """Return the number of each source, and bodies that add the new sources; the pool is not changed."""
        sids = list[int]()
        added = list[SourceAdded]()
        new = dict[tuple[str, ...], int]()
        for source in sources:
            name = _name(source)
            sid = self._sids.get(name) or new.get(name)
            if sid is None:
                sid = self.newest + len(added) + 1
                new[name] = sid
                added.append(SourceAdded(sid=sid, source=without_number(source)))
            sids.append(sid)
        return sids, added


def with_number(source: Source, sid: int) -> AnswerSource:
    """Return the source with its number in the pool."""
    return AnswerSource(**structs.asdict(source), sid=sid)


def without_number(source: Source) -> Source:
    """Return the source without a number, which it may have of another pool."""
    if not isinstance(source, AnswerSource):
        return source
    fields = structs.asdict(source)
    del fields["sid"]
    return Source(**fields)


def identity(url: str) -> str:
    """Return the normal form of an address; two addresses with the same normal form are the same source.

    Of a web address, scheme and host are lower-cased, and the host is written in ASCII without a final dot. The user,
    default port, fragment, tracking parameters and trailing slash are removed, `.` and `..` are resolved, and escapes
    are normalized as in RFC 3986 (6.2.2). Any other text, such as a pinned ref, is only stripped.
    """
    web = _WEB.fullmatch(url.strip())
    authority = _AUTHORITY.fullmatch(web[2]) if web else None
    host = _host(authority[1]) if authority else ""
    if not web or not authority or not host:
        return url.strip()
    scheme = web[1].lower()
    path = _remove_dot_segments(_escape(web[3] or "")).rstrip("/")
    query = "&".join(_parameters(web[4] or ""))
    return f"{scheme}://{host}{_port(authority[2], scheme)}{path}{'?' if query else ''}{query}"


def _name(source: Source) -> tuple[str, ...]:
    """Return the key of a source: its address; without one its path, commit and lines; else its type, title and text."""
    if source.url.strip():
        return ("url", identity(source.url))
    if source.path:
        return ("path", source.path, source.commit, str(source.lines))
    return (source.source_type, source.title, source.text)


def _host(written: str) -> str:
    """Return the host in ASCII, empty if the text is not a valid host.

    A host that is not ASCII may have 253 characters, and a label that is not ASCII 63: normalization and punycode take
    quadratic time.
    """
    if written.startswith("["):
        return written.lower()
    plain = unquote(written, errors="surrogateescape")
    if len(plain) > _HOST_CHARACTERS and not plain.isascii():
        return ""
    host = unicodedata.normalize("NFKC", plain).lower().replace("。", ".").rstrip(".")
    labels = host.split(".")
    if _NO_HOST.search(host) or any(map(_is_too_long, labels)):
        return ""
    return ".".join(_label(label) for label in labels)


def _is_too_long(label: str) -> bool:
    return len(label) > _LABEL_CHARACTERS and not label.isascii()


def _label(label: str) -> str:
    # Not with the codec "idna": it follows IDNA 2003, which maps `faß` to `fass`.
    return label if label.isascii() else f"xn--{label.encode('punycode').decode('ascii')}"


def _port(written: str | None, scheme: str) -> str:
    port = (written.lstrip("0") or "0") if written else _DEFAULT_PORTS[scheme]
    return "" if port == _DEFAULT_PORTS[scheme] else f":{port}"


def _parameters(query: str) -> list[str]:
    return [
        parameter
        for parameter in _escape(query).split("&")
        if parameter and not _is_tracking(parameter.partition("=")[0].lower())
    ]


def _is_tracking(name: str) -> bool:
    return name.startswith("utm_") or name in _TRACKING


def _escape(text: str) -> str:
    """Return the text in printable ASCII: unreserved characters plain, other characters as upper-case escapes."""
    return _ESCAPE.sub(_unescape, quote(text, safe=_PRINTED, errors="surrogatepass"))


def _unescape(escape: re.Match[str]) -> str:
    char = chr(int(escape[1], 16)) if escape[1] else "%"
    return char if _UNRESERVED.fullmatch(char) else f"%{ord(char):02X}"


def _remove_dot_segments(path: str) -> str:
    """Remove `.` and `..` from the path as in RFC 3986 (5.2.4)."""
    if "/." not in path:
        return path
    segments: list[str] = []
    for segment in path.split("/")[1:]:
        if segment == "..":
            segments[-1:] = []
        elif segment != ".":
            segments.append(segment)
    return "".join(f"/{segment}" for segment in segments)
