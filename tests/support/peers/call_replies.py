"""What both vendors' models say in the same way: the call of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from tests.support.peers.http_server import Request

CREATED = 1_790_000_000
"""The time of every reply, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool; `arguments` is its JSON as the model wrote it, broken where it is to be."""

    name: str
    arguments: str
    id: str


def named_after(asked: Request, prefix: str) -> str:
    """An id that the same request gets again."""
    return f"{prefix}_{sha256(asked.raw).hexdigest()[:24]}"


def model_of(asked: Request) -> str:
    return str(asked.body.get("model", ""))
