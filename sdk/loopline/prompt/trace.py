"""The trace of a turn: the messages of a request that only writes the answer, in any protocol.

It is made from the log, so it has every result of the turn, also those that the context has cleared or summarized.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from loopline.models import Attached, AttachmentSupport, Message, UserMessage
from loopline.models.tokens import cost
from loopline.prompt import attached_files
from loopline.prompt.truncation import escape_frame, short_arguments
from loopline.timeline import (
    BackgroundResult,
    Block,
    BodyUnion,
    Draft,
    InboxBody,
    Notes,
    Notice,
    Projection,
    RoundStart,
    ToolCalled,
    ToolResult,
    UserAttachment,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserSteer,
    input_seq_of,
)

TRACE_LIMIT = 2_000
"""Characters of a result in a trace."""
SHORTEST_TRACE = 100

TRACE_SYSTEM = """You write the answer to the user's question from the trace of the work that was done for it. \
Write it whole and in order, in the language of the question, for somebody who has not seen the trace. Use only \
what the trace holds. Right after each sentence name the source that supports it as [[S:1]] or [[S:2,3]], with the \
numbers that the results give. Where something failed or stayed open, say so."""

TRACE_TAIL = "Write the answer now."


TraceBody = InboxBody | UserAttachment | ToolCalled | ToolResult | Notes | Draft | Notice
_TRACE = BodyUnion[TraceBody](TraceBody)
_INPUTS = BodyUnion[InboxBody](InboxBody)


def traced_blocks(blocks: Iterable[Block], turn: int, takes: Iterable[int]) -> list[Block]:
    """Return the blocks that the trace of a turn shows, for a round that takes the inputs of these seqs.

    Of the user's inputs these are the ones that a round of the turn has taken, whatever turn they were sent in. An
    input that was recalled first, or that still waits, is not among them.
    """
    candidates, taken, recalled = list[Block](), set[int](), set[int]()
    for block in blocks:
        body = block.body
        if isinstance(body, RoundStart):
            taken.update(set(body.takes) - recalled if block.turn == turn else ())
        elif isinstance(body, UserRecalled):
            recalled.add(body.said)
        elif block.turn == turn or isinstance(body, UserAttachment) or _INPUTS.has(body):
            candidates.append(block)
    taken.update(set(takes) - recalled)
    return [block for block in candidates if _is_traced(block, taken)]


def _is_traced(block: Block, taken: set[int]) -> bool:
    """Return whether a block is no input, or one that was taken, or a file that came with one."""
    if isinstance(block.body, UserAttachment):
        return input_seq_of(block) in taken
    return not _INPUTS.has(block.body) or block.seq in taken


def trace(blocks: Iterable[Block], window: Projection) -> list[Message]:
    """Return the messages of a trace: what the user said, and each call with the beginning of its result.

    The window says how many characters of a result are shown, and which files the model gets.
    """
    calls: dict[str, ToolCalled] = {}
    messages, load = list[Message](), attached_files.FileLoad()
    for block, body in _TRACE.among(blocks):
        match body:
            case UserPrompt(text=text) | UserFollowup(text=text) | UserSteer(text=text):
                messages.append(UserMessage(text=f"[THE USER SAID] {text}"))
            case BackgroundResult(call_id=call_id):
                messages.append(
                    UserMessage(text=f"[RESULT OF {call_id}] {escape_frame(body.text)}")
                )
            case UserAttachment():
                attached, load = attached_files.show_file(block, body, window, load)
                messages.append(UserMessage(text="[THE USER ATTACHED]", attachments=(attached,)))
            case ToolCalled(call_id=call_id):
                calls[call_id] = body
            case ToolResult(call_id=call_id):
                text = _result(block, body, calls.get(call_id), window.result_limit)
                images: list[Attached] = []
                for image in body.images:
                    attached, load = attached_files.show_image(block, image, window, load)
                    images.append(attached)
                messages.append(UserMessage(text=text, attachments=tuple(images)))
            case Notes(text=text) | Draft(text=text) | Notice(text=text):
                label = body.type.removeprefix("react.").upper()
                messages.append(UserMessage(text=f"[{label}] {escape_frame(text)}"))
    return messages


def trace_window(blocks: Sequence[Block], room: int, carrying: AttachmentSupport) -> Projection:
    """Return the window of a trace that fits so many tokens: up to 2,000 characters a result, and what files fit."""
    window = Projection(result_limit=TRACE_LIMIT, carrying=carrying)
    while _exceeds(blocks, window, room) and window.result_limit > SHORTEST_TRACE:
        window = structs.replace(window, result_limit=window.result_limit // 2)
    if carrying.tokens and _exceeds(blocks, window, room):
        return trace_window(blocks, room, AttachmentSupport())
    return window


def _exceeds(blocks: Sequence[Block], window: Projection, room: int) -> bool:
    return sum(map(cost, trace(blocks, window))) > room


def _result(block: Block, result: ToolResult, call: ToolCalled | None, limit: int) -> str:
    arguments = short_arguments(call.arguments) if call else ""
    shown = result.text[:limit]
    hidden = len(result.text) - len(shown)
    ending = f"\n… {hidden} more characters" if hidden else ""
    head = f"[RESULT {block.ref}] {result.tool}({arguments}): {result.status}"
    return f"{head}\n{escape_frame(shown)}{ending}"
