"""Answers of a server that are no values of a harness: their fields."""

from __future__ import annotations

from msgspec import Struct

from loopline.models import JsonObject


class PrincipalDocument(Struct):
    """Whom the key names."""

    tenant: str
    project: str
    user: str
    roles: tuple[str, ...]
    bundles: tuple[str, ...]


class PlaceDocument(Struct):
    """Where a message is stored."""

    turn_id: str
    seq: int


class DoneDocument(Struct):
    """Whether there was something to do, and it was done."""

    done: bool


class _ApprovalDocument(Struct):
    call_id: str
    approval: str


class ApprovalsDocument(Struct):
    """The calls that await approval, each with its signed approval."""

    approvals: tuple[_ApprovalDocument, ...]


class ForkDocument(Struct):
    """The conversation that a fork began."""

    conversation_id: str


class StatusMeta(Struct):
    """How far a conversation is."""

    last_seq: int
    pending_calls: tuple[str, ...]
    resumable_turns: tuple[str, ...]
    left_turns: dict[str, str]


class StatusDocument(Struct):
    """Whether a conversation runs."""

    meta: StatusMeta


class BlocksDocument(Struct):
    """Some blocks, and the seq after which there are more."""

    blocks: tuple[JsonObject, ...]
    next_after: int | None


class ListedDocument(Struct):
    """A conversation in a list."""

    conversation_id: str
    last_activity_at: str
    started_at: str
    title: str | None


class ListDocument(Struct):
    """The conversations of a user."""

    items: tuple[ListedDocument, ...]
