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
    chat_routes,
    conversation_routes,
    health_routes,
    resource_routes,
)
from loopline.server.bundle_host import BundleHost, BundleSource, HostedBundles
from loopline.server.guards import RequestGuard
from loopline.server.principals import Authenticator
from loopline.server.problems import PROBLEMS, add_handlers
from loopline.server.settings import ServerSettings
from loopline.timeline import TimelineLog

TITLE = "Loopline"
DESCRIPTION = "Conversations with bundles: messages, events, feedback, files."


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

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await host.open()
        try:
            yield
        finally:
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
    )
    served.state.host = host
    for routes in (health_routes, resource_routes, conversation_routes, chat_routes):
        served.include_router(routes.router, responses=PROBLEMS)
    add_handlers(served)
    if chosen.origins:
        served.add_middleware(
            CORSMiddleware,
            allow_origins=list(chosen.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
        )
    served.add_middleware(
        RequestGuard,
        body_bytes=chosen.body_bytes,
        is_local=host.is_local,
        origins=chosen.origins,
        metrics=host.metrics,
    )
    return served
