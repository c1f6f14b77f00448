"""What the options that commands share have chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline.bundle import Setting, written
from loopline.cli.door import UsageError
from loopline.harness import Cassette
from loopline.timeline import DEFAULT_USER


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
        return dict(map(written, self.props))

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
