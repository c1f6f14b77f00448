"""Replies: how a whole one is read, how one is streamed, and how an answer is held to its type."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct, structs

from loopline.errors import ModelUnavailable, ToolError
from loopline.events import Delta, Event, EventSink
from loopline.models import (
    AnswerWay,
    Capabilities,
    JsonForm,
    OutputType,
    ProtocolName,
    Reply,
    SchemaMismatch,
    TextDelta,
    ToolCall,
    ToolSpec,
    dumps,
    well_formed,
)
from loopline.models.output import JsonText
from loopline.prompt import (
    NATIVE,
    Answer,
    Calls,
    Channel,
    DecisionProtocol,
    DecodedReply,
    Malformed,
    Piece,
    Splitter,
)
from loopline.tasks import compute
from loopline.timeline import (
    Block,
    Body,
    BodyUnion,
    Completion,
    Draft,
    Notes,
    SourcePool,
    Thinking,
    Turn,
    citations,
    plan,
)

ANSWER_TOOL = "react.answer"
"""The tool whose arguments are the answer; it is never run."""

_BY_TOOL = f"""Give the final answer by calling {ANSWER_TOOL}, alone: its arguments are the answer, and the turn ends \
with it. What you write as text is not the answer."""
_IN_ACTION = """The final answer is one JSON value. It stands in "answer" as it is, not as a text, and must fit \
this JSON Schema:"""
_AS_TEXT = "The final answer is one JSON value and no other word. It must fit this JSON Schema:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAnswer:
    """An answer that is to be a value of a type, the way in which the model is held to that, and its protocol."""

    type: OutputType[Any]
    way: AnswerWay
    protocol: ProtocolName

    @classmethod
    def of_decisions(
        cls, type: OutputType[Any], capabilities: Capabilities, protocol: ProtocolName
    ) -> TypedAnswer:
        """Return how a decision is asked for an answer of the type; the decision may also call tools."""
        way: AnswerWay = "words"
        if protocol == NATIVE and capabilities.schema_beside_tools and type.form.strict:
            way = "schema"
        elif protocol == NATIVE and capabilities.tool_call:
            way = "tool"
        return cls(type=type, way=way, protocol=protocol)

    @classmethod
    def of_trace(cls, type: OutputType[Any], capabilities: Capabilities) -> TypedAnswer:
        """Return how an answer of the type is asked for without tools."""
        way: AnswerWay = "schema" if capabilities.json_schema and type.form.strict else "words"
        return cls(type=type, way=way, protocol=NATIVE)

    @property
    def instructions(self) -> str:
        """Return what the system text says about the answer."""
        match self.way:
            case "schema":
                return ""
            case "tool":
                return _BY_TOOL
            case "words":
                sentence = _IN_ACTION if self.protocol == "json" else _AS_TEXT
                return f"{sentence}\n{dumps(self.type.schema.schema)}"

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tool by which the answer is given, if there is one."""
        if self.way != "tool":
            return ()
        described = f"The final answer: {self.type.schema.name}."
        schema = self.type.schema.as_object
        return (ToolSpec(name=ANSWER_TOOL, description=described, parameters=schema),)

    @property
    def form(self) -> JsonForm | None:
        """Return the schema that the provider holds the text to, if it does."""
        return self.type.form if self.way == "schema" else None

    def splitter(self) -> JsonText:
        """Return what reads the value off an answer that is being written."""
        return JsonText(wrapped=self.type.schema.is_wrapped)

    def read(self, decided: DecodedReply) -> DecodedReply:
        """Return the decision with its answer as the JSON of a value, or why that is none."""
        match decided:
            case Calls():
                return self._read_calls(decided)
            case Answer():
                return self._read_answer(decided)
            case Malformed(raw=raw):
                return self._read_raw(decided, raw)

    def _read_calls(self, decided: Calls) -> DecodedReply:
        """Return the calls, or the answer that was given as one: beside others it comes too early."""
        answers = [call for call in decided.calls if _answers(call)]
        if not answers:
            return decided
        other_calls = tuple(call for call in decided.calls if not _answers(call))
        values = [dumps(call.arguments) for call in answers]
        if other_calls:
            discarded = "\n".join(filter(None, (decided.discarded, *values)))
            return structs.replace(decided, calls=other_calls, discarded=discarded)
        discarded = "\n".join(filter(None, (decided.discarded, *values[1:])))
        return self._read_answer(Answer(decided.notes, values[0], decided.thinking, discarded))

    def read_text(self, text: str) -> Answer | Malformed:
        """Return the value that a text gives as its JSON, or why that is none."""
        return self._read_answer(Answer("", text))

    def _read_answer(self, answer: Answer) -> Answer | Malformed:
        try:
            text, is_all = self._find(answer.text)
        except SchemaMismatch as error:
            return Malformed(answer.text, self._problem(str(error)), is_text=False)
        discarded = answer.discarded or ("" if is_all else answer.text)
        return structs.replace(answer, text=text, discarded=discarded)

    def _find(self, text: str) -> tuple[str, bool]:
        """Find the value in a text; where values are written as JSON, a string may also be the JSON of one."""
        if self.protocol == "json" and text.startswith('"'):
            inner: object = json.loads(text)
            is_text = not self.type.reads(text)
            if isinstance(inner, str) and (is_text or self.type.reads(inner)):
                return self.type.find(inner)
        return self.type.find(text)

    def _read_raw(self, malformed: Malformed, raw: str) -> DecodedReply:
        """Return the value that a text is, where the protocol has found nothing in it."""
        if self.protocol != NATIVE and not ('"action"' in raw and self.protocol == "json"):
            with suppress(SchemaMismatch):
                text, is_all = self.type.find(raw)
                if is_all:
                    return Answer("", text)
        return structs.replace(malformed, is_text=False)

    def _problem(self, complaint: str) -> str:
        action = f"call {ANSWER_TOOL}" if self.way == "tool" else "give the whole answer"
        return (
            f"The answer is no {self.type.schema.name}: {complaint}. Correct it and {action} again."
        )


