"""All conversations of a user, exported or forgotten; and those of anybody that were silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from msgspec import structs

from loopline.errors import ConflictError, StoreError
from loopline.models import Json, JsonObject, dumps
from loopline.reader import ConversationReader
from loopline.timeline import ConversationKey, ConversationSummary, TimelineLog, iso_time

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class ForgottenConversations:
    """The conversations that were forgotten, and those that were not because later forks show parts of them."""

    forgotten: Sequence[ConversationKey] = ()
    shown_by_forks: Sequence[ConversationKey] = ()


async def forget_conversations(
    log: TimelineLog, summaries: Sequence[ConversationSummary], *, cascade: bool = False
) -> ForgottenConversations:
    """Forget these conversations with their child runs; without `cascade`, only those that no other fork shows."""
    forgotten, waiting = list[ConversationKey](), [each.conversation for each in summaries]
    found_one = True
    while found_one and waiting:
        shown: list[ConversationKey] = []
        for conversation in waiting:
            try:
                await log.forget(conversation, cascade=cascade)
            except ConflictError:
                shown.append(conversation)
            else:
                forgotten.append(conversation)
        found_one, waiting = len(shown) < len(waiting), shown
    return ForgottenConversations(forgotten, waiting)


async def forget_inactive(
    log: TimelineLog,
    before: datetime,
    *,
    tenant: str | None = None,
    except_tenants: Container[str] = (),
) -> ForgottenConversations:
    """Forget the conversations without any activity since then; of one tenant, or of all but some.

    A conversation that a later fork shows parts of is forgotten after the fork.
    """
    inactive = await log.conversations(tenant=tenant, before=before)
    return await forget_conversations(
        log, [each for each in inactive if each.conversation.tenant not in except_tenants]
    )


async def export_conversations(
    handle: Callable[[ConversationKey], ConversationReader],
    summaries: Sequence[ConversationSummary],
    folder: Path,
) -> int:
    """Write each conversation and child run as a document of its own, and `index.json`, which names them.

    The files are numbered: the name of a conversation may be no name of a file. Return the number of documents.

    Raises:
        StoreError: the folder exists, or cannot be written.
    """
    documents: list[Json] = []
    waiting = list(reversed(summaries))
    try:
        await asyncio.to_thread(folder.mkdir, parents=True)
        while waiting:
            summary = waiting.pop()
            conversation, file = handle(summary.conversation), f"{len(documents) + 1}.json"
            await _write_document(conversation, folder / file)
            documents.append({"file": file, **_heading(summary)})
            waiting.extend(reversed(await conversation.children()))
        index = dumps({"conversations": documents}) + "\n"
        await asyncio.to_thread((folder / INDEX).write_text, index, "utf-8")
    except FileExistsError as error:
        raise StoreError(f"{folder} exists already: name a new folder") from error
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
    return len(documents)


def _heading(summary: ConversationSummary) -> JsonObject:
    return {
        **structs.asdict(summary.conversation),
        "turns": summary.turns,
        "started_at": iso_time(summary.started_at),
        "last_activity_at": iso_time(summary.last_activity_at),
    }


async def _write_document(conversation: ConversationReader, file: Path) -> None:
    with await asyncio.to_thread(file.open, "x", encoding="utf-8") as document:
        async for piece in conversation.export_text():
            await asyncio.to_thread(document.write, piece)
