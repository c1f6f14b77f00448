"""Calls that come in pieces, from servers that number, name and cut them as they like."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loopline.adapters.providers.failures import AnsweredError, Credentials
from loopline.errors import ModelReplyTooLarge, ModelStreamBroken
from loopline.models import (
    BrokenJson,
    Json,
    JsonObject,
    ReasoningReplay,
    Reply,
    ReplyLimits,
    StopReason,
    TextDelta,
    ToolCall,
    Usage,
    dumps,
    has_many_values,
    parse_object,
)


@dataclass(slots=True)
class _Coming:
    """A call on its way."""

    provider_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: JsonObject = field(default_factory=JsonObject)

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        written = self.written
        if has_many_values(written):
            return False
        try:
            return isinstance(json.loads(written), dict)
        except (ValueError, RecursionError):
            return False


class ToolCallParser:
    """The calls of one reply: pieces go in, and come out as calls once the reply is over."""

    def __init__(self) -> None:
        self.size: int = 0
        self._coming: list[_Coming] = []
        self._last: dict[int | None, _Coming] = {}

    def __len__(self) -> int:
        """How many have begun."""
        return len(self._coming)

    @property
    def are_whole(self) -> bool:
        """Whether each has a name, and arguments that are an object."""
        return all(one.name and (one.is_whole or not one.written.strip()) for one in self._coming)

    @property
    def by_provider_id(self) -> dict[str, JsonObject]:
        """What came with calls beside name and arguments, by the ids of those calls."""
        return {one.provider_id: one.extra for one in self._coming}

    def add(
        self,
        *,
        index: int | None,
        provider_id: str,
        name: str,
        arguments: Json,
        extra: JsonObject | None = None,
    ) -> None:
        """Take the next piece; `extra` is what its server wants back with the call.

        It belongs to the call of its index, unless it says that another one has begun: by another id,
        or by a name behind arguments that are whole.
        """
        call = self._of(index, provider_id, name)
        call.provider_id = call.provider_id or provider_id
        call.name = call.name or name
        call.extra.update(extra or {})
        if arguments is not None:
            written = arguments if isinstance(arguments, str) else dumps(arguments)
            call.pieces.append(written)
            self.size += len(written)

    def whole(self, *, cut: bool = False) -> tuple[tuple[ToolCall, ...], str]:
        """The calls, and what is wrong with the first one that cannot be read.

        In a reply that was `cut` off, a last call of which no argument came is not one yet.
        """
        calls, problem = list[ToolCall](), ""
        came = self._coming
        if cut and came and not came[-1].written.strip():
            came = came[:-1]
        for coming in came:
            arguments = parse_object(coming.written)
            if isinstance(arguments, BrokenJson) or not coming.name:
                fault = arguments.problem if isinstance(arguments, BrokenJson) else "it has no name"
                problem = (
                    problem or f"The call of {coming.name or 'a tool'} cannot be read: {fault}"
                )
            else:
                call = ToolCall(
                    name=coming.name, arguments=arguments, provider_id=coming.provider_id
                )
                calls.append(call)
        return tuple(calls), problem

    def _of(self, index: int | None, provider_id: str, name: str) -> _Coming:
        known = self._last.get(index)
        if known is None or _is_another(known, provider_id, name):
            known = self._last[index] = _Coming()
            self._coming.append(known)
        return known


def _is_another(known: _Coming, provider_id: str, name: str) -> bool:
    if provider_id and known.provider_id:
        return provider_id != known.provider_id
    return bool(name) and bool(known.name) and known.is_whole


class ReplyParser(ABC):
    """A reply on its way; `offered` are the names of the tools that it may call."""

    def __init__(self, offered: tuple[str, ...], account: Credentials) -> None:
        self.offered = offered
        self.account = account
        self.calls: ToolCallParser = ToolCallParser()
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
    def echo(self) -> ReasoningReplay | None:
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
