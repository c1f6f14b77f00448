"""HTTP requests to a provider: one client with a connection pool, and replies as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, get_args, runtime_checkable
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import httpx2
from msgspec import structs

from loopline import models
from loopline.errors import ModelError, ModelStreamBroken, ModelTimedOut, ModelUnreachable
from loopline.providers.failures import (
    AnsweredError,
    Credentials,
    is_error_document,
    not_a_stream_error,
)
from loopline.providers.reply_parser import ReplyParser
from loopline.providers.request_bytes import Field, join_fields, join_parts
from loopline.tasks import compute

EVENTS = "text/event-stream"
DOCUMENT = "document"
"""The type of the event for a whole reply, from a server that does not stream."""
EVENT_BYTES = 4 * 2**20
"""The maximum size of an event, and of a reply in one document."""
ERROR_BYTES = 2**16
ERROR_SECONDS = 5.0
"""How much of an error response is received, and for how long."""

ClientFactory: TypeAlias = Callable[[], httpx2.AsyncClient]


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


class _RequestTrace:
    """Traces the connection of a request, to close it when the request is cancelled.

    The transport does not close the connection if a request is cancelled during the TLS handshake. With HTTP/2 it does
    not close it after any cancelled request, and the server continues to send.
    """

    def __init__(self) -> None:
        self.is_over: bool = False
        self._is_multiplexed: bool = False
        self._streams: list[_Closable] = []

    async def __call__(self, event: str, details: Mapping[str, object]) -> None:
        """Record an event of the transport; close the connection after a failed TLS handshake."""
        match event, details:
            case "connection.connect_tcp.complete", {"return_value": _Closable() as stream}:
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
        """Whether the server may continue to send after the request was cancelled."""
        return self._is_multiplexed and not self.is_over


@dataclass(slots=True)
class _Pool:
    """A client and the number of replies that it is receiving.

    `is_over` means that the client is closed after these replies, `lingers` that a server may still be sending a
    cancelled reply.
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
    """An HTTP client for each event loop, which is created at the first request and shared by all models.

    The client uses the environment variables for proxies and certificates, and HTTP/2 if the server supports it.
    """

    def __init__(self, create_client: ClientFactory | None = None) -> None:
        """`create_client` is called in a thread; the default is `create_http_client`."""
        self._create_client = create_client or create_http_client
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def events(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        credentials: Credentials,
        timeouts: models.Timeouts,
    ) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """Send a request and yield the events of the reply. Leaving the iteration closes the connection.

        A reply that is one JSON document is yielded as one event `DOCUMENT`. Events without data are left out.

        Raises:
            ModelError: the server sends no reply, or the reply is incomplete.
        """
        trace = _RequestTrace()
        async with self._client(credentials, trace) as client:
            deadline = _now() + timeouts.total
            request = client.build_request(
                "POST",
                url,
                content=body,
                headers=headers,
                timeout=httpx2.Timeout(timeouts.read, connect=timeouts.connect),
                extensions={"trace": trace},
            )
            with _translate_errors(credentials, timeouts, url):
                async with asyncio.timeout_at(deadline):
                    response = await client.send(request, stream=True)
            try:
                content_type = _content_type(response)
                if content_type != EVENTS:
                    is_document = content_type == "application/json"
                    text = await _beginning(response, deadline, is_document=is_document)
                    trace.is_over = True
                    if is_document and not is_error_document(text):
                        yield httpx2.ServerSentEvent(event=DOCUMENT, data=text)
                        return
                    raise not_a_stream_error(
                        url, response.status_code, response.headers, text, credentials
                    )
                events = aiter(httpx2.EventSource(response, max_event_size=EVENT_BYTES))
                with _translate_errors(credentials, timeouts, url):
                    while (event := await _next(events, deadline)) is not None:
                        if event.data:
                            yield event
                trace.is_over = True
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close the connections; connections in use are closed after their replies. A later request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def _client(
        self, credentials: Credentials, trace: _RequestTrace
    ) -> AsyncGenerator[httpx2.AsyncClient, None]:
        """Provide the client of this event loop, which is created if there is none, and keep it open in the context.

        If a server may still be sending a cancelled reply, the client is closed when it receives no other reply.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:  # created once, because loading the certificates takes long
            pool = _Pool(asyncio.ensure_future(asyncio.to_thread(self._create_client)))
            self._pools[loop] = pool
        pool.replies += 1
        try:
            yield await self._open(pool, credentials)
        finally:
            pool.replies -= 1
            pool.lingers = pool.lingers or trace.lingers
            if pool.lingers and not pool.replies and self._pools.get(loop) is pool:
                await self.close()
            elif pool.is_over:
                await pool.close()

    async def _open(self, pool: _Pool, credentials: Credentials) -> httpx2.AsyncClient:
        """Return the client of the pool when it is created; a cancelled caller does not cancel the creation.

        Raises a ModelUnreachable, and removes the pool, if the client cannot be created.
        """
        try:
            return await asyncio.shield(pool.client)
        except OSError as error:  # such as an unreadable file of certificates
            self._pools.pop(asyncio.get_running_loop(), None)
            raise ModelUnreachable(
                f"{credentials.model}: the HTTP client cannot be created: {error}"
            ) from error


def create_http_client() -> httpx2.AsyncClient:
    """Return a client without a limit of concurrent requests. Blocks while it loads certificates."""
    logging.getLogger("hpack").setLevel(logging.INFO)  # DEBUG would log the key of each request
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx2.AsyncClient(http2=True, limits=limits, follow_redirects=False)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _content_type(response: httpx2.Response) -> str:
    """Return the content type of a response; empty if the status is not 2xx, `EVENTS` if the header is missing."""
    content_type = response.headers.setdefault("content-type", EVENTS).partition(";")[0]
    return content_type.strip().lower() if response.is_success else ""


async def _next(
    events: AsyncIterator[httpx2.ServerSentEvent], deadline: float
) -> httpx2.ServerSentEvent | None:
    async with asyncio.timeout_at(deadline):
        return await anext(events, None)


async def _beginning(response: httpx2.Response, deadline: float, *, is_document: bool) -> str:
    """Return the text of a response: a document until the deadline, an error for at most 5 seconds and 64 KiB.

    Errors and the timeout are not raised: they end the text. A document is truncated to 4 MiB.
    """
    limit = EVENT_BYTES if is_document else ERROR_BYTES
    until = deadline if is_document else min(deadline, _now() + ERROR_SECONDS)
    content = bytearray()
    with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError):
        async with asyncio.timeout_at(until):
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > limit:
                    break
    return content[:limit].decode("utf-8", "replace")


@contextmanager
def _translate_errors(
    credentials: Credentials, timeouts: models.Timeouts, url: str
) -> Generator[None, None, None]:
    """Raise errors and timeouts of the transport as ModelTimedOut, ModelUnreachable or ModelStreamBroken."""
    server = f"{credentials.excerpt(models.public_url(url))}, which {credentials.url_variable} sets"
    try:
        yield
    except TimeoutError as error:
        seconds = f"{timeouts.total:g} s"
        raise ModelTimedOut(f"{credentials.model}: no whole reply in {seconds}") from error
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise ModelUnreachable(f"{credentials.model}: no connection in time to {server}") from error
    except httpx2.TimeoutException as error:
        raise ModelTimedOut(f"{credentials.model}: nothing came for too long") from error
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        words = credentials.redact(str(error))
        raise ModelUnreachable(
            f"{credentials.model}: no connection to {server}: {words}"
        ) from error
    except (httpx2.TransportError, httpx2.DecodingError, httpx2.StreamError) as error:
        words = credentials.redact(str(error)) or type(error).__name__
        raise ModelStreamBroken(f"{credentials.model}: the reply broke off: {words}") from error


PARALLEL = "parallel_tool_calls"
SAMPLING = (
    *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"),
    "service_tier",
)
DRAIN_SECONDS = 0.2
"""How long to wait for the end of a stream after the reply is complete."""
EFFORTS: tuple[str, ...] = get_args(models.Effort)
"""The reasoning efforts in ascending order."""


class HttpModel(ABC):
    """A model at a server that streams its replies as server-sent events."""

    path: ClassVar[str]
    """The path of requests, relative to the base URL."""
    setting_names: ClassVar[tuple[str, ...]] = (*SAMPLING, PARALLEL)
    """The settings that are fields of requests, with the same names and values."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        credentials: Credentials,
        capabilities: models.Capabilities,
        http: HttpTransport,
        facts: models.ModelFacts | None = None,
        timeouts: models.Timeouts | None = None,
        reply_limits: models.ReplyLimits | None = None,
    ) -> None:
        """`name` is the model string, `model` the name of the model at the server, `url` the base URL.

        Raises:
            ModelRequestError: the model does not support one of its own settings, those of the `capabilities`.
        """
        self.name = name
        self.capabilities = capabilities
        self.model = model
        self.credentials = credentials
        self.facts: models.ModelFacts = facts or models.ModelFacts()
        base = urlsplit(url)
        self.url: str = urlunsplit(base._replace(path=f"{base.path.rstrip('/')}{self.path}"))
        self._http = http
        self._timeouts = timeouts or models.Timeouts()
        self._limits = reply_limits or models.ReplyLimits()
        self._tools: tuple[tuple[models.ToolSpec, ...], bytes] = ((), b"[]")
        own = capabilities.supported(models.UNSET, name).settings
        self._own_settings = None if own == models.UNSET else own

    def __repr__(self) -> str:
        return f"<{self.name} at {models.public_url(self.url)}>"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request; a key is sent as a bearer token."""
        key = self.credentials.key
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        return {"Content-Type": "application/json", "Accept": "text/event-stream", **bearer}

    @abstractmethod
    def fields(self, prompt: models.Prompt) -> Iterator[Field]:
        """Yield the fields of a request."""

    @abstractmethod
    def new_parser(self, offered: tuple[str, ...]) -> ReplyParser:
        """Return a parser for the next reply."""

    @abstractmethod
    def tool(self, spec: models.ToolSpec) -> models.JsonObject:
        """Return a tool in the form of the API."""

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Send a prompt; yield the text of the reply as it is received, then the reply.

        Raises:
            ModelError: the model cannot be reached, or the reply is incomplete.
        """
        parser = self.new_parser(tuple(tool.name for tool in prompt.tools))
        settings = prompt.options.settings
        if settings is None and self._own_settings is not None:
            settings = self._own_settings
            options = prompt.options.with_settings(settings)
            prompt = structs.replace(prompt, options=options)
        headers, timeouts = self.headers, self._timeouts
        if settings is not None and settings.extra_headers:
            headers = {**settings.extra_headers, **headers}
        if settings is not None and settings.timeout is not None:
            connect = min(timeouts.connect, settings.timeout)
            timeouts = models.Timeouts(
                connect=connect, read=settings.timeout, total=settings.timeout
            )
        events = self._http.events(
            self.url, self.body(prompt), headers, credentials=self.credentials, timeouts=timeouts
        )
        ending: AnsweredError | None = None
        try:
            async for event in events:
                feed = parser.feed_document if event.event == DOCUMENT else parser.feed
                for delta in feed(event.data):
                    yield delta
                parser.check_limits(self._limits)
                if parser.is_over:
                    await _drain(events)
                    break
        except AnsweredError as error:
            ending = error
        finally:
            await events.aclose()
        for delta in parser.flush():
            yield delta
        if ending is None:
            yield await compute(parser.reply, characters=parser.calls.size)
        else:
            yield parser.reply_ended_by(ending)

    def effort(self, prompt: models.Prompt) -> str:
        """Return the highest effort that the model accepts up to the requested effort; empty if none is requested.

        If the model accepts only higher efforts, it is the lowest of these.
        """
        requested = prompt.options.reasoning_effort
        accepted = self.facts.efforts
        if not requested or not accepted:
            return ""
        order = EFFORTS[: EFFORTS.index(requested) + 1] if requested in EFFORTS else EFFORTS
        allowed = [effort for effort in accepted if effort in order]
        return allowed[-1] if allowed else accepted[0]

    def setting_fields(self, prompt: models.Prompt) -> Iterator[tuple[str, models.Json]]:
        """Yield the name and value of each setting in `setting_names` that is set; parallel calls only with tools."""
        settings = prompt.options.settings
        if settings is None:
            return
        for name in self.setting_names:
            value = getattr(settings, name)
            if value is not None and (prompt.tools or name != PARALLEL):
                yield name, value

    def body(self, prompt: models.Prompt) -> bytes:
        """Return the JSON body of a request. The fields of `extra_body` replace fields of the same names."""
        settings = prompt.options.settings
        extra: Mapping[str, models.Json] = {}
        if settings is not None and settings.extra_body:
            extra = settings.extra_body
        return join_fields({**dict(self.fields(prompt)), **extra}.items())

    async def close(self, *, failed: bool) -> None:
        """Close the connections, when the harness closes."""
        del failed
        await self._http.close()

    def tools_json(self, tools: tuple[models.ToolSpec, ...]) -> bytes:
        """Return the tools in the form of the API, encoded once for each set of tools."""
        if self._tools[0] is not tools:
            self._tools = (tools, b"[%s]" % join_parts(map(self.tool, tools)))
        return self._tools[1]


async def _drain(events: AsyncIterator[object]) -> None:
    """Receive the end of a stream for up to 0.2 seconds, to make its connection reusable."""
    with suppress(TimeoutError, ModelError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in events:
                pass
