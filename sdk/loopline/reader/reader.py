"""Reading by ref: one way in for every name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial

from loopline.errors import KnowledgeError, LooplineError, RefError
from loopline.knowledge import Passage
from loopline.models import Json, dumps, well_formed
from loopline.reader.conversation_documents import (
    feedback_list,
    note_list,
    plan_list,
    pool_document,
    source_row,
    timeline_document,
)
from loopline.reader.items import (
    JSON,
    MARKDOWN,
    Item,
    Reading,
    fitted,
    kept_passage,
    read_passage,
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
    parse,
    with_span,
)
from loopline.skills import Skills
from loopline.timeline import (
    Block,
    ConversationKey,
    ConversationSummary,
    History,
    Source,
    Timeline,
    TimelineLog,
    UserAttachment,
    attachments,
    plan,
)

KnowledgeRead = Callable[[str], Awaitable[Passage]]
UNLIMITED = 1 << 62


BlockRefs = BlockRef | CallRef | ArtifactRef | SummaryRef | FileRef
"""The refs of blocks."""


@dataclass(frozen=True, slots=True)
class ConversationView:
    """A conversation as a reader finds it; with a `past` the timeline may begin with a checkpoint."""

    timeline: Timeline
    summary: ConversationSummary | None = None
    forgotten: datetime | None = None
    past: History | None = None

    async def holding(self, ref: Ref) -> Timeline:
        """A timeline in which `find` finds the ref as in the whole."""
        return self.timeline if self.past is None else await self.past.containing(ref)

    async def whole(self) -> Timeline:
        """The conversation from its first block on."""
        return self.timeline if self.past is None else await self.past.full()

    async def of_type(self, kind: str) -> Sequence[Block]:
        """Return every block of a stored type, oldest first."""
        if self.past is None:
            return [block for block in self.timeline if block.type == kind]
        return await self.past.of_type(kind)


ConversationLookup = Callable[[str], Awaitable[ConversationView | None]]


async def view_conversation(
    log: TimelineLog, conversation: ConversationKey, timeline: Timeline
) -> ConversationView:
    """Return the conversation as a reader finds it, with its timeline."""
    summary = await log.find(conversation)
    forgotten = None if summary else await log.forgotten(conversation)
    return ConversationView(timeline, summary, forgotten)


def conversation_lookup(log: TimelineLog, conversation: ConversationKey) -> ConversationLookup:
    """Return what finds the other conversations of the same user by name."""

    async def find(name: str) -> ConversationView | None:
        key = replace(conversation, name=name)
        view = await view_conversation(log, key, Timeline(await log.read(key)))
        return view if view.summary or view.forgotten else None

    return find


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads whatever a ref names: from the log, from skills, or from the knowledge space."""

    conversation: ConversationView
    skills: Skills = field(default_factory=Skills)
    knowledge: KnowledgeRead | None = None
    lookup: ConversationLookup | None = None

    async def read(self, refs: Sequence[str], *, limit: int = UNLIMITED) -> Reading:
        """An item for each ref, in order; one that cannot be read does not stop the others.

        `limit` is the number of characters that all texts together may have; what is cut says which
        ref restores it.
        """
        items, room = list[Item](), limit
        for ref in refs:
            item = await self._item(ref.strip(), room)
            items.append(item)
            room = max(room - len(item.text), 0)
        return Reading(items)

    async def _item(self, asked: str, room: int) -> Item:
        if self.conversation.forgotten is not None:
            said = f"the conversation was forgotten on {self.conversation.forgotten:%Y-%m-%d}"
            return Item(ref=asked, requested=asked, status="gone", message=said)
        try:
            ref = parse(asked)
            if not self.conversation.timeline.turns and not isinstance(
                ref, KnowledgeRef | SkillRef
            ):
                raise RefError(f"{asked!r}: this conversation has not begun")
            return await self._read(ref, asked, room)
        except LooplineError as error:
            return Item(ref=asked, requested=asked, status="missing", message=str(error))

    async def _read(self, ref: Ref, asked: str, room: int) -> Item:
        match ref:
            case BlockRef() | CallRef() | ArtifactRef() | SummaryRef():
                return await self._block(ref, asked, room)
            case FileRef(area="user.attachments"):
                return await self._block(ref, asked, room)
            case PlanRef(plan_id=plan_id):
                return await self._plan(ref, plan_id, asked, room)
            case SourcesRef():
                return self._sources(ref, asked, room)
            case SkillRef():
                return self._skill(ref, asked, room)
            case KnowledgeRef():
                return await self._knowledge(ref, asked, room)
            case ConversationRef():
                return await self._elsewhere(ref, asked, room)
            case DocumentRef():
                return await self._document(ref, asked, room)
            case FileRef() | HostedRef():
                raise RefError(_absent(ref))

    async def find(self, ref: Ref) -> Block | None:
        """The block that a ref names, its span aside; None when there is none."""
        return (await self.conversation.holding(ref)).find(ref)

    async def _block(self, ref: BlockRefs, asked: str, room: int) -> Item:
        block = await self.find(ref)
        if block is None:
            raise RefError(_possible(await self.conversation.whole(), ref))
        text, mime = text_of(block)
        item = fitted(_pinned(block, ref), asked, text, mime, room)
        match block.body:
            case UserAttachment(name=name) as file:
                source = Source(url=block.ref, title=name, source_type="attachment")
                return replace(item, title=name, data=attachments.content(file), source=source)
            case _:
                return item

    async def _plan(self, ref: PlanRef, plan_id: str, asked: str, room: int) -> Item:
        block = await self.find(ref)
        if block is None:
            known = list(self.conversation.timeline.plans.latest)[-plan.NAMED_LIMIT :]
            raise RefError(f"no plan {plan_id!r}: plans here are {known or 'none'}")
        text, mime = text_of(block)
        name = BlockRef(turn_id=block.turn_id, type=block.type, n=block.n)
        return fitted(name, asked, text, mime, room)

    def _sources(self, ref: SourcesRef, asked: str, room: int) -> Item:
        pool = self.conversation.timeline.pool
        wanted = [sid for a, b in ref.ranges for sid in range(a, min(b, pool.newest) + 1)]
        rows: list[Json] = [
            source_row(sid, self.conversation.timeline) for sid in wanted if sid in pool.sources
        ]
        if not rows:
            raise RefError(f"no such source: the pool holds {_range(pool.newest)}")
        item = fitted(ref, asked, dumps(rows), JSON, room)
        beyond = any(last > pool.newest for _, last in ref.ranges)
        note = f"the pool holds only {_range(pool.newest)}" if beyond else ""
        return replace(item, message="; ".join(part for part in (item.message, note) if part))

    async def _document(self, ref: DocumentRef, asked: str, room: int) -> Item:
        text, mime = await self._document_text(ref.name)
        return fitted(ref, asked, text, mime, room)

    async def _document_text(self, name: Document) -> tuple[str, str]:
        here = self.conversation
        match name:
            case "conv.timeline.v1":
                return dumps(timeline_document(await here.whole(), here.summary)), JSON
            case "conv:sources_pool":
                return dumps(pool_document(await here.whole(), here.summary)), JSON
            case "conv:plans":
                return plan_list(await here.of_type("react.plan")), "text/plain"
            case "conv:notes":
                return note_list(await here.of_type("react.notes")), "text/plain"
            case "conv:feedback":
                return feedback_list(await here.of_type("turn.feedback")), "text/plain"

    def _skill(self, ref: SkillRef, asked: str, room: int) -> Item:
        kept = self.conversation.timeline.kept_texts.get(str(replace(ref, span=None)))
        if kept is not None:
            return replace(fitted(ref, asked, kept.text, MARKDOWN, room), title=kept.title)
        skill = self.skills.find(ref.namespace, ref.skill)
        if ref.digest is not None and not skill.digest.startswith(ref.digest):
            return Item(
                ref=asked,
                requested=asked,
                status="gone",
                message=f"the skill has changed since and was not shown here: now {skill.ref}",
            )
        item = fitted(replace(ref, digest=skill.digest), asked, skill.body, MARKDOWN, room)
        return replace(item, title=skill.name, keep=bool(item.text))

    async def _knowledge(self, ref: KnowledgeRef, asked: str, room: int) -> Item:
        kept = kept_passage(self.conversation.timeline, ref, room)
        if kept is not None and kept.status == "ok":
            return replace(kept, requested=asked)
        if kept is not None and self.knowledge is None:
            return replace(kept, requested=asked)
        if self.knowledge is None:
            raise KnowledgeError(f"{asked!r} cannot be read: there is no knowledge space here")
        try:
            passage = await self.knowledge(str(ref))
            whole = passage.text
            if len(whole) > room:  # what fits is counted in lines of the whole file
                whole = (await self.knowledge(str(replace(ref, span=None)))).text
        except LooplineError as error:
            if kept is not None:
                return replace(kept, requested=asked)
            if isinstance(error, RefError):
                raise
            return Item(ref=asked, requested=asked, status="gone", message=str(error))
        return read_passage(passage, asked, whole, room)

    async def _elsewhere(self, ref: ConversationRef, asked: str, room: int) -> Item:
        is_stored = well_formed(ref.conversation) == ref.conversation
        found = await self.lookup(ref.conversation) if self.lookup and is_stored else None
        if found is None:
            raise RefError(f"no conversation {ref.conversation!r} of this user")
        item = await replace(self, conversation=found)._read(ref.ref, asked, room)
        if not item.readable:
            return item
        there = partial(ConversationRef, conversation=ref.conversation)
        source = item.source
        if source is not None and source.source_type == "attachment":
            source = replace(source, url=str(there(ref=parse(source.url))))
        return replace(item, ref=str(there(ref=parse(item.ref))), source=source)


