"""A turn as a chat completion of OpenAI's API: the chunks of a stream, and the complete object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import Dialect, DialectEncoder, RecordDraft
from loopline.events.dialects.streamed_text import StreamedText, TextPiece
from loopline.events.projection import TurnEventFold
from loopline.models import Json, JsonObject, Usage, dumps
from loopline.timeline import Block, ExitReason, turn_id

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]
CLIENT_CALL = "call_"
"""The beginning of the id of a call that the client runs."""
PARAGRAPH = "\n\n"
_FINISH: dict[ExitReason, FinishReason] = {
    "max_iterations": "length",
    "deadline": "length",
    "budget": "length",
    "refused": "content_filter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """The values that replies of OpenAI's APIs have: the turn that answers, the model that the client named, and a Unix time.

    The reply has the events after the seq `after` alone, because the client has the earlier ones if the turn was paused.
    `code(call_id, digest)` returns the code that approves a call in a text; without it, `yes` alone approves.
    """

    conversation: str
    turn: int
    model: str
    created: int
    after: int = 0
    code: Callable[[str, str], str] | None = None

    def is_new(self, meta: turns.EventMeta) -> bool:
        """Return whether the reply has this event; the event of a delta always belongs to it."""
        return not meta.seq or meta.seq > self.after

    def call_id(self, call: turns.CallStarted) -> str:
        """Return the id of a call that the client runs. It also names the conversation, to which its result is sent."""
        return f"{CLIENT_CALL}{self.conversation}-{call.call_id}"

    def question(self, request: turns.InputRequested) -> str:
        """Return the text that asks the user; for an approval that needs a code, with the answer that approves."""
        if request.kind != "approval" or self.code is None:
            return request.question
        code = self.code(request.call.call_id, request.digest)
        return f"{request.question}\n\nTo approve, answer: yes {code}\nTo decline, answer: no"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """A chat completion. With `with_usage`, a stream ends with a chunk that has the usage."""

    head: ReplyHead
    with_usage: bool = False

    def chunk(self, *choices: JsonObject) -> JsonObject:
        """Create a chunk of the stream with these choices."""
        return self._object("chat.completion.chunk", choices)

    def call(self, call: turns.CallStarted) -> JsonObject:
        """Return a call that the client runs, as a message has it."""
        function: JsonObject = {"name": call.tool, "arguments": dumps(call.arguments)}
        return {"id": self.head.call_id(call), "type": "function", "function": function}

    def dialect(self) -> Dialect:
        """Create the dialect of the stream."""
        return DialectEncoder(CompletionChunks(self), named=False)

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        """Create the complete object, for a client that does not stream; `content` is null if it has only calls."""
        message: JsonObject = {"role": "assistant", "content": outcome.content, "refusal": None}
        if outcome.thoughts:
            message["reasoning_content"] = PARAGRAPH.join(outcome.thoughts)
        if outcome.calls:
            message["content"] = outcome.content or None
            message["tool_calls"] = [self.call(call) for call in outcome.calls]
        choice: JsonObject = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": outcome.finish_reason,
        }
        return {
            **self._object("chat.completion", (choice,)),
            "usage": usage_data(outcome.usage),
            "loopline": outcome.details(self.head),
        }

    def _object(self, kind: str, choices: Iterable[JsonObject]) -> JsonObject:
        """Return the object with these choices; its id names the conversation and the turn."""
        return {
            "id": f"chatcmpl-{self.head.conversation}-{turn_id(self.head.turn)}",
            "object": kind,
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": None,
            "choices": list[Json](choices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The outcome of a turn: if it ended, its answer and the cited sources; if it paused, its questions to the user.

    `calls` are the calls for which it waits for the client. `content` is the answer, or the questions as paragraphs, and `thoughts` is the reasoning of each decision that has some.
    `truncated` is True if the model's output limit cut the answer off.
    """

    content: str
    reason: ExitReason
    usage: Usage
    error: str = ""
    questions: tuple[str, ...] = ()
    sources: tuple[turns.CitedSource, ...] = ()
    thoughts: tuple[str, ...] = ()
    truncated: bool = False
    calls: tuple[turns.CallStarted, ...] = ()

    @property
    def finish_reason(self) -> FinishReason:
        """The `finish_reason` of the API."""
        if self.calls:
            return "tool_calls"
        return "length" if self.truncated else _FINISH.get(self.reason, "stop")

    @property
    def has_failed(self) -> bool:
        """Whether the turn ended without an answer; a refusal counts as an answer."""
        return self.reason in turns.UNANSWERED - {"refused"}

    def details(self, head: ReplyHead) -> JsonObject:
        """Return the fields that the API does not have: the ids, answer, exit reason, questions and known sources."""
        cited = [item.source for item in self.sources if item.source is not None]
        return {
            "conversation_id": head.conversation,
            "turn_id": turn_id(head.turn),
            "answer": self.content,
            "exit_reason": self.reason,
            "questions": list[Json](self.questions),
            "sources": [{"url": source.url, "title": source.title} for source in cited],
        }


