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

BundleArgument = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="A bundle's folder, or its name.", show_default=False),
]
ConversationOption = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--conversation",
        help="The conversation; else a new one to run or chat in, the latest to read.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        help="Where conversations are kept: sqlite:///talk.db, memory:. Else LOOPLINE_STORE says so.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="The model that decides. Else LOOPLINE_MODEL says so.", show_default=False),
]
UserOption = Annotated[
    str | None, typer.Option(help="Whose conversation it is.", show_default=False)
]
ProjectOption = Annotated[
    str | None, typer.Option(help="Of which project it is.", show_default=False)
]
TenantOption = Annotated[
    str | None, typer.Option(help="Of which tenant it is.", show_default=False)
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
        metavar="FILE", help="Record what a model at a provider says.", show_default=False
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Let a recording answer, without network.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
PagerOption = Annotated[
    bool,
    typer.Option(
        "--pager/--no-pager",
        help="Show what is longer than the terminal in PAGER, else in less.",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Say more, on stderr; with --json in lines of JSON.")
]


REACTIONS: Mapping[str, Reaction | None] = {
    "ok": "ok",
    "not_ok": "not_ok",
    "neutral": "neutral",
    "none": None,
}
"""What a turn may be worth, as it is typed; `none` takes the last word back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The common options; None is what was left to its default."""

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
    def whose(self) -> str:
        """The user."""
        return self.user or DEFAULT_USER

    @property
    def owner(self) -> tuple[str | None, str | None, str | None]:
        """The user, the project and the tenant."""
        return self.user, self.project, self.tenant

    @property
    def settings(self) -> dict[str, Setting]:
        """The properties by name.

        Raises:
            PropertyError: one of them sets nothing.
        """
        return dict(map(parse_setting, self.props))

    @property
    def cassette(self) -> Cassette | None:
        """What models at a provider say is recorded in, or taken from.

        Raises:
            UsageError: it is to be both.
        """
        if self.record is not None and self.replay is not None:
            raise UsageError("--record makes a file and --replay reads one: choose one of them")
        if self.record is not None:
            return Cassette(self.record, mode="record")
        return None if self.replay is None else Cassette(self.replay)
