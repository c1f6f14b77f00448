"""Chat completions as they come, from OpenAI and from the many that speak as it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loopline.adapters.providers.failures import Credentials, failed_midway, piece
from loopline.adapters.providers.reply_parser import ReplyParser
from loopline.adapters.providers.request_bytes import (
    PartialObject,
    a_count,
    a_list,
    a_text,
    an_object,
    tool_name,
)
from loopline.errors import ModelOverloaded, ModelRequestError
from loopline.models import Json, JsonObject, ReasoningReplay, Reply, StopReason, TextDelta, Usage

WIRE = "openai"
DETAILS = "reasoning_details"
"""Where OpenRouter, and who follows it, has thinking that is sealed or signed."""
EXTRA = "extra_content"
"""Where Google has the signature of a call."""
_DONE = "[DONE]"


class ChatReplyParser(ReplyParser):
    """A reply on its way; `family` is whose sealed replies go back to the model."""

    def __init__(
        self, offered: tuple[str, ...], account: Credentials, thinking_field: str, family: str
    ) -> None:
        super().__init__(offered, account)
        self._thinking_field = thinking_field
        self._family = family
        self._details = ReasoningDetails()
        self._tags = ThinkTagParser()
        self._finish = ""
        self._refused = False

    def take(self, data: str) -> Iterator[TextDelta]:
        """What a chunk adds."""
        if data.strip() == _DONE:
            self._end()
            return
        yield from self._take_chunk(piece(data, self.account))

    def take_document(self, data: str) -> Iterator[TextDelta]:
        """What a whole completion says."""
        document = piece(data, self.account)
        if not a_list(document.get("choices")):
            raise ModelRequestError(f"{self.account.model}: what came is no chat completion")
        yield from self._take_chunk(document)
        self._end()

    def rest(self) -> Iterator[TextDelta]:
        """What was held back for half a tag."""
        yield from self._told(self._tags.close())

    @property
    def echo(self) -> ReasoningReplay | None:
        """The thinking, where the server wants it back: sealed, signed, or plain in a field of its own."""
        calls = [
            {"id": provider_id, **extra}
            for provider_id, extra in self.calls.by_provider_id.items()
            if provider_id
        ]
        if self._details or any(EXTRA in call for call in calls):
            details = self._details.parts
            fields: JsonObject = {DETAILS: details} if details else self._plain
            bound = any(an_object(detail).get("signature") for detail in details)
            return ReasoningReplay(wire=self._family, parts=(fields, *calls), bound=bound)
        return (
            ReasoningReplay(wire=WIRE, parts=(self._plain,), bound=False) if self._plain else None
        )

    @property
    def _plain(self) -> JsonObject:
        """The thinking in the field in which the server takes it back."""
        field = self._thinking_field
        return {field: self.thoughts} if field and self.thoughts else {}

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended; a server that only says that it did has ended what is whole."""
        if not self._finish:
            is_whole = self.is_over and (bool(self.calls) or bool(self._text))
            if not is_whole or not self.calls.are_whole:
                return None
        if self._refused or self._finish == "content_filter":
            return "refusal"
        if self._finish == "length":
            return "length"
        return "tool_use" if self.calls else "stop"

    def reply(self) -> Reply:
        """The reply, whole.

        Raises:
            ModelOverloaded: it ended for a fault of the server.
            ModelStreamBroken: nothing said that it was over.
        """
        if self._finish == "error":
            raise ModelOverloaded(f"{self.account.model}: the server gave the reply up")
        return super().reply()

    def _take_chunk(self, chunk: JsonObject) -> Iterator[TextDelta]:
        if chunk.get("error"):
            raise failed_midway(chunk, self.account)
        usage = an_object(chunk.get("usage"))
        if usage:
            self._use(_usage(usage))
        for choice in map(an_object, a_list(chunk.get("choices"))):
            self._finish = a_text(choice.get("finish_reason")) or self._finish
            delta = an_object(choice.get("delta")) or an_object(choice.get("message"))
            for one in map(an_object, a_list(delta.get("tool_calls"))):
                self._take_call(one)
            yield from self._take_text(delta)

    def _take_call(self, part_of: JsonObject) -> None:
        function, index = an_object(part_of.get("function")), part_of.get("index")
        name, extra = a_text(function.get("name")), part_of.get(EXTRA)
        self.calls.add(
            index=index if isinstance(index, int) else None,
            provider_id=a_text(part_of.get("id")),
            name=tool_name(name, self.offered) if name else "",
            arguments=function.get("arguments"),
            extra={EXTRA: extra} if extra else None,
        )

    def _take_text(self, delta: JsonObject) -> Iterator[TextDelta]:
        refusal = a_text(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        detailed = self._details.add(a_list(delta.get(DETAILS)))
        self._grow(len(str(delta.get(DETAILS) or "")))
        plain = a_text(delta.get("reasoning_content")) or a_text(delta.get("reasoning"))
        yield from self.heard(plain or detailed, is_thought=True)
        for text, is_thought in _texts(delta.get("content")):
            if is_thought:
                yield from self.heard(text, is_thought=True)
            else:
                yield from self._told(self._tags.feed(text))
        yield from self.heard(refusal)

    def _told(self, deltas: Iterable[TextDelta]) -> Iterator[TextDelta]:
        for delta in deltas:
            yield from self.heard(delta.text, is_thought=delta.channel == "thinking")


def _texts(content: Json) -> Iterator[tuple[str, bool]]:
    """The texts of a content, and which of them are thoughts; Mistral has a list of parts."""
    if isinstance(content, str):
        yield content, False
    for part in map(an_object, a_list(content)):
        match part.get("type"):
            case "text":
                yield a_text(part.get("text")), False
            case "thinking":
                thinking = part.get("thinking")
                yield a_text(thinking) or "".join(text for text, _ in _texts(thinking)), True
            case _:  # a reference, or what is newer than this
                pass


def _usage(said: JsonObject) -> Usage:
    details = an_object(said.get("prompt_tokens_details"))
    written = an_object(said.get("completion_tokens_details"))
    cached = details.get("cached_tokens") or said.get("prompt_cache_hit_tokens")
    return Usage(
        input_tokens=a_count(said.get("prompt_tokens")),
        output_tokens=a_count(said.get("completion_tokens")),
        cache_read_tokens=a_count(cached),
        cache_write_tokens=a_count(details.get("cache_write_tokens")),
        reasoning_tokens=a_count(written.get("reasoning_tokens")),
    )


_OPEN, _CLOSE = "<think>", "</think>"


class ThinkTagParser:
    """Tells thoughts from text: only a tag that begins the reply opens them, and they end once."""

    def __init__(self) -> None:
        self._held = ""
        self._state = "before"

    def feed(self, text: str) -> list[TextDelta]:
        """What the next piece adds to text and thoughts; what may be half a tag is held back."""
        self._held += text
        match self._state:
            case "before":
                return self._begin()
            case "thinking":
                return self._think()
            case "thought":
                return self._answer()
            case _:
                return self._take(len(self._held), "answer")

    def close(self) -> list[TextDelta]:
        """What was held back, when nothing more comes."""
        return self._take(len(self._held), "thinking" if self._state == "thinking" else "answer")

    def _begin(self) -> list[TextDelta]:
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._held, self._state = text[len(_OPEN) :], "thinking"
            return self._think()
        if _OPEN.startswith(text):
            return []
        self._state = "answer"
        return self._take(len(self._held), "answer")

    def _think(self) -> list[TextDelta]:
        end = self._held.find(_CLOSE)
        if end < 0:
            held = next(
                n for n in range(len(_CLOSE) - 1, -1, -1) if self._held.endswith(_CLOSE[:n])
            )
            return self._take(len(self._held) - held, "thinking")
        thought = self._take(end, "thinking")
        self._held, self._state = self._held[len(_CLOSE) :], "thought"
        return [*thought, *self._answer()]

    def _answer(self) -> list[TextDelta]:
        """The text behind thoughts, without the line ends before it."""
        self._held = self._held.lstrip("\n")
        self._state = "answer" if self._held else "thought"
        return self._take(len(self._held), "answer")

    def _take(self, length: int, channel: str) -> list[TextDelta]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return []
        return [TextDelta(text=text, channel="thinking" if channel == "thinking" else "answer")]


_TEXTS = ("text", "summary")


class ReasoningDetails:
    """The details of one reply: pieces go in, and come out as they would in a reply of one piece.

    Form: "Reasoning tokens", openrouter.ai/docs. Neighbours of one type and index are pieces of one detail,
    but for encrypted ones, each of which is whole.
    """

    def __init__(self) -> None:
        self._parts: list[PartialObject] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._parts)

    @property
    def parts(self) -> list[Json]:
        """The details, whole."""
        return [part.whole for part in self._parts]

    def add(self, pieces: list[Json]) -> str:
        """Take the pieces of a chunk, and return what of them can be read."""
        return "".join(self._add(an_object(piece)) for piece in pieces)

    def _add(self, piece: JsonObject) -> str:
        texts = {name: a_text(piece.get(name)) for name in _TEXTS}
        rest: JsonObject = {
            name: value for name, value in piece.items() if name not in texts and value is not None
        }
        last = self._parts[-1].fields if self._parts else {}
        if not self._parts or not _goes_on(last, piece):
            self._parts.append(PartialObject())
        part = self._parts[-1]
        part.fields.update(rest)
        for name, text in texts.items():
            if name in piece:
                part.add(name, text)
        return "".join(texts.values())


def _goes_on(last: JsonObject, piece: JsonObject) -> bool:
    kinds = (last.get("type"), last.get("index")), (piece.get("type"), piece.get("index"))
    return kinds[0] == kinds[1] and piece.get("type") != "reasoning.encrypted"
