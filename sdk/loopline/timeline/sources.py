"""The sources pool: everything an answer may cite, each under a number that it keeps."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

_TRACKING = frozenset({"gclid", "fbclid"})
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_WEB = re.compile(r"(https?)://([^/?#\s]+)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?", re.I | re.S)
_AUTHORITY = re.compile(r"(?:.*@)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]*))?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNPRINTED = re.compile(r"[^!-~]+")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_NO_HOST = re.compile(r"[/?#@:%\[\]\\\s\x00-\x1f]")


SourceType = Literal["web", "file", "attachment", "manual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Something citable that a tool found.

    `url` is a web address or a pinned ref; `commit` is a full commit id, `lines` counts from 1 with
    both ends included. `text` is what was shown of it, which the log keeps, so that it reads the same
    when the source is gone. `objective_relevance` is from 0 to 1, None when nothing measured it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAdded:
    """A source has joined the pool under its number `sid`, which it keeps."""

    sid: int
    source: Source
    type: Literal["source.added"] = "source.added"


@dataclass(slots=True)
class SourcePool:
    """The sources of a conversation by number, and the numbers by what they stand for.

    The first stands: what comes again under a number that is taken, or as a source that is there,
    changes neither, whatever more it says.
    """

    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    _sids: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    _newest: int = 0

    def take(self, added: SourceAdded) -> None:
        """Fold one more source in."""
        self.sources.setdefault(added.sid, added.source)
        self._sids.setdefault(_name(added.source), added.sid)
        self._newest = max(self._newest, added.sid)

    @property
    def newest(self) -> int:
        """The highest number given so far, 0 when there is none."""
        return self._newest

    def find(self, url: str) -> Source | None:
        """The source of that address; None when the pool has none."""
        sid = self._sids.get(("url", identity(url)))
        return None if sid is None else self.sources[sid]

    def assign_numbers(self, sources: Sequence[Source]) -> tuple[list[int], list[SourceAdded]]:
        """The number of each source, and the bodies that add those which are new."""
        sids, added, new = list[int](), list[SourceAdded](), dict[tuple[str, ...], int]()
        for source in sources:
            name = _name(source)
            sid = self._sids.get(name) or new.get(name)
            if sid is None:
                sid = self.newest + len(added) + 1
                new[name] = sid
                added.append(SourceAdded(sid=sid, source=source))
            sids.append(sid)
        return sids, added


def identity(url: str) -> str:
    """What makes two addresses the same source; any text has one.

    Of a web address: scheme and host in lower case, the host in its ASCII form without a last dot, no
    user, no default port, no fragment, no tracking parameters, no trailing slash, `.` and `..` walked,
    escapes as RFC 3986 (6.2.2) has them. Anything else, such as a pinned ref, is itself.
    """
    web = _WEB.fullmatch(url.strip())
    authority = _AUTHORITY.fullmatch(web[2]) if web else None
    host = _host(authority[1]) if authority else ""
    if not web or not authority or not host:
        return url.strip()
    scheme = web[1].lower()
    path = _walked(_escaped(web[3] or "")).rstrip("/")
    query = "&".join(_parameters(web[4] or ""))
    return f"{scheme}://{host}{_port(authority[2], scheme)}{path}{'?' if query else ''}{query}"


def _name(source: Source) -> tuple[str, ...]:
    """By address; without one by path, commit and lines; without these by title and text."""
    if source.url.strip():
        return ("url", identity(source.url))
    if source.path:
        return ("path", source.path, source.commit, str(source.lines))
    return (source.source_type, source.title, source.text)


def _host(written: str) -> str:
    """The host in ASCII; empty when no host can be written like that."""
    if written.startswith("["):
        return written.lower()
    read = unicodedata.normalize("NFKC", unquote(written, errors="surrogateescape")).lower()
    host = read.replace("。", ".").rstrip(".")
    return "" if _NO_HOST.search(host) else ".".join(_label(label) for label in host.split("."))


def _label(label: str) -> str:
    # Not by the codec "idna": Python's is that of 2003 and takes `faß` for `fass`.
    return label if label.isascii() else f"xn--{label.encode('punycode').decode('ascii')}"


def _port(written: str | None, scheme: str) -> str:
    port = (written.lstrip("0") or "0") if written else _DEFAULT_PORTS[scheme]
    return "" if port == _DEFAULT_PORTS[scheme] else f":{port}"


def _parameters(query: str) -> list[str]:
    return [
        parameter
        for parameter in _escaped(query).split("&")
        if parameter and not _tracks(parameter.partition("=")[0].lower())
    ]


def _tracks(name: str) -> bool:
    return name.startswith("utm_") or name in _TRACKING


def _escaped(text: str) -> str:
    """The text in printable ASCII, its escapes in upper case and only where they are needed."""
    ascii_only = _UNPRINTED.sub(lambda match: _percent(match[0]), text)
    return _ESCAPE.sub(_unescaped, ascii_only)


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def _unescaped(escape: re.Match[str]) -> str:
    char = chr(int(escape[1], 16)) if escape[1] else "%"
    return char if _UNRESERVED.fullmatch(char) else f"%{ord(char):02X}"


def _walked(path: str) -> str:
    """The path without `.` and `..`, as RFC 3986 (5.2.4) removes them."""
    if "/." not in path:
        return path
    segments = list[str]()
    for segment in path.split("/")[1:]:
        if segment == "..":
            segments[-1:] = []
        elif segment != ".":
            segments.append(segment)
    return "".join(f"/{segment}" for segment in segments)
