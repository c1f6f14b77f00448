"""A timeline log that redacts bodies before it appends them; stores, indexes and listeners get only redacted texts."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from hashlib import sha256
from itertools import accumulate
from typing import Unpack, cast

from msgspec import Struct, structs
from typing_extensions import TypeVar

from loopline import timeline
from loopline.models import Json, dumps
from loopline.redaction import redaction
from loopline.timeline.log import AppendOptions, ListOptions, ReadOptions


class ForwardingLog:
    """Forwards every method to another log; derived classes override some of them."""

    def __init__(self, log: timeline.TimelineLog) -> None:
        self._log = log

    async def append(
        self,
        conversation: timeline.ConversationKey,
        entries: Sequence[timeline.Entry],
        **options: Unpack[AppendOptions],
    ) -> Sequence[timeline.Block]:
        """Append the entries to the wrapped log, and return every block after the option `seen`."""
        return await self._log.append(conversation, entries, **options)

    async def read(
        self, conversation: timeline.ConversationKey, **options: Unpack[ReadOptions]
    ) -> Sequence[timeline.Block]:
        """Return the blocks after `after` that match."""
        return await self._log.read(conversation, **options)

    def lease(
        self, conversation: timeline.ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Hold the lease of the conversation while the context lasts; it gives the term."""
        return self._log.lease(conversation, wait=wait)

    async def find(
        self, conversation: timeline.ConversationKey
    ) -> timeline.ConversationSummary | None:
        """Return the summary of the conversation, or None if it has no blocks."""
        return await self._log.find(conversation)

    async def conversations(
        self, **options: Unpack[ListOptions]
    ) -> Sequence[timeline.ConversationSummary]:
        """Return the conversations of the user, project and tenant, the most recently active first."""
        return await self._log.conversations(**options)

    async def unfinished(self) -> Sequence[timeline.ConversationSummary]:
        """Return the conversations that may have an unfinished turn."""
        return await self._log.unfinished()

    async def scheduled(self) -> Sequence[tuple[timeline.ConversationKey, datetime]]:
        """Return the conversations with scheduled messages, each with the time of its first message."""
        return await self._log.scheduled()

    async def holds(self, conversation: timeline.ConversationKey, term: int) -> bool:
        """Return whether the lease with this term is valid."""
        return await self._log.holds(conversation, term)

    def present(self, bundle: str, version: str) -> AbstractAsyncContextManager[timeline.Sender]:
        """Register a version of a bundle, and count a harness with it as present until the context is left."""
        return self._log.present(bundle, version)

    async def is_present(self, sender: timeline.Sender) -> bool:
        """Return whether the harness of that sender is present."""
        return await self._log.is_present(sender)

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, oldest first."""
        return await self._log.versions(bundle)

    async def restore(
        self, conversation: timeline.ConversationKey, blocks: Sequence[timeline.Block]
    ) -> None:
        """Start a conversation with unchanged blocks of another store."""
        await self._log.restore(conversation, blocks)

    async def fork(
        self, conversation: timeline.ConversationKey, fork: timeline.ConversationKey, seq: int
    ) -> None:
        """Start another conversation with the blocks up to `seq`."""
        await self._log.fork(conversation, fork, seq)

    async def forget(
        self, conversation: timeline.ConversationKey, *, cascade: bool = False
    ) -> None:
        """Remove a conversation and its child runs for good."""
        await self._log.forget(conversation, cascade=cascade)

    async def forks(self, conversation: timeline.ConversationKey) -> Sequence[str]:
        """Return the names of the forks that `forget` with `cascade` removes too."""
        return await self._log.forks(conversation)

    async def forgetting(self) -> Sequence[timeline.ConversationKey]:
        """Return the forgotten conversations that may still have files or index entries."""
        return await self._log.forgetting()

    async def finish_forgetting(self, conversations: Sequence[timeline.ConversationKey]) -> None:
        """Record that all data of these forgotten conversations is removed."""
        await self._log.finish_forgetting(conversations)

    async def forgotten(self, conversation: timeline.ConversationKey) -> datetime | None:
        """Return the time when the conversation was forgotten, or None."""
        return await self._log.forgotten(conversation)

    async def appended(self, conversation: timeline.ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append with this key, or None if there was none."""
        return await self._log.appended(conversation, key)

    async def turns_of(
        self, conversation: timeline.ConversationKey, keys: Collection[str]
    ) -> Mapping[str, int]:
        """Return the turns of the appends with these keys, by key."""
        return await self._log.turns_of(conversation, keys)

    async def check(self) -> None:
        """Check that the wrapped log can store user input."""
        await self._log.check()

    async def close(self) -> None:
        """Close the wrapped log."""
        await self._log.close()