def _possible(timeline: Timeline, ref: BlockRefs) -> str:
    """Why there is nothing by that name, and what there is."""
    turns = [f"turn_{number}" for number in timeline.turns]
    if ref.turn_id not in turns:
        return f"no {ref.turn_id!r} here: turns are {', '.join(turns) or 'none'}"
    refs = [block.ref for block in timeline if block.turn_id == ref.turn_id]
    if isinstance(ref, SummaryRef):
        return f"no summary {str(ref)!r}: {ref.turn_id} was never compacted"
    kind = str(ref)[:3]
    near = [name for name in refs if name.startswith(kind)]
    best = get_close_matches(str(ref), near, n=4, cutoff=0) or near[:4]
    return f"nothing here answers to {str(ref)!r}; near it are {', '.join(best) or 'none'}"


def _absent(ref: FileRef | HostedRef) -> str:
    match ref:
        case FileRef():
            return f"no file {str(ref)!r}: this conversation has no files"
        case HostedRef():
            return f"{str(ref)!r} names a hosted file: hosting is absent here"


def _pinned(block: Block, asked: BlockRefs) -> SpannedRef:
    match block.name, asked:
        case (BlockRef() | CallRef() | ArtifactRef() | SummaryRef() | FileRef()) as name, _:
            return with_span(name, asked.span)
        case _, BlockRef():
            return replace(asked, n=block.n)
        case _:
            return asked


def _range(newest: int) -> str:
    return f"so:sources_pool[1-{newest}]" if newest else "no sources"
