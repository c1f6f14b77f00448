"""Imported conversations: what in them would act, and the mark that keeps it from acting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Every block before this one was imported from a document, which anybody may have written.

    Turns that had not ended there are never run, and repositories named there are never read, unless a
    person `confirmed` them by the names that `ImportedAction` gives them.
    """

    confirmed: tuple[str, ...] = ()
    type: Literal["conv.imported"] = "conv.imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAction:
    """Something in a document that would act once it is confirmed; `text` says how."""

    name: str
    text: str


def repository_action(repository: str) -> str:
    """The name by which reading from a repository is confirmed."""
    return f"repository:{repository}"


def child_action(conversation: str) -> str:
    """The name by which it is confirmed that a conversation is the child run of another one."""
    return f"child:{conversation}"


def unknown_names(confirmed: Sequence[str], actions: Sequence[ImportedAction]) -> list[str]:
    """The names that are confirmed although no action has them."""
    names = {action.name for action in actions}
    return [name for name in confirmed if name not in names]
