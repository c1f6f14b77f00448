"""The server as an ASGI app: it can be run by any ASGI server, and mounted in another app."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import loopline
from loopline.bundle import Bundle, Setting
from loopline.clock import Clock, SystemClock
from loopline.harness import ModelChoice
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
from loopline.server.guards import GuardSettings, RequestGuard
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
    served.add_middleware(
        RequestGuard,
        settings=GuardSettings(
            admit=host.admit,
            sockets=sockets,
            body_bytes=settings.body_bytes,
            bodies=host.bodies,
            is_local=host.is_local,
            is_ending=host.draining.is_set,
            origins=settings.origins,
            metrics=host.metrics,
        ),
    )
