"""Routes for the web page: the conversations that the caller may read, windows of blocks, outlines, and prompts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AwareDatetime, BaseModel, JsonValue

from loopline import timeline as tl
from loopline.server import block_rows, outlines, page_export, shown_prompts
from loopline.server.access import CallerDep, HostDep, ReadKeyDep, SummaryDep
from loopline.server.principals import APPROVER
from loopline.server.problems import PROBLEMS, not_found

router: APIRouter = APIRouter(tags=["page"], responses=PROBLEMS)
RedactedKind = Literal["secret", "email", "card", "phone", "ssn", "iban", "ip"]
_FILES = tl.BodyUnion[tl.UserAttachment | tl.FileAdded](tl.UserAttachment | tl.FileAdded)
_DOWNLOAD = {
    "Content-Type": "application/octet-stream",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
}
_SAVED = {
    "Content-Disposition": 'attachment; filename="conversation.html"',
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
}
_HERE = "/conversations/{tenant}/{project}/{conversation}"
ROWS = 500
CHARACTERS = 4_000
MOST_CHARACTERS = 64 * 1024 * 1024


class StoredAnswer(BaseModel):
    """Conversations that the caller may read, the last active first. `writable` says that messages can be sent.

    `approver` says that the caller may give the further approvals of calls in conversations of other users.
    """

    writable: bool
    approver: bool
    bundles: list[str]
    tenant: str
    project: str
    user: str
    total: int
    items: list[page_export.StoredConversation]


class RowsAnswer(BaseModel):
    """Some blocks of a conversation in order; `head` is the seq of its last block."""

    conversation_id: str
    head: int
    rows: list[block_rows.BlockRow]


@router.get("/stored")
async def list_stored(
    host: HostDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=2_000)] = 500,
    before: AwareDatetime | None = None,
) -> StoredAnswer:
    """List the conversations of the caller; on a server that only reads a store, those of all users."""
    own = not host.is_reading
    summaries = await host.log.conversations(
        user=caller.user if own else None,
        project=caller.project if own else None,
        tenant=caller.tenant if own else None,
        before=before,
    )
    unfinished = {summary.uid for summary in await host.log.unfinished()}
    return StoredAnswer(
        writable=own,
        approver=own and APPROVER in caller.roles,
        bundles=[harness.bundle.id for harness in host.harnesses],
        tenant=caller.tenant,
        project=caller.project,
        user=caller.user,
        total=len(summaries),
        items=[
            page_export.stored_conversation(summary, is_open=summary.uid in unfinished)
            for summary in summaries[:limit]
        ],
    )


@router.get(f"{_HERE}/window")
async def read_window(
    host: HostDep,
    key: ReadKeyDep,
    summary: SummaryDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=ROWS)] = 200,
    characters: Annotated[int, Query(ge=20, le=MOST_CHARACTERS)] = CHARACTERS,
) -> RowsAnswer:
    """Return a window of the blocks of a conversation, with texts of at most `characters`, without the bytes of files."""
    rows = await block_rows.read_rows(host.log, key, after, limit, characters)
    return RowsAnswer(conversation_id=key.name, head=summary.head, rows=rows)


@router.get(f"{_HERE}/outline")
async def read_outline(
    host: HostDep,
    summary: SummaryDep,
    first: Annotated[int, Query(ge=1, le=2**31)] = 1,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
) -> outlines.OutlineAnswer:
    """Return the turns of a conversation from the turn `first` on, with their rounds, calls, times, tokens and costs."""
    async with host.timelines.open(host.log, summary) as timeline:
        return await asyncio.to_thread(outlines.outline, timeline, first, limit)


@router.get(f"{_HERE}/file", response_class=Response)
async def read_file(
    host: HostDep, key: ReadKeyDep, _: SummaryDep, seq: Annotated[int, Query(ge=1, le=2**53)]
) -> Response:
    """Return the bytes of the file that a block attached or added, always as a download.

    Outputs for the agent alone are not returned.
    """
    blocks = await host.log.read(key, after=seq - 1, limit=1)
    for _block, body in _FILES.among(blocks):
        match body:
            case tl.UserAttachment() | tl.FileAdded(visibility="external"):
                return Response(tl.workspace.file_bytes(body), headers=_DOWNLOAD)
            case tl.FileAdded():
                pass
    raise not_found(f"file in block {seq}")


@router.get(f"{_HERE}/turns/{{turn}}/rounds/{{number}}/prompt")
async def read_prompt(
    host: HostDep,
    summary: SummaryDep,
    turn: str,
    number: int,
    seq: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> dict[str, JsonValue]:
    """Return exactly what a round sent to its model, as `loopline prompt --json` does, with the state of each part.

    A round that was steered has sent several requests: `seq` chooses one by its block, and 0 the last one.
    """
    async with host.timelines.open(host.log, summary) as timeline:
        return await asyncio.to_thread(
            shown_prompts.show_prompt, timeline, tl.turn_number(turn), number, seq
        )


@router.get(f"{_HERE}/prompt")
async def read_last_prompt(
    host: HostDep, summary: SummaryDep, turn: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> dict[str, JsonValue]:
    """Return the last request of a turn, or of the conversation if the turn is 0, as the route of a round does."""
    async with host.timelines.open(host.log, summary) as timeline:
        return await asyncio.to_thread(shown_prompts.show_last_prompt, timeline, turn)


@router.get(f"{_HERE}/page", response_class=Response)
async def export(
    host: HostDep,
    key: ReadKeyDep,
    redact: Annotated[list[RedactedKind] | None, Query(max_length=20)] = None,
) -> Response:
    """Return a conversation as one HTML page that needs nothing else, as a download.

    Secrets or personal data of the kinds in `redact`, such as `email`, are replaced.
    """
    html = await page_export.export_page(host.log, key, redact or ())
    return Response(html, media_type="text/html", headers=_SAVED)
