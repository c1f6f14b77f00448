"""The methods of a conversation that only read: its blocks, its refs, its document, and the feedback about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache

from msgspec import structs

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.models import JsonObject, dumps, well_formed
from loopline.names import check_type
from loopline.reader.conversation_documents import block_row, document_heading, timeline_document
from loopline.reader.items import Reading
from loopline.reader.reader import Reader
from loopline.timeline.chain import START, digests

KEPT_NAMES = 256
"""The number of cached names that were checked: most conversations have the same tenant, project and user."""
_PAGE_BLOCKS = 1_000
_CHILDREN = tl.BodyUnion[tl.RunChild](tl.RunChild)


class ConversationReader:
    """One conversation of one user, read-only; it does not need a bundle or a model."""

    def __init__(
        self,
        log: tl.TimelineLog,
        conversation: tl.ConversationKey,
        reader: Callable[[tl.ConversationKey], Awaitable[Reader]],
    ) -> None:
        self._log = log
        self._reader = reader
        self.conversation = conversation

    async def satisfaction(self) -> tl.Satisfaction:
        """Return the counts of the user's reactions and the share of "ok"."""
        blocks = await self._log.read(self.conversation, types=["turn.feedback"])
        return tl.feedback.fold(blocks).satisfaction

    async def read(self, refs: str | Sequence[str]) -> Reading:
        """Read one ref or several, each to one item; a ref that cannot be read gives an item with a message."""
        reader = await self._reader(self.conversation)
        return await reader.read([refs] if isinstance(refs, str) else refs)

    async def blocks(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        types: str | Sequence[str] = (),
        turn: str | None = None,
    ) -> Sequence[tl.Block]:
        """Return the blocks whose seq is greater than `after`, at most `limit` of them.

        `types`, such as `user.prompt` or `react.tool`, selects blocks of these types and of the types below them; `turn`,
        such as `turn_2`, selects those of one turn.

        Raises:
            LooplineError: a type or the turn is not valid, with a hint in the message, or a number is below 0.
        """
        if after < 0 or (limit is not None and limit < 0):
            raise LooplineError("after and limit must be 0 or more")
        kinds_wanted = [types] if isinstance(types, str) else types
        for kind in kinds_wanted:
            await self._check_type(kind)
        number = None if turn is None else tl.turn_number(turn)
        if number == 0:
            raise LooplineError(f"{turn!r} is not a turn: turns are turn_1, turn_2, …")
        return await self._log.read(
            self.conversation, after=after, limit=limit, types=kinds_wanted, turn=number
        )

    async def _check_type(self, kind: str) -> None:
        """Refuse a type that is neither known nor in the log, where a newer version of Loopline may have written it.

        Raises:
            LooplineError: the type is refused.
        """
        if kind in tl.list_types():
            return
        if well_formed(kind) != kind or not await self._log.read(
            self.conversation, types=[kind], limit=1
        ):
            raise LooplineError(f"there is no block of the type {kind!r}: {tl.type_hint(kind)}")

    async def children(self) -> Sequence[tl.ConversationSummary]:
        """Return the summaries of the child runs of this conversation, in order, without forgotten child runs."""
        blocks = await self._log.read(self.conversation, types=["run.child"])
        names = dict.fromkeys(child.conversation for _, child in _CHILDREN.among(blocks))
        summaries = [
            await self._log.find(structs.replace(self.conversation, name=name)) for name in names
        ]
        return [summary for summary in summaries if summary is not None]

    async def export(self) -> JsonObject:
        """Return the full conversation as the document `artifact:conv.timeline.v1`."""
        timeline = tl.Timeline(await self._log.read(self.conversation))
        return timeline_document(timeline, await self._log.find(self.conversation))

    async def export_text(self) -> AsyncIterator[str]:
        """Yield the JSON text of `export` in pieces, reading 1,000 blocks at a time.

        A conversation that does not exist gives a document without blocks.

        Raises:
            LooplineError: the conversation was forgotten during the export.
        """
        summary = await self._log.find(self.conversation)
        if summary is None:
            yield dumps(await self.export())
            return
        child_runs = await self._log.read(self.conversation, types=["run.child"])
        yield dumps(document_heading(summary, child_runs)).removesuffix("}") + ',"blocks":['
        seq = 0
        last_digest = START
        while seq < summary.head:
            page = min(_PAGE_BLOCKS, summary.head - seq)
            blocks = await self._log.read(self.conversation, after=seq, limit=page)
            if not blocks:
                raise LooplineError(f"{self.conversation.name!r} was forgotten while it was read")
            for block, digest in zip(blocks, digests(blocks, last_digest), strict=True):
                yield ("," if seq else "") + dumps(block_row(block, digest))
                seq = block.seq
                last_digest = digest
        yield "]}"


@lru_cache(KEPT_NAMES)
def check_name(kind: str, name: str, *, is_in_url: bool = False) -> None:
    """Check that a name can be stored; `kind`, such as "conversation", is for the message.

    If it `is_in_url`, it is not `.` or `..` either: browsers and clients remove these parts from the path of a URL.

    Raises:
        LooplineError: the name is blank, is not valid Unicode, or cannot be in a URL.
    """
    check_type(name, str, f"the name of a {kind}", "a str")
    is_removed = is_in_url and name in (".", "..")
    if is_removed or not name.strip() or well_formed(name) != name:
        dots = ", '.' or '..'" if is_in_url else ""
        raise LooplineError(
            f"{name!r} cannot be the name of a {kind}: use valid text that is not blank{dots}"
        )
