"""What the wires have in common: a model at a server, and a reply on its way from it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from loopline.adapters.wires.calls import Calls
from loopline.adapters.wires.failing import Account, AnsweredError
from loopline.adapters.wires.http import DOCUMENT, Http
from loopline.errors import ModelError, ModelReplyTooLarge, ModelStreamBroken
from loopline.models import (
    Abilities,
    Echo,
    JsonForm,
    JsonObject,
    ModelFacts,
    Prompt,
    Reply,
    ReplyLimits,
    StopReason,
    TextDelta,
    Timeouts,
    ToolSpec,
    Usage,
    public_url,
)
from loopline.timeline.waiting import computed

DRAIN_SECONDS = 0.2
"""How long the end of a reply that is over is waited for."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How hard a model may be to think, from the least."""


class Coming(ABC):
    """A reply on its way; `offered` are the names of the tools that it may call."""

    def __init__(self, offered: tuple[str, ...], account: Account) -> None:
        self.offered = offered
        self.account = account
        self.calls: Calls = Calls()
        self.usage: Usage | None = None
        self.is_over: bool = False
        self.parts: list[JsonObject] = []
        self.size: int = 0
        self._text: list[str] = []
        self._thoughts: list[str] = []

    @abstractmethod
    def take(self, data: str) -> Iterable[TextDelta]:
        """What an event adds.

        Raises:
            ModelError: it cannot be read, or says that something is wrong.
        """

    @abstractmethod
    def take_document(self, data: str) -> Iterable[TextDelta]:
        """What a reply adds that came in one piece, though a stream was asked for.

        Raises:
            ModelError: it cannot be read, or says that something is wrong.
        """

    def _end(self) -> None:
        """Note that the reply is over."""
        self.is_over = True

    def _use(self, usage: Usage) -> None:
        """Note what the request used."""
        self.usage = usage

    def _grow(self, characters: int) -> None:
        """Count characters that no text and no call has."""
        self.size += characters

    @property
    @abstractmethod
    def stop_reason(self) -> StopReason | None:
        """Why it ended; None while nothing has said so."""

    @property
    def echo(self) -> Echo | None:
        """The reply as it is to go back, where its thinking does."""
        return None

    @property
    def thoughts(self) -> str:
        """All of its thinking that can be read."""
        return "".join(self._thoughts)

    def rest(self) -> Iterable[TextDelta]:
        """What was held back, when nothing more comes."""
        return ()

    def heard(self, text: str, *, is_thought: bool = False) -> Sequence[TextDelta]:
        """Keep a piece, and tell it."""
        if not text:
            return ()
        self.size += len(text)
        (self._thoughts if is_thought else self._text).append(text)
        return [TextDelta(text=text, channel="thinking" if is_thought else "answer")]

    def check(self, limits: ReplyLimits) -> None:
        """Stop a reply that holds more than is read of one.

        Raises:
            ModelReplyTooLarge: it does.
        """
        calls, size = len(self.calls), self.size + self.calls.size
        if calls > limits.calls or size > limits.bytes:
            most = f"{limits.bytes:,} bytes and {limits.calls:,} calls of a reply are read"
            raise ModelReplyTooLarge(
                f"{self.account.model}: at most {most}: allow more by loopline.model(reply_limits=…)"
            )

    def reply(self) -> Reply:
        """The reply, whole; half a call that the output limit cut off is no problem of its own.

        Raises:
            ModelStreamBroken: nothing said that it was over.
        """
        stop = self.stop_reason
        if stop is None:
            raise ModelStreamBroken(f"{self.account.model}: the reply ended without a reason")
        calls, problem = self.calls.whole(cut=stop == "length")
        return Reply(
            text="".join(self._text),
            calls=calls,
            thinking=self.thoughts,
            echo=self.echo,
            problem="" if stop == "length" else problem,
            stop_reason=stop,
            usage=self._used,
        )

    def ended_by(self, error: AnsweredError) -> Reply:
        """The reply that such an error ended; no call of it counts."""
        return Reply(
            text="".join(self._text),
            thinking=self.thoughts,
            problem=error.problem,
            stop_reason="stop" if error.problem else "refusal",
            usage=self._used,
        )

    @property
    def _used(self) -> Usage:
        """What was used, as far as the server has said so."""
        return Usage(unreported=1) if self.usage is None else self.usage


class WireModel(ABC):
    """A model at a server that streams its replies as server-sent events."""

    path: ClassVar[str]
    """Where requests go, behind the base URL."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        account: Account,
        abilities: Abilities,
        http: Http,
        facts: ModelFacts | None = None,
        timeouts: Timeouts | None = None,
        reply_limits: ReplyLimits | None = None,
    ) -> None:
        """`name` is what it is called here, `model` what its server calls it; `url` is the base."""
        self.name = name
        self.abilities = abilities
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
    def coming(self, offered: tuple[str, ...]) -> Coming:
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
            yield await computed(coming.reply, characters=coming.calls.size)
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


def schema_of(form: JsonForm) -> JsonObject:
    """A form as OpenAI's wires have it."""
    return {"name": form.name, "schema": form.schema, "strict": form.strict}


def bearing(account: Account) -> Mapping[str, str]:
    """The headers of a request whose key, if there is one, is a bearer's."""
    key = {"Authorization": f"Bearer {account.key}"} if account.key else {}
    return {"Content-Type": "application/json", "Accept": "text/event-stream", **key}