S = TypeVar("S", bound=Struct)
_Exact = (
    timeline.RoundStart
    | timeline.Checkpoint
    | timeline.TurnHeader
    | timeline.ToolsSelected
    | timeline.Imported
    | timeline.Unknown
)
_EXACT = timeline.BodyUnion[_Exact](_Exact)
"""Bodies without text of a user, a tool or a model: configuration, digests and positions."""
_WithSpans = timeline.ToolResult | timeline.ProxiedResult | timeline.BackgroundResult
_WITH_SPANS = timeline.BodyUnion[_WithSpans](_WithSpans)
_NAMES = frozenset(
    {
        *("after", "agent", "agent_digest", "artifact", "bundle", "call_id", "child", "commit"),
        *("conversation", "data", "dependencies", "digest", "every", "fact_id", "id", "lesson_id"),
        *("limits", "mime", "model", "name", "output", "owner", "parent", "path", "plan_id"),
        *("provider_id", "ref", "refs", "rule", "rule_id", "schema_sha256", "settings", "sha256"),
        *("shows", "tool", "tools", "type", "version", "zone"),
    }
)
"""Fields with names, digests, bytes or configuration. They are not redacted, because a changed name would not be found."""
LARGE_CHARACTERS = 5_000
"""The number of characters above which entries are redacted in a thread; 5,000 take 4 to 20 ms (decision 0112)."""


class RedactedLog(ForwardingLog):
    """A log that redacts appended bodies; all other methods are those of the wrapped log.

    Blocks that are restored from a document are not redacted, because the document exists already.
    """

    def __init__(self, log: timeline.TimelineLog, redactor: redaction.Redactor) -> None:
        super().__init__(log)
        self._redactor = redactor

    async def append(
        self,
        conversation: timeline.ConversationKey,
        entries: Sequence[timeline.Entry],
        **options: Unpack[AppendOptions],
    ) -> Sequence[timeline.Block]:
        """Redact and append the entries, and return every block after `seen`.

        Entries of more than `LARGE_CHARACTERS` characters together are redacted in a thread.
        """
        if sum(_size(entry.body) for entry in entries) > LARGE_CHARACTERS:
            entries = await asyncio.to_thread(self._redact, entries)
        else:
            entries = self._redact(entries)
        return await super().append(conversation, entries, **options)

    def _redact(self, entries: Sequence[timeline.Entry]) -> Sequence[timeline.Entry]:
        return [
            structs.replace(entry, body=redact_body(self._redactor, entry.body))
            for entry in entries
        ]


def redact_body(redactor: redaction.Redactor, body: timeline.Body) -> timeline.Body:
    """Return the body with all texts of users, tools and models redacted.

    Bodies without such texts are returned as they are. A decision loses its replay if that has a text to redact, and
    spans of sources move to their new positions.
    """
    if _EXACT.has(body):
        return body
    if isinstance(body, timeline.UserAttachment):
        return _redact_file(redactor, body)
    if isinstance(body, timeline.FileAdded):
        return _redact_file(redactor, body)
    if isinstance(body, timeline.CustomEvent):
        return structs.replace(body, data=_redact_event(redactor, body))
    if isinstance(body, timeline.StepEnded):
        ended = _redact_struct(redactor, structs.replace(body, value=""))
        return structs.replace(ended, value=_redact_result(redactor, body.value))
    if isinstance(body, timeline.UserAnswer):
        return structs.replace(body, value=redaction.redact_json(redactor, body.value))
    if isinstance(body, timeline.Decision):
        redacted = _redact_struct(redactor, structs.replace(body, echo=None))
        return structs.replace(redacted, echo=redaction.redact_echo(redactor, body.echo))
    if _WITH_SPANS.has(body) and body.source_spans:
        result = _redact_struct(redactor, body)
        spans = _move_spans(redactor, body.text, body.source_spans, result.text)
        return structs.replace(result, source_spans=spans)
    return _redact_struct(redactor, body)


