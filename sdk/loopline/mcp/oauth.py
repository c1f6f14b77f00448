"""Sign-in to servers over HTTP: the OAuth flow of the SDK, with a file for tokens and a redirect to this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import compare_digest
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from loopline.bundle import McpConnectionSettings
from loopline.clock import Clock
from loopline.errors import ToolError
from loopline.models import one_line
from loopline.shared_files import replace_file

LOOPBACK = "127.0.0.1"
REQUEST_BYTES = 16_384
SIGN_IN_SECONDS = 300.0
"""How long a sign-in waits for the user."""
NO_REDIRECT = f"http://{LOOPBACK}/callback"
"""The redirect address for clients without a user, which is never opened."""
_PAGE = "You are signed in, and can close this page.\n"
_REFUSED = "The sign-in was refused. You can close this page.\n"


def _has_no_traceback(record: logging.LogRecord) -> bool:
    """Filter out the log records of failed sign-ins. The caller gets the error, and a traceback may contain tokens."""
    return not record.exc_info


class _StoredSignIn(BaseModel):
    """The content of the token file; `expires_at` is in seconds since 1970."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    server: OAuthMetadata | None = None


@dataclass(slots=True)
class TokenFile:
    """The tokens of one server, in a file that only its owner can read, or in memory if there is no path.

    `on_secret` is called with each secret that is read or written, to remove it from texts.
    """

    path: Path | None
    clock: Clock
    on_secret: Callable[[str], None]
    _stored: _StoredSignIn = field(default_factory=_StoredSignIn, repr=False)

    async def load(self) -> _StoredSignIn:
        """Load and return the stored sign-in, which another process may have changed."""
        if self.path is not None:
            self._stored = await asyncio.to_thread(_read, self.path)
            self._tell()
        return self._stored

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return (await self.load()).tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens, and when they expire."""
        expires_at = None
        if tokens.expires_in is not None:
            expires_at = self.clock.now().timestamp() + tokens.expires_in
        await self._store({"tokens": tokens, "expires_at": expires_at})

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client that is registered at the authorization server."""
        return (await self.load()).client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the client."""
        await self._store({"client": client_info})

    async def set_server(self, server: OAuthMetadata | None) -> None:
        """Store the metadata of the authorization server, which renews tokens."""
        await self._store({"server": server})

    async def clear(self) -> None:
        """Remove the sign-in and the client, which is registered with an earlier redirect."""
        self._stored = _StoredSignIn()
        await self._store({})

    async def _store(self, changes: Mapping[str, object]) -> None:
        self._stored = self._stored.model_copy(update=dict(changes))
        self._tell()
        if self.path is not None:
            await asyncio.to_thread(_write, self.path, self._stored)

    def _tell(self) -> None:
        """Call `on_secret` with the access token, the refresh token and the client secret that are stored."""
        tokens = self._stored.tokens
        client = self._stored.client
        for secret in (
            tokens and tokens.access_token,
            tokens and tokens.refresh_token,
            client and client.client_secret,
        ):
            if secret:
                self.on_secret(secret)


def _read(path: Path) -> _StoredSignIn:
    """Return the stored sign-in, or an empty one if the file is missing or damaged.

    Raises:
        OSError: the file cannot be read. An empty sign-in would overwrite the file.
    """
    try:
        return _StoredSignIn.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return _StoredSignIn()


def _write(path: Path, stored: _StoredSignIn) -> None:
    """Write the file with mode 0600, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, stored.model_dump_json(exclude_none=True).encode())


def authorization(
    name: str, path: Path | None, clock: Clock, show: Callable[[str], None] | None
) -> Callable[
    [McpConnectionSettings, Callable[[str], None]], AbstractAsyncContextManager[OAuthClientProvider]
]:
    """Return a function that authorizes requests to the server with this name.

    With `show`, the function signs in and shows an address to the user. Without it, it uses the tokens in the file and renews
    them, and a request that needs a new sign-in raises a ToolError with a hint.
    """

    async def refuse(_address: str = "") -> NoReturn:
        raise ToolError(f"{name!r} wants you to sign in: loopline mcp BUNDLE --login {name}")

    @asynccontextmanager
    async def authorize(
        settings: McpConnectionSettings, on_secret: Callable[[str], None]
    ) -> AsyncGenerator[OAuthClientProvider]:
        """Provide the authorization: by the browser if `show` is given, otherwise by the stored tokens alone."""
        tokens = TokenFile(path, clock, on_secret)
        if show is None:
            yield await _provider(settings, tokens, NO_REDIRECT, refuse, refuse)
        else:
            async with _sign_in_by_browser(settings, tokens, show) as provider:
                yield provider

    return authorize


