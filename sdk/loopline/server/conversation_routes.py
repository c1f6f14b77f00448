"""Conversations over HTTP: lists, turns, status, feedback, export and deletion, with the paths and answers of KDCube."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, Field, JsonValue
from pydantic_core import to_jsonable_python

from loopline import timeline as tl
from loopline.conversations import UnansweredCall, unanswered_calls
from loopline.errors import LooplineError
from loopline.models import well_formed
from loopline.server import access, bodies, conversation_views
from loopline.server.bundle_host import BundleHost
from loopline.server.problems import PROBLEMS, not_found
from loopline.server.resource_routes import read_for_user
from loopline.timeline.feedback import Satisfaction, fold

router: APIRouter = APIRouter(
    prefix="/conversations/{tenant}/{project}", tags=["conversations"], responses=PROBLEMS
)
PAGE = 500
BlockType = Annotated[
    bodies.BoundedName, Field(json_schema_extra={"enum": list[JsonValue](tl.list_types())})
]
_CURSOR = re.compile(r"[0-9]{1,9}")


class ListedConversation(BaseModel):
    """A conversation in a list."""

    conversation_id: str
    last_activity_at: str
    started_at: str
    title: str | None = None


class ListAnswer(BaseModel):
    """The conversations of a user."""

    user_id: str
    items: list[ListedConversation]


class StatusAnswer(BaseModel):
    """The state of a conversation."""

    conversation_id: str
    state: conversation_views.State
    updated_at: str
    meta: dict[str, JsonValue]


class ListedTurn(BaseModel):
    """A turn in a list."""

    turn_id: str
    ts: str
    state: str
    rounds: int


class DetailsAnswer(BaseModel):
    """A conversation with its turns."""

    user_id: str
    conversation_id: str
    conversation_title: str
    started_at: str
    last_activity_at: str
    bundle_id: str
    turns: list[ListedTurn]


class DeleteAnswer(BaseModel):
    """The numbers of items that were deleted with a conversation."""

    conversation_id: str
    deleted_messages: int
    deleted_storage_messages: int
    deleted_storage_attachments: int
    deleted_storage_executions: int


class FeedbackAnswer(BaseModel):
    """A reaction was stored or removed."""

    success: bool
    turn_id: str
    reaction: tl.Reaction | None
    message: str
    cleared: bool


class SatisfactionAnswer(BaseModel):
    """The current reactions of the user, and the share of `ok` in them."""

    conversation_id: str
    ok: int
    not_ok: int
    neutral: int
    satisfaction_rate: float | None


class RatedTurn(BaseModel):
    """A turn with its reactions."""

    turn_id: str
    bundle_id: str
    turn_log: list[str]
    assistant: str
    user: str
    feedbacks: list[conversation_views.ReactionAnswer]
    reactions: list[conversation_views.ReactionAnswer]


class RatedTurnsAnswer(BaseModel):
    """The turns of a conversation that have feedback."""

    user_id: str
    conversation_id: str
    turns: list[RatedTurn]
    bundle_ids: list[str]


class FeedbackCounts(BaseModel):
    """The numbers of reactions by origin and by kind."""

    total: int
    user: int
    machine: int
    ok: int
    not_ok: int
    neutral: int


class PeriodTurn(BaseModel):
    """A turn with feedback in a period."""

    turn_id: str
    ts: str
    feedbacks: list[conversation_views.ReactionAnswer]


class RatedConversation(BaseModel):
    """A conversation with feedback in a period."""

    conversation_id: str
    last_activity_at: str
    started_at: str
    feedback_counts: FeedbackCounts
    turns: list[PeriodTurn] | None = None


class WindowAnswer(BaseModel):
    """A period."""

    start: str
    end: str


class PeriodAnswer(BaseModel):
    """The conversations with feedback in a period."""

    tenant: str
    project: str
    window: WindowAnswer
    items: list[RatedConversation]
    next_cursor: str | None


@router.get("")
async def list_conversations(
    host: access.HostDep,
    reader: access.ReaderDep,
    last_n: Annotated[int, Query(ge=1, le=PAGE)] = 100,
    started_after: AwareDatetime | None = None,
    days: Annotated[int, Query(ge=1, le=3_650)] = 365,
    include_titles: bool = True,
    bundle_id: Annotated[str, Query(max_length=200)] = "",
) -> ListAnswer:
    """List the conversations of the user by last activity, newest first."""
    summaries = await host.log.conversations(
        user=reader.user,
        project=reader.project,
        tenant=reader.tenant,
        after=_days_ago(host, days),
        limit=None if started_after or bundle_id else last_n,
    )
    items: list[ListedConversation] = []
    for summary in summaries:
        if len(items) == last_n:
            break
        if started_after is not None and summary.started_at <= started_after:
            continue
        if bundle_id and await host.bundle_of(summary.conversation) != bundle_id:
            continue
        items.append(
            ListedConversation(
                conversation_id=summary.conversation.name,
                last_activity_at=tl.iso_time(summary.last_activity_at),
                started_at=tl.iso_time(summary.started_at),
                title=summary.title if include_titles else None,
            )
        )
    return ListAnswer(user_id=reader.user, items=items)


@router.post("/fetch")
async def fetch_named(
    host: access.HostDep, reader: access.ReaderDep, body: bodies.NamedFetchBody
) -> conversation_views.FetchAnswer:
    """Return the turns of the conversation that the body names."""
    return await _fetch(host, access.key_of(reader, body.conversation_id), body)


@router.post("/feedback/conversations-in-period")
async def conversations_in_period(
    host: access.HostDep, reader: access.ReaderDep, body: bodies.PeriodBody
) -> PeriodAnswer:
    """List the conversations with feedback in a period: those of the caller, or of all users if the caller is privileged."""
    if body.cursor is not None and not _CURSOR.fullmatch(body.cursor):
        raise LooplineError("the cursor is malformed")
    if body.end < body.start:
        raise LooplineError("the period ends before it begins")
    # This order does not change while a client fetches pages.
    summaries = sorted(
        await host.log.conversations(
            user=None if reader.is_privileged else reader.user,
            project=reader.project,
            tenant=reader.tenant,
        ),
        key=lambda summary: (summary.started_at, summary.uid),
    )
    offset = int(body.cursor or 0)
    items = list[RatedConversation]()
    for summary in summaries[offset:]:
        if len(items) == body.limit:
            break
        offset += 1
        rated = await _period_feedback(host, summary, body)
        if rated is not None:
            items.append(rated)
    return PeriodAnswer(
        tenant=reader.tenant,
        project=reader.project,
        window=WindowAnswer(start=tl.iso_time(body.start), end=tl.iso_time(body.end)),
        items=items,
        next_cursor=f"{offset}" if offset < len(summaries) else None,
    )


@router.post("/{conversation}/fetch")
async def fetch(
    host: access.HostDep, key: access.ReadKeyDep, body: bodies.FetchBody
) -> conversation_views.FetchAnswer:
    """Return the turns of a conversation."""
    return await _fetch(host, key, body)


@router.get("/{conversation}/status")
async def status(
    host: access.HostDep, key: access.ReadKeyDep, summary: access.SummaryDep
) -> StatusAnswer:
    """Return the state of a conversation, and the calls that wait for the user."""
    timeline = await tl.open_timeline(host.log, key)
    pending: list[JsonValue] = [call for turn in timeline.resumable for call in turn.unanswered]
    left_turns: dict[str, JsonValue] = {
        name: reason
        for name, reason in host.find_left_turns(key).items()
        if timeline.turn(tl.turn_number(name)) in timeline.open_turns
    }
    resumable: list[JsonValue] = [tl.turn_id(turn.number) for turn in timeline.resumable]
    return StatusAnswer(
        conversation_id=key.name,
        state=conversation_views.state_of(timeline),
        updated_at=tl.iso_time(summary.last_activity_at),
        meta={
            "turns": summary.turns,
            "last_seq": summary.head,
            "pending_calls": pending,
            "questions": [_question_row(question) for question in unanswered_calls(timeline)],
            "resumable_turns": resumable,
            "left_turns": left_turns,
        },
    )


def _question_row(question: UnansweredCall) -> JsonValue:
    """Return a waiting call as JSON.

    A call of the client also has its `tool` and `arguments`. A call of the client and an open call have a `form`.
    """
    row: dict[str, JsonValue] = {
        "call_id": question.call_id,
        "turn_id": question.turn_id,
        "kind": question.kind,
        "question": question.question,
        "stays_open": question.stays_open,
    }
    if question.kind == "client":
        called: dict[str, JsonValue] = {
            "tool": question.tool,
            "arguments": to_jsonable_python(question.arguments),
        }
        row |= called
    has_form = question.stays_open or question.kind == "client"
    return {**row, "form": question.form} if has_form else row


@router.get("/{conversation}/details")
async def details(
    host: access.HostDep, key: access.ReadKeyDep, summary: access.SummaryDep
) -> DetailsAnswer:
    """Return a conversation with a list of its turns."""
    timeline = tl.Timeline(await host.log.read(key))
    return DetailsAnswer(
        user_id=key.user,
        conversation_id=key.name,
        conversation_title=summary.title,
        started_at=tl.iso_time(summary.started_at),
        last_activity_at=tl.iso_time(summary.last_activity_at),
        bundle_id=next(reversed(conversation_views.TurnViews(key, timeline).bundles()), ""),
        turns=[
            ListedTurn(
                turn_id=tl.turn_id(number),
                ts=tl.iso_time(turn.prompt.ts) if turn.prompt else "",
                state=turn.exit.reason if turn.exit else "in_progress",
                rounds=turn.rounds,
            )
            for number, turn in sorted(timeline.turns.items())
        ],
    )


@router.delete("/{conversation}")
async def delete(host: access.HostDep, key: access.OwnKeyDep) -> DeleteAnswer:
    """Delete a conversation for good, with its files and child runs, and cancel its turns."""
    summary = await access.find_summary(host, key)
    messages = await host.log.read(key, types=["user.prompt", "assistant.completion"])
    attachments = await host.log.read(key, types=["user.attachment"])
    files = await host.log.read(key, types=["file.added"])
    await host.log.forget(key)
    await host.end_conversation(key)
    await host.finish_forgetting()
    host.audit("delete", key)
    return DeleteAnswer(
        conversation_id=key.name,
        deleted_messages=len(messages),
        deleted_storage_messages=summary.head,
        deleted_storage_attachments=len(attachments),
        deleted_storage_executions=len(files),
    )


@router.post("/{conversation}/turns/{turn}/feedback")
async def give_feedback(
    host: access.HostDep, key: access.OwnKeyDep, turn: str, body: bodies.FeedbackBody
) -> FeedbackAnswer:
    """Rate a turn. A new reaction replaces the one before, and null removes it."""
    summary = await access.find_summary(host, key)
    if not 1 <= tl.turn_number(turn) <= summary.turns:
        raise not_found(f"turn {well_formed(turn)[:40]!r} in this conversation")
    conversation = await host.conversation(key)
    await conversation.feedback(turn, body.reaction, text=body.text, ts=body.ts)
    host.audit("feedback", key, turn=turn)
    is_removed = body.reaction is None
    return FeedbackAnswer(
        success=True,
        turn_id=turn,
        reaction=body.reaction,
        message="the reaction was removed" if is_removed else "the reaction was recorded",
        cleared=is_removed,
    )


@router.post("/{conversation}/turns-with-feedbacks")
async def turns_with_feedbacks(
    host: access.HostDep, key: access.ReadKeyDep, _: access.SummaryDep, body: bodies.RatedTurnsBody
) -> RatedTurnsAnswer:
    """Return the turns that have feedback, with their current reactions."""
    timeline = tl.Timeline(await host.log.read(key))
    views = conversation_views.TurnViews(key, timeline)
    since = _days_ago(host, body.days)
    turns: list[RatedTurn] = []
    for number, turn in sorted(timeline.turns.items()):
        name = tl.turn_id(number)
        recent = [
            entry for entry in timeline.reactions.in_force_for(number) if entry.block.ts >= since
        ]
        if not recent or (body.turn_ids is not None and name not in body.turn_ids):
            continue
        answers = [conversation_views.reaction_answer(key, entry) for entry in recent]
        turns.append(
            RatedTurn(
                turn_id=name,
                bundle_id=turn.header.bundle if turn.header else "",
                turn_log=[block.ref for block in timeline if block.turn == number],
                assistant=views.answer_text(turn),
                user=views.user_text(number),
                feedbacks=answers,
                reactions=[reaction for reaction in answers if reaction.origin == "user"],
            )
        )
    return RatedTurnsAnswer(
        user_id=key.user, conversation_id=key.name, turns=turns, bundle_ids=views.bundles()
    )


@router.get("/{conversation}/satisfaction")
async def satisfaction(key: access.ReadKeyDep, conversation: access.ReadDep) -> SatisfactionAnswer:
    """Return the counts of the user's current reactions, and the share of `ok`."""
    counts: Satisfaction = await conversation.satisfaction()
    return SatisfactionAnswer(
        conversation_id=key.name,
        ok=counts.ok,
        not_ok=counts.not_ok,
        neutral=counts.neutral,
        satisfaction_rate=counts.rate,
    )