def _answers(call: ToolCall) -> bool:
    return call.name == ANSWER_TOOL


def answer_text(value: object, type: OutputType[Any] | None) -> str | None:
    """Return the text of the answer that a tool gives, None for None.

    Raises:
        ToolError: it is no value of the type, or without one no text.
    """
    if value is None:
        return None
    if type is not None:
        try:
            return type.dump(value)
        except SchemaMismatch as error:
            raise ToolError(f"the answer it gave is no {type.schema.name}: {error}") from error
    if isinstance(value, str):
        return well_formed(value)
    raise ToolError(
        f"the answer it gave is no text but {value.__class__.__name__}, and the turn has no output type"
    )


def answer_record(answer: TypedAnswer | None) -> tuple[AnswerWay | Literal[""], str]:
    """Return the way and the digest of the schema, as a round keeps them."""
    return ("", "") if answer is None else (answer.way, answer.type.sha256)


class ReplyFormat(Struct, frozen=True, kw_only=True):
    """How a reply is read, while it is written and once it is whole.

    The text of one `in_prose` is the answer. `steps` is how many steps the current plan has. `before` is the beginning
    of the reply, where an earlier one was cut off. The text `is_draft` where another request writes the answer. An
    `answer` is held to its type, and its compact JSON is heard.
    """

    protocol: DecisionProtocol
    pool: SourcePool
    in_prose: bool = False
    steps: int = 0
    before: str = ""
    is_draft: bool = False
    answer: TypedAnswer | None = None

    def read(self, reply: Reply) -> tuple[Reply, DecodedReply, str]:
        """Return the whole reply with its thinking, what it decides, and the marks that led its answer."""
        read = self._decode(reply)
        decided, marks = self._split_marks(read)
        if self.answer is not None:
            decided = self._hold_to_type(self.answer, reply, decided)
            if not isinstance(decided, Calls):  # a call that is the answer goes back as its text
                reply = structs.replace(reply, echo=None if reply.calls else reply.echo)
        if not isinstance(read, Malformed):
            thinking = "\n".join(filter(None, (reply.thinking, read.thinking)))
            discarded = reply.text
            if not isinstance(decided, Malformed):
                discarded = decided.discarded
            elif decided.raw == reply.text:
                discarded = read.discarded
            discarded = well_formed(discarded)
            if (thinking, discarded) != (reply.thinking, reply.discarded):
                reply = structs.replace(reply, thinking=thinking, discarded=discarded)
        return reply, decided, marks

    def _decode(self, reply: Reply) -> DecodedReply:
        """Return what is decided; what was written before a reply was cut off is the beginning of it."""
        if self.in_prose:
            return Answer("", well_formed(reply.text))
        if self.before and not reply.calls:
            joined = self.protocol.decode(structs.replace(reply, text=self.before + reply.text))
            if not isinstance(joined, Malformed):
                return joined
        return self.protocol.decode(reply)

    def _hold_to_type(
        self, answer: TypedAnswer, reply: Reply, decided: DecodedReply
    ) -> DecodedReply:
        """Return the decision with its answer held to the type; a reply may begin anew what was cut off."""
        typed = answer.read(decided)
        if not isinstance(typed, Malformed) or self.in_prose or reply.calls:
            return typed
        if self.before:
            alone = answer.read(self.protocol.decode(reply))
            return alone if isinstance(alone, Answer) else typed
        return (
            typed
            if self.protocol.name == NATIVE
            else structs.replace(typed, raw=well_formed(reply.text))
        )

    def _split_marks(self, decided: DecodedReply) -> tuple[DecodedReply, str]:
        """Return the decision without the marks of the plan's steps that lead its answer, and these."""
        if not isinstance(decided, Answer) or not self.steps:
            return decided, ""
        marks, answer = plan.split_marks(decided.text, self.steps)
        if answer.strip():
            return structs.replace(decided, text=answer), marks
        # It only acknowledged: what it is to say is still to come.
        problem = "The reply held only plan marks: call a tool or answer."
        return Malformed(decided.text, problem), marks


