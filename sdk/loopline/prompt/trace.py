"""The trace of a turn: what a request that writes the answer sees, whatever the protocol was.

It is made of the log, so every result of the turn is in it, also those that the context has cleared or
summed up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopline.models import Message, UserMessage
from loopline.models.tokens import estimate
from loopline.prompt.clipping import short
from loopline.timeline import (
    Block,
    Draft,
    Notes,
    Notice,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    UserSteer,
)

TRACE_LIMIT = 2_000
"""Characters of a result in a trace."""
SHORTEST_TRACE = 100

TRACE_SYSTEM = """You write the answer to the user's question from the trace of the work that was done for it. \
Write it whole and in order, in the language of the question, for somebody who has not seen the trace. Use only \
what the trace holds. Right after each sentence name the source that supports it as [[S:1]] or [[S:2,3]], with the \
numbers that the results give. Where something failed or stayed open, say so."""

TRACE_TAIL = "Write the answer now."


def trace(blocks: Iterable[Block], limit: int = TRACE_LIMIT) -> list[Message]:
    """The messages of a trace: what the user said, and each call with the beginning of its result.

    `limit` is how many characters of a result are shown.
    """
    return list(_messages(blocks, limit))


def trace_limit(blocks: Sequence[Block], room: int) -> int:
    """The characters of each result that a trace can show in so many tokens, at most 2,000."""
    limit = TRACE_LIMIT
    while limit > SHORTEST_TRACE:
        if sum(estimate(repr(one)) for one in trace(blocks, limit)) <= room:
            break
        limit //= 2
    return limit


def _messages(blocks: Iterable[Block], limit: int) -> Iterable[Message]:
    calls: dict[str, ToolCalled] = {}
    for block in blocks:
        match block.body:
            case UserPrompt(text=text) | UserFollowup(text=text) | UserSteer(text=text):
                yield UserMessage(text=f"[THE USER SAID] {text}")
            case ToolCalled(call_id=call_id) as call:
                calls[call_id] = call
            case ToolResult() as result:
                yield UserMessage(text=_result(block, result, calls.get(result.call_id), limit))
            case Notes(text=text):
                yield UserMessage(text=f"[NOTES] {text}")
            case Draft(text=text):
                yield UserMessage(text=f"[DRAFT] {text}")
            case Notice(text=text):
                yield UserMessage(text=f"[NOTICE] {text}")
            case _:
                pass


def _result(block: Block, result: ToolResult, call: ToolCalled | None, limit: int) -> str:
    said = short(call.arguments) if call else ""
    shown = result.text[:limit]
    more = len(result.text) - len(shown)
    rest = f"\n… {more} more characters" if more else ""
    return f"[RESULT {block.ref}] {result.tool}({said}): {result.status}\n{shown}{rest}"
