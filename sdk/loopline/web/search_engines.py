"""Searches the web through SearXNG, Brave or Tavily.

The requests, as documented on 2026-11-22: SearXNG `GET /search?format=json`, Brave `GET /res/v1/web/search`, Tavily
`POST /search`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError

from loopline.errors import ToolError
from loopline.tools import WebHit
from loopline.web.guarded_client import BoundedClient, WebResponse


class _Hit(BaseModel):
    """A hit of one of the three engines; the aliases are their names for each field."""

    url: str
    title: str | None = None
    snippet: str | None = Field(
        None, validation_alias=AliasChoices("content", "description", "snippet")
    )
    published: str | None = Field(
        None, validation_alias=AliasChoices("publishedDate", "page_age", "published_date")
    )
    favicon: str | None = Field(
        None, validation_alias=AliasChoices(AliasPath("meta_url", "favicon"), "favicon")
    )


class _Results(BaseModel):
    results: list[_Hit] = Field(
        default_factory=list[_Hit],
        validation_alias=AliasChoices("results", AliasPath("web", "results")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngine:
    """A search server: its URL and its key."""

    name: str
    url: str
    key: str = field(default="", repr=False)


_Request = Callable[[BoundedClient, SearchEngine, str, int], Awaitable[WebResponse]]


class EngineSearch:
    """The implementation of `web_search`."""

    def __init__(self, client: BoundedClient, engine: SearchEngine) -> None:
        self._client = client
        self._engine = engine

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Return the hits of the engine, best first.

        Raises:
            ToolError: the engine refuses or fails; the key is not in the message.
        """
        response = await _REQUESTS[self._engine.name](self._client, self._engine, query, limit)
        if response.status >= 400:
            raise ToolError(f"{self._engine.name} answered {response.status}")
        try:
            results = _Results.model_validate_json(response.body).results
        except ValidationError:
            raise ToolError(f"{self._engine.name} did not answer with results") from None
        return [
            WebHit(
                url=hit.url,
                title=hit.title or "",
                snippet=hit.snippet or "",
                published_time_iso=hit.published or "",
                favicon_url=hit.favicon or "",
            )
            for hit in results[:limit]
        ]


async def _searxng(
    client: BoundedClient, engine: SearchEngine, query: str, limit: int
) -> WebResponse:
    del limit
    params = {"q": query, "format": "json"}
    return await client.request("GET", f"{engine.url}/search", params=params)


async def _brave(
    client: BoundedClient, engine: SearchEngine, query: str, limit: int
) -> WebResponse:
    return await client.request(
        "GET",
        f"{engine.url}/res/v1/web/search",
        params={"q": query, "count": str(limit)},
        headers={"X-Subscription-Token": engine.key, "Accept": "application/json"},
    )


async def _tavily(
    client: BoundedClient, engine: SearchEngine, query: str, limit: int
) -> WebResponse:
    return await client.request(
        "POST",
        f"{engine.url}/search",
        json={"query": query, "max_results": limit},
        headers={"Authorization": f"Bearer {engine.key}"},
    )


_REQUESTS: Mapping[str, _Request] = {"searxng": _searxng, "brave": _brave, "tavily": _tavily}