def join_notes(notes: str, marks: str) -> str:
    """Join notes and the marks that led an answer."""
    return "\n".join(part for part in (notes, marks) if part)


def decision_text(decided: DecodedReply) -> str:
    """Return the text of a decision of any kind."""
    match decided:
        case Answer(text=text) | Calls(notes=text) | Malformed(raw=text):
            return text


EMPTY_REPLY = "(nothing)"
"""The stored text of an empty reply."""


def cut_off_text(turn: Turn) -> str:
    """Return what was written of a reply that was cut off, so far."""
    texts: list[str] = []
    for decision in reversed(turn.decisions):
        if decision.stop_reason != "length" or decision.raw in ("", EMPTY_REPLY):
            break
        texts.insert(0, decision.raw)
    return "".join(texts)


class CitationFilter:
    """Resolves the citations of the answer channel before a subscriber receives its text.

    A citation becomes `[1]`, `[2]`, …, by the order of first mention as in `TurnResult.sources`; `[?]` is a number
    without a source. Other channels pass unchanged. Use one filter for each reply: `close` returns the text that is
    held back.
    """

    def __init__(self, listen: EventSink, pool: SourcePool) -> None:
        self._listen = listen
        self._pool = pool
        self._attempt = 1
        self._resolver: citations.Resolver | None = None

    def __call__(self, event: Event) -> None:
        """Pass an event on, as far as its citations can be resolved by now."""
        match event:
            case Delta(type="delta", channel="answer", text=text, attempt=attempt):
                self._attempt = attempt
                self._resolver = self._resolver or self._new_resolver()
                self._emit(self._resolver.feed(text))
            case Delta(type="reset", channel="answer"):
                self._resolver = None
                self._listen(event)
            case Delta() | Block():
                self._listen(event)

    def close(self) -> None:
        """Emit what is held back, because the reply is complete."""
        if self._resolver is not None:
            self._emit(self._resolver.close())
            self._resolver = None

    def _new_resolver(self) -> citations.Resolver:
        marks = citations.Marks(self._pool.sources)
        return citations.Resolver(marks, newest=self._pool.newest)

    def _emit(self, text: str) -> None:
        if text:
            self._listen(Delta(type="delta", channel="answer", text=text, attempt=self._attempt))


