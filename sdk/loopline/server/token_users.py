"""Users by the JSON Web Tokens of an issuer, such as an OpenID provider.

RFC 7519, RFC 8725 (best current practices), and OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import httpx2
import jwt

from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, is_loopback
from loopline.reader import check_name
from loopline.server.principals import Principal, Unauthenticated

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Only asymmetric signatures: `none` is not a signature, and for an HMAC our public key would be the secret."""
TOKEN_CHARACTERS = 8_192
DOCUMENT_BYTES = 256 * 1024
KEY_TYPES = ("RSA", "EC", "OKP")
KEYS = 100
FETCH_SECONDS = 5.0
FRESH_SECONDS = 300.0
"""How long fetched keys and endpoints are used before they are fetched again."""
PAUSE_SECONDS = 10.0
"""The shortest time between two fetches. It limits the fetches that tokens with unknown key ids cause."""
LEEWAY_SECONDS = 30
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The names of the claims with the user's identity. The `roles` claim is a list, or one text with spaces."""

    tenant: str = "tenant"
    project: str = "project"
    user: str = "sub"
    roles: str = "roles"


class IssuerValues(Generic[_Value]):
    """The named values of a document of an issuer.

    They are cached for `FRESH_SECONDS`, and fetched again for an unknown name, but at most every `PAUSE_SECONDS`. All
    callers share one fetch, so that strangers cannot make the server send many requests.
    """

    def __init__(
        self, fetch: Callable[[httpx2.AsyncClient], Awaitable[dict[str, _Value]]], clock: Clock
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._values: dict[str, _Value] = {}
        self._tried_at = -math.inf
        self._fetched_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    async def get(self, name: str) -> _Value:
        """Return the value of a name, and fetch the values first if it is unknown or they are too old.

        A caller that is cancelled does not cancel the fetch.

        Raises:
            Unauthenticated: the name is still unknown, or the values cannot be fetched.
        """
        now = self._clock.elapsed()
        if now - self._fetched_at > FRESH_SECONDS:
            self._values = {}  # old values are not used while the issuer cannot be reached
        if name not in self._values:
            if (self._task is None or self._task.done()) and now - self._tried_at > PAUSE_SECONDS:
                self._task = asyncio.create_task(self._update(now))
            if self._task is not None and not self._task.done():
                await asyncio.shield(self._task)
        if name not in self._values:
            raise Unauthenticated(
                "the issuer has no key or endpoint of this name, or could not be reached just now"
            )
        return self._values[name]

    async def _update(self, now: float) -> None:
        """Fetch the values, and store `now` as the time of the fetch. A cancelled fetch does not count as tried.

        Raises:
            Unauthenticated: the values cannot be fetched.
        """
        self._tried_at = now
        try:
            async with httpx2.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client:
                self._values = await self._fetch(client)
        except asyncio.CancelledError:
            self._tried_at = -math.inf
            raise
        except (httpx2.HTTPError, jwt.PyJWTError, ValueError) as error:
            raise Unauthenticated("the issuer's document cannot be fetched now") from error
        self._fetched_at = now


class TokenUsers:
    """Authenticates the tokens of one issuer for one audience.

    The issuer's public keys are fetched at `jwks_url`, or at the URL in the issuer's OpenID configuration. They are
    cached for `FRESH_SECONDS`, and fetched again for an unknown key id.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        jwks_url: str = "",
        names: ClaimNames | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Check the URLs; nothing is fetched yet.

        Raises:
            LooplineError: a URL is not https and its host is not this machine, or the audience is empty.
        """
        if not audience.strip():
            raise LooplineError("name the audience that tokens must be for")
        for url in (issuer, jwks_url or issuer):
            parts = urlsplit(url)
            if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
                raise LooplineError(
                    f"{url} must begin with https://: it is an address of an issuer"
                )
        self._issuer = issuer
        self._audience = audience
        self._jwks_url = jwks_url
        self._names = names or ClaimNames()
        self._keys = IssuerValues(self._fetch_keys, clock or SystemClock())

    async def authenticate(self, token: str) -> Principal:
        """Return the principal of a token. It may fetch the issuer's keys first.

        Raises:
            Unauthenticated: the token is missing, wrong or expired, a claim is not a valid name, or the keys cannot be
                fetched.
        """
        if not token:
            raise Unauthenticated("the request has no token")
        claims = await self._claims(token)
        return Principal(
            tenant=_name(claims, self._names.tenant),
            project=_name(claims, self._names.project),
            user=_name(claims, self._names.user),
            roles=_roles(claims.get(self._names.roles)),
        )

    async def _claims(self, token: str) -> JsonObject:
        """Verify a token and return its claims.

        Raises:
            Unauthenticated: the token is wrong or expired, or the issuer's keys cannot be fetched.
        """
        if len(token) > TOKEN_CHARACTERS:
            raise Unauthenticated("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError) as error:
            raise Unauthenticated("the token is not a JSON Web Token") from error
        match header:
            case {"alg": str(algorithm), "kid": str(key_id)} if algorithm in ALGORITHMS:
                key = await self._keys.get(key_id)
            case _:
                raise Unauthenticated(
                    "the token has no key id, or a signature algorithm that is not accepted"
                )
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
            raise Unauthenticated(f"the token is refused: {type(error).__name__}") from error
        for name in ("exp", "nbf", "iat"):
            if type(claims.get(name, 0)) not in (int, float):
                raise Unauthenticated(f"the claim {name!r} of the token is not a number")
        return cast("JsonObject", claims)

    async def _fetch_keys(self, client: httpx2.AsyncClient) -> dict[str, jwt.PyJWK]:
        """Fetch the public keys of the issuer by their ids. The errors are those of `fetch_configuration`."""
        url = self._jwks_url or await self._discover_url(client)
        return dict(_public_keys(await read_document(client, client.build_request("GET", url))))

    async def _discover_url(self, client: httpx2.AsyncClient) -> str:
        """Return the URL of the keys in the issuer's OpenID configuration."""
        match await fetch_configuration(self._issuer, client):
            case {"jwks_uri": str(jwks_url)}:
                return jwks_url
            case _:
                raise Unauthenticated("the issuer's configuration has no keys")


async def fetch_configuration(issuer: str, client: httpx2.AsyncClient) -> JsonObject:
    """Fetch the OpenID configuration of an issuer.

    Raises:
        Unauthenticated: the configuration is too large, or is that of another issuer.
        ValueError: the configuration is not valid JSON.
        httpx2.HTTPError: it cannot be fetched.
    """
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    document = await read_document(client, client.build_request("GET", url))
    if isinstance(document, dict) and document.get("issuer") == issuer:
        return document
    raise Unauthenticated("the issuer's configuration names another issuer")


async def read_document(
    client: httpx2.AsyncClient, request: httpx2.Request, auth: httpx2.Auth | None = None
) -> Json:
    """Send a request, and return the JSON document of the response, of at most `DOCUMENT_BYTES`.

    Raises:
        Unauthenticated: the document is too large.
        ValueError: the document is not valid JSON.
        httpx2.HTTPError: there is no response, or it is an error.
    """
    data = b""
    async with aclosing(await client.send(request, stream=True, auth=auth)) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > DOCUMENT_BYTES:
                raise Unauthenticated(
                    f"the issuer's document has more than {DOCUMENT_BYTES:,} bytes"
                )
    try:
        document: Json = json.loads(data)
    except RecursionError as error:
        raise ValueError("the issuer's document is nested too deeply") from error
    return document


def _public_keys(document: Json) -> list[tuple[str, jwt.PyJWK]]:
    """Return the public keys of a JSON Web Key Set with their ids, of its first `KEYS` rows.

    Keys that are malformed, of other types, or not for signatures (RFC 7517, `use` and `key_ops`) are left out.

    Raises:
        Unauthenticated: the document does not have a list of keys.
    """
    match document:
        case {"keys": [*rows]}:
            pass
        case _:
            raise Unauthenticated("the issuer's document has no keys")
    keys: list[tuple[str, jwt.PyJWK]] = []
    for row in rows[:KEYS]:
        match row:
            case {"kid": str(key_id), "kty": kind} if kind in KEY_TYPES and _verifies(row):
                with suppress(jwt.PyJWTError, ValueError):
                    keys.append((key_id, jwt.PyJWK(cast("dict[str, Any]", row))))
            case _:
                pass
    return keys


def _verifies(key: Json) -> bool:
    """Return whether a key may verify signatures."""
    match key:
        case {"use": use} if use != "sig":
            return False
        case {"key_ops": operations}:
            return isinstance(operations, list) and "verify" in operations
        case _:
            return True


def _name(claims: JsonObject, claim: str) -> str:
    """Return the value of a claim, which is the name of a tenant, project or user.

    Raises:
        Unauthenticated: the claim is missing, or is not a valid name.
    """
    value = claims.get(claim)
    if not isinstance(value, str) or not value.isprintable():
        raise Unauthenticated(f"the token has no claim {claim!r} with a name")
    try:
        check_name("user", value, is_in_url=True)
    except LooplineError as error:
        raise Unauthenticated(f"the claim {claim!r} of the token is not a valid name") from error
    return value


def _roles(value: Json) -> frozenset[str]:
    """Return the roles in a claim: the words of a text or the texts of a list; empty for any other value."""
    match value:
        case str():
            return frozenset(value.split())
        case list():
            return frozenset(role for role in value if isinstance(role, str))
        case _:
            return frozenset()
