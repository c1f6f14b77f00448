"""`loopline read`, `export`, `import`, `audit`, `backup`, `fork`, `feedback`, `forget` and `stop`: what works on a store without a bundle."""

from __future__ import annotations

import asyncio
import shlex
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.rule import Rule
from rich.text import Text

from loopline.cli.access import kept, latest_kept, read_object, stored, unknown
from loopline.cli.options import (
    REACTIONS,
    Choices,
    ConversationOption,
    JsonOption,
    ProjectOption,
    StoreOption,
    TenantOption,
    UserOption,
    VerboseOption,
)
from loopline.cli.process import ANSWERED, FAILED, UsageError, attend
from loopline.cli.terminal import QUIET, REF, Keyboard, Screen, counted, restored, visible
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.harness import Store
from loopline.models import Json, JsonObject, dumps
from loopline.reader import Item, Reading, audit_document, heads_text, import_actions, read_heads
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ConversationKey,
    Timeline,
    Turn,
    turn_id,
)
from loopline.timeline.chain import Audit, Head


async def export(choices: Choices, screen: Screen) -> int:
    """Print the document of a conversation, whole."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        screen.raw(dumps(await kept(store, name, choices).export()))
    return ANSWERED


async def import_(
    file: Path, name: str, confirmed: Sequence[str], choices: Choices, screen: Screen
) -> int:
    """Keep an exported conversation in the store, block by block as it was, and list what stays inert."""
    document = await read_object(file)
    async with Store.open(choices.store) as store:
        talk = await store.load(document, name=name, confirm=confirmed, user=choices.whose)
        *blocks, _ = await talk.blocks()
    kept = visible(talk.conversation.name)
    screen.note(Text(f"conversation {kept}: {counted(len(blocks), 'block')} imported", style=QUIET))
    for action in import_actions(blocks, talk.conversation.name):
        if action.name not in confirmed:
            said = f"inert: {action.name} ({action.text}); --confirm {action.name} would allow it"
            screen.note(Text(visible(said), style=QUIET))
    return ANSWERED


async def backup(target: Path, choices: Choices, screen: Screen) -> int:
    """Copy the store while it is in use."""
    async with Store.open(choices.store) as store:
        await store.backup(target)
    screen.note(Text(f"backed up to {visible(str(target))}", style=QUIET))
    return ANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Which conversation to forget; `confirmed` when nobody has to be asked."""

    name: str
    cascade: bool
    confirmed: bool


async def forget(removal: Removal, choices: Choices, screen: Screen) -> int:
    """Remove a conversation for good, once the user has confirmed it.

    Raises:
        LooplineError: there is no such conversation.
        UsageError: nobody can be asked.
    """
    async with Store.open(choices.store) as store:
        handle = kept(store, removal.name, choices)
        shown = f"conversation {visible(removal.name)}"
        summary = await store.log.find(handle.conversation)
        if summary is None:
            if await store.log.forgotten(handle.conversation) is None:
                raise LooplineError(
                    f"there is no {shown} of the user {choices.whose!r}: loopline timeline --list names them"
                )
            screen.note(Text(f"{shown} was forgotten before", style=QUIET))
            return ANSWERED
        if not removal.confirmed and not await _confirmed(
            f"{shown}, {counted(summary.turns, 'turn')}"
        ):
            screen.note(Text(f"{shown} is kept", style=QUIET))
            return FAILED
        await store.forget(removal.name, cascade=removal.cascade, user=choices.whose)
    screen.note(Text(f"{shown} is forgotten", style=QUIET))
    return ANSWERED


async def _confirmed(what: str) -> bool:
    """Ask whether to remove it for good."""
    keyboard = Keyboard()
    if not keyboard.is_person:
        raise UsageError("forget removes for good, and there is no terminal to ask at: give --yes")
    with restored():
        line = await keyboard.ask(f"Remove {what}, for good? [y/N] ")
    return (line or "").strip().lower() in ("y", "yes")


