"""The clients of a workflow for its conversation: reading turns and artifacts, storing files, searching past turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Unpack

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.files import OutputFile, WorkspaceLimits, attachment_of, change_of, file_bodies
from loopline.memory import PastTurns, Scope, Target, TurnFilterOptions, TurnHit
from loopline.models import JsonObject
from loopline.react import TurnPayload
from loopline.reader import Reader, Reading, timeline_document
from loopline.refs import FileRef

StoredBody = tl.UserAttachment | tl.FileAdded | tl.ArtifactKept
_STORED = tl.BodyUnion[StoredBody](StoredBody)
_PROMPTS = tl.BodyUnion[tl.UserPrompt](tl.UserPrompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """A stored file or value of a turn: its pinned ref, name, MIME type and size in bytes."""

    ref: str
    turn_id: str
    name: str
    mime: str
    size: int
    ts: datetime


class ConversationStore:
    """Reads the turns, the timeline and the artifacts of the conversation from the log, and stores files in it."""

    def __init__(self, recorder: tl.Recorder, reader: Reader, limits: WorkspaceLimits) -> None:
        self._recorder = recorder
        self._reader = reader
        self._limits = limits

    async def put_attachment(self, filename: str, data: bytes | str) -> str:
        """Store a file of this turn, and return its pinned ref.

        The file is stored below `outputs/`, or below `files/` if the name begins with `files/`. Its MIME type is detected
        from the content. If the same content is already stored with this name, it is not stored again.

        Raises:
            ToolError: the name is not allowed, or the file or all files together are too large.
            LooplineError: the turn is over.
        """
        recorder = self._recorder
        change = change_of(OutputFile(filename, data))
        recorded = await recorder.record_from(
            lambda timeline: file_bodies(timeline, recorder.number, [change], limits=self._limits)
        )
        if recorded:
            return recorded[-1].ref
        path = change.path
        name = FileRef(turn_id=tl.turn_id(recorder.number), area=path.area, path=path.path)
        block = await self._reader.find(name)
        if block is None:
            raise LooplineError(f"{change.path} is not stored")
        return block.ref

    async def get_blob_bytes(self, ref: str) -> bytes:
        """Return the bytes of an attachment or a file; for a ref without bytes, its text as UTF-8.

        Raises:
            LooplineError: the ref cannot be read; the message says why.
        """
        [item] = await self._reader.read([ref])
        if not item.readable:
            raise LooplineError(f"{ref} cannot be read: {item.message}")
        return item.data or item.text.encode()

    async def list_conversation(self) -> Sequence[TurnPayload]:
        """Return the payload of each turn of the conversation, in order."""
        timeline = await self._full()
        return [self._payload(timeline, block, body) for block, body in _PROMPTS.among(timeline)]

    async def turn_payload(self, turn: str) -> TurnPayload:
        """Return the payload of a turn, with its attachments.

        Raises:
            LooplineError: the conversation does not have a turn with the id `turn`.
        """
        for payload in await self.list_conversation():
            if payload.turn_id == turn:
                return payload
        raise LooplineError(f"no turn {turn!r} in this conversation")

    async def timeline(self) -> JsonObject:
        """Return the timeline with all blocks so far as a document, `artifact:conv.timeline.v1`."""
        return timeline_document(await self._full(), self._reader.conversation.summary)

    async def artifacts(self, turn: str = "") -> Sequence[StoredArtifact]:
        """Return the attachments, files and kept values of a turn in order; without `turn`, of all turns."""
        return [
            _artifact(block, body)
            for block, body in _STORED.among(await self._full())
            if turn in ("", block.turn_id)
        ]

    async def _full(self) -> tl.Timeline:
        return await self._recorder.history.full()

    def _payload(
        self, timeline: tl.Timeline, block: tl.Block, prompt: tl.UserPrompt
    ) -> TurnPayload:
        """Return the payload of a turn, given the block and the body of its prompt, with the prompt's attachments."""
        key = self._recorder.conversation
        return TurnPayload(
            text=prompt.text,
            conversation=key.name,
            turn_id=block.turn_id,
            ts=block.ts,
            tenant=key.tenant,
            project=key.project,
            user=key.user,
            attachments=[*map(attachment_of, timeline.attachments(block.seq))],
        )


def _artifact(block: tl.Block, body: StoredBody) -> StoredArtifact:
    """Describe a stored body without its content. A file of the workspace is named `area/path`; sizes are in bytes."""
    artifact = StoredArtifact(
        ref=block.ref, turn_id=block.turn_id, name="", mime=body.mime, size=0, ts=block.ts
    )
    match body:
        case tl.UserAttachment(name=name):
            return replace(artifact, name=name, size=len(tl.workspace.file_bytes(body)))
        case tl.FileAdded(area=area, path=path):
            return replace(artifact, name=f"{area}/{path}", size=len(tl.workspace.file_bytes(body)))
        case tl.ArtifactKept(name=name, text=text):
            return replace(artifact, name=name, size=len(text.encode()))


DEFAULT_ITEMS = 5


class ContextRAGClient:
    """Searches past turns of the user, and reads refs."""

    def __init__(self, turns: PastTurns, reader: Reader) -> None:
        self._turns = turns
        self._reader = reader

    async def search(
        self,
        query: str = "",
        *,
        kind: Target | None = None,
        kinds: Sequence[Target] = (),
        limit: int | None = None,
        top_k: int = DEFAULT_ITEMS,
        scope: Scope = "user",
        **filters: Unpack[TurnFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return the past turns that match the query best, best first.

        `kind` and `kinds` select the texts to search: `user`, `assistant`, `attachment`, `notes`, `summary` or `lesson`;
        by default all. `top_k` is used if `limit` is None.

        Raises:
            LooplineError: a filter is not valid.
        """
        targets: list[Target] = [*kinds]
        if kind is not None:
            targets.append(kind)
        if targets:
            filters["targets"] = targets
        count = top_k if limit is None else limit
        return await self._turns.search(query, scope=scope, limit=count, **filters)

    async def recent(
        self,
        *,
        kinds: Sequence[Target] = (),
        limit: int = DEFAULT_ITEMS,
        scope: Scope = "user",
    ) -> Sequence[TurnHit]:
        """Return the newest past turns, newest first.

        Raises:
            LooplineError: a kind does not exist, or the limit is below 1.
        """
        return await self.search(kinds=kinds, limit=limit, scope=scope)

    async def fetch_ctx(self, refs: Sequence[str]) -> Reading:
        """Read refs of this conversation, of other conversations of the user, or of the knowledge space; one item for each.

        The item of a ref that cannot be read has the status `missing` or `gone`, and a message.
        """
        return await self._reader.read(refs)
