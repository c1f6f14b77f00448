"""The server as an ASGI app: it can be run by any ASGI server, and mounted in another app."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import loopline
from loopline.bundle import Bundle, Setting
from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.harness import ModelChoice
from loopline.models import is_loopback
from loopline.server import (
    ag_ui_routes,
    chat_routes,
    conversation_routes,
    health_routes,
    openai_routes,
    resource_routes,
    vercel_routes,
)
from loopline.server.bundle_host import BundleHost, BundleSource, HostedBundles
from loopline.server.connections import ConnectionConfig, raise_descriptor_limit
from loopline.server.guards import RequestGuard
from loopline.server.principals import Authenticator
from loopline.server.problems import PROBLEMS, add_handlers
from loopline.server.settings import ServerSettings
from loopline.server.socket_io import PATH as SOCKETS
from loopline.server.socket_io import SocketHost
from loopline.timeline import TimelineLog

TITLE = "Loopline"
DESCRIPTION = "Conversations with bundles: messages, events, feedback, files."

_ROUTES = (
    health_routes,
    resource_routes,
    conversation_routes,
    chat_routes,
    ag_ui_routes,
    vercel_routes,
)


def app(
    bundles: BundleSource | Sequence[BundleSource],
    *,
    store: str | TimelineLog | None = None,
    auth: Authenticator | None = None,
    settings: ServerSettings | None = None,
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    clock: Clock | None = None,
) -> FastAPI:
    """Return an ASGI app that serves bundles over one store.

    Without `auth` it takes every request for one of the user of this machine, and answers only those that come from
    it. The bundles are opened with the app's lifespan, or else with the first request.

    Raises:
        LooplineError: no bundle is named.
    """
    sources = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    chosen = settings or ServerSettings()
    hosted = HostedBundles(
        sources=sources,
        store=store,
        model=model,
        properties=properties,
        clock=clock or SystemClock(),
    )
    host = BundleHost(hosted, auth, chosen)
    sockets = SocketHost(host)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await host.open()
        try:
            yield
        finally:
            await sockets.close()
            await host.close()

    served = FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version=loopline.__version__,
        lifespan=lifespan,
        docs_url="/docs" if chosen.docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if chosen.docs else None,
        redirect_slashes=False,
        servers=[{"url": chosen.public_url.rstrip("/")}] if chosen.public_url else None,
    )
    served.state.host = host
    served.state.sockets = sockets
    for routes in _ROUTES:
        served.include_router(routes.router, responses=PROBLEMS)
    served.include_router(openai_routes.router)
    served.mount(SOCKETS, sockets.asgi())
    add_handlers(served)
    _add_guards(served, host, sockets)
    return served


def _add_guards(served: FastAPI, host: BundleHost, sockets: SocketHost) -> None:
    """Add what every request passes first; the last one that is added is the outermost."""
    settings = host.settings
    if settings.origins:
        served.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # the clients of protocols have headers of their own
            expose_headers=["Loopline-Conversation", "x-vercel-ai-ui-message-stream"],
        )
    served.add_middleware(RequestGuard, host=host, sockets=sockets)


BACKLOG = 2_048
"""So many connections wait in the kernel to be accepted."""
ACCEPTED_AT_ONCE = 16
"""The event loop accepts as many before any of them can be refused: each has a descriptor by then."""
TICK_SECONDS = 0.1
GRACE_SECONDS = 1
"""How long requests have to end once their turns are handed over."""


CLOSING_SECONDS = 5.0
"""A server has so long to end at least, however short the time for its turns is."""
_log = logging.getLogger("loopline")


class _DrainingServer(uvicorn.Server):
    """A server that hands its turns over before it closes: until then it answers, new turns with 503."""

    def __init__(self, config: uvicorn.Config, host: BundleHost) -> None:
        super().__init__(config)
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for listening in [listening for server in self.servers for listening in server.sockets]:
            with socket.fromfd(listening.fileno(), listening.family, listening.type) as own:
                own.listen(BACKLOG)  # a second time: asyncio accepts as many at once as it is given

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, wait for turns, hand over those that still run, and close, all within the limited time."""
        seconds = max(self._host.settings.drain_seconds, CLOSING_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._drain()
                await super().shutdown(sockets)
        except TimeoutError:
            _log.warning("the server was not closed after %g s, and ends as it is", seconds)

    async def _drain(self) -> None:
        """Drain, until it is done or the operator asks a second time."""
        draining = asyncio.ensure_future(self._host.drain())
        while not draining.done() and not self.force_exit:
            await asyncio.wait([draining], timeout=TICK_SECONDS)
        if draining.done():
            draining.result()
        else:
            draining.cancel()
            await self._host.hand_over()


def check_address(served: FastAPI, host: str) -> None:
    """Check that an app may listen at an address.

    Raises:
        LooplineError: it is not of this machine alone, and the app has no authentication.
    """
    bundles = bundle_host(served)
    if bundles.is_local and not is_loopback(host):
        raise LooplineError(
            f"without authentication only this machine can be served, and {host} is more: "
            "name a file of API keys or an issuer of tokens"
        )


def bundle_host(served: FastAPI) -> BundleHost:
    """Return the bundles that an app serves."""
    host = served.state.host
    assert isinstance(host, BundleHost)
    return host


def make_server(served: FastAPI, *, host: str, port: int) -> uvicorn.Server:
    """Return a server of the app, to be run with `serve`. This process may open as many files as its hard limit then.

    Raises:
        LooplineError: it may not listen there.
    """
    check_address(served, host)
    bundles = bundle_host(served)
    raise_descriptor_limit()
    config = ConnectionConfig(
        served,
        host=host,
        port=port,
        backlog=ACCEPTED_AT_ONCE,
        grace_seconds=GRACE_SECONDS,
        settings=bundles.settings,
        body_bytes=bundles.body_bytes,
    )
    return _DrainingServer(config, bundles)
