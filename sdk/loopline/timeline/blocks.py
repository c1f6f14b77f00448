"""Blocks: recorded bodies with their position in a conversation, their refs, and the unions that folds read."""

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
"""The turn of an entry that opens the conversation's next turn."""


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

    # With gc=False the collector does not go through all blocks again and again: what is frozen is in no circle.

    seq: int
    turn: int
    round: int
    n: int
    ts: datetime
    term: int
    body: Body

    @property
    def type(self) -> str:
        """Return the stored type."""
        return stored_type(self.body)

    @property
    def turn_id(self) -> str:
        """Return the turn's id, as in refs."""
        return turn_id(self.turn)

    @property
    def ref(self) -> str:
        """Return the pinned ref of this block as text."""
        body = self.body
        if type(body) is ToolCalled:  # these are written in every round and turn
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
        """Return the pinned ref of this block."""
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
    """The body types that a fold reads: `CALLS = BodyUnion[CallBody](CallBody)`.

    What it lets through is matched type by type, without a default. A type that is new to `Body` concerns no fold.
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
        """Return the fold by type, so that one look-up finds what takes a block."""
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
"""What has a ref that says more than the type and the number of its block."""
_NAMED = BodyUnion[NamedBody](NamedBody)


def as_entry(block: Block) -> Entry:
    """Return the block without its position."""
    return Entry(body=block.body, turn=block.turn, round=block.round)


def stored_type(body: Body) -> str:
    """Return the name under which a body's type is stored."""
    return body.stored_type if isinstance(body, Unknown) else body.type


def input_seq_of(block: Block) -> int:
    """Return the seq of the input that an attachment came with, 0 for any other block."""
    return block.seq - block.body.place if isinstance(block.body, UserAttachment) else 0
