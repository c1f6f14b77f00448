"""Commands on a store, which need no bundle: read, export, import, audit, backup, fork, feedback, forget, stop."""

from __future__ import annotations

import asyncio
import shlex
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.rule import Rule
from rich.text import Text

from loopline.cli.access import (
    chosen_conversation,
    conversation_in,
    conversation_key,
    no_such_conversation,
    open_store,
    read_object,
)
from loopline.cli.options import (
    REACTIONS,
    Choices,
    ConversationArgument,
    ConversationOption,
    JsonOption,
    ProjectOption,
    ReactionName,
    StoreOption,
    TenantOption,
    UserOption,
    VerboseOption,
)
from loopline.cli.process import ANSWERED, FAILED, UsageError, execute
from loopline.cli.terminal import QUIET, REF, Keyboard, Screen, escape, quantity, restored_terminal
from loopline.errors import LooplineError
from loopline.harness import Store
from loopline.models import Json, JsonObject
from loopline.reader import (
    Item,
    Reading,
    audit_document,
    heads_text,
    import_actions,
    read_heads,
)
from loopline.timeline import ConversationKey, Timeline, Turn, turn_id
from loopline.timeline.chain import Audit, Head


def read_command(
    refs: Annotated[
        list[str],
        typer.Argument(
            metavar="REF...", help="Refs, as other commands print them.", show_default=False
        ),
    ],
    conversation: ConversationOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Read anything that has a ref."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    execute(partial(read, refs, choices), verbose=verbose, as_json=as_json)


async def read(refs: Sequence[str], choices: Choices, screen: Screen) -> int:
    """Print what the refs name; fail if a ref names nothing."""
    async with open_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        reading = await conversation.read(refs)
    if choices.as_json:
        items: list[Json] = [_item_document(item) for item in reading]
        name = conversation.conversation.name
        screen.write_json({"conversation": name, **reading.status(), "items": items})
    else:
        _show_reading(reading, screen)
    return FAILED if reading.missing else ANSWERED


def _show_reading(reading: Reading, screen: Screen) -> None:
    parts = [quantity(len(reading.paths), "ref") + " read"]
    if reading.missing:
        parts.append(f"{len(reading.missing)} missing")
    parts.append(f"about {quantity(reading.total_tokens, 'token')}")
    screen.note(" · ".join(parts))
    for item in reading:
        if not item.readable:
            screen.error(f"{item.requested}: {item.message}")
            continue
        title = escape(f"{item.ref} — {item.title}" if item.title else item.ref)
        if len(reading.items) > 1:
            rule = Rule(Text(title, style=REF), align="left", style=QUIET)
            screen.print_layout(rule, f"--- {title}")
        elif item.ref != item.requested or item.title:
            screen.note(Text(title, style=REF))
        screen.write_escaped(item.text)
        if item.message:
            screen.note(item.message)


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


def export_command(
    conversation: ConversationArgument = None,
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
    execute(partial(export, choices), verbose=verbose)


async def export(choices: Choices, screen: Screen) -> int:
    """Print the document of a conversation."""
    async with open_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        screen.write_json(await conversation.export())
    return ANSWERED


def import_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="What export printed; - reads stdin.", show_default=False
        ),
    ],
    name: Annotated[
        str,
        typer.Option("--as", help="Its name here, instead of its own.", show_default=False),
    ] = "",
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION",
            help="Allow an action that the import lists as inert; may be repeated.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Store an exported conversation; its actions stay inert."""
    choices = Choices(store=store, user=user)
    execute(partial(import_document, file, name, confirm or (), choices), verbose=verbose)


async def import_document(
    file: Path, name: str, confirmed: Sequence[str], choices: Choices, screen: Screen
) -> int:
    """Store an exported conversation block by block as it was, and list the actions that stay inert."""
    document = await read_object(file)
    async with Store.open(choices.store) as store:
        conversation = await store.load(
            document, name=name, confirm=confirmed, user=choices.user_name
        )
        *blocks, _ = await conversation.blocks()
    imported = conversation.conversation.name
    screen.note(f"conversation {escape(imported)}: {quantity(len(blocks), 'block')} imported")
    for action in import_actions(blocks, imported):
        if action.name not in confirmed:
            screen.note(
                f"inert: {action.name} ({action.text}); --confirm {action.name} would allow it"
            )
    return ANSWERED


