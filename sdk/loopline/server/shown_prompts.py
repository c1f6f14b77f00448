"""The prompt of a round for the page: the document of `loopline prompt`, with the state and the tokens of each part."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from loopline.models import AssistantMessage, Json, JsonObject, Message
from loopline.models.prompt import cost, estimate
from loopline.prompt import (
    ModelRequest,
    answer_schema,
    message_text,
    past_requests,
    prompt_document,
)
from loopline.reader import text_of
from loopline.server.problems import not_found
from loopline.timeline import Block, Decision, Hide, RangeSummary, Timeline, ToolCalled, turn_id

PartState = Literal["full", "shortened", "hidden", "cleared", "summary"]
"""How a message shows its block: in full, shortened, replaced because it was hidden or cleared; or it is a summary."""
_CLEARED = "[CLEARED] "


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks before a request: by ref, the calls by turn and id, and the refs that were hidden."""

    by_ref: dict[str, Block]
    calls: dict[tuple[int, str], ToolCalled]
    hidden: frozenset[str]

    @classmethod
    def before(cls, timeline: Timeline, seq: int) -> _Blocks:
        """Return the blocks up to and including the seq; by ref, the first block with the ref."""
        by_ref: dict[str, Block] = {}
        calls: dict[tuple[int, str], ToolCalled] = {}
        hidden: set[str] = set()
        for block in timeline.until(seq):
            by_ref.setdefault(block.ref, block)
            if isinstance(block.body, ToolCalled):
                calls[block.turn, block.body.call_id] = block.body
            elif isinstance(block.body, Hide):
                hidden.add(block.body.path)
        return cls(by_ref, calls, frozenset(hidden))

    def state(self, message: Message, ref: str) -> PartState:
        """Return how a message shows the block of its ref; `full` if no block before the request has the ref."""
        block = self.by_ref.get(ref)
        if block is None:
            return "full"
        if isinstance(block.body, RangeSummary):
            return "summary"
        if isinstance(message, AssistantMessage) and message.calls:
            return self._state_of_calls(message, block, ref)
        text = message_text(message)
        if isinstance(block.body, Decision) or text_of(block)[0] in text:
            return "full"
        if ref in self.hidden:
            return "hidden"
        return (
            "cleared"
            if text.partition("\n")[2].startswith((_CLEARED, "it showed"))
            else "shortened"
        )

    def _state_of_calls(self, message: AssistantMessage, block: Block, ref: str) -> PartState:
        """Return `full` if all arguments are as recorded or were not recorded, otherwise `hidden` or `shortened`."""
        recorded = [self.calls.get((block.turn, call.call_id)) for call in message.calls]
        same = all(
            body is None or body.arguments == call.arguments
            for body, call in zip(recorded, message.calls, strict=True)
        )
        if same:
            return "full"
        return "hidden" if ref in self.hidden else "shortened"


def show_prompts(timeline: Timeline) -> Iterator[JsonObject]:
    """Yield every request that was sent, in order, as the page shows it.

    In addition to the fields of `loopline prompt --json`, each message has its `tokens`, its `state` and whether it is
    `stable`, which means that the request before has the same message at the same position. `reply` is the reply of the
    model, null without a reply. `before` and `after` are the positions of the previous and the next request.
    """
    for before, current, after, last in _neighbours(timeline):
        yield _shown(timeline, before, current, after, is_last=last)


def show_prompt(timeline: Timeline, turn: int, number: int, seq: int = 0) -> JsonObject:
    """Return one request of a round, as `show_prompts` yields it: by the seq of its block, or the last one if that is 0.

    A round sends a second request if a steer came before the reply to the first one.

    Raises:
        RequestProblem: the round does not exist, or sent no such request to a model, 404.
    """
    for before, current, after, last in _neighbours(timeline):
        is_wanted = current.block.seq == seq if seq else last
        if is_wanted and (current.block.turn, current.block.round) == (turn, number):
            return _shown(timeline, before, current, after, is_last=last)
    raise not_found(f"request of round {number} in {turn_id(turn)}")


