"""The state of a running turn, folded from its blocks, and the same turn as the nodes and channels of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

from loopline.models import JsonObject, Message, Usage, dumps
from loopline.prompt import View, protocol_named
from loopline.react.loop_options import LoopOptions
from loopline.timeline import (
    Batch,
    Block,
    Completion,
    Decision,
    Exit,
    RoundStart,
    Timeline,
    ToolCalled,
    ToolResult,
    ToolStarted,
    Turn,
)

STEER_ROUNDS = 3
"""So many decisions a turn may still make once the user has steered it."""
LONGEST_CIRCLE = 3
"""The rounds of a circle that is seen: A, B, C, A, B, C is one of three."""
FARTHEST = 64
"""So many rounds back repeated calls are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactStateV2:
    """Where the running turn stands.

    `iteration` counts the decisions made, of at most `max_iterations`, if that is not None; an answer is held until
    `min_rounds` are. `malformed` and `cut_off` count the replies in a row that could not be read, or were
    cut off by the output limit. `batches` are the calls of each decision with their results. `notices`
    counts what the turn was told, by code. `answer` is an answer on the table, None when there is none.
    """

    iteration: int
    max_iterations: int | None
    min_rounds: int
    malformed: int
    cut_off: int
    steered: bool
    batches: Sequence[Batch]
    notices: Mapping[str, int]
    usage: Usage
    cost: float | None
    elapsed_seconds: float
    answer: str | None = None

    @classmethod
    def fold(cls, turn: Turn, options: LoopOptions, elapsed_seconds: float) -> ReactStateV2:
        """The state that the turn's blocks make."""
        most = options.max_iterations
        least = options.min_rounds
        if most is not None and not options.early_stop:
            least = most
        if turn.steered_at_round is not None:
            left = turn.steered_at_round + STEER_ROUNDS
            most = left if most is None else min(most, left)
            least = 1
        return cls(
            iteration=turn.rounds,
            max_iterations=most,
            min_rounds=least if most is None else min(least, most),
            malformed=turn.malformed,
            cut_off=turn.cut_off,
            steered=turn.steered_at_round is not None,
            batches=turn.batches,
            notices=turn.notice_counts,
            usage=turn.usage,
            cost=turn.cost,
            elapsed_seconds=elapsed_seconds,
        )

    @property
    def exhausted(self) -> bool:
        """Whether no further decision may be made."""
        return self._makes_last(0)

    @property
    def last(self) -> bool:
        """Whether the next decision is the last one."""
        return self._makes_last(1)

    def _makes_last(self, more: int) -> bool:
        """Whether no decision may follow when so many more have been made."""
        return self.max_iterations is not None and self.iteration + more >= self.max_iterations

    @property
    def same_calls(self) -> int:
        """How often over the newest calls were made, by rounds alike, in a circle of rounds, or in one round."""
        return list(repetitions(self.batches[-FARTHEST:]))[-1] if self.batches else 0


def repetitions(batches: Iterable[Batch]) -> Iterator[int]:
    """How often over the same calls have been made when each of these rounds is over.

    It is 0 for a round without calls. A circle is of `LONGEST_CIRCLE` rounds at most.
    """
    made = list[str]()
    again = [0] * LONGEST_CIRCLE
    for batch in batches:
        steps = _call_steps(batch)
        made = [*made, *steps] if steps else []
        for place in range(len(made) - len(steps), len(made)):
            for length in range(1, LONGEST_CIRCLE + 1):
                same = place >= length and made[place] == made[place - length]
                again[length - 1] = again[length - 1] + 1 if same else 0
        yield max(n // (at + 1) + 1 for at, n in enumerate(again)) if steps else 0
        made = made[-LONGEST_CIRCLE:]


def _call_steps(batch: Batch) -> list[str]:
    """What the calls of a round are, whatever their order and spacing, as often as it makes all of them."""
    calls = Counter(dumps([call.tool, _normalized(call.arguments)]) for call in batch.calls)
    times = gcd(*calls.values())
    kinds = sorted(f"{call}×{count // times}" for call, count in calls.items())
    return ["\n".join(kinds)] * times


def _normalized(arguments: JsonObject) -> JsonObject:
    return {
        name: " ".join(value.split()) if isinstance(value, str) else value
        for name, value in sorted(arguments.items())
    }


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
