"""The extra `redis`: a relay over Redis is tried, and a server that is not there is an error that names it without the password."""

from __future__ import annotations

import asyncio

from loopline.errors import StoreError
from loopline.store.redis_relay import RedisRelay


async def refusal() -> str:
    """Send a text through a server that does not exist, and return the text of the error."""
    relay = RedisRelay("redis://ann:secret@127.0.0.1:1", "talk")
    try:
        await relay.publish(["tea"])
    except StoreError as error:
        return str(error)
    finally:
        await relay.close()
    return ""


text = asyncio.run(refusal())
assert "127.0.0.1" in text, text
assert "secret" not in text, text
