"""A turn as a graph runtime would show it: nodes that were run, and channels with their reducers.

Nothing runs by these: they are read-only views of the turn's blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from loopline.models import Message
from loopline.prompt import View, protocol_named
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Exit,
    RoundStart,
    Timeline,
    ToolCalled,
    ToolResult,
    ToolStarted,
)

Node = Literal["prepare", "call_llm", "route_after", "execute_tools", "finalize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a turn after its last block.

    `messages` are appended to, `turn` is replaced by each round, `pending_tools` are the calls without a
    result, the token counts are sums, `stop_reason` and `llm_response` are those of the newest decision.
    """

    messages: tuple[Message, ...] = ()
    turn: int = 0
    pending_tools: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    stop_reason: str = ""
    llm_response: str = ""


def channels(timeline: Timeline, number: int) -> Channels:
    """The channels of the turn of that number; `messages` are those that its next round would begin with."""
    turn = timeline.turn(number)
    last = turn.decisions[-1] if turn.decisions else None
    asked = timeline.last_round
    view = View(protocol_named(asked.protocol if asked else "native"), timeline.blocks)
    said = [one.text for one in turn.completions[-1:]]
    return Channels(
        messages=tuple(view.messages),
        turn=turn.rounds,
        pending_tools=tuple(turn.open_calls),
        input_tokens=turn.usage.input_tokens,
        output_tokens=turn.usage.output_tokens,
        stop_reason=last.stop_reason if last else "",
        llm_response=(last.raw if last and last.raw else "".join(said)),
    )


def nodes(blocks: Iterable[Block]) -> Iterator[tuple[Node, Block]]:
    """Which node wrote each block of a turn; blocks that belong to none are left out."""
    for block in blocks:
        match block.body:
            case RoundStart():
                yield "prepare", block
            case Decision():
                yield "call_llm", block
            case ToolCalled():
                yield "route_after", block
            case ToolStarted() | ToolResult():
                yield "execute_tools", block
            case Completion() | Exit():
                yield "finalize", block
            case _:
                pass
