"""Opens the web search, the fetch of pages and the webhooks of a harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Protocol

from loopline.bundle import Properties, WebPorts
from loopline.clock import Clock
from loopline.errors import LooplineError, PropertyError
from loopline.models import Json
from loopline.models.safe_text import is_address

if TYPE_CHECKING:
    from loopline.web.search_engines import SearchEngine

ENGINES: Mapping[str, tuple[str, str]] = {
    "searxng": ("", ""),
    "brave": ("https://api.search.brave.com", "BRAVE_API_KEY"),
    "tavily": ("https://api.tavily.com", "TAVILY_API_KEY"),
}
"""The search engines of `web.search`, each with its default address and the variable of its key."""


async def open_web(
    properties: Properties, environment: Mapping[str, str], clock: Clock, stack: AsyncExitStack
) -> WebPorts:
    """Open the search and the fetch of pages that the section `web` enables; `stack` closes them.

    Both are None if the section enables neither.

    Raises:
        PropertyError: an engine, its address or its key is missing, a network is invalid, or the extra is missing.
    """
    chosen = str(properties.at("web.search") or "")
    fetches = properties.at("web.fetch") is True
    if not chosen and not fetches:
        return WebPorts()
    missing = [name for name in ("protego", "trafilatura") if fetches and find_spec(name) is None]
    if missing:
        raise PropertyError(f"web.fetch needs {', '.join(missing)}: pip install 'loopline[web]'")
    from loopline.web.guarded_client import BoundedClient, GuardedTransport
    from loopline.web.page_fetch import PageFetch
    from loopline.web.search_engines import EngineSearch

    search = None
    fetch = None
    if chosen:
        engine = _parse_engine(chosen, environment)
        # A redirect would send the key to another server.
        client = BoundedClient(GuardedTransport(trusted=engine.url), redirects=0)
        stack.push_async_callback(client.close)
        search = EngineSearch(client, engine)
    if fetches:
        client = BoundedClient(
            GuardedTransport(allowed=_parse_networks(properties.at("web.allow")))
        )
        stack.push_async_callback(client.close)
        fetch = PageFetch(client, clock)
    return WebPorts(search=search, fetch=fetch)


def _parse_engine(chosen: str, environment: Mapping[str, str]) -> SearchEngine:
    """Parse `web.search`, a name or `name:address` of an engine, and read its key from the environment.

    Raises:
        PropertyError: the engine is unknown, or its address or key is missing.
    """
    from loopline.web.search_engines import SearchEngine

    name, _, address = chosen.partition(":")
    if name not in ENGINES:
        raise PropertyError(f"web.search is {chosen!r}: write one of {', '.join(ENGINES)}")
    default, variable = ENGINES[name]
    url = (address or default).rstrip("/")
    if not is_address(url):
        raise PropertyError(f"web.search needs the address of a server: {name}:http://…")
    key = environment.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise PropertyError(f"web.search is {name!r}, which needs a key: set {variable}")
    return SearchEngine(name=name, url=url, key=key)


def _parse_networks(written: Json) -> list[IPv4Network | IPv6Network]:
    """Parse the non-public networks in `web.allow`, a list or one text, from which pages may be fetched.

    Raises:
        PropertyError: a value is not a network.
    """
    if written is None:
        return []
    items = written if isinstance(written, list) else [written]
    try:
        return [ip_network(str(item)) for item in items]
    except ValueError as error:
        raise PropertyError(f"web.allow: {error}; write networks such as 10.1.0.0/16") from None


class WebhookSender(Protocol):
    """Sends webhooks to public addresses, and to permitted networks."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the body, and return the HTTP status.

        Raises:
            LooplineError: the address is not permitted.
            ConnectionError: the request failed or timed out.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def webhook_sender(networks: Sequence[str]) -> WebhookSender:
    """Return a sender of webhooks to public addresses and to addresses in `networks`.

    Raises:
        LooplineError: a value is not a network.
    """
    try:
        allowed = [ip_network(network) for network in networks]
    except ValueError as error:
        raise LooplineError(f"{error}: write networks such as 10.1.0.0/16") from error
    from loopline.web.guarded_client import WebhookClient

    return WebhookClient(allowed)
