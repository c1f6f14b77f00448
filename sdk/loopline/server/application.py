"""The server as an ASGI app: it can be run by any ASGI server, and mounted in another app."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
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
    description_routes,
    fork_routes,
    health_routes,
    openai_routes,
    page_files,
    page_login,
    page_routes,
    resource_routes,
    vercel_routes,
    work_routes,
)
from loopline.server.bundle_host import BundleHost, BundleSource, bundle_host
from loopline.server.connections import ConnectionConfig, raise_descriptor_limit
from loopline.server.guards import RequestGuard
from loopline.server.principals import Authenticator
from loopline.server.problems import add_handlers
from loopline.server.settings import ServerSettings
from loopline.server.socket_io import PATH as SOCKETS
from loopline.server.socket_io import SocketHost
from loopline.server.store_host import ReadableStore, StoreHost
from loopline.timeline import TimelineLog

TITLE = "Loopline"
DESCRIPTION = "Conversations with bundles: messages, events, feedback, files."

_ROUTES = (
    health_routes,
    resource_routes,
    conversation_routes,
    page_routes,
    fork_routes,
    work_routes,
    chat_routes,
    ag_ui_routes,
    vercel_routes,
    openai_routes,
    page_files,
    page_login,
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
    blobs: str | None = None,
    relay: str | None = None,
) -> FastAPI:
    """Return an ASGI app that serves bundles over one store; `blobs` and `relay` are URLs as for `Harness.open`.

    Without `auth` every request is one of the user of this machine, and requests from other machines are refused. The bundles
    are opened by the app's lifespan, or by the first request if the lifespan is not run.

    Raises:
        LooplineError: no bundle is named.
    """
    sources = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    if not sources:
        raise LooplineError("a server needs a bundle to serve")
    settings = settings or ServerSettings()
    host = BundleHost(
        sources,
        settings,
        auth=auth,
        store=store,
        model=model,
        properties=properties,
        clock=clock or SystemClock(),
        blobs=blobs,
        relay=relay,
    )
    return _assemble(host)


def reading_app(store: ReadableStore, *, settings: ServerSettings | None = None) -> FastAPI:
    """Return an ASGI app that shows the conversations of a store to the user of this machine, without a bundle.

    It reads the conversations of all users, and refuses every message. The lifespan of the app opens the store.
    """
    return _assemble(StoreHost(store, settings or ServerSettings(), clock=SystemClock()))


def _assemble(host: BundleHost) -> FastAPI:
    """Build the app of a host: routes, sockets, error handlers, and `RequestGuard` as the outermost middleware.

    The OpenAPI document, the start page and `/docs` exist only with `settings.docs`, CORS headers only with
    `settings.origins`.
    """
    settings = host.settings
    sockets = SocketHost(host)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        """Open the host when the app starts; when it stops, close the sockets and then the host."""
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
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs else None,
        redirect_slashes=False,
        servers=[{"url": settings.public_url.rstrip("/")}] if settings.public_url else None,
    )
    served.state.host = host
    served.state.sockets = sockets
    # The routes themselves: `include_router` builds each a second time, 0.1 s within an app's first request.
    for module in (*_ROUTES, description_routes) if settings.docs else _ROUTES:
        served.router.routes.extend(module.router.routes)
    served.mount(SOCKETS, sockets.asgi())
    add_handlers(served)
    if settings.origins:
        served.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients of other protocols send further headers
            expose_headers=["Loopline-Conversation", "x-vercel-ai-ui-message-stream"],
        )
    served.add_middleware(RequestGuard, host=host, sockets=sockets)  # the last one is the outermost
    return served


BACKLOG = 2_048
"""How many connections wait in the kernel to be accepted."""
TICK_SECONDS = 0.1
CLOSING_SECONDS = 5.0
"""The shortest time that a server has for its shutdown, even if `drain_seconds` is shorter."""
_log = logging.getLogger("loopline")


class _DrainingServer(uvicorn.Server):
    """A server that hands over its turns before it closes. Until then it answers new messages with 503."""

    def __init__(
        self, config: uvicorn.Config, host: BundleHost, on_listening: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._host = host
        self._on_listening = on_listening

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the bundles, serve until `should_exit` is true, then end as `shutdown` does, and close the bundles.

        Without `sockets`, the server listens at the host and port of its configuration. SIGINT and SIGTERM set `should_exit`,
        and are raised again at the end.

        Raises:
            LooplineError: a bundle cannot be opened, or the server cannot listen at the address.
        """
        own = [] if sockets else await bind_address(self.config.host, self.config.port)
        try:
            await self._host.open()
            await super().serve(sockets or own)
        finally:
            for listening in own:
                listening.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and report the URL."""
        await super().startup(sockets)
        for listening in [listening for server in self.servers for listening in server.sockets]:
            with socket.fromfd(listening.fileno(), listening.family, listening.type) as own:
                # The kernel's queue may be longer than the backlog that asyncio accepts at once.
                own.listen(BACKLOG)
        address = self.servers[0].sockets[0].getsockname()
        self._on_listening(f"http://{_url_host(self.config.host)}:{address[1]}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, wait for turns, hand over those that still run, and close; all in `drain_seconds`.

        The limit is at least `CLOSING_SECONDS`. After it, a warning is logged and the server ends.
        """
        seconds = max(self._host.settings.drain_seconds, CLOSING_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._drain()
                await super().shutdown(sockets)
        except TimeoutError:
            _log.warning("the server did not close within %g s, and ends now", seconds)

    async def _drain(self) -> None:
        """Wait for the running turns as `BundleHost.drain` does, and hand over those that still run.

        If the operator interrupts a second time, all running turns are handed over at once.
        """
        draining = asyncio.ensure_future(self._host.drain())
        while not draining.done() and not self.force_exit:
            await asyncio.wait([draining], timeout=TICK_SECONDS)
        if draining.done():
            draining.result()
        else:
            draining.cancel()
            await self._host.hand_over()


async def bind_address(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host. With port 0 all of them have the same free port.

    Addresses that this machine does not have are left out if it has another one.

    Raises:
        LooplineError: the host is unknown, or the port cannot be used.
    """
    sockets: list[socket.socket] = []
    unusable: OSError | None = None
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, address in sorted({(row[0], row[4][0]) for row in rows}):
            chosen = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(socket.create_server((address, chosen), family=family))
            except OSError as error:
                if error.errno not in _NO_ADDRESS:
                    raise
                unusable = error
        if unusable is not None and not sockets:
            raise unusable
    except (OSError, UnicodeError) as error:
        for listening in sockets:
            listening.close()
        number = (isinstance(error, OSError) and error.errno) or 0
        reason = os.strerror(number) if number in errno.errorcode else "the host is unknown"
        raise LooplineError(
            f"the server cannot listen at {_url_host(host)}:{port}: {reason}"
        ) from error
    return sockets


_NO_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_server(
    served: FastAPI, *, host: str, port: int, on_listening: Callable[[str], None] = lambda _: None
) -> uvicorn.Server:
    """Return a uvicorn server of the app, to be run with `serve`. It raises the limit of open files of this process.

    `serve` opens the bundles first, and raises a LooplineError if one cannot be opened or the address cannot be used.
    `on_listening` is called with the URL of the server once it listens.

    Raises:
        LooplineError: other machines can reach the address, and the app does not authenticate requests.
    """
    bundles = bundle_host(served)
    if bundles.is_local and not is_loopback(host):
        raise LooplineError(
            f"other machines can reach {host}, so the server needs authentication: "
            "name a file of API keys (--keys FILE) or an issuer of tokens (--issuer URL)"
        )
    raise_descriptor_limit()
    return _DrainingServer(ConnectionConfig(served, host, port), bundles, on_listening)
