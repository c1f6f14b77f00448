"""A turn as a chat completion of OpenAI's API: the chunks of a stream, and the complete object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from loopline.events.dialects.encoder import Dialect, DialectEncoder, RecordDraft
from loopline.events.dialects.streamed_text import StreamedText, TextPiece
from loopline.events.projection import TurnEventFold
from loopline.events.turn_events import (
    UNANSWERED,
    AnswerGiven,
    CitedSource,
    DecisionMade,
    EventMeta,
    InputRequested,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
)
from loopline.models import Json, JsonObject, Usage
from loopline.timeline import Block, ExitReason, turn_id

FinishReason = Literal["stop", "length", "content_filter"]
PARAGRAPH = "\n\n"
_FINISH: dict[ExitReason, FinishReason] = {
    "max_iterations": "length",
    "deadline": "length",
    "budget": "length",
    "refused": "content_filter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """A chat completion: the turn that answers it, the model that the client named, and its Unix time.

    With `with_usage`, a stream ends with a chunk that has the usage.
    """

    conversation: str
    turn: int
    model: str
    created: int
    with_usage: bool = False

    def chunk(self, *choices: JsonObject) -> JsonObject:
        """Create a chunk of the stream with these choices."""
        return self._object("chat.completion.chunk", choices)

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        """Create the complete object, for a client that does not stream."""
        message: JsonObject = {"role": "assistant", "content": outcome.content, "refusal": None}
        choice: JsonObject = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": outcome.finish_reason,
        }
        return {
            **self._object("chat.completion", (choice,)),
            "usage": usage_data(outcome.usage),
            "loopline": outcome.details(self),
        }

    def _object(self, kind: str, choices: Iterable[JsonObject]) -> JsonObject:
        return {
            "id": f"chatcmpl-{self.conversation}-{turn_id(self.turn)}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": list[Json](choices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The outcome of a turn: if it ended, its answer and the cited sources; if it paused, its questions to the user.

    `content` is the answer, or the questions as paragraphs.
    """

    content: str
    reason: ExitReason
    usage: Usage
    error: str = ""
    questions: tuple[str, ...] = ()
    sources: tuple[CitedSource, ...] = ()

    @property
    def finish_reason(self) -> FinishReason:
        """The `finish_reason` of the API."""
        return _FINISH.get(self.reason, "stop")

    @property
    def has_failed(self) -> bool:
        """Whether the turn ended without an answer; a refusal counts as an answer."""
        return self.reason in UNANSWERED - {"refused"}

    def details(self, completion: ChatCompletion) -> JsonObject:
        """Return the fields that the API does not have, such as the ids, the exit reason and the sources."""
        cited = [item.source for item in self.sources if item.source is not None]
        return {
            "conversation_id": completion.conversation,
            "turn_id": turn_id(completion.turn),
            "answer": self.content,
            "exit_reason": self.reason,
            "questions": list[Json](self.questions),
            "sources": [{"url": source.url, "title": source.title} for source in cited],
        }


class TurnOutcomeFold:
    """The fold of a turn's events to its outcome."""

    def __init__(self) -> None:
        self._questions: dict[str, str] = {}
        self._answer = AnswerGiven(text="", flag="", sources=(), usage=Usage())
        self._usage = Usage()

    def take(self, event: TurnEvent) -> TurnOutcome | None:
        """Take the next event, and return the outcome if the turn ends or pauses with it."""
        match event:
            case InputRequested(call=call, question=question):
                self._questions[call.call_id] = question
            case DecisionMade(decision=decision):
                self._usage += decision.usage
            case AnswerGiven():
                self._answer = event
            case TurnPaused(calls=calls) if event.reason == "paused":
                questions = tuple(self._questions[call] for call in calls)
                return TurnOutcome(
                    content=PARAGRAPH.join(questions),
                    reason="paused",
                    usage=self._usage,
                    questions=questions,
                )
            case TurnPaused():
                text = "the server ended before the turn did"
                return TurnOutcome(content="", reason="interrupted", usage=self._usage, error=text)
            case TurnFinished():
                return TurnOutcome(
                    content=event.answer,
                    reason=event.reason,
                    usage=event.usage,
                    error=event.error,
                    sources=self._answer.sources,
                )
            case _:
                pass
        return None


def outcome_of(blocks: Iterable[Block], turn: int) -> TurnOutcome | None:
    """Return the outcome of a turn from the blocks of its conversation; None if the turn has not ended or paused."""
    fold = TurnEventFold()
    outcomes = TurnOutcomeFold()
    newest = None
    for block in blocks:
        for meta, event in fold.take(block):
            if meta.turn == turn:
                newest = outcomes.take(event) or newest
    return newest


class CompletionChunks:
    """The vocabulary of a streamed chat completion: the texts of one turn, as paragraphs.

    The notes of a decision and the answer are `content`; thinking is `reasoning_content`. Tool calls are not sent.
    """

    def __init__(self, completion: ChatCompletion) -> None:
        self._completion = completion
        self._outcomes = TurnOutcomeFold()
        self._text = StreamedText()
        self._has_role = self._has_content = False

    def drafts(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield the chunks of a turn event."""
        if meta.turn != self._completion.turn:
            return
        outcome = self._outcomes.take(event)
        match event:
            case TextStreamed(channel="answer" | "notes", text=text):
                yield from self._content(self._text.feed(text))
            case TextReset(channel="answer" | "notes"):
                self._text.reset()
            case TextStreamed(channel="thinking", text=text):
                yield self._delta({"reasoning_content": text})
            case DecisionMade(notes=notes) if notes:
                yield from self._content(self._text.settle(notes))
            case AnswerGiven(text=text):
                yield from self._content(self._text.settle(text))
            case _:
                pass
        if outcome is not None:
            yield from self._end(outcome)

    def _content(self, piece: TextPiece | None) -> Iterator[RecordDraft]:
        if piece is None:
            return
        gap = PARAGRAPH if piece.begins and self._has_content else ""
        self._has_content = True
        yield self._delta({"content": gap + piece.text})

    def _delta(self, data: JsonObject) -> RecordDraft:
        role: JsonObject = {} if self._has_role else {"role": "assistant"}
        self._has_role = True
        choice: JsonObject = {"index": 0, "delta": {**role, **data}, "finish_reason": None}
        return _draft(self._completion.chunk(choice))

    def _end(self, outcome: TurnOutcome) -> Iterator[RecordDraft]:
        if outcome.has_failed:
            yield _draft(failure_data(outcome.error or outcome.reason))
            return
        if outcome.questions:
            yield from self._content(TextPiece(outcome.content, begins=True))
        choice: JsonObject = {"index": 0, "delta": {}, "finish_reason": outcome.finish_reason}
        last = self._completion.chunk(choice)
        details = outcome.details(self._completion)
        yield _draft({**last, "loopline": details})
        if self._completion.with_usage:
            usage: JsonObject = {"usage": usage_data(outcome.usage)}
            yield _draft({**self._completion.chunk(), **usage})


def _draft(data: JsonObject) -> RecordDraft:
    """Create a draft without an id: clients of the API would take an `id:` line and a comment for an event."""
    return RecordDraft("chunk", data, durable=False)


def usage_data(usage: Usage) -> JsonObject:
    """Return the usage in the form of the API."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def failure_data(message: str, *, kind: str = "server_error", code: str = "") -> JsonObject:
    """Return an error in the form of the API; an empty `code` becomes null."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def completion_dialect(completion: ChatCompletion) -> Dialect:
    """Create the dialect of a streamed chat completion."""
    return DialectEncoder(CompletionChunks(completion), named=False)
