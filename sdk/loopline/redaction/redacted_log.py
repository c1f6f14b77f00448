"""A log whose bodies are redacted before they are appended: no store, index or listener gets the text as it was."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from hashlib import sha256
from itertools import accumulate
from typing import cast

from msgspec import Struct, structs
from typing_extensions import TypeVar

from loopline.models import Json
from loopline.redaction.redaction import (
    Redactor,
    redact_echo,
    redact_json,
    redact_text,
    redacted_parts,
)
from loopline.timeline import (
    BackgroundResult,
    Block,
    Body,
    BodyUnion,
    Checkpoint,
    ConversationKey,
    ConversationSummary,
    CustomEvent,
    Decision,
    Entry,
    FileAdded,
    Imported,
    ProxiedResult,
    RoundStart,
    Sender,
    Source,
    SourceSpan,
    TimelineLog,
    ToolResult,
    ToolsSelected,
    TurnHeader,
    Unknown,
    UserAnswer,
    UserAttachment,
)


class ForwardingLog:
    """A log that is in all the log that it wraps, but for what a derived class does otherwise."""

    def __init__(self, log: TimelineLog) -> None:
        self._log = log

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
        at_head: bool = False,
    ) -> Sequence[Block]:
        """Append the entries, and return every block after `seen`."""
        return await self._log.append(
            conversation, entries, seen=seen, term=term, key=key, at_head=at_head
        )

    async def read(
        self,
        conversation: ConversationKey,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] = (),
        turn: int | None = None,
        last: int | None = None,
        also: Sequence[int] = (),
    ) -> Sequence[Block]:
        """Return the blocks after `after` that match."""
        return await self._log.read(
            conversation, after=after, limit=limit, types=types, turn=turn, last=last, also=also
        )

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Hold the right to run the conversation."""
        return self._log.lease(conversation, wait=wait)

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, None if it never began."""
        return await self._log.find(conversation)

    async def conversations(
        self,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationSummary]:
        """Return the conversations of that user, project and tenant, the one active last first."""
        return await self._log.conversations(
            user=user, project=project, tenant=tenant, after=after, before=before, limit=limit
        )

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may hold an unfinished turn."""
        return await self._log.unfinished()

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is still valid."""
        return await self._log.holds(conversation, term)

    def present(self, bundle: str, version: str) -> AbstractAsyncContextManager[Sender]:
        """Register a version of a bundle, and count a harness with it as present until the context is left."""
        return self._log.present(bundle, version)

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        return await self._log.is_present(sender)

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, oldest first."""
        return await self._log.versions(bundle)

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were stored elsewhere, each as it is."""
        await self._log.restore(conversation, blocks)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation with the blocks up to `seq`."""
        await self._log.fork(conversation, fork, seq)

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs for good."""
        await self._log.forget(conversation, cascade=cascade)

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations of which traces may be left."""
        return await self._log.forgetting()

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Record that nothing is left of these forgotten conversations."""
        await self._log.finish_forgetting(conversations)

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, None if it was not."""
        return await self._log.forgotten(conversation)

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, None if none did."""
        return await self._log.appended(conversation, key)

    async def check(self) -> None:
        """Check that the log that is wrapped can store what a user says."""
        await self._log.check()

    async def close(self) -> None:
        """Close the log that is wrapped."""
        await self._log.close()


S = TypeVar("S", bound=Struct)
_Exact = RoundStart | Checkpoint | TurnHeader | ToolsSelected | Imported | Unknown
_EXACT = BodyUnion[_Exact](_Exact)
"""What no user, tool or model wrote: configuration, digests and positions."""
_WithSpans = ToolResult | ProxiedResult | BackgroundResult
_WITH_SPANS = BodyUnion[_WithSpans](_WithSpans)
_NAMES = frozenset(
    {
        *("agent", "agent_digest", "artifact", "call_id", "conversation", "data", "fact_id", "id"),
        *("lesson_id", "limits", "mime", "model", "name", "owner", "parent", "path", "plan_id"),
        *("provider_id", "ref", "refs", "schema_sha256", "sha256", "shows", "tool", "type"),
    }
)
"""The fields that name something, or are digests or bytes: a name that changed would name nothing."""
LARGE_CHARACTERS = 5_000
"""More text is redacted in a thread: these take 4 to 20 ms (decision 0112)."""


class RedactedLog(ForwardingLog):
    """A log that stores nothing which its redactor replaces, and is in all else the log that it wraps.

    What is restored from a document is stored as it is: the document exists already.
    """

    def __init__(self, log: TimelineLog, redactor: Redactor) -> None:
        super().__init__(log)
        self._redactor = redactor

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
        at_head: bool = False,
    ) -> Sequence[Block]:
        """Append the entries, redacted, and return every block after `seen`."""
        if sum(_size(entry.body) for entry in entries) > LARGE_CHARACTERS:
            entries = await asyncio.to_thread(self._redacted, entries)
        else:
            entries = self._redacted(entries)
        return await super().append(
            conversation, entries, seen=seen, term=term, key=key, at_head=at_head
        )

    def _redacted(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [
            structs.replace(entry, body=redact_body(self._redactor, entry.body))
            for entry in entries
        ]


def redact_body(redactor: Redactor, body: Body) -> Body:
    """Return the body with everything that a user, a tool or a model wrote redacted."""
    if _EXACT.has(body):
        return body
    if isinstance(body, UserAttachment):
        return _redacted_file(redactor, body)
    if isinstance(body, FileAdded):
        return _redacted_file(redactor, body)
    if isinstance(body, CustomEvent):
        return structs.replace(body, data=redact_json(redactor, body.data))
    if isinstance(body, UserAnswer):
        return structs.replace(body, value=redact_json(redactor, body.value))
    if isinstance(body, Decision):
        redacted = _redacted_struct(redactor, structs.replace(body, echo=None))
        return structs.replace(redacted, echo=redact_echo(redactor, body.echo))
    if _WITH_SPANS.has(body) and body.source_spans:
        result = _redacted_struct(redactor, body)
        spans = _redacted_spans(redactor, body.text, body.source_spans, result.text)
        return structs.replace(result, source_spans=spans)
    return _redacted_struct(redactor, body)


def _redacted_spans(
    redactor: Redactor, text: str, spans: Sequence[SourceSpan], redacted: str
) -> tuple[SourceSpan, ...]:
    """Return where the parts of the text are in the redacted one, without those that are not a part of it any more."""
    parts = redacted_parts(redactor, text)
    starts = list(accumulate((len(part) for part, _ in parts), initial=0))
    new_starts = list(accumulate((len(new) for _, new in parts), initial=0))
    moved: list[SourceSpan] = []
    for span in spans:
        number = min(bisect_right(starts, span.start), len(parts)) - 1
        before = parts[number][0][: span.start - starts[number]]
        start = new_starts[number] + len(redactor.redact(before))
        part = redact_text(redactor, text[span.start : span.end])
        if redacted.startswith(part, start):
            moved.append(structs.replace(span, start=start, end=start + len(part)))
    return tuple(moved)


F = TypeVar("F", UserAttachment, FileAdded)


def _redacted_file(redactor: Redactor, file: F) -> F:
    """Return the file with its text redacted; the bytes of a file that is no text stay as they are."""
    text = redact_text(redactor, file.text)
    if text == file.text or file.data:
        return structs.replace(file, text=text)
    data = text.encode()
    return structs.replace(file, text=text, size=len(data), sha256=sha256(data).hexdigest())


def _redacted_struct(redactor: Redactor, struct: S) -> S:
    changes = {
        name: _redacted(redactor, value)
        for name in struct.__struct_fields__
        if name not in _NAMES and (value := getattr(struct, name))
    }
    if isinstance(struct, Source) and not struct.url.startswith("http"):
        changes["url"] = struct.url  # a pinned ref
    return structs.replace(struct, **changes)


def _redacted(redactor: Redactor, value: object) -> object:
    match value:
        case str():
            return redact_text(redactor, value)
        case Struct():
            return _redacted_struct(redactor, value)
        case tuple():
            items = cast("tuple[object, ...]", value)
            return tuple(_redacted(redactor, item) for item in items)
        case dict():
            return redact_json(redactor, cast("Json", value))
        case _:
            return value


def _size(body: Body) -> int:
    """Return roughly how many characters a body has."""
    fields = (getattr(body, name) for name in body.__struct_fields__)
    return sum(
        len(value) if isinstance(value, str) else len(str(value)) for value in fields if value
    )
