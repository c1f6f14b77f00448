"""What the wires have in common: a model at a server, and a reply on its way from it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from loopline.adapters.providers.failures import AnsweredError, Credentials
from loopline.adapters.providers.http import DOCUMENT, HttpTransport
from loopline.adapters.providers.reply_parser import ReplyParser
from loopline.errors import ModelError
from loopline.models import (
    Capabilities,
    ModelFacts,
    Prompt,
    Reply,
    ReplyLimits,
    TextDelta,
    Timeouts,
    ToolSpec,
    public_url,
)
from loopline.timeline.tasks import compute

DRAIN_SECONDS = 0.2
"""How long the end of a reply that is over is waited for."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How hard a model may be to think, from the least."""


class HttpModel(ABC):
    """A model at a server that streams its replies as server-sent events."""

    path: ClassVar[str]
    """Where requests go, behind the base URL."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        account: Credentials,
        capabilities: Capabilities,
        http: HttpTransport,
        facts: ModelFacts | None = None,
        timeouts: Timeouts | None = None,
        reply_limits: ReplyLimits | None = None,
    ) -> None:
        """`name` is what it is called here, `model` what its server calls it; `url` is the base."""
        self.name = name
        self.capabilities = capabilities
        self.model = model
        self.account = account
        self.facts: ModelFacts = facts or ModelFacts()
        self.url: str = _behind(url, self.path)
        self._http = http
        self._timeouts = timeouts or Timeouts()
        self._limits = reply_limits or ReplyLimits()
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"[]")

    def __repr__(self) -> str:
        return f"<{self.name} at {public_url(self.url)}>"

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """What goes with each request; the key is among them."""

    @abstractmethod
    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""

    @abstractmethod
    def coming(self, offered: tuple[str, ...]) -> ReplyParser:
        """What reads the next reply."""

    @abstractmethod
    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Deltas while it writes, then the reply.

        Raises:
            ModelError: it could not be asked, or broke off.
        """
        coming = self.coming(tuple(tool.name for tool in prompt.tools))
        events = self._http.events(
            self.url,
            self.body(prompt),
            self.headers,
            account=self.account,
            timeouts=self._timeouts,
        )
        ended: AnsweredError | None = None
        try:
            async for event in events:
                take = coming.take_document if event.event == DOCUMENT else coming.take
                for delta in take(event.data):
                    yield delta
                coming.check(self._limits)
                if coming.is_over:
                    await _drained(events)
                    break
        except AnsweredError as error:
            ended = error
        finally:
            await events.aclose()
        for delta in coming.rest():
            yield delta
        if ended is None:
            yield await compute(coming.reply, characters=coming.calls.size)
        else:
            yield coming.ended_by(ended)

    def effort(self, prompt: Prompt) -> str:
        """How hard the model is to think, if it takes that; the nearest it takes, below what is asked."""
        wanted, taken = prompt.options.reasoning_effort, self.facts.efforts
        if not wanted or not taken:
            return ""
        order = EFFORTS[: EFFORTS.index(wanted) + 1] if wanted in EFFORTS else EFFORTS
        below = [effort for effort in taken if effort in order]
        return below[-1] if below else taken[0]

    async def close(self, *, failed: bool) -> None:
        """The harness closes."""
        del failed
        await self._http.close()

    def tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        """The tools as they travel, made once for each set."""
        if self._tools[0] is not tools:
            self._tools = (tools, b"[%s]" % b",".join(map(self.tool, tools)))
        return self._tools[1]


def _behind(url: str, path: str) -> str:
    """The URL with that path behind its own; a query stays at the end."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}{path}"))


async def _drained(events: AsyncIterator[object]) -> None:
    """Read what ends a reply that is over, so that its connection serves again; not for long."""
    with suppress(TimeoutError, ModelError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in events:
                pass