@router.get("/{conversation}/blocks")
async def read_blocks(
    key: access.ReadKeyDep,
    conversation: access.ReadDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    types: Annotated[list[BlockType] | None, Query(max_length=50)] = None,
    turn: Annotated[bodies.TurnId | None, Query()] = None,
) -> bodies.BlocksAnswer:
    """Return the blocks of a conversation after a seq; only blocks of some types or of one turn, if they are named."""
    blocks = await conversation.blocks(after=after, limit=limit + 1, types=types or (), turn=turn)
    page = blocks[:limit]
    return bodies.BlocksAnswer(
        conversation_id=key.name,
        blocks=[tl.block_document(block) for block in page],
        next_after=page[-1].seq if len(blocks) > limit else None,
    )


@router.post("/{conversation}/read")
async def read_refs(
    host: access.HostDep, key: access.ReadKeyDep, _: access.SummaryDep, body: bodies.ReadBody
) -> bodies.ReadingAnswer:
    """Return the text of each requested ref."""
    reading = await read_for_user(host, key, body.refs)
    return bodies.ReadingAnswer.model_validate(reading, from_attributes=True)


@router.get("/{conversation}/export")
async def export(conversation: access.ReadDep) -> dict[str, JsonValue]:
    """Return the whole conversation as a document for the import."""
    return await conversation.export()


