"""The stable messages of a prompt, as a fold of the blocks: it only ever grows.

What a user said is rendered where a round took it. A round that made calls is rendered once every
call has its result, so that no call is ever shown without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from loopline.models import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from loopline.models.tokens import estimate
from loopline.prompt.protocols import DecisionProtocol
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Draft,
    Exit,
    Notes,
    Notice,
    RoundStart,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    UserRecalled,
)

RENDERER = 1
"""The version of what this module makes of the blocks; another one opens an epoch."""


RESULT_LIMIT = 64_000
"""Characters of one result that are rendered; its block holds it whole."""


@dataclass(slots=True)
class _Round:
    """A decision with calls, while its results are coming in."""

    expected: int
    notes: str = ""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: dict[str, ToolMessage] = field(default_factory=dict[str, ToolMessage])


class View:
    """The messages that the blocks so far make, in one protocol.

    `tokens` is an estimate of what they cost.
    """

    def __init__(self, protocol: DecisionProtocol, blocks: Iterable[Block] = ()) -> None:
        self._protocol = protocol
        self._waiting: dict[int, Block] = {}
        self._round: _Round | None = None
        self._answered = False
        self._digest = sha256()
        self.messages: list[Message] = []
        self.seq: int = 0
        self.tokens: int = 0
        self.extend(blocks)

    @property
    def sha256(self) -> str:
        """The digest of all messages, in hexadecimal."""
        return self._digest.hexdigest()

    def extend(self, blocks: Iterable[Block]) -> None:
        """Render further blocks; those rendered before are passed over."""
        for block in blocks:
            if block.seq > self.seq:
                self.seq = block.seq
                self._take(block)

    def _add(self, message: Message) -> None:
        written = repr(message)
        self.messages.append(message)
        self.tokens += estimate(written)
        self._digest.update(f"{written}\n".encode())

    def _take(self, block: Block) -> None:
        match block.body:
            case UserPrompt() | UserFollowup():
                self._waiting[block.seq] = block
            case UserRecalled(said=said):
                self._waiting.pop(said, None)
            case RoundStart(takes=takes):
                self._answered = False
                for seq in takes:
                    if seq in self._waiting:  # else it was recalled before it was taken
                        self._say(self._waiting.pop(seq))
            case Decision(raw=raw, calls=calls):
                self._round = _Round(calls) if calls else None
                if raw:
                    self._add(AssistantMessage(text=raw))
            case Notes() | ToolCalled() | ToolResult():
                self._act(block)
            case _:
                self._close(block)

    def _say(self, block: Block) -> None:
        match block.body:
            case UserPrompt(text=text) | UserFollowup(text=text):
                self._add(UserMessage(text=f"[{block.ref}]\n{text}"))
            case _:
                pass

    def _act(self, block: Block) -> None:
        current = self._round
        if current is None:
            return
        match block.body:
            case Notes(text=text):
                current.notes = text
            case ToolCalled() as made:
                current.calls.append(_call(made))
            case ToolResult() as result:
                current.results[result.call_id] = _result(result, block.ref)
            case _:
                pass
        if len(current.calls) == len(current.results) == current.expected:
            self._add(self._protocol.called(current.notes, current.calls))
            for call in current.calls:
                self._add(self._protocol.result(current.results[call.call_id]))
            self._round = None

    def _close(self, block: Block) -> None:
        match block.body:
            case Completion(text=text) | Draft(text=text):
                self._answered = True
                self._add(self._protocol.answered(text))
            case Notice(text=text):
                self._add(UserMessage(text=f"[{block.ref}]\n{text}"))
            case Exit(reason=reason) if not self._answered:
                text = f"The turn ended here without an answer: {reason}."
                self._add(UserMessage(text=f"[{block.ref}]\n{text}"))
            case _:
                pass


def _shown(text: str, ref: str) -> str:
    if len(text) <= RESULT_LIMIT:
        return text
    cut = f"… cut: {len(text) - RESULT_LIMIT} of {len(text)} characters"
    return f"{text[:RESULT_LIMIT]}\n{cut}; the rest is {ref}#C{RESULT_LIMIT + 1}-C{len(text)}"


def _call(call: ToolCalled) -> ToolCall:
    return ToolCall(
        name=call.tool,
        arguments=call.arguments,
        call_id=call.call_id,
        provider_id=call.provider_id,
    )


def _result(result: ToolResult, ref: str) -> ToolMessage:
    return ToolMessage(
        call_id=result.call_id,
        name=result.tool,
        text=f"[{ref}]\n{_shown(result.text, ref)}",
        ok=result.status == "ok",
    )