class ChannelTexts:
    """The texts that subscribers have of each channel, since the last block made from one of them.

    `written` is the answer in pieces as the model wrote it, with its citations unresolved.
    """

    def __init__(self, listen: EventSink) -> None:
        self._listen = listen
        self._texts: dict[str, list[str]] = {}
        self.written: list[str] = []
        self.attempt: int = 1

    def __call__(self, event: Event) -> None:
        """Pass an event on, and keep the text it adds to a channel."""
        if isinstance(event, Delta) and event.type == "delta":
            self._texts.setdefault(event.channel, []).append(event.text)
        self._listen(event)

    def __contains__(self, channel: str) -> bool:
        return channel in self._texts

    @property
    def texts(self) -> dict[str, str]:
        """Return the text of each channel."""
        return {channel: "".join(parts) for channel, parts in self._texts.items()}

    def retract(self) -> None:
        """Take back every text that is in no block."""
        self.written = []
        self._align({})

    def begin(self, texts: Mapping[str, str], written: list[str], attempt: int) -> None:
        """Have a request begin with these texts, which an earlier reply began."""
        self.attempt, self.written = attempt, written
        self._align(texts)

    def settle(self, recorded: Mapping[str, str]) -> None:
        """Have each channel hold the text that is about to be recorded of it, and nothing else."""
        # Subscribers do not have an answer that was not streamed as a draft.
        shown = {name: text for name, text in recorded.items() if name != "draft" or name in self}
        self._align(shown)
        self.clear()

    def clear(self) -> None:
        """Drop the texts: what is about to be recorded takes their place."""
        self._texts.clear()
        self.written = []

    def settle_thinking(self, thinking: str) -> None:
        """Settle the thinking of a reply that was cut off: it is whole, and the next reply goes on with the rest."""
        self._align({**self.texts, "thinking": thinking})
        self._texts.pop("thinking")

    def _align(self, texts: Mapping[str, str]) -> None:
        if not texts and not self._texts:
            return
        shown = self.texts
        self._texts = {channel: [text] for channel, text in texts.items() if text}
        for channel in dict.fromkeys([*shown, *texts]):
            text, before = texts.get(channel, ""), shown.get(channel, "")
            if not text.startswith(before):
                self._listen(Delta(type="reset", channel=channel, attempt=self.attempt))
                before = ""
            if addition := text[len(before) :]:
                self._listen(
                    Delta(type="delta", channel=channel, text=addition, attempt=self.attempt)
                )


ChannelBody = Thinking | Notes | Completion | Draft
"""What is streamed before it is recorded, each in a channel of its own."""
_CHANNELS = BodyUnion[ChannelBody](ChannelBody)


def recorded_texts(bodies: Iterable[Body], pool: SourcePool) -> dict[str, str]:
    """Return the texts of bodies by channel, the citations of the answer resolved."""
    texts: dict[str, str] = {}
    for body in bodies:
        if not _CHANNELS.has(body):
            continue
        match body:
            case Thinking(text=text):
                texts["thinking"] = texts.get("thinking", "") + text
            case Notes(text=text):
                texts["notes"] = text
            case Completion(text=text):
                marks = citations.Marks(pool.sources)
                texts["answer"] = citations.resolve(text, marks, newest=pool.newest)
            case Draft(text=text):
                texts["draft"] = text.strip()
    return texts


class _StreamFilters(Struct, frozen=True, kw_only=True):
    """What the text of one attempt passes, in order, made when its first piece arrives."""

    splitter: Splitter
    marks: MarkFilter
    value: JsonText | None
    citations: CitationFilter