def _redact_event(redactor: redaction.Redactor, event: timeline.CustomEvent) -> Json:
    """Return the redacted data of an event; in the start of a background call only the arguments are redacted."""
    if event.name != timeline.BACKGROUND_STARTED or not isinstance(event.data, dict):
        return redaction.redact_json(redactor, event.data)
    return {
        name: redaction.redact_json(redactor, value) if name == "again" else value
        for name, value in event.data.items()
    }


def _redact_result(redactor: redaction.Redactor, text: str) -> str:
    """Return the result of a step redacted, which is JSON or empty, so that it stays JSON."""
    if not text or redaction.redact_text(redactor, text) == text:
        return text
    return dumps(redaction.redact_json(redactor, json.loads(text)))


def _move_spans(
    redactor: redaction.Redactor, text: str, spans: Sequence[timeline.SourceSpan], redacted: str
) -> tuple[timeline.SourceSpan, ...]:
    """Return the spans with their positions in the redacted text, without spans that it no longer contains."""
    parts = redaction.redact_parts(redactor, text)
    starts = list(accumulate((len(part) for part, _ in parts), initial=0))
    new_starts = list(accumulate((len(new) for _, new in parts), initial=0))
    moved: list[timeline.SourceSpan] = []
    for span in spans:
        number = min(bisect_right(starts, span.start), len(parts)) - 1
        before = parts[number][0][: span.start - starts[number]]
        start = new_starts[number] + len(redaction.redact_part(redactor, before))
        part = redaction.redact_text(redactor, text[span.start : span.end])
        if redacted.startswith(part, start):
            moved.append(structs.replace(span, start=start, end=start + len(part)))
    return tuple(moved)


F = TypeVar("F", timeline.UserAttachment, timeline.FileAdded)


def _redact_file(redactor: redaction.Redactor, file: F) -> F:
    """Return the file with its text redacted. The bytes of a binary file are not changed.

    The size and the digest of a text file are those of the redacted text.
    """
    text = redaction.redact_text(redactor, file.text)
    if text == file.text or file.data:
        return structs.replace(file, text=text)
    data = text.encode()
    return structs.replace(file, text=text, size=len(data), sha256=sha256(data).hexdigest())


def _redact_struct(redactor: redaction.Redactor, struct: S) -> S:
    """Return the struct with its fields redacted, except names, digests and a source's `url` that is not HTTP."""
    changes = {
        name: _redact(redactor, value, numbers=name != "form")
        for name in struct.__struct_fields__
        if name not in _NAMES and (value := getattr(struct, name))
    }
    if isinstance(struct, timeline.Source) and not struct.url.startswith("http"):
        changes["url"] = struct.url  # a pinned ref
    return structs.replace(struct, **changes)


def _redact(redactor: redaction.Redactor, value: object, *, numbers: bool = True) -> object:
    """Return a text, struct, tuple or object redacted, and any other value unchanged.

    The numbers in an object are redacted only with `numbers`.
    """
    match value:
        case str():
            return redaction.redact_text(redactor, value)
        case Struct():
            return _redact_struct(redactor, value)
        case tuple():
            items = cast("tuple[object, ...]", value)
            return tuple(_redact(redactor, item) for item in items)
        case dict():
            return redaction.redact_json(redactor, cast("Json", value), numbers=numbers)
        case _:
            return value


def _size(body: timeline.Body) -> int:
    """Return the approximate number of characters of a body."""
    fields = (getattr(body, name) for name in body.__struct_fields__)
    return sum(
        len(value) if isinstance(value, str) else len(str(value)) for value in fields if value
    )
