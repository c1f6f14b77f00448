"""Fetches pages of the web as readable text, if the robots.txt of the site allows it."""

from __future__ import annotations

import asyncio
import math
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from loopline.clock import Clock
from loopline.errors import ToolError
from loopline.models import one_line
from loopline.tools import WebPage
from loopline.web.guarded_client import AGENT, BoundedClient, WebResponse, shown_url

ROBOTS_SECONDS = 3_600.0
"""How long the rules of a site are cached."""
MAX_SITES = 100
"""How many sites have cached rules."""
ROBOTS_BYTES = 500 * 1024
"""How much of a robots.txt counts: the least that RFC 9309 asks for."""
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = ("application/json", "application/xml")
_NO_PAGE = b"User-agent: *\nDisallow: /"


class PageFetch:
    """The implementation of `web_fetch`."""

    def __init__(self, client: BoundedClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        # Until when the robots.txt of a site counts, and its text: parsed rules may take 100 times as much memory.
        self._rules: dict[str, tuple[float, bytes]] = {}

    async def fetch(self, url: str) -> WebPage:
        """Fetch a page and return its text.

        Raises:
            ToolError: the site does not allow it, the status is 400 or higher, the page is not text, or the request
                failed.
        """
        await self._check_robots(url)
        response = await self._client.request("GET", url)
        if response.url != url:
            await self._check_robots(response.url)
        if response.status >= 400:
            raise ToolError(f"{shown_url(url)}: the server answered {response.status}")
        return await asyncio.to_thread(_page, response)

    async def _check_robots(self, url: str) -> None:
        """Raise a ToolError if the robots.txt of the site forbids the URL or cannot be fetched; it is cached."""
        parts = urlsplit(url)
        site = f"{parts.scheme}://{parts.netloc}"
        until, robots = self._rules.get(site, (-math.inf, b""))
        if until < self._clock.elapsed():
            until, robots = self._rules[site] = await self._read_rules(site)
            if len(self._rules) > MAX_SITES:
                del self._rules[next(iter(self._rules))]
        if not await asyncio.to_thread(_allows, robots, url):
            raise ToolError(f"{shown_url(url)}: the robots.txt of the site does not allow it")

    async def _read_rules(self, site: str) -> tuple[float, bytes]:
        """Fetch the rules of a site. As RFC 9309 says, a missing file allows all pages, and a failing server none.

        Rules expire after `ROBOTS_SECONDS`, those of a failing server at once. Raise a ToolError if the request fails.
        """
        until = self._clock.elapsed() + ROBOTS_SECONDS
        response = await self._client.request("GET", f"{site}/robots.txt")
        if response.status >= 500:
            return self._clock.elapsed(), _NO_PAGE
        robots = response.body if response.status < 400 else b""
        if len(robots) > ROBOTS_BYTES:
            robots = robots[:ROBOTS_BYTES].rpartition(b"\n")[0]  # part of a rule could allow more
        return until, robots


def _allows(robots: bytes, url: str) -> bool:
    """Return whether a robots.txt allows `AGENT` to fetch the URL."""
    rules: Any = import_module("protego").Protego.parse(robots.decode("utf-8", "replace"))
    return bool(rules.can_fetch(url, AGENT))


def _page(response: WebResponse) -> WebPage:
    """Extract the main text of an HTML page, or return another text, JSON or XML as it is.

    Raises:
        ToolError: the response is not text.
    """
    kind = response.content_type
    if kind in _HTML or (not kind and response.body.lstrip()[:1] == b"<"):
        return _extract_html(response)
    if kind.startswith("text/") or kind in _PLAIN:
        return WebPage(url=response.url, text=_decode(response))
    raise ToolError(f"{shown_url(response.url)} is {one_line(kind) or 'of no type'}, not a text")


def _extract_html(response: WebResponse) -> WebPage:
    """Extract the main text, the title and the date of an HTML page; raise a ToolError if it contains no text."""
    extract: Any = import_module("trafilatura").bare_extraction
    source = _decode(response) if response.charset else response.body
    document = extract(source, url=response.url, with_metadata=True, include_links=False)
    if document is None or not document.text:
        raise ToolError(f"{shown_url(response.url)} has no text that can be read")
    return WebPage(
        url=response.url,
        text=document.text,
        title=document.title or "",
        published_time_iso=document.date or "",
    )


def _decode(response: WebResponse) -> str:
    try:
        return response.body.decode(response.charset or "utf-8", "replace")
    except LookupError:  # a charset that Python does not know
        return response.body.decode("utf-8", "replace")