async def fork(seq: int, name: str, choices: Choices, screen: Screen) -> int:
    """Begin another conversation with the blocks of one up to a place."""
    async with Store.open(choices.store) as store:
        source = await latest_kept(store, choices, screen)
        made = await kept(store, source, choices).fork(seq=seq, name=name)
    screen.answer(Text(visible(made.conversation.name)))
    return ANSWERED


async def judge(turn: str, reaction: str, text: str, choices: Choices, screen: Screen) -> int:
    """Record what the user thinks of a turn; `none` takes it back."""
    async with Store.open(choices.store) as store:
        name = await latest_kept(store, choices, screen)
        await kept(store, name, choices).feedback(turn, REACTIONS[reaction], text=text)
    screen.note(Text(f"{visible(turn)} of {visible(name)}: {reaction}", style=QUIET))
    return ANSWERED


def export_command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION", help="Its name; without it the latest.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Print a conversation as a JSON document."""
    choices = Choices(
        conversation=conversation, store=store, user=user, project=project, tenant=tenant
    )
    attend(partial(export, choices), verbose=verbose)


def import_command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What export printed; - is stdin.", show_default=False),
    ],
    name: Annotated[
        str, typer.Option("--as", help="Its name here, instead of its own.", show_default=False)
    ] = "",
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION",
            help="Let this act, which the import lists as inert; may be given again.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Keep an exported conversation; what would act stays inert."""
    choices = Choices(store=store, user=user)
    attend(partial(import_, file, name, confirm or (), choices), verbose=verbose)


def audit_command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION", help="Its name; without it every one.", show_default=False
        ),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Audit an exported document instead.", show_default=False
        ),
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with heads saved before.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the heads of now.", show_default=False),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The key that heads are signed with.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say which blocks are not as they were written."""
    choices = Choices(store=store, user=user, project=project, tenant=tenant, as_json=as_json)
    asked = Audited(name=conversation, document=document, heads=head, save=save, key=key)
    attend(partial(audit, asked, choices), verbose=verbose, as_json=as_json)


def backup_command(
    target: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file that is not there yet.", show_default=False),
    ],
    store: StoreOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Copy the store, with its blobs, while it is in use."""
    attend(partial(backup, target, Choices(store=store)), verbose=verbose)


def forget_command(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Its name.", show_default=False)
    ],
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Forget the forks that show some of it too.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask first.")] = False,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Remove a conversation for good, after asking."""
    removal = Removal(name=conversation, cascade=cascade, confirmed=yes)
    choices = Choices(store=store, user=user)
    attend(partial(forget, removal, choices), verbose=verbose)


