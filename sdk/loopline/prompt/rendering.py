"""Blocks as messages, under one window: a fold that only grows.

What a user said is rendered where a round took it. A round that made calls is rendered once every
call has its result, so that no call is ever shown without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from loopline.models import (
    AssistantMessage,
    JsonObject,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from loopline.models.tokens import estimate
from loopline.prompt import clipping
from loopline.prompt.facts import Facts
from loopline.prompt.protocols import DecisionProtocol
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Draft,
    Exit,
    Notes,
    Notice,
    PlanHistory,
    RangeSummary,
    RoundStart,
    SystemMessage,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    Window,
    summary_text,
)

RENDERER = 2
"""The version of what this module makes of the blocks; another one opens an epoch."""

PLAN_TOOL = "react.plan"
"""The tool whose calls are never clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A place between rounds: the last seq before it, the messages before it, the turn after it."""

    seq: int
    messages: int
    turn: int
    opens_turn: bool


@dataclass(slots=True)
class _Round:
    """A decision with calls, while its results are coming in."""

    expected: int
    notes: str = ""
    calls: list[tuple[Block, ToolCalled]] = field(default_factory=list[tuple[Block, ToolCalled]])
    results: dict[str, tuple[Block, ToolResult]] = field(
        default_factory=dict[str, tuple[Block, ToolResult]]
    )


class Rendering:
    """The messages that the blocks so far make.

    `tokens` is an estimate of what they cost, before any learning; `shown` are pairs of ref and sha256
    of the texts that results put before the model whole; `marked` are the numbers of the sources that
    are named somewhere; `refs` names, for each message, the block it was made of.
    """

    def __init__(self, protocol: DecisionProtocol, facts: Facts, window: Window) -> None:
        self.window = window
        self.messages: list[Message] = []
        self.refs: list[str] = []
        self.tokens = 0
        self.shown: dict[str, str] = {}
        self.marked: set[int] = set()
        self.cuts: list[Cut] = []
        self.last_tail = 0
        self.turn = 0
        self.turn_start = 0
        self._protocol = protocol
        self._facts = facts
        self._round: _Round | None = None
        self._answered = False
        self._digest = sha256()
        self._costs = [0]
        self._parts = [0]
        self._places: dict[str, int] = {}
        self._reactions = facts.reactions(window.feedback) if window.feedback else None
        self._open()

    @property
    def sha256(self) -> str:
        """The digest of all messages, in hexadecimal."""
        return self._digest.hexdigest()

    def cost(self, messages: int) -> int:
        """The tokens of so many messages, from the first."""
        return self._costs[messages]

    def parts(self, messages: int) -> int:
        """How many parts, as providers count them, so many messages have: a text, a call, a result."""
        return self._parts[messages]

    def place(self, ref: str) -> int | None:
        """How many messages stand before the one that shows this block; None when none does."""
        return self._places.get(ref)

    def take(self, block: Block) -> None:
        """Render one more block."""
        match block.body:
            case RoundStart(shows="context") as begun:
                self._begin(block, begun)
            case Decision(raw=raw, calls=calls):
                self._round = _Round(calls) if calls else None
                if raw:
                    self._add(AssistantMessage(text=self._text(block, raw)), block.ref)
            case Notes() | ToolCalled() | ToolResult():
                self._act(block)
            case Exit(reason=reason):
                self._end(block, reason)
            case _:
                self._tell(block)

    def said(self, block: Block) -> UserMessage | None:
        """What a user said, as it is shown; None for a block that is no user input."""
        match block.body:
            case UserPrompt(text=text) | UserFollowup(text=text):
                return UserMessage(text=f"[{block.ref}]\n{self._text(block, text)}")
            case _:
                return None

    def _open(self) -> None:
        """What stands for the blocks that are not rendered."""
        found = self._facts.summaries.get(self.window.summary)
        if found is None or not isinstance(found.body, RangeSummary):
            return
        summary = found.body
        text = summary_text(summary)
        self.marked.update(clipping.marked(text))
        self._add(UserMessage(text=f"[{found.ref}]\n{text}"), found.ref)
        history = self._facts.histories.get(found.seq)
        if history is not None and isinstance(history.body, PlanHistory):
            self._add(UserMessage(text=f"[{history.ref}]\n{history.body.text}"), history.ref)
        if self._reactions is not None:
            for number in range(summary.first_turn, summary.last_turn + 1 - summary.split):
                self._add_feedback(number, after=self.window.start)
        if summary.split:
            self.turn = summary.last_turn
            self.turn_start = len(self.messages)
            self._repeat(summary.last_turn)

    def _repeat(self, turn: int) -> None:
        """What the user said in a turn whose beginning is summed up, word for word."""
        for seq, block in self._facts.inputs.items():
            taken = self._facts.taken.get(seq)
            if block.turn == turn and taken is not None and taken <= self.window.start:
                self._say(block)

    def _begin(self, block: Block, begun: RoundStart) -> None:
        self._answered = False
        opens_turn = block.turn != self.turn
        if opens_turn:
            self.turn, self.turn_start = block.turn, len(self.messages)
        here = Cut(
            seq=block.seq - 1,
            messages=len(self.messages),
            turn=block.turn,
            opens_turn=opens_turn,
        )
        self.cuts.append(here)
        for seq in begun.takes:
            if self._facts.taken.get(seq) == block.seq:  # else it was recalled before it was taken
                self._say(self._facts.inputs[seq])
        if begun.points:
            self.last_tail = begun.points[-1].messages

    def _say(self, block: Block) -> None:
        message = self.said(block)
        if message is not None:
            self._add(message, block.ref)

    def _act(self, block: Block) -> None:
        current = self._round
        if current is None:
            return
        match block.body:
            case Notes(text=text):
                current.notes = self._text(block, text)
            case ToolCalled() as call:
                current.calls.append((block, call))
            case ToolResult() as result:
                current.results[result.call_id] = (block, result)
            case _:
                pass
        if len(current.calls) == len(current.results) == current.expected:
            self._close(current)

    def _close(self, current: _Round) -> None:
        """Render a round whose calls all have their results."""
        calls = [self._call(block, call) for block, call in current.calls]
        for block, _ in current.calls:
            self._places.setdefault(block.ref, len(self.messages))
        self._add(self._protocol.called(current.notes, calls), current.calls[0][0].ref)
        for call in calls:
            block, result = current.results[call.call_id]
            self._add(self._protocol.result(self._result(block, result, call)), block.ref)
        self._round = None

    def _tell(self, block: Block) -> None:
        match block.body:
            case Completion(text=text) | Draft(text=text):
                self._answered = True
                shown = self._unless_hidden(block, self._text(block, text))
                self._add(self._protocol.answered(shown), block.ref)
            case Notice(text=text) | SystemMessage(text=text):
                shown = self._unless_hidden(block, text)
                self._add(UserMessage(text=f"[{block.ref}]\n{shown}"), block.ref)
            case _:
                pass

    def _end(self, block: Block, reason: str) -> None:
        if not self._answered:
            text = f"The turn ended here without an answer: {reason}."
            self._add(UserMessage(text=f"[{block.ref}]\n{text}"), block.ref)
        self._add_feedback(block.turn)

    def _add_feedback(self, turn: int, after: int = 0) -> None:
        """What was thought of a turn, as far as this epoch holds it in its place."""
        if self._reactions is None:
            return
        for given in self._reactions.about(turn):
            if given.block.seq > after:
                text = f"[{given.block.ref}]\n{given.line()}"
                self._add(UserMessage(text=text), given.block.ref)

    def _text(self, block: Block, text: str) -> str:
        if block.turn < self.window.old_before:
            return clipping.cut(
                clipping.without_base64(text, block.ref), clipping.TEXT_LIMIT, block.ref
            )
        if self.window.text_limit is not None:
            return clipping.cut(text, self.window.text_limit, block.ref)
        return text

    def _unless_hidden(self, block: Block, text: str) -> str:
        hidden = self._facts.hidden(block.ref, self.window.hides)
        return text if hidden is None else _replaced(hidden.replacement, block.ref)

    def _call(self, block: Block, call: ToolCalled) -> ToolCall:
        return ToolCall(
            name=call.tool,
            arguments=self._arguments(block, call),
            call_id=call.call_id,
            provider_id=call.provider_id,
        )

    def _arguments(self, block: Block, call: ToolCalled) -> JsonObject:
        hidden = self._facts.hidden(block.ref, self.window.hides)
        if hidden is not None:
            return {"hidden": _replaced(hidden.replacement, block.ref)}
        if block.turn < self.window.old_before and call.tool != PLAN_TOOL:
            return clipping.old_arguments(call.arguments, block.ref)
        return call.arguments

    def _result(self, block: Block, result: ToolResult, call: ToolCall) -> ToolMessage:
        text = self._seen(block, result, f"of {call.name}({clipping.short(call.arguments)})")
        self.marked.update(clipping.marked(text))
        return ToolMessage(
            call_id=result.call_id,
            name=result.tool,
            text=f"[{block.ref}]\n{text}",
            ok=result.status == "ok",
        )

    def _seen(self, block: Block, result: ToolResult, call: str) -> str:
        window, ref = self.window, block.ref
        hidden = self._facts.hidden(ref, window.hides)
        if hidden is not None:
            return _replaced(hidden.replacement, ref)
        text = clipping.without_base64(result.text, ref)
        read = result.call_id not in self._facts.started
        spent = block.seq <= window.reads_cleared or block.turn < window.spent_before
        if block.seq <= window.results_cleared or (read and spent):
            return self._facts.named_once(
                block.seq, lambda: clipping.named(text, ref, call, result.shows)
            )
        if block.turn < window.old_before:
            return clipping.old_result(text, ref)
        if text == result.text and len(text) <= window.result_limit:
            self.shown.update(result.shows)
        return clipping.cut(text, window.result_limit, ref)

    def _add(self, message: Message, ref: str) -> None:
        written = repr(message)
        cost = estimate(written)
        self._places.setdefault(ref, len(self.messages))
        self.messages.append(message)
        self.refs.append(ref)
        self.tokens += cost
        self._costs.append(self.tokens)
        self._parts.append(self._parts[-1] + _size(message))
        self._digest.update(f"{written}\n".encode())


def _size(message: Message) -> int:
    match message:
        case AssistantMessage(text=text, calls=calls):
            return bool(text) + len(calls)
        case UserMessage() | ToolMessage():
            return 1


def _replaced(replacement: str, ref: str) -> str:
    return f'{replacement}\n[HIDDEN] react.read(["{ref}"]) shows it again'
