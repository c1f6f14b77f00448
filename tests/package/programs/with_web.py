"""The extra `web`: a page of a server that is a few lines is fetched as its text, and no other address is reached."""

from __future__ import annotations

import asyncio
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from loopline import Bundle, Harness
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel

PAGE = b"<html><title>Tea</title><article><p>Green tea is brewed at seventy degrees, not hotter.</p></article></html>"


class Site(BaseHTTPRequestHandler):
    """Sends one page, and no rules for robots."""

    def do_GET(self) -> None:  # the name is that of the standard library
        """Send it."""
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(PAGE)


async def main(url: str) -> None:
    """Run a turn that fetches the page, and tries to reach it where it may not."""
    calls = [
        Call("web_fetch", url=url),
        Call("web_fetch", url=url.replace("127.0.0.9", "127.0.0.1")),
    ]
    model = ScriptedModel([*calls, Say("At seventy degrees.")])
    properties: dict[str, bool | list[Json]] = {"web.fetch": True, "web.allow": ["127.0.0.9/32"]}
    async with Harness.open(
        Bundle(id="guide"), store="memory:", model=model, properties=properties
    ) as harness:
        await harness.conversation("c").say("How hot?")
    assert "brewed at seventy degrees" in str(model.requests[-1])
    assert "is not an address of the public web" in str(model.requests[-1])


with HTTPServer(("127.0.0.9", 0), Site) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.9:{server.server_port}/tea"))
    server.shutdown()
