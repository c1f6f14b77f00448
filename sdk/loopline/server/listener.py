"""A server that listens: where it may without authentication, and how it ends."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from loopline.errors import LooplineError
from loopline.server.bundle_host import BundleHost
from loopline.server.guards import is_loopback

BACKLOG = 2_048


class _DrainingServer(uvicorn.Server):
    """A server that ends its event streams before it waits for its connections."""

    def __init__(self, config: uvicorn.Config, host: BundleHost) -> None:
        super().__init__(config)
        self._host = host

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, wait for requests and turns within a limited time, and close."""
        self._host.draining.set()
        await super().shutdown(sockets)


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
    """Return a server of the app, to be run with `serve`.

    Raises:
        LooplineError: it may not listen there.
    """
    check_address(served, host)
    bundles = bundle_host(served)
    config = uvicorn.Config(
        served,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=int(bundles.settings.drain_seconds) + 1,
    )
    return _DrainingServer(config, bundles)
