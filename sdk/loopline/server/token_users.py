"""Users by the signed tokens of an issuer, such as an OpenID provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, is_loopback
from loopline.reader import check_name
from loopline.server.json_web_tokens import IssuerTokens
from loopline.server.principals import Principal, Unauthenticated


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
    return IssuerTokens(issuer, audience, jwks_url, clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The claims of a token that say who its user is; `roles` is a list of names or one text with spaces."""

    tenant: str = "tenant"
    project: str = "project"
    user: str = "sub"
    roles: str = "roles"


class TokenUsers:
    """Takes the tokens of one issuer for one audience."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        jwks_url: str = "",
        names: ClaimNames | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Check the URLs.

        Raises:
            LooplineError: a URL could be read by others on its way, or the audience is empty.
        """
        self._checker = token_checker(issuer, audience, jwks_url, clock or SystemClock())
        self._names = names or ClaimNames()

    async def authenticate(self, token: str) -> Principal:
        """Return the principal that a token names."""
        if not token:
            raise Unauthenticated("the request has no token")
        try:
            claims = await self._checker.claims(token)
        except LooplineError as error:
            raise Unauthenticated(str(error)) from error
        return Principal(
            tenant=_name(claims, self._names.tenant),
            project=_name(claims, self._names.project),
            user=_name(claims, self._names.user),
            roles=_roles(claims.get(self._names.roles)),
        )


def _name(claims: JsonObject, name: str) -> str:
    """Return the name that a claim has.

    Raises:
        Unauthenticated: there is none.
    """
    value = claims.get(name)
    if not isinstance(value, str):
        raise Unauthenticated(f"the token has no claim {name!r} that is a name")
    try:
        check_name("user", value)
    except LooplineError as error:
        raise Unauthenticated(f"the claim {name!r} of the token is no name") from error
    return value


def _roles(value: Json) -> frozenset[str]:
    match value:
        case str():
            return frozenset(value.split())
        case list():
            return frozenset(role for role in value if isinstance(role, str))
        case _:
            return frozenset()
