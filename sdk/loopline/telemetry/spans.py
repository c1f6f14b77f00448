"""Spans of a turn for a tracer, folded from its blocks.

The spans depend only on the blocks, and their ids are digests, so a later fold of the same blocks gives the same spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from loopline import timeline
from loopline.events import ObservedTurn
from loopline.models import BRIDGED, Json, JsonObject, dumps

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""The version of OpenTelemetry's conventions that names the attributes."""

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
CALL_ID: Final = "gen_ai.tool.call.id"
ERROR: Final = "error.type"

INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"

TURN: Final = "loopline.turn_id"
ROUND: Final = "loopline.round"
PURPOSE: Final = "loopline.purpose"
EXIT_REASON: Final = "loopline.exit_reason"
ROUNDS: Final = "loopline.rounds"
COST: Final = "loopline.cost"

TOKEN_USAGE: Final = "gen_ai.client.token.usage"
TOKEN_TYPE: Final = "gen_ai.token.type"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"

SECONDS: Final = tuple(0.01 * 2**power for power in range(14))
"""Upper bounds of the buckets of durations: 0.01, 0.02, 0.04, … 81.92."""
CALLS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets of counts per turn."""
TOKENS: Final = tuple(float(4**power) for power in range(14))
"""Upper bounds of the buckets of token counts: 1, 4, 16, … 67,108,864."""


Value = str | int | float | tuple[str, ...]
SpanKind = Literal["internal", "client"]
FAILED: frozenset[timeline.ExitReason] = frozenset({"error", "interrupted"})
"""The exit reasons of a failed turn. A turn that was stopped or reached a limit has not failed."""
NO_REASON = "error"
"""The finish reason of a reply that did not end, by OpenTelemetry's conventions."""
CUT_OFF = "cut_off"
"""The error of a model request that was abandoned because the user steered, or its runner died."""
NO_RESULT = "no_result"
"""The error of a selection or a summary without a result."""
OVERFLOW = "overflow"
"""The error of a request that was too long for the model."""
LOCAL = "loopline"
"""The provider of a model with a name without a provider."""
PROVIDERS: Mapping[str, str] = {
    "openai-chat": "openai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gen_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "xai": "x_ai",
    "mistral": "mistral_ai",
}
"""The providers that the conventions name differently."""
FINISHES: Mapping[str, str] = {"tool_use": "tool_call", "refusal": "content_filter"}
"""The reasons why a reply ended that the conventions name differently in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan:
    """A span that ended. Ids are hexadecimal; a root has no `parent_id`."""

    name: str
    kind: SpanKind
    trace_id: str
    span_id: str
    parent_id: str | None
    start: datetime
    end: datetime
    attributes: Mapping[str, Value]
    failed: bool = False


ReplyPart = timeline.Thinking | timeline.Notes | timeline.ToolCalled | timeline.Completion
"""The parts of a reply, which follow its decision."""
_PARTS = timeline.BodyUnion[ReplyPart](ReplyPart)
SpanBody = (
    timeline.TurnHeader
    | timeline.UserPrompt
    | timeline.UserFollowup
    | timeline.UserSteer
    | ReplyPart
    | timeline.ToolPending
    | timeline.ToolStarted
    | timeline.ToolResult
    | timeline.ProxiedBody
    | timeline.RoundStart
    | timeline.Decision
    | timeline.ModelSwitched
    | timeline.ModelOverflowed
    | timeline.Notice
    | timeline.ToolsSelected
    | timeline.RangeSummary
    | timeline.Exit
)
_SPANS = timeline.BodyUnion[SpanBody](SpanBody)


class _Request(NamedTuple):
    """A request to a model: the block of its round, the time when it was sent, and its messages as JSON."""

    block: timeline.Block
    start: datetime
    model: str
    purpose: str
    messages: str = ""


@dataclass(slots=True)
class TurnSpans:
    """The spans of one turn, from its blocks in order.

    A turn is an `invoke_agent` span. Its children are a `chat` span for each model request and an `execute_tool` span for
    each call. The parent of a program's call is the call that runs the program; the parent of a child run's turn is the
    call that started the run.

    Arguments, results and messages are included only with `content`. The input messages of a request are those that are
    new since the request before it; its span then ends only with the first block after its reply.
    """

    of: ObservedTurn
    content: bool = False
    _turn: timeline.Turn = field(init=False)
    _round: _Request | None = None
    _call_starts: dict[str, datetime] = field(default_factory=dict[str, datetime])
    _arguments: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    _prompt: str = ""
    _inputs: list[JsonObject] = field(default_factory=list[JsonObject])
    _reply: FinishedSpan | None = None
    _parts: list[Json] = field(default_factory=list[Json])
    _finish: str = "stop"

    def __post_init__(self) -> None:
        self._turn = timeline.Turn(self.of.turn)

    def take(self, block: timeline.Block) -> Sequence[FinishedSpan]:
        """Return the spans that end with this block; none for blocks of other turns."""
        if block.turn != self.of.turn:
            return ()
        self._turn.take(block)
        body = block.body
        if not _SPANS.has(body):
            return ()
        replies = () if self._reply is None or _PARTS.has(body) else self._end_reply(self._reply)
        return [*replies, *self._take(block, body)]

    def _end_reply(self, span: FinishedSpan) -> Sequence[FinishedSpan]:
        """Return `span`, the span of a request, with the collected parts of its reply, and clear the parts."""
        message: JsonObject = {"role": "assistant", "parts": [*self._parts]}
        message["finish_reason"] = self._finish
        self._reply = None
        self._parts = []
        return [replace(span, attributes={**span.attributes, OUTPUT_MESSAGES: dumps([message])})]

    def _take(self, block: timeline.Block, body: SpanBody) -> Sequence[FinishedSpan]:
        """Return the spans that end with this block, and keep its times, inputs and arguments for later spans."""
        match body:
            case (
                timeline.TurnHeader() | timeline.ToolPending()
            ):  # they only end the reply before them
                pass
            case (
                timeline.UserPrompt(text=text)
                | timeline.UserFollowup(text=text)
                | timeline.UserSteer(text=text)
            ):
                self._prompt = self._prompt or text
                self._inputs.append(_message("user", _text_part(text)))
            case (
                timeline.Thinking()
                | timeline.Notes()
                | timeline.ToolCalled()
                | timeline.Completion()
            ):
                self._take_part(body)
            case timeline.ProxiedCall() | timeline.ToolStarted():
                self._call_starts[body.call_id] = block.ts
                if isinstance(body, timeline.ProxiedCall):
                    self._arguments[body.call_id] = body.arguments
            case (
                timeline.RoundStart()
                | timeline.Decision()
                | timeline.ModelSwitched()
                | timeline.ModelOverflowed()
                | timeline.Notice()
            ):
                return self._take_round(block, body)
            case timeline.ToolsSelected() | timeline.RangeSummary():
                return self._take_auxiliary(block, body)
            case timeline.ToolResult() | timeline.ProxiedResult():
                return [self._execute_tool(block, body)]
            case timeline.Exit(reason=reason):
                return [*self._give_up(block, reason), self._invoke_agent(block, body)]
        return ()

    def _take_part(self, body: ReplyPart) -> None:
        """Add a part to the reply of the open span, if there is one. The arguments of a call are always stored."""
        parts: list[Json] = [] if self._reply is None else self._parts
        match body:
            case timeline.Thinking(text=text):
                parts.append({"type": "reasoning", "content": text})
            case timeline.Notes(text=text) | timeline.Completion(text=text):
                parts.append(_text_part(text))
            case timeline.ToolCalled(call_id=call_id, tool=name, arguments=arguments):
                self._arguments[call_id] = arguments
                call: JsonObject = {"type": "tool_call", "id": call_id, "name": name}
                parts.append({**call, "arguments": arguments})

    def _take_round(
        self,
        block: timeline.Block,
        body: timeline.RoundStart
        | timeline.Decision
        | timeline.ModelSwitched
        | timeline.ModelOverflowed
        | timeline.Notice,
    ) -> Sequence[FinishedSpan]:
        """Start a request with a round, or end it with its reply or as failed; return the spans that end.

        With `content`, the span of a reply is kept back until its parts are known.
        """
        match body:
            case timeline.RoundStart(model=model, purpose=purpose):
                unfinished = self._give_up(block, CUT_OFF)
                messages = dumps([*self._inputs]) if self.content else ""
                self._round = _Request(block, block.ts, model, purpose, messages) if model else None
                return unfinished
            case timeline.Decision(stop_reason=reason):
                self._inputs = []
                self._finish = FINISHES.get(reason, reason)
                replied = self._chat(block, _reply(body, reason))
                if not self.content or not replied:
                    return replied
                [self._reply] = replied
                return ()
            case timeline.ModelSwitched(why="refusal" as reason):
                return self._chat(block, _reply(body, reason))
            case timeline.ModelSwitched(why=why):
                return self._give_up(block, why)
            case timeline.ModelOverflowed():
                return self._give_up(block, OVERFLOW)
            case timeline.Notice(code="model_error" as code):
                return self._give_up(block, code)
            case timeline.Notice():
                return ()

    def _take_auxiliary(
        self, block: timeline.Block, body: timeline.ToolsSelected | timeline.RangeSummary
    ) -> Sequence[FinishedSpan]:
        """Return the span of a request outside the rounds, written as one block at its end; none without a model."""
        if not body.model:
            return ()
        start = block.ts - timedelta(milliseconds=body.elapsed_ms)
        purpose = "selection" if isinstance(body, timeline.ToolsSelected) else "summary"
        request = _Request(block, start, body.model, purpose)
        return [self._request(request, block, _reply(body, ""), NO_RESULT if body.why else "")]

    def _give_up(self, end: timeline.Block, error: str) -> Sequence[FinishedSpan]:
        """Return the span of the request in progress, if there is one, as failed and without a reply."""
        return self._chat(end, {FINISH_REASONS: (NO_REASON,)}, error)

    def _chat(
        self, end: timeline.Block, attributes: Mapping[str, Value], error: str = ""
    ) -> Sequence[FinishedSpan]:
        """End the open request at the block `end`, and return its span; an empty sequence if no request is open."""
        if self._round is None:
            return ()
        request = self._round
        self._round = None
        return [self._request(request, end, attributes, error)]

    def _request(
        self, request: _Request, end: timeline.Block, attributes: Mapping[str, Value], error: str
    ) -> FinishedSpan:
        """Return the `chat` span of a request, internal for a local model, and failed if `error` is not empty."""
        provider, model = _model(request.model)
        messages = {INPUT_MESSAGES: request.messages} if request.messages else {}
        return self._span(
            (CHAT, str(request.block.seq)),
            model,
            request.start,
            end.ts,
            {
                PROVIDER: provider,
                REQUEST_MODEL: model,
                ROUND: request.block.round,
                PURPOSE: request.purpose,
                **messages,
                **attributes,
            },
            kind="internal" if provider == LOCAL else "client",
            error=error,
        )

    def _execute_tool(
        self, end: timeline.Block, result: timeline.ToolResult | timeline.ProxiedResult
    ) -> FinishedSpan:
        """Return the span of a call; the parent of a program's call is the call that runs the program."""
        if isinstance(result, timeline.ToolResult):
            response: JsonObject = {"type": "tool_call_response", "id": result.call_id}
            response["response"] = result.text
            self._inputs.append(_message("tool", response))
        elapsed = end.ts - timedelta(milliseconds=result.elapsed_ms)
        header = self._turn.header
        attributes: dict[str, Value] = {
            PROVIDER: _model(header.model)[0] if header else LOCAL,
            TOOL: result.tool,
            TOOL_TYPE: "function",
            CALL_ID: result.call_id,
            ROUND: end.round,
        }
        if self.content:
            called_with = self._arguments.get(result.call_id, {})
            ran_with = called_with if result.ran_with is None else result.ran_with
            attributes |= {ARGUMENTS: dumps(ran_with), RESULT: result.text}
        return self._span(
            (EXECUTE_TOOL, result.call_id),
            result.tool,
            self._call_starts.get(result.call_id, elapsed),
            end.ts,
            attributes,
            error="" if result.status == "ok" else result.status,
            parent_id=span_id(self.of, EXECUTE_TOOL, result.parent)
            if isinstance(result, timeline.ProxiedResult)
            else "",
        )

    def _invoke_agent(self, end: timeline.Block, exit_: timeline.Exit) -> FinishedSpan:
        """Return the span of the turn with its usage and cost; its parent is the call that started a child run.

        It is failed for the exit reasons in `FAILED`. The prompt and the answer are included only with `content`.
        """
        turn = self._turn
        header = turn.header
        caller = self.of.caller
        attributes: dict[str, Value] = {
            EXIT_REASON: exit_.reason,
            ROUNDS: exit_.rounds,
            INPUT_TOKENS: turn.usage.input_tokens,
            OUTPUT_TOKENS: turn.usage.output_tokens,
        }
        if header is not None:
            provider, model = _model(header.model)
            attributes |= {AGENT: header.bundle, PROVIDER: provider, REQUEST_MODEL: model}
        if turn.cost is not None:
            attributes[COST] = turn.cost
        if self.content:
            attributes[INPUT_MESSAGES] = dumps([_message("user", _text_part(self._prompt))])
            if turn.completion is not None:
                answer = _message("assistant", _text_part(turn.completion.text))
                attributes[OUTPUT_MESSAGES] = dumps([{**answer, "finish_reason": self._finish}])
        return self._span(
            (INVOKE_AGENT,),
            header.bundle if header else "",
            turn.started_at or end.ts - timedelta(milliseconds=exit_.elapsed_ms),
            end.ts,
            attributes,
            error=exit_.reason if exit_.reason in FAILED else "",
            parent_id=span_id(caller.turn, EXECUTE_TOOL, caller.call_id) if caller else None,
        )

    def _span(
        self,
        key: tuple[str, ...],
        subject: str,
        start: datetime,
        end: datetime,
        attributes: Mapping[str, Value],
        *,
        kind: SpanKind = "internal",
        error: str = "",
        parent_id: str | None = "",
    ) -> FinishedSpan:
        """Create a span of the turn.

        The first item of `key` is the operation; the name of the span is the operation and the `subject`. A `parent_id` of
        "" means the turn's `invoke_agent` span, and None a root.
        """
        return FinishedSpan(
            name=f"{key[0]} {subject}" if subject else key[0],
            kind=kind,
            trace_id=trace_id(self.of),
            span_id=span_id(self.of, *key),
            parent_id=span_id(self.of, INVOKE_AGENT) if parent_id == "" else parent_id,
            start=min(start, end),  # the clock may have been set back
            end=end,
            attributes={
                OPERATION: key[0],
                **attributes,
                CONVERSATION: self.of.conversation.name,
                TURN: timeline.turn_id(self.of.turn),
                **({ERROR: error} if error else {}),
            },
            failed=bool(error),
        )


