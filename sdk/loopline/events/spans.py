"""Spans: a turn as a tracer tells of it, folded from its blocks.

Nothing is known here but the blocks, and ids are digests of what the log holds: the same spans can be made
again from the log at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, NamedTuple

from loopline.events import genai
from loopline.events.events import ObservedTurn
from loopline.models import BRIDGED, JsonObject, Usage, dumps
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Exit,
    ExitReason,
    ModelOverflowed,
    ModelSwitched,
    Notice,
    RangeSummary,
    RoundStart,
    ToolCalled,
    ToolResult,
    ToolsSelected,
    ToolStarted,
    Turn,
    TurnHeader,
    UserPrompt,
    turn_id,
)

Value = str | int | float | tuple[str, ...]
Kind = Literal["internal", "client"]
FAILED: frozenset[ExitReason] = frozenset({"error", "interrupted"})
"""How a turn ends that has failed; one that was stopped, or has spent its limits, has not."""
NO_REASON = "error"
"""The finish reason, by the conventions, of a reply that never ended."""
CUT_OFF = "cut_off"
"""The error of a model call that was given up because the user steered, or its runner died."""
NO_RESULT = "no_result"
"""The error of choosing tools, or of summing up, that came to nothing."""
OVERFLOW = "overflow"
"""The error of a request that the model found too long."""
LOCAL = "loopline"
"""The provider of a model whose name tells of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan:
    """A span that is over. Ids are hexadecimal; a root has no `parent_id`. `failed` is its status."""

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str | None
    start: datetime
    end: datetime
    attributes: Mapping[str, Value]
    failed: bool = False


class _Asked(NamedTuple):
    """A request to a model: when it was made, and the block that tells of it first."""

    block: Block
    start: datetime
    model: str
    purpose: str


class _Reply(NamedTuple):
    """What came back of a request, and what that used. A `stop_reason` is told where it is known."""

    model: str
    stop_reason: str
    usage: Usage
    cost: float | None


@dataclass(slots=True)
class TurnSpans:
    """The spans of one turn: give it the turn's blocks in their order.

    A turn is an `invoke_agent` span, each request to the model a `chat` span below it, each call an
    `execute_tool` span below it; that of a child run's turn stands below the call that began it. Arguments,
    results and what was said are in it only with `content`.
    """

    of: ObservedTurn
    content: bool = False
    _turn: Turn = field(init=False)
    _begun: datetime | None = None
    _round: _Asked | None = None
    _started: dict[str, datetime] = field(default_factory=dict[str, datetime])
    _called: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    _said: str = ""

    def __post_init__(self) -> None:
        self._turn = Turn(self.of.turn)

    def take(self, block: Block) -> Sequence[FinishedSpan]:
        """The spans that are over with this block; blocks of other turns are passed over."""
        if block.turn != self.of.turn:
            return ()
        self._turn.take(block)
        match block.body:
            case TurnHeader():
                self._begun = self._turn.started_at
            case UserPrompt(text=text):
                self._said = text
            case ToolCalled(call_id=call_id, arguments=arguments):
                self._called[call_id] = arguments
            case ToolStarted(call_id=call_id):
                self._started[call_id] = block.ts
            case RoundStart() | Decision() | ModelSwitched() | ModelOverflowed() | Notice():
                return self._take_round(block, block.body)
            case ToolsSelected() | RangeSummary():
                return self._beside(block, block.body)
            case ToolResult() as result:
                return [self._execute_tool(block, result)]
            case Exit() as end:
                return [*self._given_up(block, end.reason), self._invoke_agent(block, end)]
            case _:
                pass
        return ()

    def _take_round(
        self, block: Block, body: RoundStart | Decision | ModelSwitched | ModelOverflowed | Notice
    ) -> Sequence[FinishedSpan]:
        match body:
            case RoundStart(model=model, purpose=purpose):
                cut = self._given_up(block, CUT_OFF)
                self._round = _Asked(block, block.ts, model, purpose) if model else None
                return cut
            case Decision(model=model, stop_reason=reason, usage=usage, cost=cost):
                return self._chat(block, _Reply(model, reason, usage, cost))
            case ModelSwitched(model=model, why="refusal" as reason, usage=usage, cost=cost):
                return self._chat(block, _Reply(model, reason, usage, cost))
            case ModelSwitched(why=why):
                return self._given_up(block, why)
            case ModelOverflowed():
                return self._given_up(block, OVERFLOW)
            case Notice(code="model_error" as code):
                return self._given_up(block, code)
            case _:
                return ()

    def _beside(self, block: Block, body: ToolsSelected | RangeSummary) -> Sequence[FinishedSpan]:
        """A request that is no round, told of once it is over."""
        if not body.model:
            return ()
        start = block.ts - timedelta(milliseconds=body.elapsed_ms)
        purpose = "selection" if isinstance(body, ToolsSelected) else "summary"
        asked = _Asked(block, start, body.model, purpose)
        reply = _Reply(body.model, "", body.usage, body.cost)
        return [self._request(asked, block, _used(reply), NO_RESULT if body.why else "")]

    def _chat(self, end: Block, reply: _Reply) -> Sequence[FinishedSpan]:
        if self._round is None:
            return ()
        asked, self._round = self._round, None
        return [self._request(asked, end, _used(reply))]

    def _given_up(self, end: Block, why: str) -> Sequence[FinishedSpan]:
        """The request that is under way, if one is: there will be no reply."""
        if self._round is None:
            return ()
        asked, self._round = self._round, None
        return [self._request(asked, end, {genai.FINISH_REASONS: (NO_REASON,)}, why)]

    def _request(
        self, asked: _Asked, end: Block, attributes: Mapping[str, Value], error: str = ""
    ) -> FinishedSpan:
        provider, model = _model(asked.model)
        return self._span(
            f"{genai.CHAT} {model}",
            (genai.CHAT, str(asked.block.seq)),
            asked.start,
            end.ts,
            {
                genai.OPERATION: genai.CHAT,
                genai.PROVIDER: provider,
                genai.REQUEST_MODEL: model,
                genai.ROUND: asked.block.round,
                genai.PURPOSE: asked.purpose,
                **attributes,
            },
            kind="internal" if provider == LOCAL else "client",
            error=error,
        )

    def _execute_tool(self, end: Block, result: ToolResult) -> FinishedSpan:
        elapsed = end.ts - timedelta(milliseconds=result.elapsed_ms)
        attributes: dict[str, Value] = {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL: result.tool,
            genai.TOOL_TYPE: "function",
            genai.CALL_ID: result.call_id,
            genai.ROUND: end.round,
        }
        if self.content:
            asked = self._called.get(result.call_id, {})
            ran_with = asked if result.ran_with is None else result.ran_with
            attributes |= {genai.ARGUMENTS: dumps(ran_with), genai.RESULT: result.text}
        return self._span(
            f"{genai.EXECUTE_TOOL} {result.tool}",
            (genai.EXECUTE_TOOL, result.call_id),
            self._started.get(result.call_id, elapsed),
            end.ts,
            attributes,
            error="" if result.status == "ok" else result.status,
        )

    def _invoke_agent(self, end: Block, exit_: Exit) -> FinishedSpan:
        turn, header = self._turn, self._turn.header
        attributes: dict[str, Value] = {
            genai.OPERATION: genai.INVOKE_AGENT,
            genai.EXIT_REASON: exit_.reason,
            genai.ROUNDS: exit_.rounds,
            genai.INPUT_TOKENS: turn.usage.input_tokens,
            genai.OUTPUT_TOKENS: turn.usage.output_tokens,
        }
        if header is not None:
            attributes |= {genai.AGENT: header.bundle, genai.REQUEST_MODEL: _model(header.model)[1]}
        if turn.cost is not None:
            attributes[genai.COST] = turn.cost
        if self.content:
            attributes |= _messages(self._said, turn.completion)
        of, elapsed = self.of, end.ts - timedelta(milliseconds=exit_.elapsed_ms)
        return self._span(
            f"{genai.INVOKE_AGENT} {header.bundle}" if header else genai.INVOKE_AGENT,
            (genai.INVOKE_AGENT,),
            self._begun or elapsed,
            end.ts,
            attributes,
            error=exit_.reason if exit_.reason in FAILED else "",
            below=None
            if of.caller is None
            else span_id(of.caller.turn, genai.EXECUTE_TOOL, of.caller.call_id),
        )

    def _span(
        self,
        name: str,
        key: tuple[str, ...],
        start: datetime,
        end: datetime,
        attributes: dict[str, Value],
        *,
        kind: Kind = "internal",
        error: str = "",
        below: str | None = "",
    ) -> FinishedSpan:
        """A span of the turn: below its `invoke_agent`, unless it is said what it stands below."""
        attributes |= {
            genai.CONVERSATION: self.of.conversation.name,
            genai.TURN: turn_id(self.of.turn),
        }
        if error:
            attributes[genai.ERROR] = error
        return FinishedSpan(
            name=name,
            kind=kind,
            trace_id=trace_id(self.of),
            span_id=span_id(self.of, *key),
            parent_id=span_id(self.of, genai.INVOKE_AGENT) if below == "" else below,
            start=min(start, end),  # a clock may have been set back meanwhile
            end=end,
            attributes=attributes,
            failed=bool(error),
        )