def audit_command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION", help="Its name; all if omitted.", show_default=False
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
        typer.Option(
            metavar="FILE", help="Compare with heads that were saved.", show_default=False
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the current heads.", show_default=False),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that signs the heads.", show_default=False),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find blocks that are not as they were written."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    work = partial(audit, choices, document=document, heads_file=head, save=save, key_file=key)
    execute(work, verbose=verbose, as_json=as_json)


async def audit(
    choices: Choices,
    screen: Screen,
    *,
    document: Path | None,
    heads_file: Path | None,
    save: Path | None,
    key_file: Path | None,
) -> int:
    """Print what is not as it was written; fail if there is any.

    Audits the `document` if there is one, else the chosen conversation, else every conversation of the store.
    """
    key = b"" if key_file is None else await asyncio.to_thread(_read_key, key_file)
    heads = dict[ConversationKey, Head]()
    if heads_file is not None:
        heads = read_heads(await asyncio.to_thread(_read_text, heads_file), key)
    name = choices.conversation
    if document is not None:
        exported = await read_object(document)
        name = name or str(exported.get("conversation_id") or document)
        audits: Sequence[Audit] = [audit_document(exported, heads, conversation_key(name, choices))]
    else:
        only = None if name is None else conversation_key(name, choices)
        async with open_store(choices) as store:
            audits = await store.audit(heads, only)
    if save is not None:
        current = {
            result.conversation: result.head
            for result in audits
            if result.head.seq and not result.faults
        }
        await asyncio.to_thread(save.write_text, heads_text(current, key), "utf-8")
    if choices.as_json:
        rows: list[Json] = [_audit_document(result) for result in audits]
        screen.write_json({"conversations": rows})
    else:
        _show_audits(audits, screen)
    return FAILED if any(result.faults for result in audits) else ANSWERED


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except ValueError as error:
        raise UsageError(f"{file}: it is not text: {error}") from error


def _read_key(file: Path) -> bytes:
    key = file.read_bytes().strip()
    if not key:
        raise UsageError(f"{file}: the key is empty")
    return key


def _show_audits(audits: Sequence[Audit], screen: Screen) -> None:
    for result in audits:
        name, head = escape(result.conversation.name), result.head
        if result.forgotten is not None:
            screen.write(f"{name}: forgotten on {result.forgotten:%Y-%m-%d}")
        elif not result.faults:
            count = quantity(head.seq, "block")
            screen.write(f"{name}: {count}, as written; head {head.digest.hex()}")
        for fault in result.faults:
            screen.write(f"{name}: {fault.kind}: {escape(fault.text)}")
    if not audits:
        screen.note("there is no such conversation")


def _audit_document(result: Audit) -> JsonObject:
    faults: list[Json] = [
        {"seq": fault.seq, "kind": fault.kind, "text": fault.text} for fault in result.faults
    ]
    return {
        "conversation": result.conversation.name,
        "user": result.conversation.user,
        "project": result.conversation.project,
        "tenant": result.conversation.tenant,
        "seq": result.head.seq,
        "digest": result.head.digest.hex(),
        "forgotten": None if result.forgotten is None else result.forgotten.isoformat(),
        "faults": faults,
    }


def backup_command(
    target: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file that does not exist yet.", show_default=False),
    ],
    store: StoreOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Copy the store, with its blobs, while it is in use."""
    execute(partial(backup, target, Choices(store=store)), verbose=verbose)


async def backup(target: Path, choices: Choices, screen: Screen) -> int:
    """Copy the store while it is in use."""
    async with Store.open(choices.store) as store:
        await store.backup(target)
    screen.note(f"backed up to {target}")
    return ANSWERED


def forget_command(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Its name.", show_default=False)
    ],
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Forget the forks that show parts of it too.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask first.")] = False,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Remove a conversation for good, after asking."""
    choices = Choices(conversation=conversation, store=store, user=user)
    execute(partial(forget, conversation, cascade, yes, choices), verbose=verbose)


async def forget(
    name: str, cascade: bool, confirmed: bool, choices: Choices, screen: Screen
) -> int:
    """Remove a conversation for good, once the user has confirmed it.

    Raises:
        LooplineError: there is no such conversation.
        UsageError: nobody can be asked.
    """
    async with Store.open(choices.store) as store:
        key = conversation_key(name, choices)
        shown = f"conversation {escape(name)}"
        summary = await store.log.find(key)
        if summary is None:
            if await store.log.forgotten(key) is None:
                raise LooplineError(
                    f"there is no {shown} of the user {choices.user_name!r}: "
                    "loopline timeline --list names them"
                )
            screen.note(f"{shown} was forgotten before")
            return ANSWERED
        if not confirmed and not await _confirm(f"{shown}, {quantity(summary.turns, 'turn')}"):
            screen.note(f"{shown} is kept")
            return FAILED
        await store.forget(name, cascade=cascade, user=choices.user_name)
    screen.note(f"{shown} is forgotten")
    return ANSWERED


