"""Attachments as they are handed in, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to attach. Its type is told by its bytes; `mime` says which kind of text a text is."""

    name: str
    data: bytes
    mime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentCaps:
    """How large a message may be, in bytes, in pixels a side and in pages of a PDF.

    `prompt_bytes` is for the text of a message in UTF-8, or of what is given to calls that wait, `message_bytes` for its text and all its files,
    `file_bytes` for one file of any other type.
    """

    image_bytes: int = 5 * MB
    image_pixels: int = 8_000
    pdf_bytes: int = 10 * MB
    pdf_pages: int = 500
    text_bytes: int = 10 * MB
    file_bytes: int = 10 * MB
    prompt_bytes: int = MB // 2
    message_bytes: int = 25 * MB
