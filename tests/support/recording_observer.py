"""An observer that keeps what it is told, and the same spans made from a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from loopline.events import Caller, ObservedTurn
from loopline.telemetry import spans
from loopline.telemetry.spans import FinishedSpan, TurnSpans, spans_of
from loopline.timeline import Block, ConversationKey, RunChild, TimelineLog


@dataclass
class Watching:
    """Keeps the spans as they end, the turns as they are begun, and whether it was closed."""

    spans: list[FinishedSpan] = field(default_factory=list[FinishedSpan])
    begun: list[tuple[ObservedTurn, int]] = field(default_factory=list[tuple[ObservedTurn, int]])
    closed: int = 0

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """Keep the spans that end from now on."""
        self.begun.append((turn, len(blocks)))
        fold = TurnSpans(turn)
        for block in blocks:
            fold.take(block)
        return lambda block: self.spans.extend(fold.take(block))

    async def close(self) -> None:
        self.closed += 1


async def rebuilt(
    log: TimelineLog, conversation: ConversationKey, caller: Caller | None = None
) -> list[FinishedSpan]:
    """The spans of all turns of a conversation and of the child runs below them, from the log alone."""
    summary, blocks = await log.find(conversation), await log.read(conversation)
    assert summary is not None
    spans = list[FinishedSpan]()
    for number in sorted({block.turn for block in blocks}):
        turn = ObservedTurn(conversation=conversation, uid=summary.uid, turn=number, caller=caller)
        own = [block for block in blocks if block.turn == number]
        spans += spans_of(turn, own)
        for name, call_id in children(own).items():
            child = structs.replace(conversation, name=name)
            spans += await rebuilt(log, child, Caller(turn, call_id))
    return spans


def children(blocks: Sequence[Block]) -> dict[str, str]:
    """The child runs that calls of a turn began, with the call of each."""
    links = [block.body for block in blocks if isinstance(block.body, RunChild)]
    return {link.conversation: link.call_id for link in links}


def by_id(spans: Sequence[FinishedSpan]) -> list[FinishedSpan]:
    """In an order that depends on nothing but the spans."""
    return sorted(spans, key=lambda span: span.span_id)


def tree(spans: Sequence[FinishedSpan]) -> dict[str, list[str]]:
    """The names of the spans below each, by conversation and name; roots are below nothing."""
    named = {span.span_id: _named(span) for span in spans}
    below = dict[str, list[str]]()
    for span in spans:
        above = "" if span.parent_id is None else named[span.parent_id]
        below.setdefault(above, []).append(_named(span))
    return {above: sorted(names) for above, names in below.items()}


def _named(span: FinishedSpan) -> str:
    call = span.attributes.get(spans.CALL_ID, "")
    return f"{span.attributes[spans.CONVERSATION]} {span.name} {call}".strip()
