"""The arguments and options that several commands share, as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OWN = "..."
"""Where a command's own options stand among the shared ones."""

ConversationArgument = Annotated[
    str | None, typer.Argument(metavar="CONVERSATION", help="Its name; the latest if omitted.")
]
ConversationOption = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--conversation",
        help="The conversation; if omitted, run and chat begin one, others take the latest.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(help="The store's URL, such as sqlite:///talk.db; else LOOPLINE_STORE."),
]
ModelOption = Annotated[
    str | None, typer.Option(help="The model, such as openai:gpt-5; else LOOPLINE_MODEL.")
]
UserOption = Annotated[str | None, typer.Option(help="The user of the conversation.")]
ProjectOption = Annotated[str | None, typer.Option(help="The project of the conversation.")]
TenantOption = Annotated[str | None, typer.Option(help="The tenant of the conversation.")]
PropOption = Annotated[
    list[str] | None,
    typer.Option("--prop", metavar="A.B=VALUE", help="Set a property of the bundle."),
]
RecordOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Record the replies of a provider's model.")
]
ReplayOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Answer from a recording, without network.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]
PagerOption = Annotated[
    bool,
    typer.Option(
        "--pager/--no-pager", help="Show long output in PAGER, else in less.", show_default=False
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Log to stderr; with --json in lines of JSON.")
]
