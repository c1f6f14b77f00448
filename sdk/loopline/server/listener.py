"""A server that listens: where it may without authentication, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import socket

import uvicorn
from fastapi import FastAPI

from loopline.errors import LooplineError
from loopline.models import is_loopback
from loopline.server.bundle_host import BundleHost
from loopline.server.connections import ConnectionConfig, raise_descriptor_limit

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
        bodies=bundles.bodies,
    )
    return _DrainingServer(config, bundles)
