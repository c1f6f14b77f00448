"""A model at a provider's server, which streams its replies over HTTP."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import ClassVar, get_args
from urllib.parse import urlsplit, urlunsplit

from loopline.errors import ModelError
from loopline.models import (
    Capabilities,
    Effort,
    ModelFacts,
    Prompt,
    Reply,
    ReplyLimits,
    TextDelta,
    Timeouts,
    ToolSpec,
    public_url,
)
from loopline.providers.failures import AnsweredError, Credentials
from loopline.providers.http import DOCUMENT, HttpTransport
from loopline.providers.reply_parser import ReplyParser
from loopline.tasks import compute

DRAIN_SECONDS = 0.2
"""How long to wait for the end of a stream whose reply is over."""
EFFORTS: tuple[str, ...] = get_args(Effort)
"""How hard a model may be asked to think, from the least."""


class HttpModel(ABC):
    """A model at a server that streams its replies as server-sent events."""

    path: ClassVar[str]
    """Where requests go, relative to the base URL."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        credentials: Credentials,
        capabilities: Capabilities,
        http: HttpTransport,
        facts: ModelFacts | None = None,
        timeouts: Timeouts | None = None,
        reply_limits: ReplyLimits | None = None,
    ) -> None:
        """`name` is the model string, `model` the server's name for it, `url` the base URL."""
        self.name = name
        self.capabilities = capabilities
        self.model = model
        self.credentials = credentials
        self.facts: ModelFacts = facts or ModelFacts()
        base = urlsplit(url)
        self.url: str = urlunsplit(base._replace(path=f"{base.path.rstrip('/')}{self.path}"))
        self._http = http
        self._timeouts = timeouts or Timeouts()
        self._limits = reply_limits or ReplyLimits()
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"[]")

    def __repr__(self) -> str:
        return f"<{self.name} at {public_url(self.url)}>"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request; the key, if there is one, is a bearer token."""
        key = self.credentials.key
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        return {"Content-Type": "application/json", "Accept": "text/event-stream", **bearer}

    @abstractmethod
    def body(self, prompt: Prompt) -> bytes:
        """Return the body of a request."""

    @abstractmethod
    def new_parser(self, offered: tuple[str, ...]) -> ReplyParser:
        """Return a parser for the next reply."""

    @abstractmethod
    def tool_json(self, spec: ToolSpec) -> bytes:
        """Return a tool as the API takes it."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Yield text while the model writes, then the reply.

        Raises:
            ModelError: the model cannot be reached, or the reply breaks off.
        """
        parser = self.new_parser(tuple(tool.name for tool in prompt.tools))
        events = self._http.events(
            self.url,
            self.body(prompt),
            self.headers,
            credentials=self.credentials,
            timeouts=self._timeouts,
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

    def effort(self, prompt: Prompt) -> str:
        """Return the hardest effort the model accepts up to the requested one, empty if it accepts none."""
        requested, accepted = prompt.options.reasoning_effort, self.facts.efforts
        if not requested or not accepted:
            return ""
        order = EFFORTS[: EFFORTS.index(requested) + 1] if requested in EFFORTS else EFFORTS
        allowed = [effort for effort in accepted if effort in order]
        return allowed[-1] if allowed else accepted[0]

    async def close(self, *, failed: bool) -> None:
        """Close the connections, when the harness closes."""
        del failed
        await self._http.close()

    def tools_json(self, tools: tuple[ToolSpec, ...]) -> bytes:
        """Return the tools as the API takes them, encoded once for each set."""
        if self._tools[0] is not tools:
            self._tools = (tools, b"[%s]" % b",".join(map(self.tool_json, tools)))
        return self._tools[1]


async def _drain(events: AsyncIterator[object]) -> None:
    """Read the end of a stream for a moment, so that its connection can be used again."""
    with suppress(TimeoutError, ModelError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in events:
                pass
