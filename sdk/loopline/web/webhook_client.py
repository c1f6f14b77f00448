"""Webhooks: a request to an address that a client named, which was checked before the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import httpx2

from loopline.errors import LooplineError
from loopline.web.address_guard import AddressRefused, GuardedTransport, Network

SECONDS = 15.0


class WebhookClient:
    """Sends requests to addresses of the public web, and to those of the `allowed` networks; it follows no redirect."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._client = httpx2.AsyncClient(
            transport=GuardedTransport(allowed=allowed),
            timeout=SECONDS,
            follow_redirects=False,
            trust_env=False,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the body, and return the status; what is answered with it is not read.

        Raises:
            LooplineError: the address may not be reached.
            ConnectionError: there was no answer in time.
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
