"""The web of a harness: the search engine and the fetch of pages that its properties turn on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Protocol, TypedDict

from loopline.bundle import Properties, WebPorts
from loopline.clock import Clock
from loopline.errors import LooplineError, PropertyError
from loopline.models import Json
from loopline.models.safe_text import is_address

ENGINES: Mapping[str, tuple[str, str]] = {
    "searxng": ("", ""),
    "brave": ("https://api.search.brave.com", "BRAVE_API_KEY"),
    "tavily": ("https://api.tavily.com", "TAVILY_API_KEY"),
}
"""The engines that `web.search` knows, each with its address and the variable of its key."""


class EngineFields(TypedDict):
    """The fields of a search engine."""

    name: str
    url: str
    key: str


async def open_web(
    properties: Properties,
    environment: Mapping[str, str],
    clock: Clock,
    stack: AsyncExitStack,
) -> WebPorts:
    """Return the ports that the section `web` asks for; `stack` closes them.

    Raises:
        PropertyError: an engine, its address or its key is missing, or the extra is not installed.
    """
    chosen, fetches = str(properties.at("web.search") or ""), properties.at("web.fetch") is True
    if not chosen and not fetches:
        return WebPorts()
    missing = [name for name in ("protego", "trafilatura") if fetches and find_spec(name) is None]
    if missing:
        raise PropertyError(f"web.fetch needs {', '.join(missing)}: pip install 'loopline[web]'")
    from loopline.web.guarded_client import BoundedClient, GuardedTransport
    from loopline.web.page_fetch import PageFetch
    from loopline.web.search_engines import EngineSearch, SearchEngine

    search, fetch = None, None
    if chosen:
        engine = SearchEngine(**_engine(chosen, environment))
        # A redirect would carry the key elsewhere.
        client = BoundedClient(GuardedTransport(trusted=engine.url), redirects=0)
        stack.push_async_callback(client.close)
        search = EngineSearch(client, engine)
    if fetches:
        client = BoundedClient(GuardedTransport(allowed=_networks(properties.at("web.allow"))))
        stack.push_async_callback(client.close)
        fetch = PageFetch(client, clock)
    return WebPorts(search=search, fetch=fetch)


def _engine(chosen: str, environment: Mapping[str, str]) -> EngineFields:
    """Return what `web.search` says of an engine: its name, or `name:address`.

    Raises:
        PropertyError: there is no such engine, or its address or key is missing.
    """
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
    return {"name": name, "url": url, "key": key}


def _networks(written: Json) -> list[IPv4Network | IPv6Network]:
    """Return the networks that pages may be fetched from although they are not public.

    Raises:
        PropertyError: one of them is none.
    """
    items = written if isinstance(written, list) else [] if written is None else [written]
    try:
        return [ip_network(str(item)) for item in items]
    except ValueError as error:
        raise PropertyError(f"web.allow: {error}; write networks such as 10.1.0.0/16") from None


class WebhookSender(Protocol):
    """Sends requests to addresses of the public web."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the body, and return the status.

        Raises:
            LooplineError: the address may not be reached.
            ConnectionError: there was no answer in time.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def webhook_sender(networks: Sequence[str]) -> WebhookSender:
    """Return what sends webhooks, also to addresses of these networks, which are not public.

    Raises:
        LooplineError: one of them is no network.
    """
    try:
        allowed = [ip_network(network) for network in networks]
    except ValueError as error:
        raise LooplineError(f"{error}: write networks such as 10.1.0.0/16") from error
    from loopline.web.guarded_client import WebhookClient

    return WebhookClient(allowed)
