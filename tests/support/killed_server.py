"""A server in a process of its own, which tests kill: `killed_server.py STORE [PORT]` prints its port and serves."""

from __future__ import annotations

import asyncio
import socket
import sys

from loopline.server import ServerSettings, app, make_server
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP


def main() -> None:
    """Serve the store until the process is killed."""
    settings = ServerSettings(requests_per_minute=1_000_000, turns=1_000)
    served = app(SHOP, store=sys.argv[1], model=EchoModel(), settings=settings)
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2]) if sys.argv[2:] else 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server = make_server(served, host="127.0.0.1", port=0)
    asyncio.run(server.serve([listener]))


if __name__ == "__main__":
    main()
