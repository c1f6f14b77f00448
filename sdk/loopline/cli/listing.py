"""`loopline timeline --list`: the conversations of a store, a line each, the one active last first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import Columns
from loopline.cli.conversing import stored
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.models import JsonObject, dumps
from loopline.reader import iso
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT, ConversationKey, ConversationSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Which conversations: active last after one moment and before another, the first so many."""

    after: str | None = None
    before: str | None = None
    limit: int | None = None


def moment(written: str | None) -> datetime | None:
    """The moment of `2026-03-21`, `2026-03-21 10:00` or an ISO time; in UTC unless it says another.

    Raises:
        UsageError: it is none.
    """
    if written is None:
        return None
    try:
        found = datetime.fromisoformat(written.strip())
    except ValueError as error:
        example = "write it as 2026-03-21, '2026-03-21 10:00' or 2026-03-21T10:00:00Z"
        raise UsageError(f"{written!r} is no moment: {example}") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


async def conversations(active: Active, choices: Choices, screen: Screen) -> int:
    """Print what conversations there are: those of the user, project and tenant, else of all."""
    after, before, limit = moment(active.after), moment(active.before), active.limit
    async with stored(choices) as store:
        listed = store.conversations(
            user=choices.user,
            project=choices.project,
            tenant=choices.tenant,
            after=after,
            before=before,
            limit=None if limit is None else limit + 1,
        )
        found = [summary async for summary in listed]
    page = found[:limit]
    if choices.as_json:
        screen.raw(dumps([_conversation_row(summary) for summary in page]))
    elif page:
        screen.answer_whole(_conversation_table(page), "\n".join(map(_conversation_line, page)))
    else:
        any_at_all = active == Active(limit=limit) and choices.owner == (None, None, None)
        nothing = "no conversation yet" if any_at_all else "no such conversation"
        screen.note(Text(nothing, style=QUIET))
    if page and len(found) > len(page):
        earlier = iso(page[-1].last_activity_at)
        screen.note(Text(f"there are more: --active-before {earlier}", style=QUIET))
    return ANSWERED


def _conversation_table(found: Sequence[ConversationSummary]) -> Columns:
    rows = [
        (
            Text(visible(summary.conversation.name), style="bold"),
            Text(visible(_owner(summary.conversation)), style=QUIET),
            Text(counted(summary.turns, "turn")),
            Text(counted(summary.head, "block")),
            Text(f"{summary.last_activity_at:%Y-%m-%d %H:%M}", style=QUIET),
            Text(visible(summary.title)),
        )
        for summary in found
    ]
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2, 3}))


def _owner(conversation: ConversationKey) -> str:
    """The user, with project and tenant where they are not the usual ones."""
    project = [conversation.project] if conversation.project != DEFAULT_PROJECT else []
    tenant = [conversation.tenant] if conversation.tenant != DEFAULT_TENANT else []
    return " · ".join([conversation.user, *project, *tenant])


def _conversation_line(summary: ConversationSummary) -> str:
    conversation = summary.conversation
    return "\t".join(
        [
            conversation.name,
            conversation.user,
            str(summary.turns),
            str(summary.head),
            iso(summary.last_activity_at),
            " ".join(summary.title.split()),
        ]
    )


def _conversation_row(summary: ConversationSummary) -> JsonObject:
    return {
        "conversation": summary.conversation.name,
        "user": summary.conversation.user,
        "project": summary.conversation.project,
        "tenant": summary.conversation.tenant,
        "turns": summary.turns,
        "blocks": summary.head,
        "started_at": iso(summary.started_at),
        "last_activity_at": iso(summary.last_activity_at),
        "title": " ".join(summary.title.split()),
    }