def fork_command(
    seq: Annotated[int, typer.Option(min=1, metavar="SEQ", help="The last block that both share.")],
    conversation: Annotated[
        str | None, typer.Argument(help="Its name; else the latest.", show_default=False)
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the new one is called.", show_default=False)
    ] = "",
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Begin another conversation from a block of this one."""
    choices = Choices(conversation=conversation, store=store, user=user)
    attend(partial(fork, seq, name, choices), verbose=verbose)


def feedback_command(
    turn: Annotated[str, typer.Argument(metavar="TURN", help="Such as turn_2.")],
    reaction: Annotated[
        Literal["ok", "not_ok", "neutral", "none"],
        typer.Argument(help="What the turn was worth; none takes it back."),
    ],
    text: Annotated[str, typer.Option(help="Why.", show_default=False)] = "",
    conversation: ConversationOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Judge a turn; the newest reaction counts."""
    choices = Choices(conversation=conversation, store=store, user=user)
    attend(partial(judge, turn, reaction, text, choices), verbose=verbose)


def stop_command(
    conversation: ConversationOption = None,
    wait: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="How long to wait until it has ended."),
    ] = 30.0,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """End the turn that runs, in whatever process, and what waits."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    attend(partial(stop, wait, choices), verbose=verbose, as_json=as_json)


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


async def stop(seconds: float, choices: Choices, screen: Screen) -> int:
    """End the turns of a conversation that run or wait, and print what became of each.

    Waits at most so many `seconds` for the process that runs them; a failure if one still runs then.

    Raises:
        LooplineError: there is no such conversation.
    """
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        if await store.log.find(talk.conversation) is None:
            raise unknown(name, choices)
        numbers = await _open_turns(talk)
    turns = list[Turn]()
    if numbers:
        asked = ", ".join(map(turn_id, numbers))
        screen.note(Text(f"asking {asked} of {visible(name)} to stop", style=QUIET))
        async with Store.open(choices.store) as store:
            talk = kept(store, name, choices)
            with suppress(TimeoutError):
                await asyncio.wait_for(talk.stop(), seconds)
            timeline = Timeline(await talk.blocks())
            turns = [timeline.turn(number) for number in numbers]
    _show_stopped(name, turns, seconds, choices, screen)
    return ANSWERED if all(turn.exit for turn in turns) else FAILED


async def _open_turns(talk: Conversation) -> Sequence[int]:
    """The turns that run, are paused or cut off, or wait to be run."""
    timeline = Timeline(await talk.blocks())
    return [turn.number for turn in (*timeline.resumable, *timeline.queued)]


def _show_stopped(
    name: str, turns: Sequence[Turn], seconds: float, choices: Choices, screen: Screen
) -> None:
    if choices.as_json:
        screen.raw(
            dumps({"conversation": name, "turns": [_stopped_document(turn) for turn in turns]})
        )
    elif not turns:
        screen.answer(Text(f"nothing was running in {visible(name)}"))
    for turn in turns:
        if turn.exit is None:
            screen.error(
                f"{turn_id(turn.number)} still runs after {seconds:g} s: it ends as soon as its process "
                f"looks again; loopline timeline {shlex.quote(visible(name))} shows when"
            )
        elif not choices.as_json:
            screen.answer(Text(f"{turn_id(turn.number)}: {turn.exit.reason}"))


def _stopped_document(turn: Turn) -> JsonObject:
    return {
        "turn_id": turn_id(turn.number),
        "exit_reason": turn.exit.reason if turn.exit else None,
    }


async def read(refs: Sequence[str], choices: Choices, screen: Screen) -> int:
    """Print what the refs name; a failure if there is one that names nothing."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        reading = await talk.read(refs)
    if choices.as_json:
        screen.raw(dumps({"conversation": name, **_reading_document(reading)}))
    else:
        _show_reading(reading, screen)
    return FAILED if reading.missing else ANSWERED


def _reading_document(reading: Reading) -> JsonObject:
    """The status of a reading and its items, for programs."""
    return {**reading.status(), "items": [_item_document(item) for item in reading]}


def _item_document(item: Item) -> Json:
    data: JsonObject = {"data": b64encode(item.data).decode()} if item.data else {}
    return {
        "ref": item.ref,
        "asked": item.requested,
        "status": item.status,
        "mime": item.mime,
        "title": item.title,
        "message": item.message,
        "text": item.text,
        **data,
    }


def _show_reading(reading: Reading, screen: Screen) -> None:
    parts = [counted(len(reading.paths), "ref") + " read"]
    if reading.missing:
        parts.append(f"{len(reading.missing)} missing")
    parts.append(f"about {counted(reading.total_tokens, 'token')}")
    screen.note(Text(" · ".join(parts), style=QUIET))
    several = len(reading.items) > 1
    for item in reading:
        if not item.readable:
            screen.error(f"{item.requested}: {item.message}")
            continue
        title = f"{item.ref} — {item.title}" if item.title else item.ref
        if several:
            rule = Rule(Text(visible(title), style=REF), align="left", style=QUIET)
            screen.answer_whole(rule, f"--- {visible(title)}")
        elif item.ref != item.requested or item.title:
            screen.note(Text(visible(title), style=REF))
        screen.exact(item.text)
        if item.message:
            screen.note(Text(item.message, style=QUIET))
