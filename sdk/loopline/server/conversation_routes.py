"""Conversations: lists, turns, states, feedback, deletion, with the paths and answers that clients of the seed expect."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, JsonValue

from loopline.models import well_formed
from loopline.server.access import (
    HostDep,
    OwnKeyDep,
    ReaderDep,
    ReadKeyDep,
    key_of,
)
from loopline.server.approvals import WaitingQuestion, questions_in
from loopline.server.bodies import (
    BlocksAnswer,
    BoundedName,
    FeedbackBody,
    FetchBody,
    ItemAnswer,
    NamedFetchBody,
    PeriodBody,
    RatedTurnsBody,
    ReadBody,
    ReadingAnswer,
    TurnId,
)
from loopline.server.bundle_host import BundleHost
from loopline.server.conversation_views import (
    FetchAnswer,
    ReactionAnswer,
    State,
    TurnViews,
    reaction_answer,
    reactions_of,
    state_of,
)
from loopline.server.problems import RequestProblem, not_found
from loopline.timeline import (
    ConversationKey,
    ConversationSummary,
    Reaction,
    Timeline,
    block_document,
    iso_time,
    open_timeline,
    turn_id,
    turn_number,
)
from loopline.timeline.feedback import Reactions, Satisfaction

router: APIRouter = APIRouter(prefix="/conversations/{tenant}/{project}", tags=["conversations"])
PAGE = 500
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
    """Whether a conversation runs."""

    conversation_id: str
    state: State
    updated_at: str
    meta: dict[str, JsonValue]


class ListedTurn(BaseModel):
    """A turn in a list."""

    turn_id: str
    ts: str
    state: str
    rounds: int


class DetailsAnswer(BaseModel):
    """What is known of a conversation, and its turns."""

    user_id: str
    conversation_id: str
    conversation_title: str
    started_at: str
    last_activity_at: str
    bundle_id: str
    turns: list[ListedTurn]


class DeleteAnswer(BaseModel):
    """What was deleted with a conversation."""

    conversation_id: str
    deleted_messages: int
    deleted_storage_messages: int
    deleted_storage_attachments: int
    deleted_storage_executions: int


class FeedbackAnswer(BaseModel):
    """A reaction was recorded."""

    success: bool
    turn_id: str
    reaction: Reaction | None
    message: str
    cleared: bool


class SatisfactionAnswer(BaseModel):
    """The reactions of a user that count, and the share of `ok`."""

    conversation_id: str
    ok: int
    not_ok: int
    neutral: int
    satisfaction_rate: float | None


class RatedTurn(BaseModel):
    """A turn with the reactions to it."""

    turn_id: str
    bundle_id: str
    turn_log: list[str]
    assistant: str
    user: str
    feedbacks: list[ReactionAnswer]
    reactions: list[ReactionAnswer]


class RatedTurnsAnswer(BaseModel):
    """The turns with feedback of a conversation."""

    user_id: str
    conversation_id: str
    turns: list[RatedTurn]
    bundle_ids: list[str]


class FeedbackCounts(BaseModel):
    """How many reactions there are, by origin and by kind."""

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
    feedbacks: list[ReactionAnswer]


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
    host: HostDep,
    reader: ReaderDep,
    last_n: Annotated[int, Query(ge=1, le=PAGE)] = 100,
    started_after: AwareDatetime | None = None,
    days: Annotated[int, Query(ge=1, le=3_650)] = 365,
    include_titles: bool = True,
    bundle_id: Annotated[str, Query(max_length=200)] = "",
) -> ListAnswer:
    """List the user's conversations, the last active one first."""
    summaries = await host.log.conversations(
        user=reader.user,
        project=reader.project,
        tenant=reader.tenant,
        after=_since(host, days),
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
        items.append(_listed(summary, with_title=include_titles))
    return ListAnswer(user_id=reader.user, items=items)


@router.post("/fetch")
async def fetch_named(host: HostDep, reader: ReaderDep, body: NamedFetchBody) -> FetchAnswer:
    """Fetch the turns of the conversation that the body names."""
    return await _fetch(host, key_of(reader, body.conversation_id), body)


@router.post("/feedback/conversations-in-period")
async def conversations_in_period(
    host: HostDep, reader: ReaderDep, body: PeriodBody
) -> PeriodAnswer:
    """List the conversations with feedback in a period: the caller's, or those of all users for a privileged one."""
    if body.cursor is not None and not _CURSOR.fullmatch(body.cursor):
        raise RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one of an answer")
    if body.end < body.start:
        raise RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "the period ends before it begins")
    # An order that does not change while pages are fetched.
    summaries = sorted(
        await host.log.conversations(
            user=None if reader.is_privileged else reader.user,
            project=reader.project,
            tenant=reader.tenant,
        ),
        key=lambda summary: (summary.started_at, summary.uid),
    )
    place, items = int(body.cursor or 0), list[RatedConversation]()
    for summary in summaries[place:]:
        if len(items) == body.limit:
            break
        place += 1
        rated = await _rated_in_period(host, summary, body)
        if rated is not None:
            items.append(rated)
    return PeriodAnswer(
        tenant=reader.tenant,
        project=reader.project,
        window=WindowAnswer(start=iso_time(body.start), end=iso_time(body.end)),
        items=items,
        next_cursor=f"{place}" if place < len(summaries) else None,
    )


