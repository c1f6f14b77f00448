"""`web_search` and `web_fetch`: the tools for the web, through ports that a bundle implements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec, one_line, well_formed
from loopline.timeline import Source
from loopline.tools import parameters
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, ResultSection, count_text, tool_failures

DEFAULT_HITS = 8
MAX_HITS = 20
SNIPPET_LIMIT = 1_000
"""The number of characters of a snippet that a search shows."""
PAGE_LIMIT = 20_000
"""The number of characters of a page that a fetch shows."""
TITLE_LIMIT = 200
LONGEST_URL = 2_000

T = TypeVar("T")

_WORD = re.compile(r"\w+")
_URL = re.compile(r"https?://[^\s/?#\x00-\x20]++[^\s\x00-\x20]*+", re.IGNORECASE)

WEB_TOOLS: frozenset[str] = frozenset({"web_search", "web_fetch"})
"""The names of these tools, which a bundle has only with a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHit:
    """A hit of a web search. `published_time_iso` is an ISO 8601 date or time, "" if unknown."""

    url: str
    title: str = ""
    snippet: str = ""
    published_time_iso: str = ""
    favicon_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A web page as text. `url` is its address after redirects."""

    url: str
    text: str
    title: str = ""
    published_time_iso: str = ""
    favicon_url: str = ""


@runtime_checkable
class WebSearch(Protocol):
    """A port for web search. Its exceptions become errors for the model."""

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Return the best hits, the best one first; hits after the first `limit` are ignored."""
        ...


@runtime_checkable
class WebFetch(Protocol):
    """A port for web pages. Its exceptions become errors for the model.

    It is called only with http and https addresses. The implementation decides which hosts it fetches from, and how large
    a page may be.
    """

    async def fetch(self, url: str) -> WebPage:
        """Fetch the page at an address, as text."""
        ...


class MemoryWeb:
    """An implementation of both ports with the given pages, for tests and as an example."""

    def __init__(self, pages: Iterable[WebPage]) -> None:
        self._pages = {page.url: page for page in pages}

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Return at most `limit` pages with a word of the query, in any case; those with the most words first."""
        terms = set(query.lower().split())
        matches = [
            (len(terms.intersection(_WORD.findall(f"{page.title} {page.text}".lower()))), page)
            for page in self._pages.values()
        ]
        best = sorted((match for match in matches if match[0]), key=lambda match: -match[0])
        return [
            WebHit(
                url=page.url,
                title=page.title,
                snippet=page.text[:SNIPPET_LIMIT],
                published_time_iso=page.published_time_iso,
                favicon_url=page.favicon_url,
            )
            for _, page in best[:limit]
        ]

    async def fetch(self, url: str) -> WebPage:
        """Return the page with this address.

        Raises:
            ToolError: the page does not exist.
        """
        if url not in self._pages:
            raise ToolError(f"the page {url} does not exist")
        return self._pages[url]


class WebSearchTool(RerunnableTool):
    """The tool that searches the web; each hit can be cited."""

    spec: ToolSpec = ToolSpec(
        name="web_search",
        description=(
            "Search the web. Gives hits with their source number [[S:n]], title, address and snippet; "
            "web_fetch reads a page."
        ),
        parameters=parameters.object_schema(
            {"query": parameters.QUERY, "limit": parameters.limit_schema(DEFAULT_HITS, MAX_HITS)},
            "query",
        ),
    )

    def __init__(self, web: WebSearch) -> None:
        self._web = web

    def parse(self, arguments: JsonObject) -> tuple[str, int]:
        """Return the query and the limit."""
        limit = parameters.integer_argument(arguments, "limit", DEFAULT_HITS, MAX_HITS)
        return parameters.text_argument(arguments, "query"), limit

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Search the web, and return a section for each hit; hits without an http or https address are left out.

        Raises:
            ToolError: the search failed.
        """
        del call
        query, limit = self.parse(arguments)
        with tool_failures("the search"):
            results = [_check_type(hit, WebHit) for hit in await self._web.search(query, limit)]
        hits = [hit for hit in results if _is_web(hit.url)][:limit]
        sections = tuple(_section(hit, hit.snippet, SNIPPET_LIMIT) for hit in hits)
        text = f'{count_text(len(hits), "hit")} for "{query}"'
        return Outcome(text=text, sections=sections, match_count=len(hits))


class WebFetchTool(RerunnableTool):
    """The tool that reads a web page, which can be cited."""

    spec: ToolSpec = ToolSpec(
        name="web_fetch",
        description="Read a page of the web as text, with its source number [[S:n]].",
        parameters=parameters.object_schema(
            {"url": {"type": "string", "description": "An http or https address."}}, "url"
        ),
    )

    def __init__(self, web: WebFetch) -> None:
        self._web = web

    def parse(self, arguments: JsonObject) -> str:
        """Return the URL, an http or https address."""
        url = parameters.text_argument(arguments, "url").strip()
        if not _is_web(url):
            raise ToolError("url must be an address that begins with http:// or https://")
        return url

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Fetch the page, and return it as a section.

        Raises:
            ToolError: the page cannot be fetched, or redirects to an address other than http or https.
        """
        del call
        url = self.parse(arguments)
        with tool_failures(url):
            page = _check_type(await self._web.fetch(url), WebPage)
        if not _is_web(page.url):
            raise ToolError(
                f"{url} redirects to {page.url[:LONGEST_URL]!r}, which is not an http or https address"
            )
        section = _section(page, page.text, PAGE_LIMIT)
        return Outcome(text=f"{len(page.text)} characters", sections=(section,))


def _is_web(url: str) -> bool:
    return len(url) <= LONGEST_URL and url == well_formed(url) and bool(_URL.fullmatch(url))


def _check_type(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"it returned {value!r}, not a {kind.__name__}")
    return value


def _section(hit: WebHit | WebPage, text: str, limit: int) -> ResultSection:
    """Return a section with the text, cut to `limit` characters and a note on the rest, and its source for citations.

    The heading has the title, the address and the time.
    """
    text = well_formed(text)
    title = one_line(hit.title, TITLE_LIMIT)
    shown = f"{text[:limit]}\n… cut: {len(text) - limit} characters" if len(text) > limit else text
    time = _time(hit.published_time_iso)
    heading = " — ".join(part for part in (title, hit.url, time) if part)
    source = Source(
        url=hit.url,
        title=title,
        source_type="web",
        text=text[:limit],
        published_time_iso=time,
        favicon_url=hit.favicon_url if _is_web(hit.favicon_url) else "",
    )
    return ResultSection(heading=heading, text=shown, source=source)


def _time(text: str) -> str:
    """Return the time if it is a valid ISO 8601 date or time, otherwise ""."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return ""
    return text
