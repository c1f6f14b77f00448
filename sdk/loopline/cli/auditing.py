"""`loopline audit`: whether conversations are as they were written, and which blocks are not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import stored
from loopline.cli.documents import read_object
from loopline.cli.door import ANSWERED, FAILED, UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.models import Json, JsonObject, dumps
from loopline.reader import audit_document, heads_text, read_heads
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT, ConversationKey
from loopline.timeline.chain import Audit, Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What is to be audited, against which heads, and where the heads of now are to be saved."""

    name: str | None = None
    document: Path | None = None
    heads: Path | None = None
    save: Path | None = None
    key: Path | None = None


async def audit(asked: Audited, choices: Choices, screen: Screen) -> int:
    """Print what is not as it was written; the code says whether there is any."""
    key = b"" if asked.key is None else await asyncio.to_thread(_key, asked.key)
    heads = dict[ConversationKey, Head]()
    if asked.heads is not None:
        heads = read_heads(await asyncio.to_thread(_heads_text, asked.heads), key)
    if asked.document is not None:
        found: Sequence[Audit] = [await _audit_exported(asked, asked.document, heads, choices)]
    else:
        only = None if asked.name is None else _conversation(asked.name, choices)
        async with stored(choices) as store:
            found = await store.audit(heads, only)
    if asked.save is not None:
        kept = {one.conversation: one.head for one in found if one.head.seq and not one.faults}
        await asyncio.to_thread(asked.save.write_text, heads_text(kept, key), "utf-8")
    _print_audits(found, choices, screen)
    return FAILED if any(one.faults for one in found) else ANSWERED


async def _audit_exported(
    asked: Audited, file: Path, heads: dict[ConversationKey, Head], choices: Choices
) -> Audit:
    document = await read_object(file)
    name = asked.name or str(document.get("conversation_id") or file)
    return audit_document(document, heads, _conversation(name, choices))


def _conversation(name: str, choices: Choices) -> ConversationKey:
    return ConversationKey(
        name=name,
        user=choices.whose,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
    )


def _heads_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except ValueError as error:
        raise UsageError(f"{file}: it is no text: {error}") from error


def _key(file: Path) -> bytes:
    key = file.read_bytes().strip()
    if not key:
        raise UsageError(f"{file}: the key is empty")
    return key


def _print_audits(found: Sequence[Audit], choices: Choices, screen: Screen) -> None:
    if choices.as_json:
        rows: list[Json] = [_audit_row(one) for one in found]
        screen.raw(dumps({"conversations": rows}))
        return
    for one in found:
        name = visible(one.conversation.name)
        if one.forgotten is not None:
            screen.raw(f"{name}: forgotten on {one.forgotten:%Y-%m-%d}")
        elif not one.faults:
            count = counted(one.head.seq, "block")
            screen.raw(f"{name}: {count}, as written; head {one.head.digest.hex()}")
        for fault in one.faults:
            screen.raw(f"{name}: {fault.kind}: {visible(fault.text)}")
    if not found:
        screen.note(Text("there is no such conversation", style=QUIET))


def _audit_row(one: Audit) -> JsonObject:
    faults: list[Json] = [
        {"seq": fault.seq, "kind": fault.kind, "text": fault.text} for fault in one.faults
    ]
    return {
        "conversation": one.conversation.name,
        "user": one.conversation.user,
        "project": one.conversation.project,
        "tenant": one.conversation.tenant,
        "seq": one.head.seq,
        "digest": one.head.digest.hex(),
        "forgotten": None if one.forgotten is None else one.forgotten.isoformat(),
        "faults": faults,
    }
