"""Every relay carries the texts of each process to all processes of a store, in order."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from loopline.conversations import Relay
from loopline.store.postgres_relay import PostgresRelay
from loopline.store.redis_relay import RedisRelay
from tests.support.memory_relay import MemoryRelay
from tests.support.postgres_server import running_postgres
from tests.support.redis_server import running_redis

Making = Callable[[], Relay]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("postgres", marks=pytest.mark.service),
        pytest.param("redis", marks=pytest.mark.service),
    ]
)
def making(request: pytest.FixtureRequest) -> Making:
    """Makes the relay of another process of one store."""
    match request.param:
        case "memory":
            queues = list[asyncio.Queue[str]]()
            return lambda: MemoryRelay(queues)
        case "postgres":
            url = running_postgres().store_url()
            return lambda: PostgresRelay(url)
        case _:
            server, store = running_redis(), uuid.uuid4().hex
            return lambda: RedisRelay(server.url, store)


class Receiver:
    """Collects what a relay receives."""

    def __init__(self, relay: Relay) -> None:
        self.texts: list[str] = []
        self._connected = asyncio.Event()
        self._relay = relay
        self._task = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        async for text in self._relay.receive():
            if text is None:
                self._connected.set()
            else:
                self.texts.append(text)

    async def connected(self) -> Receiver:
        await self._connected.wait()
        return self

    async def until(self, count: int) -> Sequence[str]:
        """Wait for so many texts."""
        for _ in range(3_000):
            if len(self.texts) >= count:
                return self.texts
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(self.texts)} texts arrived")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._relay.close()


@pytest.fixture
async def connect(making: Making) -> AsyncIterator[Callable[[], asyncio.Future[Receiver]]]:
    async with AsyncExitStack() as stack:

        async def connected() -> Receiver:
            receiver = Receiver(making())
            stack.push_async_callback(receiver.close)
            return await receiver.connected()

        yield lambda: asyncio.ensure_future(connected())


Connecting = Callable[[], asyncio.Future[Receiver]]


async def test_every_process_receives_every_text_in_order(
    making: Making, connect: Connecting
) -> None:
    first, second = await connect(), await connect()
    sender = making()
    sent = [f"{number} text" for number in range(300)]
    for start in range(0, 300, 100):
        await sender.publish(sent[start : start + 100])
    assert await first.until(300) == sent
    assert await second.until(300) == sent
    await sender.close()


async def test_a_text_arrives_as_it_was_sent_up_to_the_limit(
    making: Making, connect: Connecting
) -> None:
    receiver = await connect()
    sender = making()
    sent = ["", "'; DROP TABLE x; --", "ä€😀\n\t\\u0000", "x" * sender.limit_bytes]
    await sender.publish([text for text in sent if text])
    assert await receiver.until(3) == sent[1:]
    await sender.close()


async def test_nothing_is_sent_without_texts_and_a_closed_sender_connects_again(
    making: Making, connect: Connecting
) -> None:
    receiver = await connect()
    sender = making()
    await sender.publish([])
    await sender.publish(["one"])
    await sender.close()
    await sender.publish(["two"])
    assert await receiver.until(2) == ["one", "two"]
    await sender.close()
