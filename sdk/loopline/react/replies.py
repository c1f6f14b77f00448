"""Replies: decoding a complete reply, streaming its channels to subscribers, and checking an answer against its type."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct, structs

from loopline import models, prompt
from loopline import timeline as tl
from loopline.errors import ModelUnavailable, ToolError
from loopline.events import Delta, Event, EventSink
from loopline.models.output import JsonText
from loopline.tasks import compute

ANSWER_TOOL = "react.answer"
"""The tool whose arguments are the answer; it is never run."""

_BY_TOOL = f"""Give the final answer by calling {ANSWER_TOOL}, alone: its arguments are the answer, and the turn ends \
with it. What you write as text is not the answer."""
_IN_ACTION = """The final answer is one JSON value. It stands in "answer" as it is, not as a text, and must fit \
this JSON Schema:"""
_AS_TEXT = "The final answer is one JSON value and no other word. It must fit this JSON Schema:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAnswer:
    """The type of an answer, and how the model is asked for a value of it.

    `way` is "schema" if the provider enforces the schema, "tool" if the answer is the arguments of a tool, or "words" if
    the schema is part of the instructions.
    """

    type: models.OutputType[Any]
    way: models.AnswerWay
    protocol: models.ProtocolName

    @classmethod
    def for_decisions(
        cls,
        type: models.OutputType[Any],
        capabilities: models.Capabilities,
        protocol: models.ProtocolName,
    ) -> TypedAnswer:
        """Return the way to ask for an answer of the type in decisions, which may also call tools."""
        way: models.AnswerWay = "words"
        if protocol == prompt.NATIVE and capabilities.schema_beside_tools and type.form.strict:
            way = "schema"
        elif protocol == prompt.NATIVE and capabilities.tool_call:
            way = "tool"
        return cls(type=type, way=way, protocol=protocol)

    @classmethod
    def for_trace(
        cls, type: models.OutputType[Any], capabilities: models.Capabilities
    ) -> TypedAnswer:
        """Return the way to ask for an answer of the type in a request without tools."""
        way: models.AnswerWay = (
            "schema" if capabilities.json_schema and type.form.strict else "words"
        )
        return cls(type=type, way=way, protocol=prompt.NATIVE)

    @property
    def instructions(self) -> str:
        """The instructions about the answer for the system text; empty if the provider enforces the schema."""
        match self.way:
            case "schema":
                return ""
            case "tool":
                return _BY_TOOL
            case "words":
                sentence = _IN_ACTION if self.protocol == "json" else _AS_TEXT
                return f"{sentence}\n{models.dumps(self.type.schema.schema)}"

    @property
    def specs(self) -> tuple[models.ToolSpec, ...]:
        """The tool that the model calls to give the answer, if there is one."""
        if self.way != "tool":
            return ()
        description = f"The final answer: {self.type.schema.name}."
        schema = self.type.schema.as_object
        return (models.ToolSpec(name=ANSWER_TOOL, description=description, parameters=schema),)

    @property
    def form(self) -> models.JsonForm | None:
        """The schema that the provider enforces, or None."""
        return self.type.form if self.way == "schema" else None

    def splitter(self) -> JsonText:
        """Return a new parser that extracts the JSON value from an answer while it is written."""
        return JsonText(wrapped=self.type.schema.is_wrapped)

    def read(self, decided: prompt.DecodedReply) -> prompt.DecodedReply:
        """Return the decision with its answer as the JSON of a value; Malformed if the answer is not a value of the type."""
        match decided:
            case prompt.Calls():
                return self._read_calls(decided)
            case prompt.Answer():
                return self._read_answer(decided)
            case prompt.Malformed(raw=raw):
                return self._read_raw(decided, raw)

    def _read_calls(self, decided: prompt.Calls) -> prompt.DecodedReply:
        """Return the first answer that the calls give; if there are also other calls, return these without the answers.

        Calls without an answer are returned unchanged.
        """
        answers = [call for call in decided.calls if call.name == ANSWER_TOOL]
        if not answers:
            return decided
        other_calls = tuple(call for call in decided.calls if call.name != ANSWER_TOOL)
        values = [models.dumps(call.arguments) for call in answers]
        if other_calls:
            discarded = "\n".join(filter(None, (decided.discarded, *values)))
            return structs.replace(decided, calls=other_calls, discarded=discarded)
        discarded = "\n".join(filter(None, (decided.discarded, *values[1:])))
        return self._read_answer(
            prompt.Answer(decided.notes, values[0], decided.thinking, discarded)
        )

    def read_text(self, text: str) -> prompt.Answer | prompt.Malformed:
        """Return the answer with the JSON of the value in a text, or Malformed if there is none."""
        return self._read_answer(prompt.Answer("", text))

    def _read_answer(self, answer: prompt.Answer) -> prompt.Answer | prompt.Malformed:
        """Return the answer with the JSON of its value, or Malformed if its text does not contain a value."""
        try:
            text, is_all = self._find(answer.text)
        except models.SchemaMismatch as error:
            return prompt.Malformed(answer.text, self._problem(str(error)), is_text=False)
        discarded = answer.discarded or ("" if is_all else answer.text)
        return structs.replace(answer, text=text, discarded=discarded)

    def _find(self, text: str) -> tuple[str, bool]:
        """Return the JSON of the value in a text, and whether it is the whole text.

        In the protocol "json" a JSON string may also contain the JSON of the value.

        Raises:
            SchemaMismatch: the text does not contain a value of the type.
        """
        if self.protocol == "json" and text.startswith('"'):
            inner: object = json.loads(text)
            is_text = not self.type.reads(text)
            if isinstance(inner, str) and (is_text or self.type.reads(inner)):
                return self.type.find(inner)
        return self.type.find(text)

    def _read_raw(self, malformed: prompt.Malformed, raw: str) -> prompt.DecodedReply:
        """Return the whole malformed reply as an answer if it is a value of the type, otherwise as malformed."""
        if self.protocol != prompt.NATIVE and not ('"action"' in raw and self.protocol == "json"):
            with suppress(models.SchemaMismatch):
                text, is_all = self.type.find(raw)
                if is_all:
                    return prompt.Answer("", text)
        return structs.replace(malformed, is_text=False)

    def _problem(self, complaint: str) -> str:
        action = f"call {ANSWER_TOOL}" if self.way == "tool" else "give the whole answer"
        return (
            f"The answer is no {self.type.schema.name}: {complaint}. Correct it and {action} again."
        )


def answer_text(value: object, type: models.OutputType[Any] | None) -> str | None:
    """Return the text of the answer that a tool gives; None for None.

    Raises:
        ToolError: the answer is not a value of the type, or without a type not a string.
    """
    if value is None:
        return None
    if type is not None:
        try:
            return type.dump(value)
        except models.SchemaMismatch as error:
            raise ToolError(f"the answer it gave is no {type.schema.name}: {error}") from error
    if isinstance(value, str):
        return models.well_formed(value)
    raise ToolError(
        f"the answer it gave is no text but {value.__class__.__name__}, and the turn has no output type"
    )


def answer_record(answer: TypedAnswer | None) -> tuple[models.AnswerWay | Literal[""], str]:
    """Return the way and the sha256 of the schema for the record of a round; both empty without a type."""
    return ("", "") if answer is None else (answer.way, answer.type.sha256)


class ReplyFormat(Struct, frozen=True, kw_only=True):
    """The format in which a reply is decoded, while it is written and when it is complete.

    With `in_prose` the whole text is the answer. `steps` is the number of steps of the current plan. `before` is the text
    of earlier replies that were cut off, which this reply continues. With `is_draft` another request writes the answer.
    With `answer` the answer must be a value of its type, and subscribers receive the compact JSON of the value.
    """

    protocol: prompt.DecisionProtocol
    pool: tl.SourcePool
    in_prose: bool = False
    steps: int = 0
    before: str = ""
    is_draft: bool = False
    answer: TypedAnswer | None = None

    def read(self, reply: models.Reply) -> tuple[models.Reply, prompt.DecodedReply, str]:
        """Decode a reply: return it completed with its thinking, the decision, and the plan marks split off the answer.

        The decision's answer is checked against the answer type.
        """
        decoded = self._decode(reply)
        decided, marks = self._split_marks(decoded)
        if self.answer is not None:
            decided = self._check_type(self.answer, reply, decided)
            if not isinstance(
                decided, prompt.Calls
            ):  # an answer by a tool call is replayed as text
                reply = structs.replace(reply, echo=None if reply.calls else reply.echo)
        if not isinstance(decoded, prompt.Malformed):
            thinking = "\n".join(filter(None, (reply.thinking, decoded.thinking)))
            discarded = reply.text
            if not isinstance(decided, prompt.Malformed):
                discarded = decided.discarded
            elif decided.raw == reply.text:
                discarded = decoded.discarded
            discarded = models.well_formed(discarded)
            if (thinking, discarded) != (reply.thinking, reply.discarded):
                reply = structs.replace(reply, thinking=thinking, discarded=discarded)
        return reply, decided, marks

    def _decode(self, reply: models.Reply) -> prompt.DecodedReply:
        """Decode the reply, joined to the text in `before`; alone if it makes calls or the joined text is malformed.

        In prose the text of the reply alone is the answer. A reply that cannot be read is returned as `Malformed`.
        """
        if self.in_prose:
            return prompt.Answer("", models.well_formed(reply.text))
        if self.before and not reply.calls:
            joined = self.protocol.decode(structs.replace(reply, text=self.before + reply.text))
            if not isinstance(joined, prompt.Malformed):
                return joined
        return self.protocol.decode(reply)

    def _check_type(
        self, answer: TypedAnswer, reply: models.Reply, decided: prompt.DecodedReply
    ) -> prompt.DecodedReply:
        """Check the answer of the decision against the type; a reply may also repeat the text that was cut off."""
        typed = answer.read(decided)
        if not isinstance(typed, prompt.Malformed) or self.in_prose or reply.calls:
            return typed
        if self.before:
            alone = answer.read(self.protocol.decode(reply))
            return alone if isinstance(alone, prompt.Answer) else typed
        if self.protocol.name == prompt.NATIVE:
            return typed
        return structs.replace(typed, raw=models.well_formed(reply.text))

    def _split_marks(self, decided: prompt.DecodedReply) -> tuple[prompt.DecodedReply, str]:
        """Split the plan marks off the beginning of the answer: return the decision without them, and the marks.

        An answer that has only plan marks is malformed.
        """
        if not isinstance(decided, prompt.Answer) or not self.steps:
            return decided, ""
        marks, answer = tl.plan.split_marks(decided.text, self.steps)
        if answer.strip():
            return structs.replace(decided, text=answer), marks
        problem = "The reply held only plan marks: call a tool or answer."
        return prompt.Malformed(decided.text, problem), marks


def join_notes(notes: str, marks: str) -> str:
    """Join notes and plan marks by a line break; empty ones are left out."""
    return "\n".join(part for part in (notes, marks) if part)


def decision_text(decided: prompt.DecodedReply) -> str:
    """Return the text of a decision: the answer, the notes of calls, or the raw text of a malformed reply."""
    match decided:
        case prompt.Answer(text=text) | prompt.Calls(notes=text) | prompt.Malformed(raw=text):
            return text


EMPTY_REPLY = "(nothing)"
"""The stored text of an empty reply."""


def cut_off_text(turn: tl.Turn) -> str:
    """Return the joined texts of the newest replies in a row that were cut off by the output limit, oldest first.

    It is empty if the newest reply was not cut off, or was empty.
    """
    texts: list[str] = []
    for decision in reversed(turn.decisions):
        if decision.stop_reason != "length" or decision.raw in ("", EMPTY_REPLY):
            break
        texts.insert(0, decision.raw)
    return "".join(texts)


class ChannelTexts:
    """The texts that subscribers have received on each channel and that are not recorded yet.

    `written` has the pieces of the answer as the model wrote them, with unresolved citations.
    """

    def __init__(self, listen: EventSink) -> None:
        self._listen = listen
        self._texts: dict[str, list[str]] = {}
        self.written: list[str] = []
        self.attempt: int = 1

    def __call__(self, event: Event) -> None:
        """Pass an event on, and store the text that it adds to a channel."""
        if isinstance(event, Delta) and event.type == "delta":
            self._texts.setdefault(event.channel, []).append(event.text)
        self._listen(event)

    def __contains__(self, channel: str) -> bool:
        return channel in self._texts

    @property
    def texts(self) -> dict[str, str]:
        """The text of each channel."""
        return {channel: "".join(parts) for channel, parts in self._texts.items()}

    def retract(self) -> None:
        """Retract all texts that are not recorded: reset their channels for subscribers."""
        self.written = []
        self._align({})

    def begin(self, texts: Mapping[str, str], written: list[str], attempt: int) -> None:
        """Begin a request with the texts of an earlier reply that it continues, and align the channels with them."""
        self.attempt = attempt
        self.written = written
        self._align(texts)

    def settle(self, recorded: Mapping[str, str]) -> None:
        """Align each channel with the text that is about to be recorded, and forget the texts."""
        # A draft that was not streamed as a draft is not shown.
        shown = {name: text for name, text in recorded.items() if name != "draft" or name in self}
        self._align(shown)
        self.clear()

    def clear(self) -> None:
        """Forget the texts, because they are about to be recorded."""
        self._texts.clear()
        self.written = []

    def settle_thinking(self, thinking: str) -> None:
        """Align the thinking channel with the complete thinking of a reply that was cut off, and forget it.

        The other texts are kept, because the next reply continues them.
        """
        self._align({**self.texts, "thinking": thinking})
        self._texts.pop("thinking")

    def _align(self, texts: Mapping[str, str]) -> None:
        """Send subscribers the difference to these texts: an addition, or a reset and the whole text."""
        if not texts and not self._texts:
            return
        shown = self.texts
        self._texts = {channel: [text] for channel, text in texts.items() if text}
        # A text that continues the shown one is sent as an addition, so that clients need not redraw it.
        for channel in dict.fromkeys([*shown, *texts]):
            text = texts.get(channel, "")
            before = shown.get(channel, "")
            if not text.startswith(before):
                self._listen(Delta(type="reset", channel=channel, attempt=self.attempt))
                before = ""
            if addition := text[len(before) :]:
                self._listen(
                    Delta(type="delta", channel=channel, text=addition, attempt=self.attempt)
                )


ChannelBody = tl.Thinking | tl.Notes | tl.Completion | tl.Draft
"""The bodies that are streamed before they are recorded, each type on its own channel."""
_CHANNELS = tl.BodyUnion[ChannelBody](ChannelBody)


def resolve_texts(bodies: Iterable[tl.Body], pool: tl.SourcePool) -> dict[str, str]:
    """Return the texts of bodies by channel, with resolved citations in the answer."""
    texts: dict[str, str] = {}
    for body in bodies:
        if not _CHANNELS.has(body):
            continue
        match body:
            case tl.Thinking(text=text):
                texts["thinking"] = texts.get("thinking", "") + text
            case tl.Notes(text=text):
                texts["notes"] = text
            case tl.Completion(text=text):
                marks = tl.citations.Marks(pool.sources)
                texts["answer"] = tl.citations.resolve(text, marks, newest=pool.newest)
            case tl.Draft(text=text):
                texts["draft"] = text.strip()
    return texts


class _StreamFilters(Struct, frozen=True, kw_only=True):
    """The filters for the text of one attempt, in the order in which they are applied."""

    splitter: prompt.Splitter
    marks: MarkFilter
    value: JsonText | None
    citations: tl.citations.Resolver


class ReplyStream:
    """Streams a reply to subscribers while it is written: open each attempt, and close the last one.

    A citation in the answer becomes `[1]`, `[2]`, …, in the order of first mention as in `TurnResult.sources`, or `[?]` if
    its source is unknown. The end of a text that may be part of a citation is held back.
    """

    def __init__(self, texts: ChannelTexts, reading: ReplyFormat) -> None:
        self._texts = texts
        self._reading = reading
        self._attempt = 1
        self._filters: _StreamFilters | None = None
        self._target = texts
        self._written: list[str] = []

    def __call__(self, piece: models.TextDelta) -> None:
        """Send the next piece to subscribers, split into channels."""
        filters = self._filters = self._filters or self._new_filters()
        if piece.channel == "thinking":
            self._emit(filters, "thinking", piece.text)
        else:
            self._feed(filters, filters.splitter.feed(piece.text))

    async def open(self, attempt: int) -> None:
        """Begin an attempt: send subscribers the text in `before`, and then the text that arrives."""
        self._attempt = attempt
        self._filters = None
        self._written = []
        texts: Mapping[str, str] = {}
        if self._reading.before:
            await compute(self._read_before, characters=len(self._reading.before))
            texts = self._target.texts
        self._texts.begin(texts, self._written, attempt)
        self._target = self._texts

    def _read_before(self) -> None:
        """Filter the text in `before` without sending it; the filters then continue from its end."""
        self._target = ChannelTexts(lambda _: None)
        filters = self._filters = self._new_filters()
        self._feed(filters, filters.splitter.feed(self._reading.before))

    async def retry(self, attempt: int, error: ModelUnavailable, seconds: float) -> None:
        """Retract the texts of a failed attempt, report the retry to subscribers, and open the next attempt."""
        self._texts.retract()
        text = f"{error}; asked again in {seconds:.1f} s"
        self._texts(Delta(type="progress", channel="model", text=text, attempt=attempt))
        await self.open(attempt + 1)

    def close(self) -> None:
        """Send the text that is held back, because the reply is complete."""
        filters = self._filters
        if filters is None:  # the reply has no text
            return
        self._feed(filters, filters.splitter.close())
        self._emit_all(filters, filters.marks.close())
        self._send("answer", filters.citations.close())

    def _new_filters(self) -> _StreamFilters:
        """Return filters for a new attempt: channels, plan marks, the JSON value of a typed answer, citations."""
        reading = self._reading
        marks = tl.citations.Marks(reading.pool.sources)
        return _StreamFilters(
            splitter=reading.protocol.splitter(),
            marks=MarkFilter(reading.steps),
            value=reading.answer.splitter() if reading.answer else None,
            citations=tl.citations.Resolver(marks, newest=reading.pool.newest),
        )

    def _feed(self, filters: _StreamFilters, pieces: Iterable[prompt.Piece]) -> None:
        for channel, text in pieces:
            if channel == "answer":
                self._emit_all(filters, filters.marks.feed(text))
            else:
                self._emit(filters, channel, text)

    def _emit_all(self, filters: _StreamFilters, pieces: Iterable[prompt.Piece]) -> None:
        """Send pieces of the answer; plan marks split off its beginning become a line of the notes."""
        for channel, text in pieces:
            joint = "\n" if channel == "notes" and "notes" in self._target else ""
            self._emit(filters, channel, joint + text)

    def _emit(self, filters: _StreamFilters, channel: prompt.Channel, text: str) -> None:
        """Send a piece on its channel; a typed answer is reduced to the JSON of its value.

        With `is_draft` an answer goes to the channel `draft`. Otherwise its citations are resolved, and the
        unresolved text is stored in `_written`.
        """
        if channel == "answer" and filters.value is not None:
            text = filters.value.feed(text)
        name = "draft" if channel == "answer" and self._reading.is_draft else channel
        if name == "answer":
            self._written.append(text)
            text = filters.citations.feed(text)
        self._send(name, text)

    def _send(self, channel: str, text: str) -> None:
        if text:
            self._target(Delta(type="delta", channel=channel, text=text, attempt=self._attempt))


class MarkFilter:
    """Splits lines with plan marks off the beginning of an answer while it is written.

    `steps` is the number of the plan's steps; if it is 0, no text is held back.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._held_text: str | None = "" if steps else None

    def feed(self, text: str) -> list[prompt.Piece]:
        """Return the pieces of notes and answer that are certain after `text`; the rest is held back.

        At most `LONGEST_MARKS` characters are held back. After the first pieces every text is a piece of the answer.
        """
        if self._held_text is None:
            return [("answer", text)]
        self._held_text += text
        remaining_text = tl.plan.split_marks(self._held_text, self._steps)[1]
        if (
            len(self._held_text) < LONGEST_MARKS
            and "\n" not in remaining_text
            and tl.plan.may_lead(remaining_text)
        ):
            return []
        return self.close()

    def close(self) -> list[prompt.Piece]:
        """Return the pieces of the text that is held back."""
        held_text = self._held_text
        self._held_text = None
        if not held_text:
            return []
        marks, remaining_text = tl.plan.split_marks(held_text, self._steps)
        pieces: list[prompt.Piece] = [("notes", marks), ("answer", remaining_text)]
        return [piece for piece in pieces if piece[1]]


LONGEST_MARKS = 2_000
"""The most characters that are held back while they may be plan marks."""