class ReplyStream:
    """A reply as subscribers receive it while it is written; each attempt is opened, and the last one closed."""

    def __init__(self, texts: ChannelTexts, reading: ReplyFormat) -> None:
        self._texts = texts
        self._reading = reading
        self._attempt = 1
        self._filters: _StreamFilters | None = None
        self._target = texts
        self._written: list[str] = []

    def __call__(self, piece: TextDelta) -> None:
        """Hear the next piece."""
        filters = self._filters = self._filters or self._new_filters()
        if piece.channel == "thinking":
            self._emit(filters, "thinking", piece.text)
        else:
            self._feed(filters, filters.splitter.feed(piece.text))

    async def open(self, attempt: int) -> None:
        """Send subscribers the text from before the reply, and from now on the text that arrives."""
        self._attempt, self._filters, self._written = attempt, None, []
        texts: Mapping[str, str] = {}
        if self._reading.before:
            await compute(self._read_before, characters=len(self._reading.before))
            texts = self._target.texts
        self._texts.begin(texts, self._written, attempt)
        self._target = self._texts

    def _read_before(self) -> None:
        """Read what was written before the reply; subscribers receive nothing of it yet."""
        self._target = ChannelTexts(lambda _: None)
        filters = self._filters = self._new_filters()
        self._feed(filters, filters.splitter.feed(self._reading.before))

    async def retry(self, attempt: int, error: ModelUnavailable, seconds: float) -> None:
        """Retract the texts of an attempt that is given up, and open the next."""
        self._texts.retract()
        text = f"{error}; asked again in {seconds:.1f} s"
        self._texts(Delta(type="progress", channel="model", text=text, attempt=attempt))
        await self.open(attempt + 1)

    def close(self) -> None:
        """Emit what is held back, because the reply is complete."""
        filters = self._filters
        if filters is None:  # it came without any text
            return
        self._feed(filters, filters.splitter.close())
        self._emit_all(filters, filters.marks.close())
        filters.citations.close()

    def _new_filters(self) -> _StreamFilters:
        reading = self._reading
        return _StreamFilters(
            splitter=reading.protocol.splitter(),
            marks=MarkFilter(reading.steps),
            value=reading.answer.splitter() if reading.answer else None,
            citations=CitationFilter(lambda event: self._target(event), reading.pool),
        )

    def _feed(self, filters: _StreamFilters, pieces: Iterable[Piece]) -> None:
        for channel, text in pieces:
            if channel == "answer":
                self._emit_all(filters, filters.marks.feed(text))
            else:
                self._emit(filters, channel, text)

    def _emit_all(self, filters: _StreamFilters, pieces: Iterable[Piece]) -> None:
        """Tell what the beginning of an answer comes to; its marks are a line of the notes."""
        for channel, text in pieces:
            joint = "\n" if channel == "notes" and "notes" in self._target else ""
            self._emit(filters, channel, joint + text)

    def _emit(self, filters: _StreamFilters, channel: Channel, text: str) -> None:
        if channel == "answer" and filters.value is not None:
            text = filters.value.feed(text)
        name = "draft" if channel == "answer" and self._reading.is_draft else channel
        if name == "answer":
            self._written.append(text)
        if text:
            filters.citations(Delta(type="delta", channel=name, text=text, attempt=self._attempt))


class MarkFilter:
    """Takes off an answer that is being written the lines that acknowledge steps of the plan.

    `steps` is how many the plan has; without any nothing is held back.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._held_text: str | None = "" if steps else None

    def feed(self, text: str) -> list[Piece]:
        """Return the next text of notes and answer."""
        if self._held_text is None:
            return [("answer", text)]
        self._held_text += text
        remaining_text = plan.split_marks(self._held_text, self._steps)[1]
        if (
            len(self._held_text) < LONGEST_MARKS
            and "\n" not in remaining_text
            and plan.may_lead(remaining_text)
        ):
            return []
        return self.close()

    def close(self) -> list[Piece]:
        """Return what is held back."""
        held_text, self._held_text = self._held_text, None
        if not held_text:
            return []
        marks, remaining_text = plan.split_marks(held_text, self._steps)
        pieces: list[Piece] = [("notes", marks), ("answer", remaining_text)]
        return [piece for piece in pieces if piece[1]]


LONGEST_MARKS = 2_000
"""Characters of marks that are held back until the answer begins; beyond that they are passed on as answer."""