async def _fetch(
    host: BundleHost, key: tl.ConversationKey, body: bodies.FetchBody
) -> conversation_views.FetchAnswer:
    """Return the turns that have a block of the last `body.days` days; with `body.turn_ids`, only those of these turns.

    If the conversation does not exist, raise a `RequestProblem`, 404.
    """
    summary = await access.find_summary(host, key)
    blocks = await host.log.read(key)
    views = conversation_views.TurnViews(key, tl.Timeline(blocks), body.materialize)
    since = _days_ago(host, body.days)
    recent = {block.turn_id for block in blocks if block.ts >= since}
    turns = recent if body.turn_ids is None else recent.intersection(body.turn_ids)
    bundles = views.bundles()
    return conversation_views.FetchAnswer(
        user_id=key.user,
        conversation_id=key.name,
        conversation_title=summary.title,
        turns=views.turns(turns),
        bundle_id=next(reversed(bundles), ""),
        bundle_ids=bundles,
    )


async def _period_feedback(
    host: BundleHost, summary: tl.ConversationSummary, body: bodies.PeriodBody
) -> RatedConversation | None:
    """Return the conversation with its current reactions that were stored in the period, or None if there are none.

    The turns are included only with `body.include_turns`.
    """
    key = summary.conversation
    reactions = fold(await host.log.read(key, types=["turn.feedback"]))
    entries = [
        entry for entry in reactions.in_force_after(0) if body.start <= entry.block.ts <= body.end
    ]
    if not entries:
        return None
    by_turn: dict[str, list[conversation_views.ReactionAnswer]] = {}
    for entry in entries:
        by_turn.setdefault(entry.block.turn_id, []).append(
            conversation_views.reaction_answer(key, entry)
        )
    all_reactions = [reaction for answers in by_turn.values() for reaction in answers]
    kinds = [reaction.reaction for reaction in all_reactions]
    user_count = [reaction.origin for reaction in all_reactions].count("user")
    turns = [
        PeriodTurn(turn_id=turn, ts=answers[-1].ts, feedbacks=answers)
        for turn, answers in by_turn.items()
    ]
    return RatedConversation(
        conversation_id=key.name,
        last_activity_at=tl.iso_time(summary.last_activity_at),
        started_at=tl.iso_time(summary.started_at),
        feedback_counts=FeedbackCounts(
            total=len(all_reactions),
            user=user_count,
            machine=len(all_reactions) - user_count,
            ok=kinds.count("ok"),
            not_ok=kinds.count("not_ok"),
            neutral=kinds.count("neutral"),
        ),
        turns=turns if body.include_turns else None,
    )


def _days_ago(host: BundleHost, days: int) -> datetime:
    return host.clock.now() - timedelta(days=days)