@router.post("/{conversation}/fetch")
async def fetch(host: HostDep, key: ReadKeyDep, body: FetchBody) -> FetchAnswer:
    """Fetch the turns of a conversation."""
    return await _fetch(host, key, body)


@router.get("/{conversation}/status")
async def status(host: HostDep, key: ReadKeyDep) -> StatusAnswer:
    """Say whether a turn of the conversation runs."""
    summary = await _summary(host, key)
    timeline = await open_timeline(host.log, key)
    pending: list[JsonValue] = [call for turn in timeline.resumable for call in turn.unanswered]
    left: dict[str, JsonValue] = {
        name: reason
        for name, reason in host.left_turns(key).items()
        if timeline.turn(turn_number(name)) in timeline.open_turns
    }
    resumable: list[JsonValue] = [turn_id(turn.number) for turn in timeline.resumable]
    return StatusAnswer(
        conversation_id=key.name,
        state=state_of(timeline),
        updated_at=iso_time(summary.last_activity_at),
        meta={
            "turns": summary.turns,
            "last_seq": summary.head,
            "pending_calls": pending,
            "questions": [_question_row(question) for question in questions_in(timeline)],
            "resumable_turns": resumable,
            "left_turns": left,
        },
    )


def _question_row(question: WaitingQuestion) -> JsonValue:
    row: dict[str, JsonValue] = {
        "call_id": question.call_id,
        "turn_id": question.turn_id,
        "kind": question.kind,
        "question": question.question,
        "stays_open": question.stays_open,
    }
    return {**row, "form": question.form} if question.stays_open else row


@router.get("/{conversation}/details")
async def details(host: HostDep, key: ReadKeyDep) -> DetailsAnswer:
    """Return what is known of a conversation, and its turns."""
    summary = await _summary(host, key)
    timeline = Timeline(await host.log.read(key))
    return DetailsAnswer(
        user_id=key.user,
        conversation_id=key.name,
        conversation_title=summary.title,
        started_at=iso_time(summary.started_at),
        last_activity_at=iso_time(summary.last_activity_at),
        bundle_id=next(reversed(TurnViews(key, timeline).bundles()), ""),
        turns=[
            ListedTurn(
                turn_id=turn_id(number),
                ts=iso_time(turn.prompt.ts) if turn.prompt else "",
                state=turn.exit.reason if turn.exit else "in_progress",
                rounds=turn.rounds,
            )
            for number, turn in sorted(timeline.turns.items())
        ],
    )


