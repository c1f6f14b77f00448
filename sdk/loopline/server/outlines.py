"""The outline of a conversation: its turns, their rounds and calls with times, tokens and costs, without texts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from loopline import timeline as tl

TITLE = 200
"""The most characters of a turn's title, which is the beginning of its message."""
ShownBody = (
    tl.RoundStart
    | tl.Decision
    | tl.ToolCalled
    | tl.ToolStarted
    | tl.ToolPending
    | tl.ToolResult
    | tl.ProxiedCall
    | tl.ProxiedResult
    | tl.RunChild
    | tl.RangeSummary
)
_SHOWN = tl.BodyUnion[ShownBody](ShownBody)


class OutlineCall(BaseModel):
    """A tool call. Times are milliseconds since 1970; `ended` is null while there is no result."""

    call_id: str
    tool: str
    seq: int
    called: int
    started: int | None = None
    ended: int | None = None
    status: str = "open"
    parent: str = ""
    child: str = ""
    agent: str = ""


class OutlineRound(BaseModel):
    """A round: its request, the reply, and its calls. `replied` is null while the model has not replied."""

    round: int
    seq: int
    started: int
    replied: int | None = None
    ended: int
    model: str
    purpose: str
    shows: str
    epoch: int
    opened_by: str
    tokens: int
    stop_reason: str = ""
    attempt: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None
    summarized: bool = False
    calls: list[OutlineCall] = []


class OutlineTurn(BaseModel):
    """A turn. `state` is the reason of its end, or `running`, `paused` or `waiting` while it has not ended."""

    turn_id: str
    seq: int
    last_seq: int
    title: str
    bundle: str
    agent: str
    state: str
    error: str
    started: int
    ended: int
    cost: float | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    rounds: list[OutlineRound]


class OutlineAnswer(BaseModel):
    """A window of the turns of a conversation; `total` is the number of all turns, and `head` the last seq."""

    total: int
    head: int
    turns: list[OutlineTurn]


class _TurnOutline:
    """The rounds and the costs of a turn, from its blocks in order."""

    def __init__(self, first: tl.Block) -> None:
        self.first = first
        self.last = first
        self.rounds: list[OutlineRound] = []
        self.cost: float | None = None
        self._calls: dict[str, OutlineCall] = {}

    def take(self, block: tl.Block) -> None:
        """Add the cost of the next block of the turn, and record the block if it is of a type that is shown."""
        self.last = block
        spent = tl.request_cost(block)
        if spent is not None and spent.cost is not None:
            self.cost = (self.cost or 0.0) + spent.cost
        if _SHOWN.has(block.body):
            self._show(block, block.body)

    def _show(self, block: tl.Block, body: ShownBody) -> None:
        """Record a block in the last round, or in the call that it names. A call that is not known is ignored."""
        now = _milliseconds(block)
        match body:
            case tl.RoundStart():
                self.rounds.append(_begin_round(block, body))
            case tl.Decision():
                self._reply(now, body)
            case tl.RangeSummary():
                if self.rounds:
                    self.rounds[-1].summarized = True
            case tl.ToolCalled() | tl.ProxiedCall():
                self._call(block, body)
            case tl.ToolStarted(call_id=call_id):
                self._change(call_id, started=now)
            case tl.ToolPending(call_id=call_id):
                self._change(call_id, status="waits")
            case (
                tl.ToolResult(call_id=call_id, status=status)
                | tl.ProxiedResult(call_id=call_id, status=status)
            ):
                self._end(now)
                self._change(call_id, status=status, ended=now)
            case tl.RunChild(call_id=call_id, conversation=child, agent=agent):
                self._change(call_id, child=child, agent=agent)

    def _end(self, now: int) -> None:
        """Move the end of the last round to `now` (milliseconds since 1970) if it is earlier."""
        if self.rounds:
            self.rounds[-1].ended = max(self.rounds[-1].ended, now)

    def _reply(self, now: int, body: tl.Decision) -> None:
        """Record the time, model, tokens and cost of a reply in the last round; without a round, ignore it."""
        if not self.rounds:
            return
        current = self.rounds[-1]
        self._end(now)
        current.replied = now
        current.stop_reason = body.stop_reason
        current.attempt = body.attempt
        current.model = body.model or current.model
        current.input_tokens = body.usage.input_tokens
        current.output_tokens = body.usage.output_tokens
        current.cache_read_tokens = body.usage.cache_read_tokens
        current.cache_write_tokens = body.usage.cache_write_tokens
        current.cost = body.cost

    def _call(self, block: tl.Block, body: tl.ToolCalled | tl.ProxiedCall) -> None:
        """Add a call to the last round, and register it by its id for later blocks. A proxied call has a parent."""
        call = OutlineCall(
            call_id=body.call_id, tool=body.tool, seq=block.seq, called=_milliseconds(block)
        )
        if isinstance(body, tl.ProxiedCall):
            call.parent = body.parent
        self._calls[body.call_id] = call
        if self.rounds:
            self.rounds[-1].calls.append(call)

    def _change(self, call_id: str, **fields: str | int) -> None:
        call = self._calls.get(call_id)
        if call is not None:
            for name, value in fields.items():
                setattr(call, name, value)