async def _confirm(subject: str) -> bool:
    """Ask the user whether to remove it for good."""
    keyboard = Keyboard()
    if not keyboard.is_person:
        raise UsageError("forget removes for good, and there is no terminal to ask at: give --yes")
    with restored_terminal():
        line = await keyboard.ask(f"Remove {subject}, for good? [y/N] ")
    return (line or "").strip().lower() in ("y", "yes")


def fork_command(
    seq: Annotated[int, typer.Option(min=1, metavar="SEQ", help="The last block that both share.")],
    conversation: Annotated[
        str | None, typer.Argument(help="Its name; the latest if omitted.", show_default=False)
    ] = None,
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="The name of the new conversation.", show_default=False),
    ] = "",
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Begin another conversation from a block of this one."""
    choices = Choices(conversation=conversation, store=store, user=user)
    execute(partial(fork, seq, name, choices), verbose=verbose)


async def fork(seq: int, name: str, choices: Choices, screen: Screen) -> int:
    """Begin another conversation with the blocks of one up to a seq."""
    async with Store.open(choices.store) as store:
        source = await chosen_conversation(store, choices, screen)
        copy = await source.fork(seq=seq, name=name)
    screen.print(Text(escape(copy.conversation.name)))
    return ANSWERED


def feedback_command(
    turn: Annotated[str, typer.Argument(metavar="TURN", help="The turn, such as turn_2.")],
    reaction: Annotated[ReactionName, typer.Argument(help="Your reaction; none takes it back.")],
    text: Annotated[str, typer.Option(help="Your reason.", show_default=False)] = "",
    conversation: ConversationOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Rate a turn; the newest reaction counts."""
    choices = Choices(conversation=conversation, store=store, user=user)
    execute(partial(rate, turn, reaction, text, choices), verbose=verbose)


async def rate(turn: str, reaction: str, text: str, choices: Choices, screen: Screen) -> int:
    """Record the user's reaction to a turn; `none` takes it back."""
    async with Store.open(choices.store) as store:
        conversation = await chosen_conversation(store, choices, screen)
        await conversation.feedback(turn, REACTIONS[reaction], text=text)
    screen.note(f"{escape(turn)} of {escape(conversation.conversation.name)}: {reaction}")
    return ANSWERED


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
    """Stop the running turn, in any process, and queued turns."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    execute(partial(stop, wait, choices), verbose=verbose, as_json=as_json)


async def stop(seconds: float, choices: Choices, screen: Screen) -> int:
    """Stop the turns of a conversation that run or wait, and print how each ended.

    Waits at most so many `seconds` for the process that runs them; fails if one still runs then.

    Raises:
        LooplineError: there is no such conversation.
    """
    async with open_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        name = conversation.conversation.name
        if await store.log.find(conversation.conversation) is None:
            raise no_such_conversation(name, choices)
        timeline = Timeline(await conversation.blocks())
    numbers = [turn.number for turn in timeline.open_turns]
    turns = list[Turn]()
    if numbers:
        screen.note(f"asking {', '.join(map(turn_id, numbers))} of {escape(name)} to stop")
        async with Store.open(choices.store) as store:
            conversation = conversation_in(store, name, choices)
            with suppress(TimeoutError):
                await asyncio.wait_for(conversation.stop(), seconds)
            timeline = Timeline(await conversation.blocks())
            turns = [timeline.turn(number) for number in numbers]
    if choices.as_json:
        screen.write_json({"conversation": name, "turns": list(map(_stopped_document, turns))})
    elif not turns:
        screen.print(Text(f"nothing was running in {escape(name)}"))
    for turn in turns:
        if turn.exit is None:
            screen.error(
                f"{turn_id(turn.number)} still runs after {seconds:g} s: it ends as soon as its process "
                f"looks again; loopline timeline {shlex.quote(escape(name))} shows when"
            )
        elif not choices.as_json:
            screen.print(Text(f"{turn_id(turn.number)}: {turn.exit.reason}"))
    return ANSWERED if all(turn.exit for turn in turns) else FAILED


def _stopped_document(turn: Turn) -> JsonObject:
    exit_reason = turn.exit.reason if turn.exit else None
    return {"turn_id": turn_id(turn.number), "exit_reason": exit_reason}
