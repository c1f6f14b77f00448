"""Attached files as blocks: what they are, their bytes, and the input that they came with."""

from __future__ import annotations

from base64 import b64decode

from loopline.models import one_line
from loopline.timeline.blocks import Block, UserAttachment

PDF = "application/pdf"


def is_image(file: UserAttachment) -> bool:
    """Whether it is an image whose size is known."""
    return file.width > 0


def content(file: UserAttachment) -> bytes:
    """Its bytes, as they came."""
    return b64decode(file.data) if file.data else file.text.encode()


def described(file: UserAttachment) -> str:
    """Its type, its size in pixels or pages, and in bytes."""
    size = f"{file.width}×{file.height} pixels" if is_image(file) else ""
    pages = f"{file.pages:,} page{'' if file.pages == 1 else 's'}" if file.pages else ""
    parts = [one_line(file.mime), size, pages, f"{file.size:,} bytes"]
    return ", ".join(part for part in parts if part)


def said_with(block: Block) -> int:
    """The place of the input that an attachment came with; 0 for what is none."""
    return block.seq - block.body.place if isinstance(block.body, UserAttachment) else 0