def outline(timeline: tl.Timeline, first: int, count: int) -> OutlineAnswer:
    """Return the outline of `count` turns from the turn `first` on; turns without blocks are left out.

    The timeline must have all blocks of the conversation.
    """
    outlines: dict[int, _TurnOutline] = {}
    for block in timeline.blocks:
        if first <= block.turn < first + count:
            if block.turn not in outlines:
                outlines[block.turn] = _TurnOutline(block)
            outlines[block.turn].take(block)
    return OutlineAnswer(
        total=max(timeline.turns, default=0),
        head=timeline.seq,
        turns=[
            _turn(number, timeline.turn(number), item) for number, item in sorted(outlines.items())
        ],
    )


def _turn(number: int, state: tl.Turn, item: _TurnOutline) -> OutlineTurn:
    """Return the outline of a turn; `started` and `ended` are the times of its first and its last block."""
    header = state.header
    usage = state.usage
    return OutlineTurn(
        turn_id=tl.turn_id(number),
        seq=item.first.seq,
        last_seq=item.last.seq,
        title=_title(state),
        bundle=header.bundle if header else "",
        agent=header.agent if header else "",
        state=_state(state),
        error=state.exit.error if state.exit else "",
        started=_milliseconds(item.first),
        ended=_milliseconds(item.last),
        cost=item.cost,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        rounds=item.rounds,
    )


def _begin_round(block: tl.Block, body: tl.RoundStart) -> OutlineRound:
    """Return the outline of a round that has only sent its request: it ends when it starts, and has not replied."""
    now = _milliseconds(block)
    return OutlineRound(
        round=block.round,
        seq=block.seq,
        started=now,
        ended=now,
        model=body.model,
        purpose=body.purpose,
        shows=body.shows,
        epoch=body.epoch,
        opened_by=body.opened_by,
        tokens=body.tokens,
    )


def _state(state: tl.Turn) -> str:
    """Return the exit reason, or `paused` if a call waits for an answer, `waiting` before the start, or `running`."""
    if state.exit is not None:
        return state.exit.reason
    unfinished: Literal["paused", "running", "waiting"] = "running"
    if set(state.pending) - set(state.answers):
        unfinished = "paused"
    elif state.header is None:
        unfinished = "waiting"
    return unfinished


def _title(state: tl.Turn) -> str:
    body = state.prompt.body if state.prompt else None
    text = getattr(body, "text", "")
    return " ".join(text[: 2 * TITLE].split())[:TITLE]


def _milliseconds(block: tl.Block) -> int:
    return round(block.ts.timestamp() * 1000)
