"""JSON Web Tokens of an issuer: its public keys are fetched, cached, and fetched again when they rotate.

RFC 7519, RFC 8725 (best current practices), and OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from typing import Any, cast

import httpx2
import jwt

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Only signatures with a private key: `none` is no signature, and a shared secret would be our public key."""
TOKEN_CHARACTERS = 8_192
DOCUMENT_BYTES = 256 * 1024
KEYS = 100
FETCH_SECONDS = 5.0
FRESH_SECONDS = 300.0
"""How long keys are used without a look whether the issuer still has them."""
PAUSE_SECONDS = 10.0
"""The shortest time between two fetches: neither a made-up key id nor an issuer that is down must make many."""
LEEWAY_SECONDS = 30


class TokenRefused(LooplineError):
    """A token is wrong, expired, or of somebody else. The message does not hold it."""


class IssuerTokens:
    """Checks the tokens of one issuer for one audience."""

    def __init__(self, issuer: str, audience: str, jwks_url: str, clock: Clock) -> None:
        self._issuer = issuer
        self._audience = audience
        self._jwks_url = jwks_url
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_at = self._fetched_at = -math.inf
        self._fetching = asyncio.Lock()

    async def claims(self, token: str) -> JsonObject:
        """Return what a token claims.

        Raises:
            TokenRefused: it is wrong, or its issuer's keys cannot be fetched.
        """
        if len(token) > TOKEN_CHARACTERS:
            raise TokenRefused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError) as error:
            raise TokenRefused("the token is no JSON Web Token") from error
        match header:
            case {"alg": str(algorithm), "kid": str(key_id)} if algorithm in ALGORITHMS:
                key = await self._key(key_id)
            case _:
                raise TokenRefused("the token has no key id, or a signature that is not accepted")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenRefused(f"the token is refused: {type(error).__name__}") from error
        return cast("JsonObject", claims)

    async def _key(self, key_id: str) -> jwt.PyJWK:
        async with self._fetching:
            now = self._clock.elapsed()
            if now - self._fetched_at > FRESH_SECONDS:
                self._keys = {}  # until the issuer answers no token of it is accepted
            if key_id not in self._keys and now - self._tried_at > PAUSE_SECONDS:
                self._tried_at = now
                await self._fetch()
                self._fetched_at = now
        if key_id not in self._keys:
            raise TokenRefused("its issuer has no such key, or could not be asked just now")
        return self._keys[key_id]

    async def _fetch(self) -> None:
        """Fetch the issuer's keys.

        Raises:
            TokenRefused: they cannot be had.
        """
        try:
            async with httpx2.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client:
                url = self._jwks_url or await self._discover(client)
                document = await _document(client, url)
            self._keys = dict(_public_keys(document))
        except (httpx2.HTTPError, jwt.PyJWTError, ValueError) as error:
            raise TokenRefused("the keys of the issuer cannot be fetched now") from error

    async def _discover(self, client: httpx2.AsyncClient) -> str:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        match await _document(client, url):
            case {"issuer": str(issuer), "jwks_uri": str(jwks_url)} if issuer == self._issuer:
                return jwks_url
            case _:
                raise TokenRefused("the issuer's configuration is that of another issuer")


async def _document(client: httpx2.AsyncClient, url: str) -> Json:
    data = b""
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > DOCUMENT_BYTES:
                raise TokenRefused("the issuer sends more than keys have")
    document: Json = json.loads(data)
    return document


def _public_keys(document: Json) -> list[tuple[str, jwt.PyJWK]]:
    """Return the keys that sign, by id; those that cannot be used here are left out."""
    match document:
        case {"keys": [*rows]}:
            pass
        case _:
            raise TokenRefused("the issuer sends no keys")
    keys: list[tuple[str, jwt.PyJWK]] = []
    for row in rows[:KEYS]:
        if not isinstance(row, dict) or not {"kid", "kty"} <= row.keys():
            continue
        key_id, kind = row["kid"], row["kty"]
        if not isinstance(key_id, str) or kind not in ("RSA", "EC", "OKP"):
            continue
        with suppress(jwt.PyJWTError, ValueError):
            keys.append((key_id, jwt.PyJWK(row)))
    return keys
