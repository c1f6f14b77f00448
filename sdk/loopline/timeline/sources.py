"""The sources pool: everything an answer may cite, each under a number that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from loopline.timeline.blocks import Source, SourceAdded

_TRACKING = frozenset({"gclid", "fbclid"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class Pool:
    """The sources of a conversation by number, and the numbers by what they stand for."""

    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    _sids: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, added: SourceAdded) -> None:
        """Fold one more source in."""
        self.sources[added.sid] = added.source
        self._sids[identity(added.source.url)] = added.sid

    @property
    def newest(self) -> int:
        """The highest number given so far, 0 when there is none."""
        return max(self.sources, default=0)

    def find(self, url: str) -> Source | None:
        """The source of that address; None when the pool has none."""
        sid = self._sids.get(identity(url))
        return None if sid is None else self.sources[sid]

    def number(self, sources: Sequence[Source]) -> tuple[list[int], list[SourceAdded]]:
        """The number of each source, and the bodies that add those which are new."""
        sids, added, new = list[int](), list[SourceAdded](), dict[str, int]()
        for source in sources:
            name = identity(source.url)
            sid = self._sids.get(name) or new.get(name)
            if sid is None:
                sid = self.newest + len(added) + 1
                new[name] = sid
                added.append(SourceAdded(sid=sid, source=source))
            sids.append(sid)
        return sids, added


def identity(url: str) -> str:
    """What makes two addresses the same source.

    Of a web address: scheme and host in lower case, no default port, no fragment, no tracking
    parameters, no trailing slash. Anything else, such as a pinned ref, is itself.
    """
    parts = urlsplit(url.strip())
    if parts.scheme.lower() not in _DEFAULT_PORTS or not parts.hostname:
        return url.strip()
    scheme = parts.scheme.lower()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = _port(parts.netloc)
    netloc = host if port in (None, _DEFAULT_PORTS[scheme]) else f"{host}:{port}"
    query = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if not name.lower().startswith("utm_") and name.lower() not in _TRACKING
    ]
    return urlunsplit((scheme, netloc, parts.path.rstrip("/"), urlencode(query), ""))


def _port(netloc: str) -> int | None:
    port = netloc.rpartition("@")[2].rpartition("]")[2].rpartition(":")[2]
    return int(port) if port.isdigit() and ":" in netloc else None