@router.delete("/{conversation}")
async def delete(host: HostDep, key: OwnKeyDep) -> DeleteAnswer:
    """Delete a conversation for good, with its files and child runs, and cancel its turns."""
    summary = await _summary(host, key)
    said = await host.log.read(key, types=["user.prompt", "assistant.completion"])
    attached = await host.log.read(key, types=["user.attachment"])
    produced = await host.log.read(key, types=["file.added"])
    await host.log.forget(key)
    await host.end_conversation(key)
    await host.finish_forgetting()
    host.audit("delete", key)
    return DeleteAnswer(
        conversation_id=key.name,
        deleted_messages=len(said),
        deleted_storage_messages=summary.head,
        deleted_storage_attachments=len(attached),
        deleted_storage_executions=len(produced),
    )


@router.post("/{conversation}/turns/{turn}/feedback")
async def give_feedback(
    host: HostDep, key: OwnKeyDep, turn: str, body: FeedbackBody
) -> FeedbackAnswer:
    """Rate a turn: the newest reaction counts, and null takes it back."""
    summary = await _summary(host, key)
    if not 1 <= turn_number(turn) <= summary.turns:
        raise not_found(f"turn {well_formed(turn)[:40]!r} in this conversation")
    talk = await host.conversation(key)
    await talk.feedback(turn, body.reaction, text=body.text)
    host.audit("feedback", key, turn=turn)
    cleared = body.reaction is None
    return FeedbackAnswer(
        success=True,
        turn_id=turn,
        reaction=body.reaction,
        message="the reaction was taken back" if cleared else "the reaction was recorded",
        cleared=cleared,
    )


@router.post("/{conversation}/turns-with-feedbacks")
async def turns_with_feedbacks(
    host: HostDep, key: ReadKeyDep, body: RatedTurnsBody
) -> RatedTurnsAnswer:
    """Fetch the turns that were rated, with the reactions that count."""
    await _summary(host, key)
    timeline = Timeline(await host.log.read(key))
    views, reactions, since = (
        TurnViews(key, timeline),
        reactions_of(timeline),
        _since(host, body.days),
    )
    turns: list[RatedTurn] = []
    for number, turn in sorted(timeline.turns.items()):
        name, entries = turn_id(number), reactions.in_force_for(number)
        recent = [entry for entry in entries if entry.block.ts >= since]
        if not recent or (body.turn_ids is not None and name not in body.turn_ids):
            continue
        given = [reaction_answer(key, entry) for entry in recent]
        turns.append(
            RatedTurn(
                turn_id=name,
                bundle_id=turn.header.bundle if turn.header else "",
                turn_log=[block.ref for block in timeline if block.turn == number],
                assistant=views.answer_text(turn),
                user=views.user_text(number),
                feedbacks=given,
                reactions=[reaction for reaction in given if reaction.origin == "user"],
            )
        )
    return RatedTurnsAnswer(
        user_id=key.user, conversation_id=key.name, turns=turns, bundle_ids=views.bundles()
    )


@router.get("/{conversation}/satisfaction")
async def satisfaction(host: HostDep, key: ReadKeyDep) -> SatisfactionAnswer:
    """Return the share of `ok` in the user's reactions that count."""
    await _summary(host, key)
    counts: Satisfaction = await (await host.conversation(key)).satisfaction()
    return SatisfactionAnswer(
        conversation_id=key.name,
        ok=counts.ok,
        not_ok=counts.not_ok,
        neutral=counts.neutral,
        satisfaction_rate=counts.rate,
    )


@router.get("/{conversation}/blocks")
async def read_blocks(
    host: HostDep,
    key: ReadKeyDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    types: Annotated[list[BoundedName] | None, Query(max_length=50)] = None,
    turn: Annotated[TurnId | None, Query()] = None,
) -> BlocksAnswer:
    """Return the blocks of a conversation behind a seq, or those of some types or of one turn."""
    await _summary(host, key)
    talk = await host.conversation(key)
    blocks = await talk.blocks(after=after, limit=limit + 1, types=types or (), turn=turn)
    page = blocks[:limit]
    return BlocksAnswer(
        conversation_id=key.name,
        blocks=[block_document(block) for block in page],
        next_after=page[-1].seq if len(blocks) > limit else None,
    )


