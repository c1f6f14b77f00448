"""The way to a vendor's server: one pooled client, and a reply as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import httpx2

from loopline.adapters.providers.failures import Credentials, is_error_document, not_a_stream_error
from loopline.errors import ModelStreamBroken, ModelTimedOut, ModelUnreachable
from loopline.models import Timeouts, public_url

EVENTS = "text/event-stream"
DOCUMENT = "document"
"""What an event is called that is a whole reply, of a server that does not stream."""
EVENT_BYTES = 4 * 2**20
"""The longest event that is read, and the longest reply in one document."""
REFUSAL_BYTES, REFUSAL_SECONDS = 2**16, 5.0
"""So much of a response that is no reply is read, and for so long."""

ClientFactory: TypeAlias = Callable[[], httpx2.AsyncClient]


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


class _Asking:
    """A request on its way, as its transport tells of it.

    A connection is left open by the transport when the request is given up while TLS is agreed, and
    by HTTP/2 whenever it is given up, so that its server would write on.
    """

    def __init__(self) -> None:
        self.is_over: bool = False
        self._is_multiplexed: bool = False
        self._streams: list[_Closable] = []

    async def __call__(self, event: str, told: Mapping[str, object]) -> None:
        """Hear what the transport does."""
        match event, told.get("return_value"):
            case "connection.connect_tcp.complete", _Closable() as stream:
                self._streams.append(stream)
            case "connection.start_tls.failed", _:
                for stream in self._streams:
                    await stream.aclose()
            case "http2.send_request_headers.started", _:
                self._is_multiplexed = True
            case _:
                pass

    @property
    def lingers(self) -> bool:
        """Whether its server writes on although nobody listens."""
        return self._is_multiplexed and not self.is_over


@dataclass(slots=True)
class _Pool:
    """A client, how many replies are on their way by it, and whether it is to be closed after them.

    It `lingers` when a server writes on that nobody listens to.
    """

    client: asyncio.Future[httpx2.AsyncClient]
    replies: int = 0
    lingers: bool = False
    is_over: bool = False

    async def close(self) -> None:
        self.is_over = True
        if not self.replies:
            await (await self.client).aclose()


class HttpTransport:
    """One client for each event loop, made when it is first used; any number of models share it.

    It heeds the usual variables for proxies and certificates, and speaks HTTP/2 where that is offered.
    """

    def __init__(self, make: ClientFactory | None = None) -> None:
        """`make` makes a client, in a thread; it is `pooled` unless another is given."""
        self._make = make or pooled
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def events(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        credentials: Credentials,
        timeouts: Timeouts,
    ) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """The events of a reply. Leaving the iteration closes the connection.

        Raises:
            ModelError: there is no reply, or it breaks off.
        """
        asking = _Asking()
        async with self._client(credentials, asking) as client:
            late = _now() + timeouts.total
            request = client.build_request(
                "POST",
                url,
                content=body,
                headers=headers,
                timeout=httpx2.Timeout(timeouts.read, connect=timeouts.connect),
                extensions={"trace": asking},
            )
            with _told(credentials, timeouts, url):
                async with asyncio.timeout_at(late):
                    response = await client.send(request, stream=True)
            try:
                if not _is_stream(response):
                    is_document = _is_document(response)
                    said = await _beginning(response, late, is_document=is_document)
                    asking.is_over = True
                    if is_document and not is_error_document(said):
                        yield httpx2.ServerSentEvent(event=DOCUMENT, data=said)
                        return
                    raise not_a_stream_error(
                        url, response.status_code, response.headers, said, credentials
                    )
                events = aiter(httpx2.EventSource(response, max_event_size=EVENT_BYTES))
                with _told(credentials, timeouts, url):
                    while (event := await _next(events, late)) is not None:
                        if event.data:
                            yield event
                asking.is_over = True
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close the connections, those of replies on their way behind them; who asks again gets new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def _client(
        self, account: Credentials, asking: _Asking
    ) -> AsyncGenerator[httpx2.AsyncClient, None]:
        """The client, which stays open as long as it is needed here.

        One that lingers is closed, with its connections, as soon as no reply is on its way by it.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:  # certificates take a while to read: once, however many ask
            pool = _Pool(asyncio.ensure_future(asyncio.to_thread(self._make)))
            self._pools[loop] = pool
        pool.replies += 1
        try:
            yield await self._open(pool, account)
        finally:
            pool.replies -= 1
            pool.lingers = pool.lingers or asking.lingers
            if pool.lingers and not pool.replies and self._pools.get(loop) is pool:
                await self.close()
            elif pool.is_over:
                await pool.close()

    async def _open(self, pool: _Pool, account: Credentials) -> httpx2.AsyncClient:
        try:
            return await asyncio.shield(pool.client)
        except OSError as error:  # such as a file of certificates that is none
            self._pools.pop(asyncio.get_running_loop(), None)
            raise ModelUnreachable(f"{account.model}: no client can be made: {error}") from error


def pooled() -> httpx2.AsyncClient:
    """A client for any number of requests at once. Blocks while it reads certificates."""
    logging.getLogger("hpack").setLevel(logging.INFO)  # below it, the key of each request is told
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx2.AsyncClient(http2=True, limits=limits, follow_redirects=False)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_stream(response: httpx2.Response) -> bool:
    """Whether it is a stream of events; one that does not say what it is is taken for one."""
    kind = response.headers.setdefault("content-type", EVENTS).partition(";")[0]
    return response.is_success and kind.strip().lower() == EVENTS


def _is_document(response: httpx2.Response) -> bool:
    """Whether it may be a reply in one piece."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    return response.is_success and kind.strip().lower() == "application/json"


async def _next(
    events: AsyncIterator[httpx2.ServerSentEvent], late: float
) -> httpx2.ServerSentEvent | None:
    async with asyncio.timeout_at(late):
        return await anext(events, None)


async def _beginning(response: httpx2.Response, late: float, *, is_document: bool) -> str:
    """What it says, so far as that comes soon and is not too long; a document may take its time."""
    most, until = REFUSAL_BYTES, min(late, _now() + REFUSAL_SECONDS)
    if is_document:
        most, until = EVENT_BYTES, late
    said = bytearray()
    with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError):
        async with asyncio.timeout_at(until):
            async for piece in response.aiter_bytes():
                said += piece
                if len(said) > most:
                    break
    return said[:most].decode("utf-8", "replace")


@contextmanager
def _told(account: Credentials, timeouts: Timeouts, url: str) -> Generator[None, None, None]:
    """What goes wrong on the way, as one of our errors."""
    place = f"{account.excerpt(public_url(url))}, which {account.url_variable} sets"
    try:
        yield
    except TimeoutError as error:
        seconds = f"{timeouts.total:g} s"
        raise ModelTimedOut(f"{account.model}: no whole reply in {seconds}") from error
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise ModelUnreachable(f"{account.model}: no connection in time to {place}") from error
    except httpx2.TimeoutException as error:
        raise ModelTimedOut(f"{account.model}: nothing came for too long") from error
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        said = account.redact(str(error))
        raise ModelUnreachable(f"{account.model}: no connection to {place}: {said}") from error
    except (httpx2.TransportError, httpx2.DecodingError, httpx2.StreamError) as error:
        said = account.redact(str(error)) or type(error).__name__
        raise ModelStreamBroken(f"{account.model}: the reply broke off: {said}") from error
