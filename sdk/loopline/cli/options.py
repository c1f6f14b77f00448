"""The arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from loopline.bundle import Setting, parse_setting
from loopline.cli.process import UsageError
from loopline.harness import Cassette
from loopline.timeline import DEFAULT_USER, Reaction

Protocol = Literal["auto", "native", "json", "tagged", "thought_action"]
ReactionName = Literal["ok", "not_ok", "neutral", "none"]
REACTIONS: Mapping[str, Reaction | None] = {
    "ok": "ok",
    "not_ok": "not_ok",
    "neutral": "neutral",
    "none": None,
}
"""The reactions to a turn by the name that is typed; `none` takes a reaction back."""

BundleArgument = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="A bundle's folder or name.", show_default=False),
]
ConversationArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONVERSATION", help="Its name; the latest if omitted.", show_default=False
    ),
]
ConversationOption = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--conversation",
        help="The conversation; if omitted, run and chat begin one, others take the latest.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        help="The store's URL, such as sqlite:///talk.db; else LOOPLINE_STORE.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="The model, such as openai:gpt-5; else LOOPLINE_MODEL.", show_default=False),
]
UserOption = Annotated[
    str | None, typer.Option(help="The user of the conversation.", show_default=False)
]
ProjectOption = Annotated[
    str | None, typer.Option(help="The project of the conversation.", show_default=False)
]
TenantOption = Annotated[
    str | None, typer.Option(help="The tenant of the conversation.", show_default=False)
]
PropOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prop", metavar="A.B=VALUE", help="Set a property of the bundle.", show_default=False
    ),
]
RecordOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Record the replies of a provider's model.", show_default=False
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Answer from a recording, without network.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]
PagerOption = Annotated[
    bool,
    typer.Option(
        "--pager/--no-pager",
        help="Show long output in PAGER, else in less.",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Log to stderr; with --json in lines of JSON.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The common options of a command; None where one was omitted."""

    conversation: str | None = None
    store: str | None = None
    model: str | None = None
    user: str | None = None
    project: str | None = None
    tenant: str | None = None
    props: Sequence[str] = ()
    record: Path | None = None
    replay: Path | None = None
    as_json: bool = False

    @property
    def user_name(self) -> str:
        """The user, else the default one."""
        return self.user or DEFAULT_USER

    @property
    def properties(self) -> dict[str, Setting]:
        """The properties by name.

        Raises:
            PropertyError: a `--prop` sets nothing.
        """
        return dict(map(parse_setting, self.props))

    @property
    def cassette(self) -> Cassette | None:
        """The file in which the replies of a provider's model are recorded, or from which they come.

        Raises:
            UsageError: it is to do both.
        """
        if self.record is not None and self.replay is not None:
            raise UsageError("--record makes a file and --replay reads one: choose one of them")
        if self.record is not None:
            return Cassette(self.record, mode="record")
        return None if self.replay is None else Cassette(self.replay)
