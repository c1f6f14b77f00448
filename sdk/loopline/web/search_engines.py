"""Searches the web through SearXNG, Brave or Tavily.

The requests, as documented on 2026-11-22: SearXNG `GET /search?format=json`, Brave `GET /res/v1/web/search`, Tavily
`POST /search`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A search server: its name ("searxng", "brave" or "tavily"), its URL and its key."""

    name: str
    url: str
    key: str = field(default="", repr=False)


class EngineSearch:
    """The implementation of `web_search`."""

    def __init__(self, client: BoundedClient, engine: SearchEngine) -> None:
        self._client = client
        self._engine = engine

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Return at most `limit` hits in the order of the engine, best first.

        Raises:
            ToolError: the engine refuses, fails or sends an invalid answer; the key is not in the message.
        """
        response = await self._request(query, limit)
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

    async def _request(self, query: str, limit: int) -> WebResponse:
        """Send the query and return the response with any status. SearXNG does not receive the limit."""
        url = self._engine.url
        key = self._engine.key
        match self._engine.name:
            case "searxng":
                params = {"q": query, "format": "json"}
                return await self._client.request("GET", f"{url}/search", params=params)
            case "brave":
                params = {"q": query, "count": f"{limit}"}
                headers = {"X-Subscription-Token": key, "Accept": "application/json"}
                url = f"{url}/res/v1/web/search"
                return await self._client.request("GET", url, params=params, headers=headers)
            case _:
                body = {"query": query, "max_results": limit}
                headers = {"Authorization": f"Bearer {key}"}
                url = f"{url}/search"
                return await self._client.request("POST", url, json=body, headers=headers)
