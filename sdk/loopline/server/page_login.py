"""The login of the web page at an OpenID provider: the authorization code flow with PKCE (RFC 7636).

The page makes the verifier and opens the provider's page. With the code that the provider gives it, this server fetches the
token, because the policy of the page allows requests to its own server alone. The page then sends the token as a bearer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import httpx2
from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from loopline.models import Json, is_loopback
from loopline.server.access import HostDep
from loopline.server.bundle_host import BundleHost
from loopline.server.principals import Unauthenticated
from loopline.server.problems import not_found, unavailable
from loopline.server.settings import PageLogin
from loopline.server.token_users import (
    FETCH_SECONDS,
    IssuerValues,
    fetch_configuration,
    read_document,
)

router: APIRouter = APIRouter(include_in_schema=False)
AT_ONCE = 8
"""How many codes are exchanged at once. More are refused, so that strangers cannot make the server send many requests."""
_exchanges = asyncio.Semaphore(AT_ONCE)
Secret = Annotated[str, Header(min_length=1, max_length=4_096)]


class LoginAnswer(BaseModel):
    """How the page signs in: with a key, and at the provider if `authorization_url` is not empty."""

    issuer: str = ""
    authorization_url: str = ""
    client_id: str = ""
    scope: str = ""


class TokenAnswer(BaseModel):
    """The token to send with requests."""

    token: str


@router.get("/login")
async def read_login(host: HostDep) -> LoginAnswer:
    """Return how people sign in on the page. If the provider cannot be reached, only keys are possible."""
    login = host.settings.login
    if login is None:
        return LoginAnswer()
    try:
        url = await _endpoint(host, login, "authorization_endpoint")
    except (Unauthenticated, ValueError):
        return LoginAnswer()
    return LoginAnswer(
        issuer=login.issuer, authorization_url=url, client_id=login.client_id, scope=login.scope
    )


@router.post("/login/token")
async def exchange_code(
    host: HostDep,
    code: Annotated[Secret, Header(alias="Loopline-Login-Code")],
    verifier: Annotated[Secret, Header(alias="Loopline-Login-Verifier")],
    address: Annotated[Secret, Header(alias="Loopline-Login-Address")],
) -> Response:
    """Exchange a code of the provider for a token of a user of this server. They are headers, so no log of URLs has them.

    Raises:
        Unauthenticated: the provider or this server refuses, 401.
        RequestProblem: people cannot sign in at a provider here, 404; or too many do at once, 503.
    """
    login = host.settings.login
    if login is None:
        raise not_found("OpenID provider")
    if _exchanges.locked():
        raise unavailable("too many people sign in at once: try again")
    async with _exchanges:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": address,
            "client_id": login.client_id,
        }
        answer = await _fetch_tokens(host, login, form)
    token = await _accepted(host, answer)
    return JSONResponse(
        TokenAnswer(token=token).model_dump(), headers={"Cache-Control": "no-store"}
    )


async def _endpoint(host: BundleHost, login: PageLogin, name: str) -> str:
    """Return the URL of an endpoint in the OpenID configuration of the provider.

    Raises:
        Unauthenticated: the configuration cannot be fetched or is that of another issuer, or the URL of the endpoint is
            missing, or is neither https nor on this machine.
    """
    if host.login_values is None:
        host.login_values = IssuerValues(partial(fetch_configuration, login.issuer), host.clock)
    url = await host.login_values.get(name)
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or not (parts.scheme == "https" or is_loopback(parts.hostname or "")):
        raise Unauthenticated(f"the issuer's configuration has no {name} with https")
    return parts.geturl()


async def _fetch_tokens(host: BundleHost, login: PageLogin, form: Mapping[str, str]) -> Json:
    """Post the form to the provider's token endpoint and return its JSON; raise `Unauthenticated` if that fails."""
    auth = httpx2.BasicAuth(login.client_id, login.secret) if login.secret else None
    try:
        url = await _endpoint(host, login, "token_endpoint")
        async with httpx2.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client:
            request = client.build_request("POST", url, data=dict(form))
            return await read_document(client, request, auth=auth)
    except (httpx2.HTTPError, ValueError) as error:
        raise Unauthenticated("the provider does not accept this login: sign in again") from error


async def _accepted(host: BundleHost, answer: Json) -> str:
    """Return the first token of the answer that this server accepts: the access token, then the ID token.

    Raises:
        Unauthenticated: it accepts neither.
    """
    refusal = Unauthenticated("the provider's answer has no token")
    fields = answer if isinstance(answer, dict) else {}
    for token in (fields.get("access_token"), fields.get("id_token")):
        if isinstance(token, str):
            try:
                await host.auth.authenticate(token)
            except Unauthenticated as error:
                refusal = error
            else:
                return token
    raise refusal
