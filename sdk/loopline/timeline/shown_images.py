"""Images that a result shows to the model: their refs, and their bytes as they were."""

from __future__ import annotations

from msgspec import Struct


class ShownImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image with the pinned ref that reads it again; `data` are its bytes in base64, `width` and `height` its pixels.

    An animation `moves`.
    """

    ref: str
    mime: str
    size: int
    sha256: str
    data: str
    width: int
    height: int
    moves: bool = False