@asynccontextmanager
async def _sign_in_by_browser(
    settings: McpConnectionSettings, tokens: TokenFile, show: Callable[[str], None]
) -> AsyncGenerator[OAuthClientProvider]:
    """Provide an authorization that signs in at the first request; `show` gets the address for the user to open.

    The stored sign-in and client are removed first. At the end, the metadata of the authorization server is stored.

    Raises:
        OSError: the port for the redirect cannot be opened.
    """
    redirect = _Redirect()
    listener = await asyncio.start_server(redirect.serve, LOOPBACK, settings.oauth.callback_port)
    port: int = listener.sockets[0].getsockname()[1]

    async def open_address(address: str) -> None:
        redirect.expect(address)
        show(address)

    try:
        await tokens.clear()
        address = f"http://{LOOPBACK}:{port}/callback"
        provider = await _provider(settings, tokens, address, open_address, redirect.wait)
        yield provider
        await tokens.set_server(provider.context.oauth_metadata)
    finally:
        listener.close()


async def _provider(
    settings: McpConnectionSettings,
    tokens: TokenFile,
    redirect: str,
    open_address: Callable[[str], Awaitable[None]],
    wait: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    """Return an authorization with the stored tokens. If no client is stored, store the configured one first."""
    logging.getLogger("mcp.client.auth.oauth2").addFilter(_has_no_traceback)
    stored = await tokens.load()
    oauth = settings.oauth
    if stored.client is None and oauth.client_id:
        await tokens.set_client_info(
            OAuthClientInformationFull(
                client_id=oauth.client_id,
                client_secret=oauth.client_secret or None,
                redirect_uris=[AnyUrl(redirect)],
                token_endpoint_auth_method="client_secret_basic" if oauth.client_secret else "none",
            )
        )
    provider = OAuthClientProvider(
        settings.url,
        OAuthClientMetadata(
            client_name="Loopline", redirect_uris=[AnyUrl(redirect)], scope=oauth.scope or None
        ),
        tokens,
        open_address,
        wait,
    )
    provider.context.token_expiry_time = stored.expires_at
    provider.context.oauth_metadata = stored.server
    return provider


class _Redirect:
    """The page to which the authorization server redirects the browser of the user, with a code."""

    def __init__(self) -> None:
        self._code = asyncio.Future[AuthorizationCodeResult]()
        self._state = ""

    def expect(self, address: str) -> None:
        """Accept only a redirect with the state in the address that the user opens."""
        self._state = parse_qs(urlsplit(address).query)["state"][-1]

    async def wait(self) -> AuthorizationCodeResult:
        """Wait for the sign-in of the user, and return its code.

        Raises:
            ToolError: the sign-in was refused, or took longer than 5 minutes.
        """
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS):
                result = await asyncio.shield(self._code)
        except TimeoutError:
            raise ToolError(f"the sign-in took longer than {SIGN_IN_SECONDS:g} s") from None
        self._code = asyncio.Future[AuthorizationCodeResult]()
        return result

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of the browser and close the connection. A request that is cut off is not answered."""
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            status, page = self._page(request[:REQUEST_BYTES].decode("latin-1"))
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            rest = f"Content-Length: {len(page)}\r\nConnection: close\r\n\r\n{page}"
            writer.write((head + rest).encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    def _page(self, request: str) -> tuple[str, str]:
        """Return the status and the page for a request; the redirect has a code or an error as parameters.

        The first code or error with the expected state is the result of `wait`. Other requests, which any page in the browser
        can send, and a second redirect before `wait` returns, get 404.
        """
        address = urlsplit(request.partition(" ")[2].partition(" ")[0])
        values = {name: texts[0] for name, texts in parse_qs(address.query).items()}
        is_expected = bool(self._state) and compare_digest(
            values.get("state", "").encode(), self._state.encode()
        )
        if address.path != "/callback" or self._code.done() or not is_expected:
            return "404 Not Found", "There is nothing here.\n"
        match values:
            case {"code": _}:
                self._code.set_result(AuthorizationCodeResult.model_validate(values))
                return "200 OK", _PAGE
            case {"error": error}:
                refusal = f"the sign-in was refused: {one_line(error, 200)}"
                self._code.set_exception(ToolError(refusal))
                return "200 OK", _REFUSED
            case _:
                return "404 Not Found", "There is nothing here.\n"