@router.post("/{conversation}/read")
async def read_refs(host: HostDep, key: ReadKeyDep, body: ReadBody) -> ReadingAnswer:
    """Read what refs of the conversation name."""
    await _summary(host, key)
    reading = await (await host.conversation(key)).read(body.refs)
    return ReadingAnswer(
        items=[
            ItemAnswer(
                ref=item.ref,
                requested=item.requested,
                status=item.status,
                text=item.text,
                title=item.title,
                mime=item.mime,
                message=item.message,
            )
            for item in reading
        ],
        missing=list(reading.missing),
        total_tokens=reading.total_tokens,
    )


@router.get("/{conversation}/export")
async def export(host: HostDep, key: ReadKeyDep) -> dict[str, JsonValue]:
    """Return the whole conversation as a document that can be imported."""
    await _summary(host, key)
    return await (await host.conversation(key)).export()


async def _summary(host: BundleHost, key: ConversationKey) -> ConversationSummary:
    """Return the summary of a conversation.

    Raises:
        RequestProblem: there is none of that name.
    """
    summary = await host.log.find(key)
    if summary is None:
        raise not_found(f"conversation {key.name!r}")
    return summary


async def _fetch(host: BundleHost, key: ConversationKey, body: FetchBody) -> FetchAnswer:
    summary = await _summary(host, key)
    blocks = await host.log.read(key)
    views = TurnViews(key, Timeline(blocks), body.materialize)
    since = _since(host, body.days)
    recent = {block.turn_id for block in blocks if block.ts >= since}
    wanted = recent if body.turn_ids is None else recent.intersection(body.turn_ids)
    bundles = views.bundles()
    return FetchAnswer(
        user_id=key.user,
        conversation_id=key.name,
        conversation_title=summary.title,
        turns=views.turns(sorted(wanted)),
        bundle_id=next(reversed(bundles), ""),
        bundle_ids=bundles,
    )


async def _rated_in_period(
    host: BundleHost, summary: ConversationSummary, body: PeriodBody
) -> RatedConversation | None:
    """Return the conversation with the reactions of the period that count, None without any."""
    key = summary.conversation
    reactions: Reactions = reactions_of(await host.log.read(key, types=["turn.feedback"]))
    entries = [
        entry for entry in reactions.in_force_after(0) if body.start <= entry.block.ts <= body.end
    ]
    if not entries:
        return None
    by_turn: dict[str, list[ReactionAnswer]] = {}
    for entry in entries:
        by_turn.setdefault(entry.block.turn_id, []).append(reaction_answer(key, entry))
    given = [reaction for reactions_of_turn in by_turn.values() for reaction in reactions_of_turn]
    kinds = [reaction.reaction for reaction in given]
    users = [reaction for reaction in given if reaction.origin == "user"]
    return RatedConversation(
        conversation_id=key.name,
        last_activity_at=iso_time(summary.last_activity_at),
        started_at=iso_time(summary.started_at),
        feedback_counts=FeedbackCounts(
            total=len(given),
            user=len(users),
            machine=len(given) - len(users),
            ok=kinds.count("ok"),
            not_ok=kinds.count("not_ok"),
            neutral=kinds.count("neutral"),
        ),
        turns=[
            PeriodTurn(turn_id=turn, ts=reactions_of_turn[-1].ts, feedbacks=reactions_of_turn)
            for turn, reactions_of_turn in by_turn.items()
        ]
        if body.include_turns
        else None,
    )


def _since(host: BundleHost, days: int) -> datetime:
    return host.clock.now() - timedelta(days=days)


def _listed(summary: ConversationSummary, *, with_title: bool) -> ListedConversation:
    return ListedConversation(
        conversation_id=summary.conversation.name,
        last_activity_at=iso_time(summary.last_activity_at),
        started_at=iso_time(summary.started_at),
        title=summary.title if with_title else None,
    )
