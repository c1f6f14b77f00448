"""Live messages between the processes of a store, through a stream in Redis.

Redis has the last messages for a while, so that a connection that is opened again continues after the last one it had.
What the messages are about is in the tables of the store, so losing Redis loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from loopline.errors import StoreError
from loopline.tasks import raise_lost_cancellation

LIMIT_BYTES = 64 * 1024
TEXTS_OF_ENTRY = 100
MOST_ENTRIES = 10_000
"""The number of entries that the stream keeps, approximately."""
KEEP_SECONDS = 60
"""How long the stream exists after its last entry."""
BLOCK_SECONDS = 2.0
"""How long a request waits for new entries."""
TIMEOUT_SECONDS = 2.0
"""How long a process waits for a connection and for a reply; for `BLOCK_SECONDS` more if the request waits for entries."""
READ_ENTRIES = 100
_FIELD = b"texts"
_BEGIN = b"0-0"
_DATABASE = re.compile(r"/?[0-9]{0,5}")
_OPTION = re.compile(r"ssl_[a-z_]+")
_DECODER = msgspec.json.Decoder(list[str])


class RedisRelay:
    """One stream for the processes of a store. A process reads on one connection and sends on another."""

    def __init__(self, url: str, store: str) -> None:
        """Connect to nothing yet. `store` is a text that only the processes of one store have in common.

        Raises:
            StoreError: the URL is invalid; the error does not have the password.
        """
        self.limit_bytes: int = LIMIT_BYTES
        self.name: str = describe_redis(url)
        self._url = url
        self._stream = f"loopline:live:{blake2b(store.encode(), digest_size=8).hexdigest()}"
        self._last = b""
        # The first request fails if the server has closed the connection meanwhile.
        self._sending = self._open_client(TIMEOUT_SECONDS, retries=1)

    def _open_client(self, timeout: float, *, retries: int) -> Redis:
        """Return a client that connects when it is used; raise StoreError if the options in its URL are not valid."""
        redis: Any = Redis  # not all of its methods have types
        try:
            client: Redis = redis.from_url(
                self._url,
                protocol=2,
                socket_timeout=timeout,
                socket_connect_timeout=TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), retries),
            )
            pool: Any = client.connection_pool
            pool.make_connection()  # it checks the options, and does not connect
        except (TypeError, ValueError, RedisError):
            raise StoreError(
                f"the options of the relay {self.name} are not valid: see the documentation of redis-py"
            ) from None
        return client

    async def receive(self) -> AsyncGenerator[str | None]:
        """Connect, yield None, and then yield the texts of all processes.

        Raises:
            StoreError: the server cannot be reached, or the connection was lost.
        """
        client = self._open_client(BLOCK_SECONDS + TIMEOUT_SECONDS, retries=0)
        try:
            await self._find_position(client)
            raise_lost_cancellation()  # the client swallows one that meets the end of a wait
            yield None
            while True:
                entries = await self._read(client)
                if not entries:
                    await self._find_position(client)
                raise_lost_cancellation()
                for entry_id, fields in entries:
                    self._last = entry_id
                    for text in _decode(fields):
                        yield text
        except (RedisError, OSError) as error:
            raise self._error(error) from error
        finally:
            await _close(client)

    async def _read(self, client: Redis) -> Sequence[tuple[bytes, dict[bytes, bytes]]]:
        """Wait for entries after the last one, and return them; return none after `BLOCK_SECONDS`."""
        streams: Any = await client.xread(
            {self._stream: self._last}, count=READ_ENTRIES, block=round(BLOCK_SECONDS * 1_000)
        )
        return [] if not streams else streams[0][1]

    async def _find_position(self, client: Redis) -> None:
        """Set the position to read from: the newest entry at first, and the begin if the stream was replaced.

        A restarted server has no stream or a new one. Ids are times, so a newest id before the last one shows that.
        """
        entries: Any = await client.xrevrange(self._stream, count=1)
        newest = entries[0][0] if entries else _BEGIN
        if not self._last:
            self._last = newest
        elif _number(newest) < _number(self._last):
            self._last = _BEGIN

    async def publish(self, texts: Sequence[str]) -> None:
        """Send texts in order.

        Raises:
            StoreError: the server cannot be reached; the texts may be lost.
        """
        if not texts:
            return
        requests = self._sending.pipeline(transaction=False)
        for start in range(0, len(texts), TEXTS_OF_ENTRY):
            encoded = msgspec.json.encode(texts[start : start + TEXTS_OF_ENTRY])
            requests.xadd(self._stream, {_FIELD: encoded}, maxlen=MOST_ENTRIES)
        requests.expire(self._stream, KEEP_SECONDS)
        try:
            # The error that it would raise quotes texts.
            replies: Sequence[Any] = await requests.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise self._error(error) from error
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self._error(reply)

    def _error(self, error: Exception) -> StoreError:
        return StoreError(f"{self.name} could not be used ({' '.join(str(error).split())})")

    async def close(self) -> None:
        """Close the connection that sends; the other one is closed with its generator."""
        await _close(self._sending)


async def _close(client: Redis) -> None:
    with suppress(RedisError, OSError):
        await client.aclose()


def describe_redis(url: str) -> str:
    """Return the URL of a Redis without user, password and options.

    Raises:
        StoreError: the URL is invalid; the error does not have the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:  # it quotes parts of the URL, which may be of the password
        parts, port = urlsplit(""), 0
    options = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    is_valid = parts.scheme in ("redis", "rediss") and _DATABASE.fullmatch(parts.path)
    if not (is_valid and port) or parts.fragment or not all(map(_OPTION.fullmatch, options)):
        raise StoreError(
            "the URL of the relay is not valid: write redis://user:password@host:port/0, or rediss:// for TLS, with "
            "special characters of the password in percent-encoding, and no options but those of redis-py for TLS (ssl_…)"
        )
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{port}{parts.path}"


def _decode(fields: Mapping[bytes, bytes]) -> Sequence[str]:
    """Return the texts of an entry; none of an entry of another program."""
    try:
        return _DECODER.decode(fields.get(_FIELD, b"[]"))
    except msgspec.DecodeError:
        return ()


def _number(entry_id: bytes) -> tuple[int, ...]:
    """Return the id of an entry as numbers, which are compared in the order of the entries."""
    return tuple(map(int, entry_id.split(b"-")))
