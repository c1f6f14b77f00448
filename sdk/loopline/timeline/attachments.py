"""Attached files: the body that holds one, its bytes, and a line that describes it."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Literal

from loopline.models import one_line

PDF = "application/pdf"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAttachment:
    """A file that came with what the user said, which stands `place` blocks before it.

    `data` is the file in base64, of `size` bytes with that sha256 in hexadecimal. `text` is its text form,
    empty where it has none; of a PDF it may be the beginning. A text is all in `text`, whose UTF-8 are its
    bytes, and `data` is empty then. `width` and `height` are those of an image, in pixels, which `moves` if
    it is an animation; `pages` are those of a PDF.
    """

    name: str
    mime: str
    size: int
    sha256: str
    data: str
    text: str = ""
    width: int = 0
    height: int = 0
    moves: bool = False
    pages: int = 0
    place: int = 1
    type: Literal["user.attachment"] = "user.attachment"


def is_image(file: UserAttachment) -> bool:
    """Whether it is an image whose size is known."""
    return file.width > 0


def content(file: UserAttachment) -> bytes:
    """Its bytes, as they came."""
    return b64decode(file.data) if file.data else file.text.encode()


def describe(file: UserAttachment) -> str:
    """Its type, its size in pixels or pages, and in bytes."""
    size = f"{file.width}×{file.height} pixels" if is_image(file) else ""
    pages = f"{file.pages:,} page{'' if file.pages == 1 else 's'}" if file.pages else ""
    parts = [one_line(file.mime), size, pages, f"{file.size:,} bytes"]
    return ", ".join(part for part in parts if part)