def _reply(
    body: timeline.Decision
    | timeline.ModelSwitched
    | timeline.ToolsSelected
    | timeline.RangeSummary,
    stop_reason: str,
) -> dict[str, Value]:
    """Return the attributes of a reply: model and usage, cost if known, and the finish reason if not empty."""
    usage = body.usage
    attributes: dict[str, Value] = {
        RESPONSE_MODEL: _model(body.model)[1],
        INPUT_TOKENS: usage.input_tokens,
        OUTPUT_TOKENS: usage.output_tokens,
        CACHE_READ_TOKENS: usage.cache_read_tokens,
        CACHE_WRITE_TOKENS: usage.cache_write_tokens,
    }
    if stop_reason:
        attributes[FINISH_REASONS] = (stop_reason,)
    if body.cost is not None:
        attributes[COST] = body.cost
    return attributes


def spans_of(
    of: ObservedTurn, blocks: Iterable[timeline.Block], *, content: bool = False
) -> list[FinishedSpan]:
    """Return the spans of a turn in the order in which they ended; blocks of other turns are ignored."""
    fold = TurnSpans(of, content=content)
    return [span for block in blocks for span in fold.take(block)]


def trace_id(of: ObservedTurn) -> str:
    """Return the trace id of a turn, which its child runs share."""
    while of.caller is not None:
        of = of.caller.turn
    return _digest("trace", of.uid, timeline.turn_id(of.turn))[:32]


def span_id(of: ObservedTurn, *key: str) -> str:
    """Return the id of a span of the turn."""
    return _digest("span", of.uid, timeline.turn_id(of.turn), *key)[:16]


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _model(name: str) -> tuple[str, str]:
    """Split a model string into the provider and the provider's name of the model: `openai` and `gpt-5`."""
    provider, colon, model = name.removeprefix(BRIDGED).partition(":")
    return (PROVIDERS.get(provider, provider), model) if colon else (LOCAL, name)


def _message(role: str, part: JsonObject) -> JsonObject:
    """Return a message with one part, in the schema of OpenTelemetry's conventions."""
    return {"role": role, "parts": [part]}


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "content": text}