class TurnOutcomeFold:
    """The fold of a turn's events to its outcome."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._questions: dict[str, str] = {}
        self._calls: dict[str, turns.CallStarted] = {}
        self._thoughts: list[str] = []
        self._answer = turns.AnswerGiven(text="", flag="", sources=(), usage=Usage())
        self._usage = Usage()

    def take(self, meta: turns.EventMeta, event: turns.TurnEvent) -> TurnOutcome | None:
        """Take the next event, and return the outcome if the turn ends or pauses with it, or None.

        Thinking that the client has already is not part of the outcome.
        """
        match event:
            case turns.InputRequested(kind="client", call=call):
                self._calls[call.call_id] = call
            case turns.InputRequested(call=call):
                self._questions[call.call_id] = self._head.question(event)
            case turns.DecisionMade(decision=decision, thinking=thinking):
                self._usage += decision.usage
                if thinking and self._head.is_new(meta):
                    self._thoughts.append(thinking)
            case turns.AnswerGiven():
                self._answer = event
            case turns.TurnPaused():
                return self._pause(event)
            case turns.TurnFinished():
                return TurnOutcome(
                    content=event.answer,
                    reason=event.reason,
                    usage=event.usage,
                    error=event.error,
                    sources=self._answer.sources,
                    thoughts=tuple(self._thoughts),
                    truncated=event.truncated,
                )
            case _:
                pass
        return None

    def _pause(self, pause: turns.TurnPaused) -> TurnOutcome:
        """Return the calls for the client, and the other questions, which are also the content.

        If the process of the turn ended, return the reason "interrupted" with an error.
        """
        if pause.reason == "interrupted":
            text = "the server ended before the turn did"
            return TurnOutcome(content="", reason="interrupted", usage=self._usage, error=text)
        calls = tuple(self._calls[call] for call in pause.calls if call in self._calls)
        questions = tuple(self._questions[call] for call in pause.calls if call not in self._calls)
        return TurnOutcome(
            content=PARAGRAPH.join(questions),
            reason="paused",
            usage=self._usage,
            questions=questions,
            thoughts=tuple(self._thoughts),
            calls=calls,
        )


def outcome_of(blocks: Iterable[Block], head: ReplyHead) -> TurnOutcome | None:
    """Return the newest outcome of the turn from the blocks of its conversation.

    It is None if the turn has not ended or paused. A turn that was resumed and still runs has the outcome of its
    pause.
    """
    fold = TurnEventFold()
    outcomes = TurnOutcomeFold(head)
    newest = None
    for block in blocks:
        for meta, event in fold.take(block):
            if meta.turn == head.turn:
                newest = outcomes.take(meta, event) or newest
    return newest


class CompletionChunks:
    """The vocabulary of a streamed chat completion: the texts of one turn, as paragraphs.

    The notes of a decision and the answer are `content`; thinking is `reasoning_content`. Of the calls only those are sent that
    the client runs.
    """

    def __init__(self, completion: ChatCompletion) -> None:
        self._completion = completion
        self._outcomes = TurnOutcomeFold(completion.head)
        self._text = StreamedText()
        self._has_role = self._has_content = False

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the chunks of a turn event; none for other turns, and for events that the client has already."""
        if meta.turn != self._completion.head.turn:
            return
        outcome = self._outcomes.take(meta, event)
        if not self._completion.head.is_new(meta):
            return
        match event:
            case turns.TextStreamed(channel="answer" | "notes", text=text):
                yield from self._content(self._text.feed(text))
            case turns.TextReset(channel="answer" | "notes"):
                self._text.reset()
            case turns.TextStreamed(channel="thinking", text=text):
                yield self._delta({"reasoning_content": text})
            case turns.DecisionMade(notes=notes) if notes:
                yield from self._content(self._text.settle(notes))
            case turns.AnswerGiven(text=text):
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
        """Yield the error of a failed turn, or the questions, calls, last chunk and, if requested, the usage."""
        if outcome.has_failed:
            yield _draft(failure_data(outcome.error or outcome.reason))
            return
        if outcome.questions:
            yield from self._content(TextPiece(outcome.content, begins=True))
        if outcome.calls:
            calls: list[Json] = [
                {"index": index, **self._completion.call(call)}
                for index, call in enumerate(outcome.calls)
            ]
            yield self._delta({"tool_calls": calls})
        choice: JsonObject = {"index": 0, "delta": {}, "finish_reason": outcome.finish_reason}
        last = self._completion.chunk(choice)
        details = outcome.details(self._completion.head)
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
