"""Web requests with limits of size and time, to hosts with allowed addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx2

from loopline.errors import LooplineError, ToolError
from loopline.models import one_line
from loopline.models.safe_text import remove_secrets

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host in the order of connection attempts."""

_NAT64: Final = ip_network("64:ff9b::/96")
_LOCAL_NAT64: Final = ip_network("64:ff9b:1::/48")
_COMPATIBLE: Final = ip_network("::/96")
_NEVER: Final = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "fec0::/10", "5f00::/16", "3fff::/20"))
)
"""Reserved networks that older Python versions count as global."""


class AddressRefused(httpx2.TransportError):
    """The host has an address that is not allowed."""


def is_public(address: Address) -> bool:
    """Return whether the address, and each IPv4 address embedded in it, is on the public internet."""
    inner = _extract_ipv4(address)
    if inner:
        return all(map(is_public, inner))
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_unspecified)
        and not any(address in network for network in _NEVER if network.version == address.version)
    )


def _extract_ipv4(address: Address) -> Sequence[IPv4Address]:
    """Return the IPv4 addresses inside an IPv6 address (mapped, compatible, 6to4, Teredo, NAT64), or none."""
    if isinstance(address, IPv4Address):
        return ()
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64 or address in _LOCAL_NAT64:
        return (last,)
    return (last,) if address in _COMPATIBLE and int(address) > 1 else ()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the resolver of the system, which accepts numbers in any notation."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in addresses))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request, also after a redirect, to a checked address, over a connection of its own.

    `allowed` are networks that are not public and still allowed. `trusted` is the origin of a server that may have any
    address, such as a search engine in the local network.
    """

    def __init__(
        self, *, allowed: Sequence[Network] = (), trusted: str = "", resolve: Resolve = resolve
    ) -> None:
        self._allowed = tuple(allowed)
        self._trusted = httpx2.URL(trusted) if trusted else None
        self._resolve = resolve
        # A connection is not reused: the pool finds it by the address, but its certificate is that of one host.
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first address of its host.

        Raises:
            AddressRefused: an address of the host is not allowed, or the scheme is not HTTP.
            httpx2.HTTPError: the request failed.
        """
        url = request.url
        if url.scheme not in ("http", "https"):
            raise AddressRefused(f"{url.scheme!r} is no address of the web", request=request)
        addresses = await self._resolve_checked(url, request)
        sent = httpx2.Request(
            request.method,
            url.copy_with(host=addresses[0]),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": url.raw_host.decode("ascii")},
        )
        return await self._transport.handle_async_request(sent)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def _resolve_checked(self, url: httpx2.URL, request: httpx2.Request) -> Sequence[str]:
        """Return the addresses of a host.

        Raise `AddressRefused` if any address is not allowed, and `ConnectError` if the host does not have an address.
        """
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await self._resolve(url.raw_host.decode("ascii").strip("[]"), port)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{url.host} has no address", request=request) from error
        if not addresses:
            raise httpx2.ConnectError(f"{url.host} has no address", request=request)
        is_trusted = self._trusted is not None and _origin(url) == _origin(self._trusted)
        for address in map(ip_address, addresses):
            is_allowed = is_trusted or any(address in network for network in self._allowed)
            if not is_allowed and not is_public(address):
                raise AddressRefused(
                    f"{url.host} is at {address}, which is not an address of the public web",
                    request=request,
                )
        return addresses


AGENT = "Loopline"
PAGE_BYTES = 5 * 2**20
PAGE_SECONDS = 20.0
REDIRECTS = 5
_HEADERS = {"User-Agent": f"{AGENT}/1 (+fetched for a person)", "Accept-Language": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResponse:
    """The response to a request; `url` is its URL after redirects."""

    url: str
    status: int
    content_type: str
    charset: str | None
    body: bytes


def shown_url(url: str) -> str:
    """Return a URL for an error: one line, without password and query values."""
    return one_line(remove_secrets(url))


def _no_cookies() -> CookieJar:
    """Return a jar that stores no cookie, because the requests of a client are for different users."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class BoundedClient:
    """An HTTP client with limits of bytes, seconds and redirects for each request, over a guarded transport.

    It keeps no cookies.
    """

    def __init__(
        self,
        transport: GuardedTransport,
        *,
        limit_bytes: int = PAGE_BYTES,
        seconds: float = PAGE_SECONDS,
        redirects: int = REDIRECTS,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._seconds = seconds
        self._client = httpx2.AsyncClient(
            transport=transport,
            headers=_HEADERS,
            cookies=_no_cookies(),
            timeout=seconds,
            follow_redirects=redirects > 0,
            max_redirects=redirects,
            trust_env=False,
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> WebResponse:
        """Send a request and return the response, with any status.

        Raises:
            ToolError: the request failed, the response is too large or too slow, it redirects too often, or an address is
                not allowed.
        """
        shown = shown_url(url)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(
                    self._client.build_request(
                        method, url, params=params, json=json, headers=headers
                    )
                )
        except TimeoutError:
            raise ToolError(f"{shown} took more than {self._seconds:g} s") from None
        except AddressRefused as error:
            raise ToolError(f"{shown}: {error}") from None
        except httpx2.TooManyRedirects:
            raise ToolError(f"{shown} redirects too often") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ToolError(f"{shown}: {type(error).__name__} {error}".rstrip()) from None

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _read(self, request: httpx2.Request) -> WebResponse:
        """Send the request and read the response; raise a ToolError if its body has more than `limit_bytes`."""
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._limit_bytes:
                    raise ToolError(
                        f"{shown_url(str(response.url))} has more than {self._limit_bytes:,} bytes"
                    )
        finally:
            await response.aclose()
        kind = response.headers.get("content-type", "")
        return WebResponse(
            url=str(response.url),
            status=response.status_code,
            content_type=kind.partition(";")[0].strip().lower(),
            charset=response.charset_encoding,
            body=bytes(body),
        )


SECONDS = 15.0


class WebhookClient:
    """Sends POST requests to the public web and to the `allowed` networks. It does not follow redirects and keeps no cookies."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._client = httpx2.AsyncClient(
            transport=GuardedTransport(allowed=allowed),
            cookies=_no_cookies(),
            timeout=SECONDS,
            follow_redirects=False,
            trust_env=False,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the body and return the status; the body of the response is not received.

        Raises:
            LooplineError: the address is not allowed.
            ConnectionError: the request failed, or took more than 15 seconds.
        """
        try:
            async with (
                asyncio.timeout(SECONDS),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return response.status_code
        except AddressRefused as error:
            raise LooplineError(f"{error}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise ConnectionError(f"{type(error).__name__} {error}".rstrip()) from error

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()
