"""A server in a process of its own, which tests kill: `killed_server.py STORE [PORT [DRAIN [DESCRIPTORS]]]` prints its
port and serves."""

from __future__ import annotations

import asyncio
import resource
import sys

from loopline.server import ServerSettings, app, make_server
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, listening_socket


def main() -> None:
    port = int(sys.argv[2]) if sys.argv[2:] else 0
    drain_seconds = float(sys.argv[3]) if sys.argv[3:] else 20.0
    if sys.argv[4:]:
        most = int(sys.argv[4])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings = ServerSettings(
        requests_per_minute=1_000_000, turns=1_000, drain_seconds=drain_seconds
    )
    served = app(SHOP, store=sys.argv[1], model=EchoModel(), settings=settings)
    listener = listening_socket(port)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server = make_server(served, host="127.0.0.1", port=0)
    asyncio.run(server.serve([listener]))


if __name__ == "__main__":
    main()
