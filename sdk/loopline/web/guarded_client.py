"""Requests to the web within a size and a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from loopline.errors import ToolError
from loopline.models import one_line
from loopline.models.safe_text import without_secrets
from loopline.web.address_guard import AddressRefused, GuardedTransport

AGENT = "Loopline"
PAGE_BYTES = 5 * 2**20
PAGE_SECONDS = 20.0
REDIRECTS = 5
_HEADERS = {"User-Agent": f"{AGENT}/1 (+fetched for a person)", "Accept-Language": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResponse:
    """What came of a request. `url` is the address after redirects."""

    url: str
    status: int
    content_type: str
    charset: str | None
    body: bytes


class BoundedClient:
    """A client whose every request has a limit of bytes and of seconds, and whose addresses are checked."""

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
        """Return the response, whatever its status.

        Raises:
            ToolError: there is none, it is too large or too slow, or an address may not be reached.
        """
        shown = one_line(without_secrets(url))
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
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._limit_bytes:
                    raise ToolError(
                        f"{one_line(str(response.url))} has more than {self._limit_bytes:,} bytes"
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
