"""What a reading gives: an item for each ref asked for, and a status over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from loopline.models import Json, JsonObject
from loopline.models.tokens import estimate
from loopline.timeline import Source

Status = Literal["ok", "cut", "missing", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One ref, read.

    `ref` is pinned wherever the name that was `asked` for moves. `message` says what was cut and which
    ref restores it, or why there is nothing and what was possible. `data` are the bytes of an attached
    file, whose `text` is its text form, or a line that says what it is.
    """

    ref: str
    asked: str
    status: Status
    text: str = ""
    mime: str = "text/plain"
    title: str = ""
    message: str = ""
    source: Source | None = None
    keep: bool = False
    data: bytes = field(default=b"", repr=False)

    @property
    def found(self) -> bool:
        """Whether there is something to read."""
        return self.status in ("ok", "cut")

    @property
    def sha256(self) -> str:
        """The digest of the text, in hexadecimal."""
        return sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """The items of one reading, in the order asked; iterating gives them."""

    items: Sequence[Item]
    exists_in_visible_context: Sequence[str] = ()

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def paths(self) -> list[str]:
        """The refs that were read."""
        return [item.ref for item in self.items if item.found]

    @property
    def missing(self) -> list[str]:
        """The refs that gave nothing."""
        return [item.asked for item in self.items if not item.found]

    @property
    def total_tokens(self) -> int:
        """An estimate of the tokens that the texts cost."""
        return sum(estimate(item.text) for item in self.items)

    def status(self) -> JsonObject:
        """The status that precedes the texts."""
        paths: list[Json] = [
            {"path": item.ref, "tokens": estimate(item.text)} for item in self.items if item.found
        ]
        return {
            "paths": paths,
            "missing": list[Json](self.missing),
            "total_tokens": self.total_tokens,
            "exists_in_visible_context": list[Json](self.exists_in_visible_context),
        }
