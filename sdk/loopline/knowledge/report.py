"""What building an index came to: how much is in it, what was left out and what looked wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, TypedDict, cast

from loopline.errors import KnowledgeError

Reason = Literal["binary", "too large", "name is not UTF-8"]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in the index, and why."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a build; it is kept with the index, so that a later start can tell it again."""

    files: int
    passages: int
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]


class _Written(TypedDict):
    files: int
    passages: int
    skipped: list[_WrittenSkipped]
    warnings: list[str]


class _WrittenSkipped(TypedDict):
    path: str
    reason: Reason


def dump(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(asdict(report))


def load(text: str) -> Report:
    """The report that `dump` wrote.

    Raises:
        KnowledgeError: it is something else.
    """
    try:
        written = cast(_Written, json.loads(text))
        return Report(
            files=written["files"],
            passages=written["passages"],
            skipped=tuple(Skipped(row["path"], row["reason"]) for row in written["skipped"]),
            warnings=tuple(written["warnings"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise KnowledgeError(f"an index has notes that cannot be read: {error}") from error
