"""The issuer of tokens that a server trusts."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.models import JsonObject, is_loopback


class TokenChecker(Protocol):
    """Checks signed tokens."""

    async def claims(self, token: str) -> JsonObject:
        """Return what a token claims.

        Raises:
            LooplineError: it is wrong, expired, or of another issuer or audience.
        """
        ...


def token_checker(issuer: str, audience: str, jwks_url: str, clock: Clock) -> TokenChecker:
    """Return what checks the tokens of an issuer; without a URL its keys are where its configuration says.

    Raises:
        LooplineError: a URL could be read by others on its way, or the audience is empty.
    """
    if not audience.strip():
        raise LooplineError("a token is for an audience: name it")
    for url in (issuer, jwks_url or issuer):
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise LooplineError(f"{url} is no address of an issuer: it must begin with https://")
    from loopline.server.json_web_tokens import IssuerTokens

    return IssuerTokens(issuer, audience, jwks_url, clock)
