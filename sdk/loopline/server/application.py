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
from loopline.server.bundle_host import BundleHost, BundleSource
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

    Without `auth` every request is one of the user of this machine, and requests from other machines are refused. The bundles
    are opened by the app's lifespan, or by the first request if the lifespan is not run.

    Raises:
        LooplineError: no bundle is named.
    """
    sources = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    settings = settings or ServerSettings()
    host = BundleHost(
        sources,
        settings,
        auth=auth,
        store=store,
        model=model,
        properties=properties,
        clock=clock or SystemClock(),
    )
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
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs else None,
        redirect_slashes=False,
        servers=[{"url": settings.public_url.rstrip("/")}] if settings.public_url else None,
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
    """Add the middleware. The last one that is added is the outermost."""
    settings = host.settings
    if settings.origins:
        served.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients of other protocols send further headers
            expose_headers=["Loopline-Conversation", "x-vercel-ai-ui-message-stream"],
        )
    served.add_middleware(RequestGuard, host=host, sockets=sockets)


BACKLOG = 2_048
"""How many connections wait in the kernel to be accepted."""
ACCEPTED_AT_ONCE = 16
"""How many connections the event loop accepts before it can refuse one. Each has a file descriptor by then."""
TICK_SECONDS = 0.1
GRACE_SECONDS = 1
"""How long requests may take to end after their turns are handed over."""


CLOSING_SECONDS = 5.0
"""The shortest time that a server has for its shutdown, even if `drain_seconds` is shorter."""
_log = logging.getLogger("loopline")


class _DrainingServer(uvicorn.Server):
    """A server that hands over its turns before it closes. Until then it answers new messages with 503."""

    def __init__(self, config: uvicorn.Config, host: BundleHost) -> None:
        super().__init__(config)
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for listening in [listening for server in self.servers for listening in server.sockets]:
            with socket.fromfd(listening.fileno(), listening.family, listening.type) as own:
                # The kernel's queue may be longer than the backlog that asyncio accepts at once.
                own.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, wait for turns, hand over those that still run, and close; all in `drain_seconds`."""
        seconds = max(self._host.settings.drain_seconds, CLOSING_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._drain()
                await super().shutdown(sockets)
        except TimeoutError:
            _log.warning("the server did not close within %g s, and ends now", seconds)

    async def _drain(self) -> None:
        """Drain until all turns have ended or the operator interrupts a second time."""
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
        LooplineError: other machines can reach the address, and the app does not authenticate requests.
    """
    bundles = bundle_host(served)
    if bundles.is_local and not is_loopback(host):
        raise LooplineError(
            f"other machines can reach {host}, so the server needs authentication: "
            "name a file of API keys or an issuer of tokens"
        )


def bundle_host(served: FastAPI) -> BundleHost:
    """Return the host of an app."""
    host = served.state.host
    assert isinstance(host, BundleHost)
    return host


def make_server(served: FastAPI, *, host: str, port: int) -> uvicorn.Server:
    """Return a uvicorn server of the app, to be run with `serve`. It raises the limit of open files of this process.

    Raises:
        LooplineError: as for `check_address`.
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
