"""Who may call a served bundle over HTTP: whoever has its key, at an address that it is known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest

from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_REFUSAL = b"a key is needed: send it as Authorization: Bearer\n"


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Passes on requests that have the key, of which only the sha256 is known here; all others get 401."""

    app: ASGIApp
    key_sha256: bytes = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or self._has_key(scope["headers"]):
            await self.app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"www-authenticate", b'Bearer realm="loopline"'),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})

    def _has_key(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        values = [value for name, value in headers if name.lower() == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, key = values[0].partition(b" ")
        digest = sha256(key.strip()).digest()
        return compare_digest(digest, self.key_sha256) and scheme.lower() == b"bearer"


def known_addresses(host: str, names: Sequence[str]) -> TransportSecuritySettings:
    """Return the check of the headers Host and Origin: this machine, the address that is listened on, and other names.

    A page of another site that has its name resolve to this machine sends its own name in both.
    """
    own = f"[{host}]" if ":" in host else host
    hosts = dict.fromkeys([*LOOPBACK_NAMES, own, *names])
    allowed = [form for name in hosts for form in (name, f"{name}:*")]
    origins = [f"{scheme}://{form}" for form in allowed for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=allowed, allowed_origins=origins)
