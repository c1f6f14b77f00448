"""The relay over Redis: what a lost connection, server or password does, and what its URL may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from loopline.errors import StoreError
from loopline.store.redis_relay import KEEP_SECONDS, MOST_ENTRIES, RedisRelay
from tests.support.peers.http2 import certificate
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

STORE = "tea/loopline"
SECRET = "s3cret"


@pytest.fixture
def server() -> Generator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


class Listener:
    """Receives texts, and connects again when the connection was lost."""

    def __init__(self, relay: RedisRelay) -> None:
        self.texts: list[str] = []
        self.errors: list[str] = []
        self.connections = 0
        self._relay = relay

    async def run(self) -> None:
        while True:
            try:
                async with aclosing(self._relay.receive()) as texts:
                    async for text in texts:
                        if text is None:
                            self.connections += 1
                        else:
                            self.texts.append(text)
            except StoreError as error:
                self.errors.append(str(error))
            await asyncio.sleep(0.1)

    async def until_connected(self, times: int = 1) -> None:
        await until(lambda: self.connections >= times)

    async def until_texts(self, *texts: str) -> None:
        await until(lambda: len(self.texts) >= len(texts))
        assert self.texts == [*texts]


@asynccontextmanager
async def listening(server: RedisServer, store: str = STORE) -> AsyncGenerator[Listener]:
    relay = RedisRelay(server.url, store)
    listener = Listener(relay)
    running = asyncio.create_task(listener.run())
    try:
        await listener.until_connected()
        yield listener
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await relay.close()


@asynccontextmanager
async def sending(url: str, store: str = STORE) -> AsyncGenerator[RedisRelay]:
    relay = RedisRelay(url, store)
    try:
        yield relay
    finally:
        await relay.close()


async def send(relay: RedisRelay, *texts: str) -> None:
    """Send the texts; try again while the server is away."""
    for _ in range(600):
        try:
            return await relay.publish(texts)
        except StoreError:
            await asyncio.sleep(0.05)
    raise AssertionError("the server did not come back")


@pytest.mark.service
async def test_texts_that_are_sent_while_a_connection_is_opened_again_arrive(
    server: RedisServer,
) -> None:
    async with listening(server) as listener, sending(server.url) as sender:
        await sender.publish(["1"])
        await listener.until_texts("1")
        server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await sender.publish(["2", "3"])  # on a connection that was closed too
        await listener.until_texts("1", "2", "3")
        assert listener.errors


@pytest.mark.service
async def test_a_server_that_was_restarted_and_is_empty_is_used_again(server: RedisServer) -> None:
    async with listening(server) as listener, sending(server.url) as sender:
        await sender.publish(["1"])
        await listener.until_texts("1")
        server.kill()
        with pytest.raises(StoreError, match=rf"redis://127.0.0.1:{server.port} could not be used"):
            await sender.publish(["lost"])
        server.start()
        await send(sender, "2")
        await listener.until_texts("1", "2")
        assert listener.connections == 2


@pytest.mark.service
async def test_a_stream_whose_ids_begin_again_is_read_from_its_begin(server: RedisServer) -> None:
    async with listening(server) as listener, sending(server.url) as sender:
        await sender.publish(["1"])
        await listener.until_texts("1")
        stream = server.run("KEYS", "loopline:*")
        server.run("XADD", stream, "99999999999999-0", "texts", '["from a clock that is ahead"]')
        await listener.until_texts("1", "from a clock that is ahead")
        server.run("DEL", stream)
        await sender.publish(["2"])
        await listener.until_texts("1", "from a clock that is ahead", "2")


@pytest.mark.service
async def test_a_server_that_answers_nothing_is_an_error_and_is_used_again_when_it_goes_on(
    server: RedisServer,
) -> None:
    async with listening(server) as listener, sending(server.url) as sender:
        await sender.publish(["1"])
        await listener.until_texts("1")
        server.pause()
        with pytest.raises(StoreError):
            await sender.publish(["late"])
        await until(lambda: bool(listener.errors))
        server.resume()
        await send(sender, "2")
        await until(lambda: "2" in listener.texts)


@pytest.mark.service
async def test_the_stream_has_a_limited_length_and_is_removed_after_a_while(
    server: RedisServer,
) -> None:
    async with sending(server.url) as sender:
        await sender.publish(["x"] * 100 * (MOST_ENTRIES + 500))
        stream = server.run("KEYS", "loopline:*")
        assert int(server.run("XLEN", stream)) < MOST_ENTRIES + 200
        assert 0 < int(server.run("TTL", stream)) <= KEEP_SECONDS


@pytest.mark.service
async def test_stores_that_share_a_server_receive_nothing_of_each_other(
    server: RedisServer,
) -> None:
    async with (
        listening(server) as listener,
        sending(server.url, "tea/other") as other,
        sending(f"{server.url}/1") as elsewhere,
        sending(server.url) as sender,
    ):
        for relay in (other, elsewhere, sender):
            await relay.publish(["theirs" if relay is not sender else "ours"])
        await listener.until_texts("ours")


@pytest.mark.service
async def test_a_server_without_memory_is_an_error_that_does_not_quote_texts(
    server: RedisServer,
) -> None:
    server.run("CONFIG", "SET", "maxmemory", "1")
    async with sending(server.url) as sender:
        with pytest.raises(StoreError, match="maxmemory") as refusal:
            await sender.publish([SECRET])
        assert SECRET not in f"{refusal.value!r} {refusal.value.__cause__!r}"


@pytest.mark.service
async def test_entries_of_other_programs_are_ignored(server: RedisServer) -> None:
    async with listening(server) as listener, sending(server.url) as sender:
        await sender.publish(["1"])
        stream = server.run("KEYS", "loopline:*")
        for value in ("", "null", "[1]", "\xff", "[" * 5_000):
            server.run("XADD", stream, "*", "texts", value)
        server.run("XADD", stream, "*", "other", '["x"]')
        await sender.publish(["2"])
        await listener.until_texts("1", "2")


@pytest.mark.service
async def test_a_user_needs_few_rights_and_no_error_has_the_password() -> None:
    server = RedisServer(("--requirepass", SECRET))
    server.start()
    rights = ("~loopline:*", "+xadd", "+xread", "+xrevrange", "+expire")
    server.run("-a", SECRET, "ACL", "SETUSER", "tea", "on", f">{SECRET}", *rights)
    try:
        address = f"127.0.0.1:{server.port}"
        for owner in ("", f":{SECRET}x@", f"tea:{SECRET}x@"):
            async with sending(f"redis://{owner}{address}") as sender:
                with pytest.raises(StoreError, match=f"redis://{address} could not be") as refusal:
                    await sender.publish(["x"])
                assert SECRET not in f"{refusal.value!r} {refusal.value.__cause__!r}"
        async with sending(f"redis://tea:{SECRET}@{address}") as sender:
            receiving = sender.receive()
            assert await anext(receiving) is None
            await sender.publish(["1"])
            assert await anext(receiving) == "1"
            await receiving.aclose()
    finally:
        server.remove()


@pytest.mark.service
async def test_a_connection_over_tls_checks_the_certificate(tmp_path: Path) -> None:
    signed, key = certificate(tmp_path)
    files = ("--tls-cert-file", f"{signed}", "--tls-key-file", f"{key}")
    server = RedisServer()
    server.options = (
        *("--tls-port", f"{server.port}", "--port", "0", "--tls-auth-clients", "no", *files),
        *("--tls-ca-cert-file", f"{signed}"),
    )
    server.start()
    try:
        url = f"rediss://127.0.0.1:{server.port}"
        async with sending(url) as sender:
            with pytest.raises(StoreError, match="certificate"):
                await sender.publish(["x"])
        async with sending(f"{url}?ssl_ca_certs={signed}") as sender:
            await sender.publish(["x"])
    finally:
        server.remove()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "amqp://tea:s3cret@host",
        "redis:tea",
        "redis://tea:s3cret@host:port",
        "redis://tea:s3/cret@host",
        "redis://tea:6#s3cret@host",
        "redis://tea:6?s3cret@host",
        "redis://tea:6/s3cret@host",
        "redis://tea:s3cret@host/name",
        "redis://tea:s3cret@host?password=s3cret",
        "redis://tea:s3cret@host?decode_responses=yes",
        "redis://tea:s3cret@host?ssl_ca_certs=x",
        "rediss://tea:s3cret@host?ssl_nothing=x",
        "rediss://tea:s3cret@host?ssl_cert_reqs=sometimes",
    ],
)
def test_an_invalid_url_is_an_error_without_the_password(url: str) -> None:
    with pytest.raises(StoreError, match=r"relay.* not valid") as refusal:
        RedisRelay(url, STORE)
    shown: Sequence[object] = (refusal.value, refusal.value.__cause__)
    assert "cret" not in f"{shown}"
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://", "redis://localhost:6379"),
        ("redis://tea:s%2F3@cache/2", "redis://cache:6379/2"),
        ("rediss://:s3cret@[::1]:7000?ssl_check_hostname=no", "rediss://::1:7000"),
    ],
)
def test_a_relay_is_named_without_user_and_password(url: str, name: str) -> None:
    assert RedisRelay(url, STORE).name == name


async def test_who_receives_can_be_cancelled_at_any_moment(server: RedisServer) -> None:
    for moment in range(100):
        relay = RedisRelay(server.url, STORE)
        receiving = asyncio.create_task(Listener(relay).run())
        await asyncio.sleep(moment * 6e-5)
        receiving.cancel()
        _, left = await asyncio.wait([receiving], timeout=30)
        assert not left
        await relay.close()


async def test_a_task_that_was_cancelled_can_still_send_before_it_ends(server: RedisServer) -> None:
    relay = RedisRelay(server.url, STORE)
    begun, sent = asyncio.Event(), list[str]()

    async def send_at_the_end() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await relay.publish(["bye"])
            sent.append("bye")

    sending = asyncio.create_task(send_at_the_end())
    await begun.wait()
    sending.cancel()
    await asyncio.wait([sending])
    await relay.close()
    assert sent == ["bye"]
