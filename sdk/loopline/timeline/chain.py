"""The chain of digests: the digest of a block covers the block and the digest before it.

The digest of a block is the sha256 of three concatenated values: the digest of the previous block (32 zero bytes for
the first), the sha256 of its body's stored JSON, and its position as text. With the last digest of a conversation a
reader can find every block before it that was changed, removed, moved or inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Literal

from loopline.timeline.blocks import Block
from loopline.timeline.codec import encode
from loopline.timeline.log import ConversationKey

START: bytes = bytes(32)
"""The digest before the first block."""
FAULT_LIMIT = 100
"""The most faults that are reported for a conversation: the search for a moved block compares all other blocks."""
EPOCH: datetime = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: timedelta = timedelta(milliseconds=1)

FaultKind = Literal["changed", "removed", "moved", "inserted", "cut", "rewritten"]


def milliseconds_of(moment: datetime) -> int:
    """Return the milliseconds since 1970 in UTC."""
    return (moment - EPOCH) // MILLISECOND


def position_bytes(
    turn: int, round_number: int, n: int, ts: int, term: int, version: int, kind: bytes
) -> bytes:
    """Return the position of a block without its seq, as the chain hashes it; `ts` is in milliseconds since 1970."""
    # Formatted as they are, without `int`: a damaged row may have values of any type.
    return f"{turn} {round_number} {n} {ts} {term} {version} ".encode() + kind


def row_digest(
    before: bytes,
    body: bytes,
    seq: int,
    turn: int,
    round_number: int,
    n: int,
    ts: int,
    term: int,
    version: int,
    kind: str,
) -> bytes:
    """Return the digest of a block that follows the digest `before`, as `Link.after` does, but faster.

    `body` is the sha256 of the stored JSON, `ts` is in milliseconds since 1970, and `kind` is the stored type.
    """
    position = f"{seq} {turn} {round_number} {n} {ts} {term} {version} {kind}"
    return sha256(before + body + position.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The parts of a block that its digest covers, and the digest: `body` is the sha256 of the stored JSON."""

    seq: int
    position: bytes
    body: bytes
    digest: bytes

    def after(self, before: bytes, seq: int) -> bytes:
        """Compute the digest of the block for that seq and the previous digest `before`."""
        return sha256(before + self.body + f"{seq} ".encode() + self.position).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault at one seq of a conversation, with a description."""

    seq: int
    kind: FaultKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last seq of a conversation and its digest; saved outside the store, it reveals a rewritten chain."""

    seq: int = 0
    digest: bytes = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit: the present head of a conversation and its faults, or when it was forgotten."""

    conversation: ConversationKey
    head: Head
    faults: tuple[Fault, ...] = ()
    forgotten: datetime | None = None


def audit(conversation: ConversationKey, links: Sequence[Link], head: Head | None) -> Audit:
    """Check the chain of `links`, in order, and return its head and its faults.

    `head` is an earlier head that was saved outside the store, or None. Only a `head` reveals blocks that were cut off
    at the end, or a chain that was rewritten. It is compared only if the chain itself is consistent. At most
    `FAULT_LIMIT` faults are returned.
    """
    last = Head(seq=links[-1].seq, digest=links[-1].digest) if links else Head()
    faults = _Search(links).faults()
    if not faults and head is not None:
        faults = _head_faults(links, head)
    return Audit(conversation=conversation, head=last, faults=tuple(faults))


def block_link(block: Block, digest: bytes = START) -> Link:
    """Return the link of a block: its position, the sha256 of its encoded body, and `digest` as its stored digest."""
    kind, version, stored = encode(block.body)
    ts = milliseconds_of(block.ts)
    position = position_bytes(
        block.turn, block.round, block.n, ts, block.term, version, kind.encode()
    )
    body = sha256(stored.encode()).digest()
    return Link(seq=block.seq, position=position, body=body, digest=digest)


def digests(blocks: Iterable[Block], before: bytes = START) -> Iterator[bytes]:
    """Yield the digest of each block; `before` is the digest of the block before the first of them."""
    for block in blocks:
        before = block_link(block).after(before, block.seq)
        yield before


def _head_faults(links: Sequence[Link], head: Head) -> list[Fault]:
    """Compare consistent links with a saved head; return one `cut` or `rewritten` fault, none if they agree."""
    if len(links) < head.seq:
        text = f"blocks {len(links) + 1} to {head.seq} were cut off"
        return [Fault(seq=len(links) + 1, kind="cut", text=text)]
    if head.seq and links[head.seq - 1].digest != head.digest:
        text = (
            f"blocks 1 to {head.seq} are consistent, but differ from the blocks of the saved head"
        )
        return [Fault(seq=head.seq, kind="rewritten", text=text)]
    return []


class _Search:
    """A search along the chain that reports each fault and continues after it."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._links_left = {link.seq: link for link in links}
        self._faults: list[Fault] = []
        self._before: bytes | None = START
        self._position = 1
        self._shift = 0

    def faults(self) -> list[Fault]:
        """Search the whole chain, and return at most `FAULT_LIMIT` faults, in order. A cut-off end is not found."""
        last = self._links[-1].seq if self._links else 0
        while self._position + self._shift <= last and len(self._faults) < FAULT_LIMIT:
            link = self._links_left.pop(self._position + self._shift, None)
            if link is None:
                self._report_missing()
            elif self._before is None or link.after(self._before, self._position) == link.digest:
                self._pass(link)
            else:
                self._diagnose(link)
        return self._faults

    def _pass(self, link: Link) -> None:
        self._before = link.digest
        self._position += 1

    def _add_fault(self, seq: int, kind: FaultKind, text: str) -> None:
        self._faults.append(Fault(seq=seq, kind=kind, text=text))

    def _report_missing(self) -> None:
        """Report the block of this position as moved if it is stored at another seq, otherwise as removed."""
        moved = self._find_written()
        if moved is None:
            self._add_fault(self._position, "removed", f"block {self._position} is missing")
            self._before = None
            self._position = self._position + 1
        else:
            self._report_moved(moved)

    def _find_written(self) -> Link | None:
        """Return the remaining block with a digest that fits this position after `_before`, or None."""
        if self._before is None:
            return None
        for link in self._links_left.values():
            if link.after(self._before, self._position) == link.digest:
                return link
        return None

    def _report_moved(self, link: Link) -> None:
        text = f"block {self._position} is stored at seq {link.seq}"
        self._add_fault(self._position, "moved", text)
        del self._links_left[link.seq]
        self._pass(link)

    def _diagnose(self, link: Link) -> None:
        """Report a block with a digest that does not fit this position as changed, removed, moved or inserted."""
        match = self._find_written()
        after = self._links_left.get(link.seq + 1)
        if match is None:
            self._report_replacement(link, after)
        elif match is after and link.after(match.digest, self._position + 1) != link.digest:
            self._add_fault(link.seq, "inserted", f"block {link.seq} was inserted")
            self._shift += 1
        else:
            self._links_left[link.seq] = link
            self._report_moved(match)

    def _report_replacement(self, link: Link, after: Link | None) -> None:
        """Report this position's block as changed, or as removed if later blocks moved up; continue after it."""
        if after is not None and after.after(link.digest, self._position + 2) == after.digest:
            self._add_fault(
                self._position,
                "removed",
                f"block {self._position} is missing, and later blocks moved up",
            )
            self._shift -= 1
            self._before = link.digest
            self._position = self._position + 2
            return
        self._add_fault(
            self._position, "changed", f"block {self._position} was changed or inserted"
        )
        written = link.after(self._before or START, self._position)
        own = after is not None and after.after(written, self._position + 1) == after.digest
        self._before = written if own else link.digest
        self._position = self._position + 1
