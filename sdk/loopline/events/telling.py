"""A turn as far as it has been told, and what is told of it next."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopline.events.moments import (
    At,
    CallBegan,
    CallEnded,
    ChildBegan,
    ChildEnded,
    Decided,
    Paused,
)
from loopline.timeline import Decision, RunChild, ToolCalled, ToolResult, Turn


@dataclass(slots=True)
class Telling:
    """The fold of a turn's blocks, with its calls as they were numbered and when its children began."""

    turn: Turn
    limit: int = 0
    calls: dict[str, CallBegan] = field(default_factory=dict[str, CallBegan])
    children: dict[str, At] = field(default_factory=dict[str, At])

    @property
    def stop_reason(self) -> str:
        """How the last decision ended."""
        return self.turn.decisions[-1].stop_reason if self.turn.decisions else ""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The calls that wait for an answer the user has not given."""
        turn = self.turn
        return tuple(one for one in turn.waiting if one not in turn.answers)

    @property
    def is_paused(self) -> bool:
        """Whether every open call waits for the user."""
        return bool(self.turn.open_calls) and self.turn.open_calls.keys() <= {*self.waiting}

    @property
    def is_running(self) -> bool:
        """Whether a runner has begun the turn, and it has neither ended nor paused."""
        return self.turn.header is not None and self.turn.exit is None and not self.is_paused

    @property
    def paused(self) -> Paused:
        """That nothing more comes."""
        return Paused(calls=self.waiting, rounds=self.turn.rounds, stop_reason=self.stop_reason)

    def call(self, call_id: str, tool: str = "") -> CallBegan:
        """The call; as far as it is known where its block was not heard."""
        return self.calls.get(call_id) or CallBegan(call_id=call_id, tool=tool)

    def called(self, asked: ToolCalled) -> CallBegan:
        """The call, which is not folded yet, with its place in its decision."""
        turn = self.turn
        call = self.calls[asked.call_id] = CallBegan(
            call_id=asked.call_id,
            tool=asked.tool,
            arguments=asked.arguments,
            iteration=turn.rounds,
            index=len(turn.batches[-1].calls) if turn.batches else 0,
            total=turn.decisions[-1].calls if turn.decisions else 1,
        )
        return call

    def returned(self, result: ToolResult) -> CallEnded:
        """What came of a call; the result is folded."""
        call = self.call(result.call_id, result.tool)
        children = self.turn.children.values()
        return CallEnded(
            call=call,
            ran_with=call.arguments if result.ran_with is None else result.ran_with,
            status=result.status,
            text=result.text,
            elapsed_ms=result.elapsed_ms,
            artifact=result.artifact,
            open_calls=tuple(self.turn.open_calls),
            has_children=any(child.call_id == result.call_id for child in children),
        )

    def child(self, child: RunChild, at: At) -> ChildBegan | ChildEnded:
        """That a child has begun, or what came of it."""
        call, name = self.call(child.call_id), child.conversation
        if not child.reason:
            self.children.setdefault(name, at)
            return ChildBegan(call=call, conversation=name)
        since = at.ts - self.children.get(name, at).ts
        return ChildEnded(
            call=call,
            conversation=name,
            reason=child.reason,
            usage=child.usage,
            elapsed_ms=max(since.total_seconds() * 1000, 0.0),
        )

    def decided(self, decision: Decision) -> Decided:
        """The decision, which is folded, before its thoughts are."""
        return Decided(
            iteration=self.turn.rounds if decision.purpose == "decision" else 0,
            limit=self.limit,
            purpose=decision.purpose,
            thought="",
            notes="",
            raw=decision.raw,
            model=decision.model,
            stop_reason=decision.stop_reason,
            usage=decision.usage,
            calls=decision.calls,
        )
