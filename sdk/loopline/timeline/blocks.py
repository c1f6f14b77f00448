"""Blocks, which are recorded bodies with their position in a conversation, and unions of body types for folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar, get_args

from msgspec import Struct
from typing_extensions import TypeIs

from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    FileRef,
    Ref,
    SourcesRef,
    SummaryRef,
    block_ref,
    call_ref,
    newest_ref,
    parse,
)
from loopline.timeline.attachments import UserAttachment
from loopline.timeline.bodies import (
    ArtifactKept,
    Body,
    ProxiedBody,
    ProxiedCall,
    ProxiedResult,
    TextKept,
    ToolCalled,
    ToolResult,
    Unknown,
    UserPrompt,
)
from loopline.timeline.prompt_blocks import RangeSummary, turn_id
from loopline.timeline.sources import SourceAdded
from loopline.timeline.workspace import FileAdded

B = TypeVar("B", bound=Body)
S = TypeVar("S")
Fold = Callable[[S, "Block", Any], None]

NEW_TURN = 0
"""The turn number of an entry that opens the conversation's next turn."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body to be appended. `turn` counts from 1; `NEW_TURN` opens the next turn."""

    body: Body
    turn: int
    round: int = 0


class Block(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A recorded body with its position in a conversation.

    `seq` is the position, from 1 without gaps; it is the only order. `n` counts the blocks of this type in this
    turn, from 1. `round` is 0 outside a round. `ts` is UTC in whole milliseconds.
    """

    # gc=False saves the garbage collector a walk over all blocks; a frozen struct cannot be part of a cycle.

    seq: int
    turn: int
    round: int
    n: int
    ts: datetime
    term: int
    body: Body

    @property
    def type(self) -> str:
        """The stored type of the body."""
        return stored_type(self.body)

    @property
    def turn_id(self) -> str:
        """The id of the turn, such as `turn_3`."""
        return turn_id(self.turn)

    @property
    def ref(self) -> str:
        """The pinned ref of this block as text."""
        body = self.body
        if type(body) is ToolCalled:  # the three most frequent types, without making a ref object
            return call_ref(f"turn_{self.turn}", body.call_id, "call")
        if type(body) is ToolResult:
            return call_ref(f"turn_{self.turn}", body.call_id, "result")
        if type(body) is UserPrompt:
            return newest_ref(f"turn_{self.turn}", body.type)
        if type(body) not in _NAMED.types:
            return block_ref(f"turn_{self.turn}", stored_type(body), self.n)
        return str(self.name)

    @property
    def name(self) -> Ref:
        """The pinned ref of this block."""
        body = self.body
        turn = self.turn_id
        if not _NAMED.has(body):
            return BlockRef(turn_id=turn, type=self.type, n=self.n)
        match body:
            case UserPrompt():
                return BlockRef(turn_id=turn, type=body.type)
            case UserAttachment() | FileAdded():
                return _file_ref(turn, body)
            case ToolCalled(call_id=call_id) | ProxiedCall(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="call")
            case ToolResult(call_id=call_id) | ProxiedResult(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="result")
            case RangeSummary():
                return SummaryRef(turn_id=turn, n=self.n)
            case SourceAdded(sid=sid):
                return SourcesRef(ranges=((sid, sid),))
            case TextKept(ref=ref):
                return parse(ref)
            case ArtifactKept(name=name, version=version):
                return ArtifactRef(turn_id=turn, name=name, version=version)


def _file_ref(turn: str, file: UserAttachment | FileAdded) -> FileRef:
    match file:
        case UserAttachment(name=name):
            return FileRef(turn_id=turn, area="user.attachments", path=name)
        case FileAdded(area=area, path=path, version=version):
            return FileRef(turn_id=turn, area=area, path=path, version=version)


class BodyUnion(Generic[B]):
    """The body types that a fold reads, such as `_CALLS = BodyUnion[CallBody](CallBody)`.

    After `has` or `among` a `match` names each type without a default arm, so that the type checker reports a missing
    one. A new body type does not concern a fold until it is added to the fold's union.
    """

    def __init__(self, union: object) -> None:
        self.types: frozenset[object] = frozenset(get_args(union) or (union,))

    def has(self, body: Body) -> TypeIs[B]:
        """Return whether the body is of one of these types."""
        return type(body) in self.types

    def among(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, B]]:
        """Yield the blocks whose body is of one of these types, each with that body."""
        for block in blocks:
            if self.has(body := block.body):
                yield block, body

    def table(self, fold: Callable[[S, Block, B], None]) -> dict[object, Fold[S]]:
        """Return the fold under each type, for a table in which one look-up finds the fold of a block."""
        return dict.fromkeys(self.types, fold)


NamedBody = (
    UserPrompt
    | UserAttachment
    | ToolCalled
    | ToolResult
    | ProxiedBody
    | RangeSummary
    | SourceAdded
    | TextKept
    | ArtifactKept
    | FileAdded
)
"""The bodies with a ref other than `ar:<turn>.<type>.<n>`."""
_NAMED = BodyUnion[NamedBody](NamedBody)


def as_entry(block: Block) -> Entry:
    """Return the block without its position."""
    return Entry(body=block.body, turn=block.turn, round=block.round)


def stored_type(body: Body) -> str:
    """Return the stored type of a body; of an unknown body the type under which it was stored."""
    return body.stored_type if isinstance(body, Unknown) else body.type


def input_seq_of(block: Block) -> int:
    """Return the seq of the input that an attachment came with, 0 for any other block."""
    return block.seq - block.body.place if isinstance(block.body, UserAttachment) else 0
