"""What can be typed to change what the store holds, or to take it elsewhere: each a command of `loopline`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from loopline.cli.auditing import Audited, audit
from loopline.cli.choices import Choices
from loopline.cli.door import attend
from loopline.cli.keeping import Removal, backup, export, forget, fork, import_, judge
from loopline.cli.options import (
    ConversationOption,
    JsonOption,
    ProjectOption,
    StoreOption,
    TenantOption,
    UserOption,
    VerboseOption,
)
from loopline.cli.stop_request import stop


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
