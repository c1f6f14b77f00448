"""Documents about a conversation: its timeline, its sources, and lists of its plans, notes and feedback."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import cast

from loopline import timeline as tl
from loopline.models import Json, JsonObject
from loopline.models.safe_text import remove_base64
from loopline.timeline.chain import digests

VERSION = 1
_CHILDREN = tl.BodyUnion[tl.RunChild](tl.RunChild)


def timeline_document(timeline: tl.Timeline, summary: tl.ConversationSummary | None) -> JsonObject:
    """Return the document of a full timeline: the fields of the conversation, the names of its child runs, and its blocks."""
    rows: list[Json] = list(map(block_row, timeline, digests(timeline)))
    turns = timeline.turns.values()
    children = dict.fromkeys(name for turn in turns for name in turn.children)
    times = [tl.iso_time(block.ts) for block in (*timeline.blocks[:1], *timeline.blocks[-1:])]
    heading = _heading(summary, times or ["", ""], timeline.turns)
    return {**heading, **_children_not_included(children), "blocks": rows}


def block_row(block: tl.Block, digest: bytes) -> JsonObject:
    """Return a block as an object of the document; `digest` is its digest in the chain."""
    return {**tl.block_document(block), "digest": digest.hex()}


def document_heading(summary: tl.ConversationSummary, child_runs: Iterable[tl.Block]) -> JsonObject:
    """Return the ids, the title, the times and the turn ids of a conversation, without its blocks.

    `child_runs` are all its blocks of the type `run.child`; if there are any, `children_not_included` has the names of the
    child conversations, in the order of their turns.
    """
    children = dict.fromkeys(
        child.conversation
        for _, child in _CHILDREN.among(sorted(child_runs, key=lambda block: block.turn))
    )
    times = [tl.iso_time(summary.started_at), tl.iso_time(summary.last_activity_at)]
    heading = _heading(summary, times, range(1, summary.turns + 1))
    return {**heading, **_children_not_included(children)}


def _children_not_included(names: Iterable[str]) -> JsonObject:
    children: list[Json] = [*names]
    return {"children_not_included": children} if children else {}


def page_document(
    blocks: Sequence[tl.Block], summary: tl.ConversationSummary, next_after: int | None
) -> JsonObject:
    """Return some blocks of a conversation, with `next_after`: the seq after which the next page starts, or None."""
    page: list[Json] = [tl.block_document(block) for block in blocks]
    times = [tl.iso_time(summary.started_at), tl.iso_time(summary.last_activity_at)]
    heading = _heading(summary, times, range(1, summary.turns + 1))
    return {**heading, "blocks": page, "next_after": next_after}


def _heading(
    summary: tl.ConversationSummary | None, times: Sequence[str], turns: Iterable[int]
) -> JsonObject:
    """Return the fields before the blocks; `times` are those of the first and the last block.

    Without a summary, the id and the title are empty.
    """
    return {
        "version": VERSION,
        "conversation_id": summary.conversation.name if summary else "",
        "conversation_title": summary.title if summary else "",
        "conversation_started_at": times[0],
        "last_activity_at": times[1],
        "turn_ids": [tl.turn_id(number) for number in turns],
    }


def pool_document(timeline: tl.Timeline, summary: tl.ConversationSummary | None) -> JsonObject:
    """Return the document of all sources of a conversation, in the order of their numbers."""
    rows: list[Json] = [source_row(sid, timeline) for sid in timeline.pool.sources]
    return {"conversation_id": summary.conversation.name if summary else "", "sources_pool": rows}


def source_row(sid: int, timeline: tl.Timeline) -> JsonObject:
    """Return the source with that number as an object with all its fields and its stored text.

    Base64 of more than 4,000 characters is removed from the text.

    Raises:
        KeyError: there is no source with that number.
    """
    source = timeline.pool.sources[sid]
    kept_text = timeline.kept_texts.get(source.url)
    text = remove_base64(kept_text.text if kept_text else source.text, source.url)
    stored = tl.encode_full(tl.SourceAdded(sid=sid, source=source))
    fields = cast("dict[str, JsonObject]", json.loads(stored))["source"]
    return {"sid": sid, **fields, "text": text}


def plan_list(blocks: Iterable[tl.Block]) -> str:
    """Return a line for each plan in these blocks, with the ref of its newest snapshot; `no plans` without plans."""
    snapshots = [block.body.snapshot for block in blocks if isinstance(block.body, tl.Plan)]
    latest = {snapshot.plan_id: snapshot for snapshot in snapshots}
    return "\n".join(map(tl.plan.plan_line, latest.values())) or "no plans"


def note_list(blocks: Iterable[tl.Block]) -> str:
    """Return a line for each memory note in these blocks, with the ref of its first block."""
    notes = tl.memory_notes.fold(blocks)
    return "\n".join(f"{note.ref} {note.line()}" for note in notes) or "no memory notes"


def feedback_list(blocks: Iterable[tl.Block]) -> str:
    """Return a line for each feedback in these blocks that counts, with the ref of its block, in order."""
    reactions = tl.feedback.fold(blocks)
    current = [*reactions.user_reactions.values(), *reactions.machine_feedback]
    current.sort(key=lambda reaction: reaction.block.seq)
    return "\n".join(f"{item.block.ref} {item.line()}" for item in current) or "no feedback"
