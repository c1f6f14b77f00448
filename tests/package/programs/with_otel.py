"""The extra `otel`: a turn is sent over OTLP to a receiver that is a few lines."""

from __future__ import annotations

import asyncio
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from loopline import Bundle, Harness
from loopline.testing import ScriptedModel

received: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    """Notes where it was sent something."""

    def do_POST(self) -> None:  # the name is that of the standard library
        """Take it."""
        self.rfile.read(int(self.headers["Content-Length"]))
        received.add(self.path)
        self.send_response(200)
        self.end_headers()


async def main() -> None:
    """Run a turn, and close what sends."""
    guide = Bundle(id="guide", instructions="You guide.")
    model = ScriptedModel(["Good evening."])
    async with Harness.open(guide, store="memory:", model=model, telemetry="otlp") as harness:
        await harness.conversation("c").say("Hello!")


with HTTPServer(("127.0.0.1", 0), Receiver) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    asyncio.run(main())
    server.shutdown()
assert received == {"/v1/traces", "/v1/metrics"}, received
