"""The extra `server`: a message over HTTP is answered, and its events are read."""

from __future__ import annotations

import asyncio

import httpx2

from loopline import Bundle
from loopline.server import app
from loopline.testing import Say, ScriptedModel

HERE = "/conversations/default/default/c"


async def main() -> None:
    """Send a message that is answered with its events."""
    model = ScriptedModel([Say("Three minutes.")])
    served = app(Bundle(id="guide"), store="memory:", model=model)
    transport = httpx2.ASGITransport(app=served)
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        body, headers = {"text": "How long?"}, {"Accept": "text/event-stream"}
        answer = await client.post(f"{HERE}/messages", json=body, headers=headers)
        document = await client.get("/openapi.json")
    assert "event: react.exit" in answer.text, answer.text
    assert document.status_code == 200


asyncio.run(main())
