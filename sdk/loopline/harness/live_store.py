"""The live events of a store: one connection for all harnesses of a process that use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from loopline.conversations import LiveEvents, Relay, key_change
from loopline.errors import StoreError
from loopline.harness.read_only_store import StorePlace, import_postgres, parse_store_url


@dataclass(slots=True, eq=False)
class _SharedEvents:
    """Live events with the number of their users."""

    live: LiveEvents
    opened: AsyncExitStack
    users: int = 0


_shared: dict[tuple[asyncio.AbstractEventLoop, str, str], _SharedEvents] = {}
"""The open live events by event loop and the URLs of the store and of its relay."""


@asynccontextmanager
async def open_live_events(place: StorePlace) -> AsyncGenerator[LiveEvents | None]:
    """Yield the live events of a store, shared in this event loop; None for a store in a file or in memory.

    Raises:
        StoreError: a driver is not installed, or the URL of the relay is invalid.
    """
    if place.is_in_memory or place.file is not None:
        yield None
        return
    key = (asyncio.get_running_loop(), place.url, place.relay)
    shared = _shared.get(key)
    if shared is None:
        relay = await asyncio.to_thread(_open_relay, place)
        shared = _shared.get(key)  # another harness may have opened them meanwhile
        if shared is None:
            shared = _shared[key] = _SharedEvents(LiveEvents(relay), AsyncExitStack())
            await shared.opened.enter_async_context(shared.live)
    shared.users += 1
    try:
        yield shared.live
    finally:
        shared.users -= 1
        if not shared.users:
            del _shared[key]
            await shared.opened.aclose()


async def announce_revoked_key(store: str | None) -> bool:
    """Tell the servers of a store to check the keys of their open streams now; return False without live events.

    Raises:
        StoreError: a URL is invalid, or the server of the live events cannot be reached.
    """
    store_place = parse_store_url(store)
    if store_place.is_in_memory or store_place.file is not None:
        return False
    relay = await asyncio.to_thread(_open_relay, store_place)
    try:
        await relay.publish(key_change(relay.limit_bytes))
    finally:
        await relay.close()
    return True


def _open_relay(place: StorePlace) -> Relay:
    """Return the relay of the store, not yet connected: over Redis if `place.relay` is set, or over PostgreSQL.

    Raises:
        StoreError: the driver of PostgreSQL or the package of Redis is not installed, or a URL is invalid.
    """
    import_postgres()
    if not place.relay:
        from loopline.store.postgres_relay import PostgresRelay

        return PostgresRelay(place.url)
    try:
        from loopline.store.redis_relay import RedisRelay
    except ImportError as error:
        raise StoreError(
            f"live events over Redis: {error}: pip install 'loopline[redis]'"
        ) from error
    from loopline.store.postgres import PostgresServer

    return RedisRelay(place.relay, PostgresServer(place.url, read_only=False).identity)