def show_last_prompt(timeline: Timeline, turn: int = 0) -> JsonObject:
    """Return the last request of a turn, or of the conversation if the turn is 0, as `show_prompts` yields it.

    Raises:
        RequestProblem: no request was sent to a model, 404.
    """
    requests = deque(
        (request for request in _neighbours(timeline) if turn in (0, request[1].block.turn)),
        maxlen=1,
    )
    if not requests:
        raise not_found("request to a model")
    before, current, after, is_last = requests[0]
    return _shown(timeline, before, current, after, is_last=is_last)


def _neighbours(
    timeline: Timeline,
) -> Iterator[tuple[ModelRequest | None, ModelRequest, ModelRequest | None, bool]]:
    """Yield each request with the ones before and after it, and whether it is the last request of its round."""
    before: ModelRequest | None = None
    requests = past_requests(timeline)
    current = next(requests, None)
    while current is not None:
        after = next(requests, None)
        yield before, current, after, after is None or not _is_same_round(current, after)
        before, current = current, after


def _is_same_round(one: ModelRequest, other: ModelRequest) -> bool:
    return (one.block.turn, one.block.round) == (other.block.turn, other.block.round)


def _shown(
    timeline: Timeline,
    before: ModelRequest | None,
    chosen: ModelRequest,
    after: ModelRequest | None,
    *,
    is_last: bool,
) -> JsonObject:
    """Return the document of a request with its tokens, message states, reply, and positions of its neighbours."""
    document = prompt_document(chosen, answer_schema(timeline, chosen))
    return {
        **document,
        "messages": _messages(timeline, chosen, document, _shared(before, chosen)),
        "system_tokens": estimate(chosen.system),
        "tools_tokens": estimate(chosen.tools) if chosen.tools else 0,
        "tail_tokens": estimate(chosen.round_start.tail),
        "inexact": chosen.inexact,
        "seq": chosen.block.seq,
        "reply": _reply(timeline, chosen.block),
        "is_last": is_last,
        "before": _position(before),
        "after": _position(after),
    }


def _shared(before: ModelRequest | None, request: ModelRequest) -> int:
    """Return how many messages at the beginning are equal in both requests; 0 without a request before."""
    earlier = before.messages if before else ()
    pairs = zip(earlier, request.messages, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _messages(
    timeline: Timeline, request: ModelRequest, document: JsonObject, shared: int
) -> list[Json]:
    """Return the messages with `tokens`, `state` and `stable`, which is true for the first `shared` ones."""
    blocks = _Blocks.before(timeline, request.block.seq)
    rows = document["messages"]
    assert isinstance(rows, list)
    shown: list[Json] = []
    for index, (row, message, ref) in enumerate(
        zip(rows, request.messages, request.refs, strict=True)
    ):
        assert isinstance(row, dict)
        shown.append(
            {
                **row,
                "tokens": cost(message),
                "state": blocks.state(message, ref),
                "stable": index < shared,
            }
        )
    return shown


def _position(request: ModelRequest | None) -> Json:
    """Return the turn, the round and the seq of a request, by which `show_prompt` finds it."""
    if request is None:
        return None
    block = request.block
    return {"turn": block.turn, "round": block.round, "seq": block.seq}


def _reply(timeline: Timeline, start: Block) -> Json:
    """Return the decision that answered the request of the block `start`, or None if the model has not replied."""
    for block in timeline.blocks[start.seq - timeline.base.covers :]:
        if block.turn != start.turn or block.round != start.round:
            if block.round > start.round or block.turn > start.turn:
                return None
            continue
        body = block.body
        if isinstance(body, Decision):
            return {
                "ref": block.ref,
                "seq": block.seq,
                "model": body.model,
                "stop_reason": body.stop_reason,
                "calls": body.calls,
                "input_tokens": body.usage.input_tokens,
                "output_tokens": body.usage.output_tokens,
                "cache_read_tokens": body.usage.cache_read_tokens,
                "cache_write_tokens": body.usage.cache_write_tokens,
                "cost": body.cost,
            }
    return None