def _used(reply: _Reply) -> dict[str, Value]:
    """What a reply says of itself."""
    usage = reply.usage
    attributes: dict[str, Value] = {
        genai.RESPONSE_MODEL: _model(reply.model)[1],
        genai.INPUT_TOKENS: usage.input_tokens,
        genai.OUTPUT_TOKENS: usage.output_tokens,
        genai.CACHE_READ_TOKENS: usage.cache_read_tokens,
        genai.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
    }
    if reply.stop_reason:
        attributes[genai.FINISH_REASONS] = (reply.stop_reason,)
    if reply.cost is not None:
        attributes[genai.COST] = reply.cost
    return attributes


def spans_of(
    of: ObservedTurn, blocks: Iterable[Block], *, content: bool = False
) -> list[FinishedSpan]:
    """The spans of a turn that are over, made from its blocks."""
    fold = TurnSpans(of, content=content)
    return [span for block in blocks for span in fold.take(block)]


def trace_id(of: ObservedTurn) -> str:
    """The trace of a turn: its own, and that of every child run below it."""
    while of.caller is not None:
        of = of.caller.turn
    return _digest("trace", of.uid, turn_id(of.turn))[:32]


def span_id(of: ObservedTurn, *key: str) -> str:
    """The id of a span of that turn."""
    return _digest("span", of.uid, turn_id(of.turn), *key)[:16]


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _model(name: str) -> tuple[str, str]:
    """The provider of a model, and what it is called there: `openai:gpt-5` is OpenAI's `gpt-5`."""
    provider, colon, model = name.removeprefix(BRIDGED).partition(":")
    return (provider, model) if colon else (LOCAL, name)


def _messages(said: str, answer: Completion | None) -> dict[str, Value]:
    """What the user said and was answered, by the conventions' schemas of messages."""
    made: dict[str, Value] = {genai.INPUT_MESSAGES: _message("user", said)}
    if answer is not None:
        made[genai.OUTPUT_MESSAGES] = _message("assistant", answer.text)
    return made


def _message(role: str, text: str) -> str:
    return dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
