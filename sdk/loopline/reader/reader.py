"""The reader, which reads every kind of ref."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from loopline import timeline as tl
from loopline.errors import KnowledgeError, LooplineError, RefError, StoreError
from loopline.models import Json, dumps, well_formed
from loopline.reader import conversation_documents as documents
from loopline.reader.items import (
    JSON,
    Item,
    Reading,
    find_kept_passage,
    fit_item,
    passage_item,
    text_of,
)
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    ConversationRef,
    Document,
    DocumentRef,
    FileRef,
    HostedRef,
    KnowledgeRef,
    PlanRef,
    Ref,
    SkillRef,
    SourcesRef,
    SpannedRef,
    SummaryRef,
    block_ref,
    parse,
    replace_span,
)

if TYPE_CHECKING:
    from loopline.knowledge import Passage
    from loopline.skills import Skills

KnowledgeRead = Callable[[str], "Awaitable[Passage]"]
UNLIMITED = 1 << 62
_COMPARED = 100
"""The most refs that a missing ref is compared with, because a comparison takes 0.1 ms."""
_VERSIONS = tl.BodyUnion[tl.FileAdded](tl.FileAdded)
BlockRefs = BlockRef | CallRef | ArtifactRef | SummaryRef | FileRef
"""The refs of blocks."""


class ConversationView(Struct, frozen=True):
    """A conversation to read from; with a `history` the timeline may start at a checkpoint.

    `forgotten` is the time when it was forgotten, None for other conversations. With a `damage`, the error of a block,
    only the `undamaged` blocks can be read, by refs that name exactly one block.
    """

    timeline: tl.Timeline
    summary: tl.ConversationSummary | None = None
    forgotten: datetime | None = None
    history: tl.History | None = None
    damage: StoreError | None = None
    undamaged: Mapping[str, tl.Block] = {}

    async def containing(self, ref: Ref) -> tl.Timeline:
        """Return a timeline whose `find` gives the same result for the ref as the full timeline."""
        return self.timeline if self.history is None else await self.history.containing(ref)

    async def full(self) -> tl.Timeline:
        """Return the timeline of all blocks."""
        return self.timeline if self.history is None else await self.history.full()

    async def read_type(self, kind: str) -> Sequence[tl.Block]:
        """Return every block of a stored type, oldest first."""
        if self.history is None:
            return [block for block in self.timeline if block.type == kind]
        return await self.history.read_type(kind)


ConversationLookup = Callable[[str], Awaitable[ConversationView | None]]


async def view_conversation(
    log: tl.TimelineLog, conversation: tl.ConversationKey
) -> ConversationView:
    """Open the conversation from its newest checkpoint, for a reader; the view is empty if it does not exist."""
    timeline = await tl.open_timeline(log, conversation)
    summary = await log.find(conversation)
    forgotten = None if summary else await log.forgotten(conversation)
    return ConversationView(timeline, summary, forgotten, tl.History(log, conversation, timeline))


async def view_undamaged(
    log: tl.TimelineLog, conversation: tl.ConversationKey, damage: StoreError
) -> ConversationView:
    """Open a conversation that cannot be read in full because of the error `damage`, for a reader of single blocks."""
    summary = await log.find(conversation)
    blocks = await tl.read_undamaged(log, conversation, 0, summary.head) if summary else []
    undamaged = {
        name: block
        for block in blocks
        if isinstance(block, tl.Block)
        for name in (block_ref(block.turn_id, block.type, block.n), block.ref)
    }
    return ConversationView(tl.Timeline(()), summary, damage=damage, undamaged=undamaged)


def conversation_lookup(
    log: tl.TimelineLog, conversation: tl.ConversationKey
) -> ConversationLookup:
    """Return a function that opens a conversation of the same user by name; None if the name was never used."""

    async def find(name: str) -> ConversationView | None:
        view = await view_conversation(log, structs.replace(conversation, name=name))
        return view if view.summary or view.forgotten else None

    return find


def _keep_last_view(lookup: ConversationLookup) -> ConversationLookup:
    """Return a lookup that opens a conversation once for consecutive calls with its name."""
    opened = dict[str, ConversationView | None]()

    async def find(name: str) -> ConversationView | None:
        if name not in opened:
            view = await lookup(name)
            opened.clear()
            opened[name] = view
        return opened[name]

    return find


class Reader(Struct, frozen=True, kw_only=True):
    """Reads refs from the log of a conversation, from skills, and from the knowledge space."""

    conversation: ConversationView
    skills: Skills | None = None
    knowledge: KnowledgeRead | None = None
    lookup: ConversationLookup | None = None

    async def read(self, refs: Sequence[str], *, limit: int = UNLIMITED) -> Reading:
        """Return an item for each ref, in order; a ref that cannot be read gives an item with a message.

        `limit` is the most characters of all texts together. A truncated item has the ref of the remaining text in its
        message. Consecutive refs in one other conversation are read from one view of it.
        """
        reader = structs.replace(self, lookup=_keep_last_view(self.lookup)) if self.lookup else self
        items = list[Item]()
        room = limit
        for ref in refs:
            item = await reader._item(ref.strip(), room)
            items.append(item)
            room = max(room - len(item.text), 0)
        return Reading(items)

    async def _item(self, requested: str, room: int) -> Item:
        """Read one ref in at most `room` characters; a LooplineError gives an item "missing" with it as the message.

        A forgotten conversation gives an item "gone". Before the first turn only skills and knowledge can be read, and of
        a damaged conversation only its undamaged blocks and other conversations.
        """
        view = self.conversation
        if view.forgotten is not None:
            return self._gone(requested)
        try:
            ref = parse(requested)
            if view.damage is not None:
                if not isinstance(ref, BlockRefs | ConversationRef):
                    raise view.damage
            elif not view.timeline.turns and not isinstance(ref, KnowledgeRef | SkillRef):
                raise RefError(f"{requested!r}: this conversation has not begun")
            return await self._read(ref, requested, room)
        except LooplineError as error:
            return Item(ref=requested, requested=requested, status="missing", message=str(error))

    def _gone(self, requested: str) -> Item:
        message = f"the conversation was forgotten on {self.conversation.forgotten:%Y-%m-%d}"
        return Item(ref=requested, requested=requested, status="gone", message=message)

    async def _read(self, ref: Ref, requested: str, room: int) -> Item:
        """Read a parsed ref of any kind; raise a RefError if it does not exist, or is a resource name of a server."""
        match ref:
            case BlockRef() | CallRef() | ArtifactRef() | SummaryRef() | FileRef():
                return await self._block(ref, requested, room)
            case PlanRef():
                return await self._plan(ref, requested, room)
            case SourcesRef():
                return self._sources(ref, requested, room)
            case SkillRef():
                return await self._skill(ref, requested, room)
            case KnowledgeRef():
                return await self._knowledge(ref, requested, room)
            case ConversationRef():
                return await self._other_conversation(ref, requested, room)
            case DocumentRef():
                text, mime = await self._document(ref.name)
                return fit_item(ref, requested, text, mime, room)
            case HostedRef():
                raise RefError(
                    f"{str(ref)!r} is a resource name: the server of its conversation reads it (POST /by-rn)"
                )

    async def _skill(self, ref: SkillRef, requested: str, room: int) -> Item:
        from loopline.reader.skill_items import skill_item

        timeline = self.conversation.timeline
        return await asyncio.to_thread(skill_item, timeline, self.skills, ref, requested, room)

    async def find(self, ref: Ref) -> tl.Block | None:
        """Return the block that a ref names, ignoring its span, or None."""
        if self.conversation.damage is not None and isinstance(ref, BlockRefs):
            return self.conversation.undamaged.get(str(replace_span(ref, None)))
        return (await self.conversation.containing(ref)).find(ref)

    async def _block(self, ref: BlockRefs, requested: str, room: int) -> Item:
        """Read a block, with the data of a file and the source of an attachment.

        Raises:
            RefError: the block does not exist; the message has similar refs.
            StoreError: the conversation is damaged, and the ref does not name exactly one undamaged block.
        """
        block = await self.find(ref)
        if block is None and self.conversation.damage is not None:
            raise self.conversation.damage
        if block is None:
            raise RefError(_explain_missing_block(await self.conversation.full(), ref))
        text, mime = text_of(block)
        item = fit_item(_pin(block, ref), requested, text, mime, room)
        if isinstance(block.body, tl.FileAdded):
            return replace(item, data=tl.workspace.file_bytes(block.body))
        if not isinstance(block.body, tl.UserAttachment):
            return item
        file = block.body
        source = tl.Source(url=block.ref, title=file.name, source_type="attachment")
        return replace(item, title=file.name, data=tl.workspace.file_bytes(file), source=source)

    async def _plan(self, ref: PlanRef, requested: str, room: int) -> Item:
        """Read the newest version of a plan, with the ref of its block; raise a RefError for an unknown plan."""
        block = await self.find(ref)
        if block is None:
            plan_ids = list(self.conversation.timeline.plans.latest)[-tl.plan.NAMED_LIMIT :]
            raise RefError(f"no plan {ref.plan_id!r}: plans here are {plan_ids or 'none'}")
        text, mime = text_of(block)
        pinned = BlockRef(turn_id=block.turn_id, type=block.type, n=block.n)
        return fit_item(pinned, requested, text, mime, room)

    def _sources(self, ref: SourcesRef, requested: str, room: int) -> Item:
        """Read each source in the ranges once, as a JSON list without unknown numbers; a message names the newest source.

        Raises:
            RefError: none of the sources exists.
        """
        pool = self.conversation.timeline.pool
        available = f"so:sources_pool[1-{pool.newest}]" if pool.newest else "no sources"
        sids = dict.fromkeys(
            sid for a, b in ref.ranges for sid in range(a, min(b, pool.newest) + 1)
        )
        rows: list[Json] = [
            documents.source_row(sid, self.conversation.timeline)
            for sid in sids
            if sid in pool.sources
        ]
        if not rows:
            raise RefError(f"there is no such source: the pool has {available}")
        item = fit_item(ref, requested, dumps(rows), JSON, room)
        if any(last > pool.newest for _, last in ref.ranges):
            notes = filter(None, (item.message, f"the pool has only {available}"))
            return replace(item, message="; ".join(notes))
        return item

    async def _document(self, name: Document) -> tuple[str, str]:
        """Return the text of a document of the conversation and its MIME type."""
        view = self.conversation
        match name:
            case "conv.timeline.v1":
                return dumps(documents.timeline_document(await view.full(), view.summary)), JSON
            case "conv:sources_pool":
                return dumps(documents.pool_document(await view.full(), view.summary)), JSON
            case "conv:plans":
                return documents.plan_list(await view.read_type("react.plan")), "text/plain"
            case "conv:notes":
                return documents.note_list(await view.read_type("react.notes")), "text/plain"
            case "conv:feedback":
                return documents.feedback_list(await view.read_type("turn.feedback")), "text/plain"

    async def _knowledge(self, ref: KnowledgeRef, requested: str, room: int) -> Item:
        """Read a passage in at most `room` characters: as the conversation stored it, or from the knowledge space.

        If it cannot be read there, a stored part is returned, or an item "gone" with the error as its message.

        Raises:
            KnowledgeError: there is neither a stored text nor a knowledge space, or a RefError for a bad ref.
        """
        stored = None if ref.heading else find_kept_passage(self.conversation.timeline, ref, room)
        if stored is not None and (stored.status == "ok" or self.knowledge is None):
            return replace(stored, requested=requested)
        if self.knowledge is None:
            raise KnowledgeError(f"{requested!r} cannot be read: there is no knowledge space here")
        try:
            passage = await self.knowledge(str(ref))
            text = passage.text
            if len(text) > room:  # the ref of the part that fits counts lines of the full file
                text = (await self.knowledge(str(structs.replace(ref, span=None, heading="")))).text
        except LooplineError as error:
            if stored is not None:
                return replace(stored, requested=requested)
            if isinstance(error, RefError):
                raise
            return Item(ref=requested, requested=requested, status="gone", message=str(error))
        return passage_item(passage, requested, text, room)

    async def _other_conversation(self, ref: ConversationRef, requested: str, room: int) -> Item:
        """Read a ref in another conversation of this user; the refs of the item get the conversation as a prefix.

        Raises:
            RefError: the conversation does not exist. A forgotten conversation gives an item "gone".
        """
        is_stored = well_formed(ref.conversation) == ref.conversation
        view = await self.lookup(ref.conversation) if self.lookup and is_stored else None
        if view is None:
            raise RefError(f"no conversation {ref.conversation!r} of this user")
        other = structs.replace(self, conversation=view)
        if view.forgotten is not None:
            return other._gone(requested)
        item = await other._read(ref.ref, requested, room)
        if not item.readable:
            return item
        qualified = partial(ConversationRef, conversation=ref.conversation)
        source = item.source
        if source is not None and source.source_type == "attachment":
            source = structs.replace(source, url=str(qualified(ref=parse(source.url))))
        return replace(item, ref=str(qualified(ref=parse(item.ref))), source=source)


def _explain_missing_block(timeline: tl.Timeline, ref: BlockRefs) -> str:
    """Return the error message for a ref without a block, with similar refs."""
    turns = [f"turn_{number}" for number in timeline.turns]
    if ref.turn_id not in turns:
        return f"no {ref.turn_id!r} here: turns are {', '.join(turns) or 'none'}"
    if isinstance(ref, SummaryRef):
        return f"no summary {str(ref)!r}: {ref.turn_id} was never compacted"
    if isinstance(ref, FileRef) and ref.area != "user.attachments":
        return _explain_missing_file(timeline, ref)
    number = tl.turn_number(ref.turn_id)
    namespace = str(ref)[:3]
    refs = [block.ref for block in timeline if block.turn == number]
    nearest = _nearest_refs(str(ref), [name for name in refs if name.startswith(namespace)])
    return f"there is no {str(ref)!r} here; similar refs: {', '.join(nearest) or 'none'}"


def _explain_missing_file(timeline: tl.Timeline, ref: FileRef) -> str:
    """Return the error message for the ref of a missing file, with similar versions or files."""
    number = tl.turn_number(ref.turn_id)
    tree = timeline.files_at(number)
    blocks = [*tree.files.values(), *tree.outputs_of(number).values()]
    versions = [
        block.ref
        for block, body in _VERSIONS.among(timeline)
        if (block.turn, body.area, body.path) == (number, ref.area, ref.path)
    ]
    refs = versions or [block.ref for block in blocks]
    nearest = _nearest_refs(str(ref), refs)
    hint = f"similar refs: {', '.join(nearest)}" if nearest else f"{ref.turn_id} has no files"
    return f"no file {str(ref)!r}: {hint}"


def _nearest_refs(text: str, refs: Sequence[str]) -> list[str]:
    """Return the 4 refs that are most similar to `text`, of those next to it in alphabetical order."""
    ordered = sorted(refs)
    start = max(bisect(ordered, text) - _COMPARED // 2, 0)
    return get_close_matches(text, ordered[start : start + _COMPARED], n=4, cutoff=0)


def _pin(block: tl.Block, ref: BlockRefs) -> SpannedRef:
    """Return the block's own ref with the span of `ref`; without an own ref, `ref` with the block's number."""
    match block.name, ref:
        case (BlockRef() | CallRef() | ArtifactRef() | SummaryRef() | FileRef()) as name, _:
            return replace_span(name, ref.span)
        case _, BlockRef():
            return structs.replace(ref, n=block.n)
        case _:
            return ref
