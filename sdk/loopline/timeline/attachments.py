"""Attached files: the body of a file, and a line that describes it."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import one_line

PDF = "application/pdf"


class UserAttachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was attached to the input `place` blocks before this block.

    `data` is the file in base64; `size` is in bytes, `sha256` in hexadecimal. `text` is the text form of the file, empty
    without one; for a PDF it may be only the beginning. For a text file `data` is empty, and the content is `text` in
    UTF-8. `width` and `height` are an image's pixels; `moves` is true for an animation. `pages` is the number of pages
    of a PDF.
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
    type: ClassVar[Literal["user.attachment"]] = "user.attachment"


def is_image(file: UserAttachment) -> bool:
    """Return whether the file is an image of known size in pixels."""
    return file.width > 0


def describe(file: UserAttachment) -> str:
    """Return one line with the MIME type, the pixels or pages if known, and the size in bytes."""
    size = f"{file.width}×{file.height} pixels" if is_image(file) else ""
    pages = f"{file.pages:,} page{'' if file.pages == 1 else 's'}" if file.pages else ""
    parts = [one_line(file.mime), size, pages, f"{file.size:,} bytes"]
    return ", ".join(part for part in parts if part)
