"""An append as it was asked for: its bodies encoded, the large among them as blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from loopline.timeline import Body, ConversationKey, Entry
from loopline.timeline.blobs import LARGE_BYTES
from loopline.timeline.soundness import sound

SURVIVE_POWER = {
    "user.prompt",
    "user.followup",
    "user.steer",
    "user.stop",
    "user.answer",
    "user.recalled",
    "user.attachment",
    "turn.feedback",
    "react.tool.start",
    "assistant.completion",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A body as its row holds it; one that is too large for a row is in `large`, named by `blob`.

    It is `size` bytes long, and `sha256` is theirs.
    """

    kind: str
    version: int
    body: str
    size: int
    sha256: bytes
    blob: str | None = None
    large: bytes = b""

    @classmethod
    def of(cls, body: Body, *, has_blobs: bool) -> Self:
        """The body, encoded.

        Raises:
            UnsoundBody: it could not be read again.
        """
        kind, version, text = sound(body)
        data = text.encode()
        digest = sha256(data).digest()
        if has_blobs and len(data) > LARGE_BYTES:
            return cls(kind, version, "", len(data), digest, digest.hex(), data)
        return cls(kind, version, text, len(data), digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """An append as it was asked for, its bodies encoded already."""

    conversation: ConversationKey
    entries: Sequence[Entry]
    stored: Sequence[Stored]
    seen: int
    term: int | None
    key: str

    @classmethod
    def of(
        cls,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None,
        key: str,
        has_blobs: bool,
    ) -> Self:
        """The append, with its bodies encoded.

        Raises:
            UnsoundBody: a body could not be read again.
            UnicodeEncodeError: a name in it is none that a database can hold.
        """
        named = conversation
        "".join((named.name, named.user, named.tenant, named.project, key)).encode()
        return cls(
            conversation=conversation,
            entries=tuple(entries),
            stored=[Stored.of(entry.body, has_blobs=has_blobs) for entry in entries],
            seen=seen,
            term=term,
            key=key,
        )

    @property
    def survives_power(self) -> bool:
        """Whether to wait until the disk has it, and not only the operating system."""
        return any(stored.kind in SURVIVE_POWER for stored in self.stored)

    @property
    def large(self) -> list[bytes]:
        """What is to be kept as blobs."""
        return [stored.large for stored in self.stored if stored.blob is not None]
